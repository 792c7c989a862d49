//! The jobs of SenseTime's Helios clusters (Hu et al., SC 2021): the published `cluster_log.csv`, and the reduced tables
//! of the Venus cluster.

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gathering, Job, MOST_GPUS, Request, Wanted, between, no_gpus, required_gpus, seconds, span,
};
use crate::table::{Header, Layout, Separator, Table};

pub(crate) const OPTIONS: &[&str] = &["states", "cores", "workers"];

const GPUS: usize = 0;
const SUBMIT: usize = 1;
const JOB: usize = 2;
const USER: usize = 3;
const VC: usize = 4;
const NODES: usize = 5;
const CORES: usize = 6;
const STATE: usize = 7;
const START: usize = 8;
const END: usize = 9;
const DURATION: usize = 10;
const CLAMPED: usize = 11;
const COLUMNS: &[&str] = &[
    "gpu_num|num_gpus",
    "submit_time|submit_s",
    "job_id",
    "user",
    "vc",
    "node_num|num_nodes",
    "cpu_num",
    "state",
    "start_time",
    "end_time",
    "duration|duration_s",
    "clamped",
];
const TABLE: Layout = Layout { columns: COLUMNS, required: 2, separator: Separator::Comma, header: Header::Loose };

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let original = head.has_all(&["gpu_num", "vc", "state", "submit_time"]);
    let reduced = head.has_all(&["submit_time", "num_gpus", "duration_s", "clamped"])
        || head.has_all(&["vc", "submit_s", "num_gpus", "num_nodes", "duration_s", "state"]);
    (original || reduced).then(|| format!("the header has {}", head.header()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TABLE)?;
    let timed = table.has(DURATION) || (table.has(START) && table.has(END));
    if !timed {
        let what = "missing column `duration`, or `start_time` and `end_time`".into();
        return Err(Error::Line { file: table.file().into(), line: 1, what });
    }
    gathering.stamped = table.name(SUBMIT) != "submit_s";
    gathering.assume("run times are taken as work, although measured under the cluster's own scheduler");
    gathering.assume("GPU counts are taken as fixed: every job is rigid and runs equally fast wherever it is placed");
    gathering.assume("interruptions cost nothing: the log does not say how long a restart takes");
    gathering.assume(match request.options.get("cores") {
        Some("keep") => "CPU cores asked for are spread evenly over the workers (cores=keep)",
        _ => "CPU cores asked for are not looked at (cores=drop; or keep)",
    });
    gathering.assume(match request.options.get("workers") {
        Some("node") => "a job has a worker for each of its nodes (workers=node)",
        _ => "a job has a worker for each of its GPUs, on any nodes (workers=gpu; or node)",
    });
    let mut clamped = 0;
    gathering.read(&mut table, |row, gathering| {
        if !gathering.wants_state(row.text(STATE)) {
            return Ok(None);
        }
        let gpus = required_gpus(row, GPUS)?;
        let submitted = match gathering.stamped {
            true => gathering.required_stamp(row, SUBMIT)?,
            false => crate::readers::gather::required_seconds(row, SUBMIT)?,
        };
        let (start, end) = (gathering.stamp(row, START)?, gathering.stamp(row, END)?);
        let work = match (seconds(row, DURATION)?, start, end) {
            (Some(duration), ..) => span(duration),
            (None, Some(start), Some(end)) => between(row, start, end, END)?,
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
        clamped += u64::from(row.text(CLAMPED) == Some("1"));
        let (user, tenant) = (row.text(USER), row.text(VC));
        let (user, tenant) = (user.map(|user| gathering.name(user)), tenant.map(|vc| gathering.name(vc)));
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, user, tenant, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    if clamped > 0 {
        gathering.assume(format!("{clamped} jobs are marked as cut off at 48 h in the file; they ran longer"));
    }
    gathering.finish()
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};
    use cluster::Scaling;

    const LOG: &str = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
        5,u1,vcA,16,64,2,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 00:02:00,60,50\n\
        6,u2,vcB,0,4,1,FAILED,2020-04-01 00:00:20,2020-04-01 00:01:00,2020-04-01 00:02:00,60,40\n\
        7,u2,vcB,1,4,1,CANCELLED,2020-04-01 00:00:30,,,,\n";

    #[test]
    fn the_log_is_read_and_jobs_without_gpus_are_left_out() {
        assert_eq!(lines("helios", LOG, ""), ["0s 5 u1 16 60s"]);
        assert!(assumes("helios", LOG, "", "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)"));
        assert!(assumes("helios", LOG, "", "1 jobs are left out: that never started or never ended"));
        assert!(assumes("helios", LOG, "", "columns that are not looked at: queue"));
    }

    #[test]
    fn cores_nodes_and_jobs_without_gpus_can_be_kept() {
        let jobs = read("helios", LOG, "zero_gpu=keep&cores=keep&workers=node&names=keep").unwrap().jobs;
        assert_eq!(jobs[0].spec.scaling, Scaling::Rigid(2));
        let worker = &jobs[0].spec.roles[0];
        assert_eq!((worker.slice.map(|slice| slice.count), worker.millicores), (Some(8), 32_000));
        assert_eq!((jobs[1].spec.uses_gpus(), jobs[1].spec.roles[0].millicores), (false, 4000));
    }

    #[test]
    fn the_reduced_tables_are_read() {
        let venus = "job_id,submit_time,num_gpus,duration_s,clamped,user,vc,num_nodes,state\n\
                     1,2020-03-18 04:01:39,32,172800,1,,,,\n2,2020-03-18 04:01:40,1,7,0,u,v,1,COMPLETED\n";
        assert_eq!(lines("helios", venus, ""), ["0s 1 unknown 32 172800s", "1s 2 u 1 7s"]);
        assert!(assumes("helios", venus, "", "1 jobs are marked as cut off at 48 h in the file; they ran longer"));
        let september = "job_id,user,vc,submit_s,num_gpus,num_nodes,duration_s,state\n3,u,v,5.0,8,1,24.0,CANCELED\n";
        assert_eq!(lines("helios", september, ""), ["5s 3 u 8 24s"]);
    }

    #[test]
    fn a_job_that_ends_before_it_starts_names_file_line_and_column() {
        let log = LOG.replace("02:00,60,50", "00:30,,50");
        let expected = "FILE:2: column `end_time`: expected a time after the start, by at most 100 years, \
                        found 2020-04-01 00:00:30";
        assert_eq!(fault("helios", &log, ""), expected);
    }
}
