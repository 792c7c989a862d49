//! The jobs of Shanghai AI Laboratory's Acme clusters (Hu et al., NSDI 2024): `trace_seren.csv` and `trace_kalos.csv` as
//! published, and the small sample of Kalos.

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gathering, Job, MOST_GPUS, Request, Wanted, between, no_gpus, required_gpus, seconds, span,
};
use crate::table::{Header, Layout, Separator, Table};

pub(crate) const OPTIONS: &[&str] = &["states", "types", "cores", "workers"];

const GPUS: usize = 0;
const SUBMIT: usize = 1;
const JOB: usize = 2;
const USER: usize = 3;
const NODES: usize = 4;
const CORES: usize = 5;
const TYPE: usize = 6;
const STATE: usize = 7;
const START: usize = 8;
const END: usize = 9;
const DURATION: usize = 10;
const FAIL: usize = 11;
const STOP: usize = 12;
const COLUMNS: &[&str] = &[
    "gpu_num|gpus",
    "submit_time|time",
    "job_id",
    "user",
    "node_num",
    "cpu_num",
    "type",
    "state",
    "start_time",
    "end_time",
    "duration|duration_s",
    "fail_time",
    "stop_time",
];
const TABLE: Layout = Layout { columns: COLUMNS, required: 2, separator: Separator::Comma, header: Header::Loose };

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let original = head.has_all(&["gpu_num", "type", "state", "submit_time"]) && !head.has("vc");
    let sample = head.has_all(&["job_id", "time", "gpus", "duration_s", "queue_s"]);
    (original || sample).then(|| format!("the header has {}", head.header()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TABLE)?;
    let timed = table.has(DURATION) || (table.has(START) && table.has(END));
    if !timed {
        let what = "missing column `duration`, or `start_time` and `end_time`".into();
        return Err(Error::Line { file: table.file().into(), line: 1, what });
    }
    let types = request.options.words("types");
    gathering.stamped = true;
    gathering.assume("run times are taken as work, although measured under the cluster's own scheduler");
    gathering.assume("GPU counts are taken as fixed: every job is rigid and runs equally fast wherever it is placed");
    gathering.assume("interruptions cost nothing: the trace does not say how long a restart takes");
    gathering.assume("a job without an end ends when it failed or was stopped, where the trace says so");
    gathering.assume(match request.options.get("cores") {
        Some("keep") => "CPU cores asked for are spread evenly over the workers (cores=keep)",
        _ => "CPU cores asked for are not looked at (cores=drop; or keep)",
    });
    gathering.assume(match request.options.get("workers") {
        Some("node") => "a job has a worker for each of its nodes (workers=node)",
        _ => "a job has a worker for each of its GPUs, on any nodes (workers=gpu; or node)",
    });
    gathering.read(&mut table, |row, gathering| {
        if !gathering.wants_state(row.text(STATE)) {
            return Ok(None);
        }
        let kind = row.text(TYPE).unwrap_or_default().to_lowercase();
        if !types.is_empty() && !types.contains(&kind) {
            gathering.leave_out("of other types than those asked for (types=…)");
            return Ok(None);
        }
        let gpus = required_gpus(row, GPUS)?;
        let submitted = gathering.required_stamp(row, SUBMIT)?;
        let start = gathering.stamp(row, START)?;
        let mut end = None;
        for column in [END, FAIL, STOP] {
            end = end.or(gathering.stamp(row, column)?.map(|end| (end, column)));
        }
        let work = match (seconds(row, DURATION)?, start, end) {
            (Some(duration), ..) => span(duration),
            (None, Some(start), Some((end, column))) => between(row, start, end, column)?,
            (None, ..) => {
                gathering.leave_out("that never started or never ended");
                return Ok(None);
            }
        };
        let nodes = row.count(NODES, 0..=MOST_GPUS)?;
        let millicores = row.real(CORES, 0.0..=1e9)?.map(|cores| (cores * 1000.0) as u64);
        let Some(gang) = gathering.gang(Wanted { gpus, nodes, millicores }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let user = row.text(USER).map(|user| gathering.name(user));
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, user, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    gathering.finish()
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines};

    const KALOS: &str = "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,\
        start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n\
        dlc1,ux,2,16,48,100.0,50.0,Pretrain,COMPLETED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:10+00:00,\
        2023-05-17 11:01:10+00:00,,,60.0,10.0,960.0\n\
        dlc2,uy,1,1,8,10.0,5.0,Evaluation,FAILED,2023-05-17 19:00:30+08:00,2023-05-17 11:00:40+00:00,,\
        2023-05-17 11:00:45+00:00,,,10.0,5.0\n";

    #[test]
    fn the_trace_is_read_and_time_zones_are_respected() {
        assert_eq!(lines("acme", KALOS, ""), ["0s dlc1 ux 16 60s", "30s dlc2 uy 1 5s"]);
        assert_eq!(lines("acme", KALOS, "types=evaluation"), ["0s dlc2 uy 1 5s"]);
        assert!(assumes("acme", KALOS, "states=completed", "only jobs in these states are read: completed"));
    }

    #[test]
    fn the_sample_is_read() {
        let text = "job_id,time,gpus,duration_s,queue_s\na,2023-05-17 11:00:58+00:00,64,18.0,10.0\n";
        assert_eq!(lines("acme", text, ""), ["0s a unknown 64 18s"]);
    }

    #[test]
    fn a_bad_number_names_file_line_and_column() {
        let expected = "FILE:2: column `gpu_num`: expected a whole number from 0 to 1000000, found NaN";
        assert_eq!(fault("acme", &KALOS.replace("ux,2,16", "ux,2,NaN"), ""), expected);
        let expected = "FILE:3: column `submit_time`: expected a time like 2017-10-09 07:03:03 from 1970 to 2199, \
                        found 2323-05-17 19:00:30+08:00";
        assert_eq!(fault("acme", &KALOS.replace("2023-05-17 19", "2323-05-17 19"), ""), expected);
    }
}
