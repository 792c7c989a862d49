//! Readers of the layouts in which traces of clusters are published, and in which clusters keep their history. One file
//! each; what they have in common is in `gather.rs`.

mod acme;
mod auto;
mod chronus;
mod clock;
mod cluster_log;
mod elasticflow;
mod gather;
mod gavel;
mod helios;
mod json;
mod openb;
mod options;
mod pai;
mod philly;
mod pollux;
mod sacct;
mod shockwave;
mod swf;
mod tiresias;

use std::path::{Path, PathBuf};

use cluster::{Cluster, QueueTree};

pub(crate) use openb::read_nodes as read_openb_nodes_with_lines;
pub use openb::read_openb_nodes;

use crate::Workload;
use crate::csv;
use crate::error::Error;
use crate::stream::Rows;
use options::COMMON;

pub(crate) use auto::Head;
pub(crate) use gather::Request;
pub(crate) use options::Options;

/// A layout by the name people type before a path.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// How they are told from others; nothing if another format is told in its place.
    pub(crate) sign: &'static str,
    /// Options beside those that all have.
    options: &'static [&'static str],
    pub(crate) recognise: fn(&Head) -> Option<String>,
    read: fn(Request<'_>) -> Result<Workload, Error>,
    /// How the same jobs are had one by one, if every row is a job that can be told without the others.
    pub(crate) rows: Option<OpenRows>,
}

pub(crate) type OpenRows = for<'a> fn(Request<'a>) -> Result<Box<dyn Rows + 'a>, Error>;

macro_rules! format {
    ($name:literal, $module:ident, $sign:literal) => {
        Format {
            name: $name,
            sign: $sign,
            options: $module::OPTIONS,
            recognise: $module::recognise,
            read: $module::read,
            rows: None,
        }
    };
}

pub(crate) const FORMATS: &[Format] = &[
    Format { rows: Some(csv::rows), ..format!("csv", csv, "columns submit_s, gpus, duration_s") },
    format!("sacct", sacct, "columns JobID and Submit between bars"),
    format!("swf", swf, "eighteen numbers a line"),
    format!("philly", philly, "JSON with `attempts`, or columns arrival_s, num_gpus, duration_s, vc"),
    format!("helios", helios, "columns gpu_num, vc, state, submit_time"),
    format!("pai", pai, "ten fields without a header, or columns job_name, task_name, inst_num, plan_gpu"),
    format!("openb", openb, "columns num_gpu, gpu_milli"),
    format!("acme", acme, "columns gpu_num, type, state, submit_time"),
    format!("gavel", gavel, "ten fields between tabs"),
    format!("shockwave", shockwave, "twelve fields between tabs"),
    format!("pollux", pollux, "columns time, application, num_replicas, batch_size"),
    Format {
        name: "sia",
        // Laid out like those of Pollux, for which it is taken.
        sign: "",
        options: pollux::OPTIONS,
        recognise: |_| None,
        read: pollux::read,
        rows: None,
    },
    format!("tiresias", tiresias, "columns job_id, num_gpu, submit_time, model_name, duration"),
    format!("chronus", chronus, "column expect_time_list"),
    format!("elasticflow", elasticflow, "columns submission_time, num_gpu, or ddl"),
];

/// Reads the Philly trace, in any of its layouts, as it stands.
pub fn read_philly(path: &Path) -> Result<Workload, Error> {
    let (cluster, queues, _) = crate::load_cluster("philly")?;
    let options = Options::parse("philly", "", &[])?;
    philly::read(Request { path, options: &options, cluster: &cluster, queues: &queues })
}

/// Reads `PATH?option=value&…` in a format, or in the one it is recognised to have.
pub(crate) fn read(format: &str, text: &str, cluster: &Cluster, queues: &QueueTree) -> Option<Result<Workload, Error>> {
    if format == "auto" {
        return Some(read_any(text, cluster, queues));
    }
    let format = FORMATS.iter().find(|known| known.name == format)?;
    Some(read_as(format, text, cluster, queues))
}

fn read_any(text: &str, cluster: &Cluster, queues: &QueueTree) -> Result<Workload, Error> {
    let (path, _) = options::split(text);
    let (format, how) = auto::recognise(&path)?;
    let mut workload = read_as(format, text, cluster, queues)?;
    workload.assumptions.insert(0, read_as_told(format, &how));
    Ok(workload)
}

fn read_as(format: &Format, text: &str, cluster: &Cluster, queues: &QueueTree) -> Result<Workload, Error> {
    let (path, options) = options::split(text);
    let options = Options::parse(format.name, options, &known_options(format))?;
    let request = Request { path: &path, options: &options, cluster, queues };
    Ok(Workload { name: text.into(), ..(format.read)(request)? })
}

/// A file of a layout with one row per job.
pub(crate) struct RowFile {
    pub(crate) format: &'static Format,
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) name: String,
    /// How the format was recognised, if it had to be.
    pub(crate) how: Option<String>,
}

/// What is meant by `FORMAT:PATH`, if its rows are jobs one by one and it can be read more than once.
pub(crate) fn one_row_per_job(text: &str) -> Result<Option<RowFile>, Error> {
    let Some((format, text)) = text.trim().split_once(':') else { return Ok(None) };
    let (path, options) = options::split(text);
    if !path.is_file() {
        return Ok(None);
    }
    let (format, how) = match format {
        "auto" => auto::recognise(&path).map(|(format, how)| (Some(format), Some(how)))?,
        _ => (FORMATS.iter().find(|known| known.name == format), None),
    };
    let Some(format) = format.filter(|format| format.rows.is_some()) else { return Ok(None) };
    let options = Options::parse(format.name, options, &known_options(format))?;
    let how = how.map(|how| read_as_told(format, &how));
    Ok(Some(RowFile { format, path, options, name: text.into(), how }))
}

fn read_as_told(format: &Format, how: &str) -> String {
    std::format!("read as {}: {how}", format.name)
}

/// The options of a format. Moira's own table says itself what the common ones are for in other people's.
fn known_options(format: &Format) -> Vec<&'static str> {
    let common: &[&str] = if format.name == "csv" { &[] } else { &COMMON };
    common.iter().chain(format.options).copied().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{load_cluster, load_workload};
    use std::io::Write;

    /// The workload in a file of this text; the path is called FILE in what it says.
    pub(crate) fn read(format: &str, text: &str, options: &str) -> Result<Workload, String> {
        read_bytes(format, text.as_bytes(), options)
    }

    fn read_bytes(format: &str, bytes: &[u8], options: &str) -> Result<Workload, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        std::fs::write(&path, bytes).unwrap();
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let path = path.display().to_string();
        let query = if options.is_empty() { String::new() } else { std::format!("?{options}") };
        let read = load_workload(&std::format!("{format}:{path}{query}"), &cluster, &queues, 1);
        let mut workload = read.map_err(|error| {
            assert!(!error.to_string().contains('\n'), "one line: {error}");
            error.to_string().replace(&path, "FILE")
        })?;
        for line in &mut workload.assumptions {
            assert!(!line.contains('\n'), "one line: {line}");
            *line = line.replace(&path, "FILE");
        }
        Ok(workload)
    }

    /// Submission, name, user, GPUs and run time of each job.
    pub(crate) fn lines(format: &str, text: &str, options: &str) -> Vec<String> {
        let workload = read(format, text, options).unwrap_or_else(|error| panic!("{error}"));
        let line = |job: &perf::TrueJob| {
            let (spec, seconds) = (&job.spec, job.truth.iterations as f64 / 1000.0);
            let gpus = spec.min_gpus().as_f64();
            std::format!("{} {} {} {gpus} {seconds}s", job.submitted, spec.name, spec.user)
        };
        workload.jobs.iter().map(line).collect()
    }

    pub(crate) fn fault(format: &str, text: &str, options: &str) -> String {
        read(format, text, options).expect_err("the trace is faulty")
    }

    pub(crate) fn assumes(format: &str, text: &str, options: &str, line: &str) -> bool {
        read(format, text, options).unwrap().assumptions.iter().any(|known| known == line)
    }

    const TABLE: &str = "arrival_s,num_gpus,duration_s,job_id,vc\n0,1,5,a,x\n9,2,6,b,x\n4,4,7,c,y\n";

    #[test]
    fn a_window_a_limit_and_an_origin_can_be_chosen() {
        assert_eq!(lines("philly", TABLE, "limit=1"), ["0s a x 1 5s"]);
        assert_eq!(lines("philly", TABLE, "from=4&until=9"), ["0s c y 4 7s"]);
        assert_eq!(lines("philly", TABLE, "from=3&origin=first"), ["0s c y 4 7s", "5s b x 2 6s"]);
        let told = "2 jobs are left out: submitted outside the time asked for (from=…, until=…)";
        assert!(assumes("philly", TABLE, "from=4&until=9", told));
        assert!(assumes("philly", TABLE, "limit=1", "only the first 1 jobs of the file were read (limit)"));
        let error = fault("philly", TABLE, "from=4&until=4");
        let expected = "FILE: expected at least one job, found none; left out: 3 submitted outside the time asked for (from=…, until=…)";
        assert_eq!(error, expected);
        assert!(fault("philly", TABLE, "origin=midnight").contains("a trace without dates knows no midnight"));
    }

    #[test]
    fn midnight_depends_on_the_time_zone() {
        let text = "job_id,submit_time,num_gpus,duration_s,clamped\n1,2020-04-01 06:00:00,1,5,0\n";
        assert_eq!(lines("helios", text, "origin=midnight"), ["6h 1 unknown 1 5s"]);
        let zoned = text.replace("06:00:00", "06:00:00+00:00");
        assert_eq!(lines("helios", &zoned, "origin=midnight&timezone=+08:00"), ["14h 1 unknown 1 5s"]);
        let told = "time 0 is 2020-04-01 00:00:00 (+08:00), the midnight before the first submission (origin=…)";
        assert!(assumes("helios", &zoned, "origin=midnight&timezone=+08:00", told));
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        let error = fault("philly", TABLE, "retrys=last");
        assert!(
            error.starts_with(
                "workload philly: unknown option `retrys`; did you mean `retries`? (known: skip_bad_rows,"
            ),
            "{error}"
        );
        assert_eq!(
            fault("philly", TABLE, "zero_gpu=maybe"),
            "workload philly: expected drop or keep or refuse for `zero_gpu`, found maybe"
        );
        assert_eq!(
            fault("philly", TABLE, "limit=0"),
            "workload philly: expected a whole number above 0 for `limit`, found 0"
        );
        assert_eq!(fault("philly", TABLE, "limit=1&limit=2"), "workload philly: option `limit` stands there twice");
        assert_eq!(
            fault("philly", TABLE, "timezone=Mars"),
            "workload philly: expected an offset like +08:00 for `timezone`, found Mars"
        );
        assert_eq!(fault("philly", TABLE, "limit"), "workload philly: expected options like `limit=1000`, found limit");
    }

    #[test]
    fn bad_rows_are_counted_and_the_first_twenty_listed() {
        let text = std::format!("{TABLE}{}", "NaN,1,5,z,x\n".repeat(25));
        let bad = "column `arrival_s`: expected a number from 0 to 3155760000, found NaN";
        assert_eq!(fault("philly", &text, ""), std::format!("FILE:5: {bad}"));
        let workload = read("philly", &text, "skip_bad_rows=true").unwrap();
        let left: Vec<&String> = workload.assumptions.iter().filter(|line| line.starts_with("left out: ")).collect();
        assert_eq!((workload.jobs.len(), left.len()), (3, 21));
        assert_eq!(
            (left[0].as_str(), left[20].as_str()),
            (&*std::format!("left out: FILE:5: {bad}"), "left out: 5 more bad rows")
        );
    }

    #[test]
    fn windows_line_ends_a_byte_order_mark_and_quoted_commas_are_accepted() {
        let text = std::format!("\u{feff}{}", TABLE.replace('\n', "\r\n").replace("b,x", "\"b, too\",x"));
        assert_eq!(lines("auto", &text, "limit=2"), ["0s a x 1 5s", "9s b, too x 2 6s"]);
    }

    #[test]
    fn a_compressed_trace_cut_in_the_middle_is_refused_even_if_bad_rows_are_skipped() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(TABLE.as_bytes()).unwrap();
        (0..20_000_u64).for_each(|row| writeln!(packer, "{row},1,{},j{row},v", row * 7919 % 10_007).unwrap());
        let packed = packer.finish().unwrap();
        assert_eq!(read_bytes("auto", &packed, "").unwrap().jobs.len(), 20_003);
        let error = read_bytes("auto", &packed[..packed.len() / 2], "skip_bad_rows=true").unwrap_err();
        assert!(error.ends_with("the compressed data ends in the middle; the file was cut short"), "{error}");
    }

    #[test]
    fn absurd_times_are_refused() {
        let text = TABLE.replace("9,2,6", "9,2,4000000000");
        assert_eq!(
            fault("philly", &text, ""),
            "FILE:3: column `duration_s`: expected a number from 0 to 3155760000, found 4000000000"
        );
        let text = "job_id,submit_time,num_gpus,duration_s,clamped\n1,1971-01-01,1,5,0\n2,2190-01-01,1,5,0\n";
        assert_eq!(
            fault("helios", text, ""),
            "FILE:3: expected submissions within 100 years, found more since that on line 2"
        );
    }

    #[test]
    fn dropped_names_let_jobs_share_what_they_ask_for() {
        let workload = read("philly", &TABLE.replace("9,2,6,b", "9,1,6,b"), "names=drop").unwrap();
        let shared = std::sync::Arc::ptr_eq(&workload.jobs[0].spec, &workload.jobs[2].spec);
        assert!(shared && &*workload.jobs[0].spec.name == "job");
        let twice = TABLE.replace("4,4,7,c", "4,4,7,a");
        assert!(
            fault("philly", &twice, "names=drop").contains("expected ids that differ (line 2 has the same), found a")
        );
    }

    #[test]
    fn tenants_become_queues_if_asked() {
        let workload = read("philly", &TABLE.replace("b,x", "b,vision"), "queues=match").unwrap();
        let queues: Vec<_> = workload.jobs.iter().map(|job| job.spec.queue.0).collect();
        assert_eq!(queues, [0, 0, 1]);
        let told = "2 jobs belong to tenants that are no queue of the cluster: the root queue";
        assert!(workload.assumptions.iter().any(|line| line == told));
    }

    #[test]
    fn the_format_is_told_from_the_beginning_and_how_is_said() {
        let first = |text: &str, options: &str| read("auto", text, options).unwrap().assumptions.remove(0);
        assert_eq!(first(TABLE, ""), "read as philly: the header has arrival_s, num_gpus, duration_s, job_id, vc");
        assert_eq!(
            first("submit_s,gpus,duration_s\n0,1,1\n", ""),
            "read as csv: the header has submit_s, gpus and duration_s"
        );
        let swf = "; comment\n1 0 5 60 8 -1 -1 16 3600 -1 1 7 2 -1 1 -1 -1 -1\n";
        assert_eq!(first(swf, ""), "read as swf: lines have eighteen numbers between blanks");
        let gavel = "LM\tx\ty\tz\t1\t10\t1\t1\t-1\t0\n";
        assert_eq!(
            first(gavel, "step_s=1"),
            "read as gavel: lines have ten fields between tabs, the last five of them numbers"
        );
    }

    #[test]
    fn what_has_no_known_beginning_is_refused_with_what_was_looked_for() {
        let error = fault("auto", "colour,shape\nred,round\n", "");
        let expected = "FILE: cannot tell the format: the file begins with colour,shape; looked for csv (columns submit_s, gpus, duration_s), sacct";
        assert!(error.starts_with(expected), "{error}");
        let both = "job_id,num_gpu,submit_time,model_name,duration,gpu_milli\n1,1,1,a,1,1000\n";
        let error = fault("auto", both, "");
        assert!(
            error.starts_with("FILE: the format may be any of openb (the header has num_gpu and gpu_milli), tiresias"),
            "{error}"
        );
    }

    /// A file of every format in its original layout: options, text, a cell of it that says a time, and one that says GPUs.
    /// Written so that the second job stands above the first, where the layout has submissions.
    struct Sample {
        format: &'static str,
        options: &'static str,
        text: &'static str,
        /// What stands for a time, and with how many decimals it is written.
        time: &'static str,
        gpus: &'static str,
    }

    const fn sample(
        format: &'static str,
        options: &'static str,
        text: &'static str,
        time: &'static str,
        gpus: &'static str,
    ) -> Sample {
        Sample { format, options, text, time, gpus }
    }

    /// Two jobs each, of which the one submitted later stands first. The marked cells occur once.
    const SAMPLES: [Sample; 16] = [
        sample("csv", "", "submit_s,gpus,duration_s,id\n90,4,601,b\n30,2,700,a\n", "601", ",4,"),
        sample(
            "sacct",
            "",
            "JobID|User|Account|Submit|Start|End|Elapsed|State|AllocTRES|NNodes\n\
             7|ann|x|2024-03-01T00:01:30|2024-03-01T00:02:00|2024-03-01T00:12:01|00:10:01|COMPLETED|gres/gpu=4|1\n\
             5|bob|x|2024-03-01T00:00:30|2024-03-01T00:02:00|2024-03-01T00:03:00|00:01:00|COMPLETED|gres/gpu=2|1\n",
            "00:10:01",
            "gres/gpu=4",
        ),
        sample(
            "swf",
            "",
            "; log\n2 90 5 601 4 -1 -1 4 3600 -1 1 7 2 -1 1 -1 -1 -1\n1 30 5 60 2 -1 -1 2 3600 -1 1 7 2 -1 1 -1 -1 -1\n",
            " 601 ",
            " 601 4 ",
        ),
        sample("philly", "", "arrival_s,num_gpus,duration_s,job_id,vc\n90,4,601,b,x\n30,2,700,a,y\n", "601", ",4,"),
        sample(
            "helios",
            "",
            "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
             7,u,v,4,8,1,COMPLETED,2020-04-01 00:01:30,2020-04-01 00:02:00,2020-04-01 00:12:01,601,30\n\
             5,u,v,2,8,1,FAILED,2020-04-01 00:00:30,2020-04-01 00:02:00,2020-04-01 00:03:00,60,90\n",
            "601",
            "v,4,",
        ),
        sample(
            "pai",
            "",
            "j2,worker,1,Terminated,90.0,691.0,600.0,29.3,400.0,T4\nj1,worker,1,Terminated,30.0,90.5,600.0,29.3,200.0,T4\n",
            "691.0",
            "400.0",
        ),
        sample(
            "openb",
            "",
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
             p1,6000,1024,4,1000,,BE,Succeeded,90,691,90\np0,6000,1024,2,1000,,BE,Succeeded,30,99,30\n",
            "691",
            ",4,",
        ),
        sample(
            "acme",
            "",
            "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue\n\
             b,u,1,4,8,Other,COMPLETED,2023-05-17 11:01:30+00:00,2023-05-17 11:01:30+00:00,2023-05-17 11:11:31+00:00,601,0\n\
             a,u,1,2,8,Other,COMPLETED,2023-05-17 19:00:30+08:00,2023-05-17 11:01:30+00:00,2023-05-17 11:02:30+00:00,60,0\n",
            "601",
            "u,1,4,",
        ),
        sample(
            "gavel",
            "step_s=1",
            "LM\tx\ty\tz\t1\t601\t4\t1\t-1\t90\nLM\tx\ty\tz\t1\t700\t2\t1\t-1\t30\n",
            "\t601\t",
            "\t601\t4\t",
        ),
        sample(
            "shockwave",
            "",
            "LM\tx\ty\tz\t1\t10\t4\tstatic\t1\t-1\t601\t90\nLM\tx\ty\tz\t1\t10\t2\tgns\t1\t-1\t700\t30\n",
            "601",
            "\t10\t4\t",
        ),
        sample(
            "pollux",
            "durations=DURATIONS",
            "name,time,application,num_replicas,batch_size\nb,90.25,cifar10,4,128\na,30,cifar10,2,128\n",
            "90.25",
            ",4,",
        ),
        sample(
            "sia",
            "durations=DURATIONS",
            "name,time,application,num_replicas,batch_size\nb,90.25,cifar10,4,128\na,30,cifar10,2,128\n",
            "90.25",
            ",4,",
        ),
        sample(
            "tiresias",
            "",
            "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n2,4,90,100,vgg16,601,5\n1,2,30,100,vgg16,700,5\n",
            "601",
            "2,4,",
        ),
        sample(
            "chronus",
            "",
            "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,best_effort,user,job_type\n\
             2,4,90,100,vgg16,601,5,700,0,v,strict\n1,2,30,100,vgg16,60,5,700,0,v,strict\n",
            "601",
            "2,4,",
        ),
        sample(
            "elasticflow",
            "",
            "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,ddl,best_effort\n\
             2,4,90,100,vgg16,601,5,900.5,0\n1,2,30,100,vgg16,60,5,900.5,0\n",
            "601",
            "2,4,",
        ),
        sample(
            "philly",
            "",
            "[{\"status\": \"Pass\", \"vc\": \"x\", \"jobid\": \"b\", \"submitted_time\": \"2017-10-09 07:01:30\", \"user\": \"u\",\n\
             \"attempts\": [{\"start_time\": \"2017-10-09 07:02:00\", \"end_time\": \"2017-10-09 07:12:01\", \
             \"detail\": [{\"ip\": \"m1\", \"gpus\": [\"gpu0\", \"gpu1\", \"gpu2\", \"gpu3\"]}]}]},\n\
             {\"status\": \"Pass\", \"vc\": \"x\", \"jobid\": \"a\", \"submitted_time\": \"2017-10-09 07:00:30\", \"user\": \"u\",\n\
             \"attempts\": [{\"start_time\": \"2017-10-09 07:02:00\", \"end_time\": \"2017-10-09 07:03:00\", \
             \"detail\": [{\"ip\": \"m1\", \"gpus\": [\"gpu0\", \"gpu1\"]}]}]}]\n",
            "2017-10-09 07:12:01",
            "[\"gpu0\", \"gpu1\", \"gpu2\", \"gpu3\"]",
        ),
    ];

    /// Reads a sample whose text was changed; where it needs a table of run times, with one.
    fn read_sample(sample: &Sample, bytes: &[u8], further: &str) -> Result<Workload, String> {
        let dir = tempfile::tempdir().unwrap();
        let durations = dir.path().join("durations.csv");
        std::fs::write(&durations, "application,num_replicas,batch_size,duration_s\ncifar10,,,601\n").unwrap();
        let options = sample.options.replace("DURATIONS", &durations.display().to_string());
        let options: Vec<&str> = [options.as_str(), further].into_iter().filter(|part| !part.is_empty()).collect();
        read_bytes(sample.format, bytes, &options.join("&"))
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn every_format_has_a_sample_and_reads_it_in_order_of_submission() {
        let missing: Vec<&str> = FORMATS
            .iter()
            .map(|format| format.name)
            .filter(|name| !SAMPLES.iter().any(|sample| sample.format == *name))
            .collect();
        assert!(missing.is_empty(), "no sample of {missing:?}");
        for sample in &SAMPLES {
            let workload = read_sample(sample, sample.text.as_bytes(), "").unwrap_or_else(|error| panic!("{error}"));
            let gpus: Vec<f64> = workload.jobs.iter().map(|job| job.spec.min_gpus().as_f64()).collect();
            assert_eq!(gpus, [2.0, 4.0], "{}", sample.format);
            assert!(workload.jobs[0].submitted < workload.jobs[1].submitted, "{}", sample.format);
            // Moira's own table may stand in any order, of which nothing is said.
            let told = "1 jobs stand below others that were submitted later: sorted by submission";
            let says = workload.assumptions.iter().any(|line| line == told);
            assert_eq!(says, sample.format != "csv", "{}: {:?}", sample.format, workload.assumptions);
        }
    }

    #[test]
    fn every_format_takes_windows_line_ends_a_byte_order_mark_and_compression() {
        for sample in &SAMPLES {
            let plain = read_sample(sample, sample.text.as_bytes(), "").unwrap();
            let windows = std::format!("\u{feff}{}", sample.text.replace('\n', "\r\n"));
            let read = read_sample(sample, windows.as_bytes(), "").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read.jobs, plain.jobs, "{}", sample.format);
            let read = read_sample(sample, &packed(sample.text.as_bytes()), "").unwrap();
            assert_eq!(read.jobs, plain.jobs, "{}", sample.format);
        }
    }

    #[test]
    fn no_format_takes_a_compressed_file_cut_in_the_middle() {
        for sample in &SAMPLES {
            let packed = packed(sample.text.as_bytes());
            for further in ["", "skip_bad_rows=true"] {
                let error = read_sample(sample, &packed[..packed.len() - 12], further).unwrap_err();
                let expected = "the compressed data ends in the middle; the file was cut short";
                assert!(error.starts_with("FILE:") && error.ends_with(expected), "{}: {error}", sample.format);
            }
        }
    }

    #[test]
    fn no_format_takes_times_that_cannot_be() {
        for sample in &SAMPLES {
            assert_eq!(sample.text.matches(sample.time).count(), 1, "{}: the time is there once", sample.format);
            let number = sample.time.trim();
            for absurd in ["NaN", "-5", "1e30", "inf"] {
                let text = sample.text.replace(sample.time, &sample.time.replace(number, absurd));
                let error = read_sample(sample, text.as_bytes(), "").expect_err(sample.format);
                // Where the layout has no line for itself the place is the element's.
                assert!(error.starts_with("FILE:"), "{} {absurd}: {error}", sample.format);
                let line = error["FILE:".len()..].split(':').next().unwrap_or_default();
                assert!(line.parse::<u64>().is_ok(), "{} {absurd} names no line: {error}", sample.format);
                assert!(error.contains(absurd), "{} {absurd}: {error}", sample.format);
                let left = read_sample(sample, text.as_bytes(), "skip_bad_rows=true").unwrap();
                assert_eq!(left.jobs.len(), 1, "{} {absurd}", sample.format);
            }
        }
    }

    #[test]
    fn every_format_has_a_rule_for_jobs_without_gpus() {
        for sample in SAMPLES.iter().filter(|sample| sample.format != "csv") {
            assert_eq!(sample.text.matches(sample.gpus).count(), 1, "{}: the size is there once", sample.format);
            let none = match sample.gpus {
                list if list.starts_with('[') => "[]".to_string(),
                cell => {
                    let at = cell.rfind('4').unwrap();
                    std::format!("{}0{}", &cell[..at], &cell[at + 1..])
                }
            };
            let mut text = sample.text.replace(sample.gpus, &none);
            if sample.format == "swf" {
                // A log without allocated processors falls back on those asked for.
                text = text.replace(" 4 3600", " 0 3600");
            }
            let dropped = read_sample(sample, text.as_bytes(), "").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(dropped.jobs.len(), 1, "{}", sample.format);
            let told = "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)";
            assert!(
                dropped.assumptions.iter().any(|line| line == told),
                "{}: {:?}",
                sample.format,
                dropped.assumptions
            );
            let error = read_sample(sample, text.as_bytes(), "zero_gpu=refuse").expect_err(sample.format);
            assert!(error.starts_with("FILE:"), "{}: {error}", sample.format);
            let kept = read_sample(sample, text.as_bytes(), "zero_gpu=keep").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(kept.jobs.iter().filter(|job| !job.spec.uses_gpus()).count(), 1, "{}", sample.format);
        }
    }

    #[test]
    fn every_format_and_option_is_documented() {
        let page = include_str!("../../../../docs/guides/bring-your-trace.md");
        for format in FORMATS {
            assert!(page.contains(&std::format!("| `{}", format.name)), "{}", format.name);
            for option in known_options(format) {
                assert!(page.contains(&std::format!("`{option}")), "{} {option}", format.name);
            }
        }
    }
}
