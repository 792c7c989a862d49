//! Logs with one row per job that say when it was submitted, started and ended, and what it asked for: those of Helios
//! and, with further columns, of Acme.

use crate::Workload;
use crate::error::Error;
use crate::readers::gather::{
    FREE_INTERRUPTIONS, Gathering, Job, MOST_GPUS, Request, Wanted, between, no_gpus, required_gpus, required_seconds,
    seconds, span,
};
use crate::table::{Layout, Table, columns};

columns! {
    COLUMNS:
    GPUS = "gpu_num|num_gpus|gpus", SUBMIT = "submit_time|submit_s|time", JOB = "job_id", USER = "user", VC = "vc",
    NODES = "node_num|num_nodes", CORES = "cpu_num", TYPE = "type", STATE = "state", START = "start_time",
    END = "end_time", DURATION = "duration|duration_s", FAIL = "fail_time", STOP = "stop_time", CLAMPED = "clamped",
}
const TABLE: Layout = Layout::named(COLUMNS, 2);

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TABLE)?;
    let timed = table.has(DURATION) || (table.has(START) && table.has(END));
    if !timed {
        let what = "missing column `duration`, or `start_time` and `end_time`".into();
        return Err(Error::Line { file: table.file().into(), line: 1, what });
    }
    let types = request.options.words("types");
    gathering.stamped = table.name(SUBMIT) != "submit_s";
    gathering.assume("run times are taken as work, although measured under the cluster's own scheduler");
    gathering.assume("GPU counts are taken as fixed: every job is rigid and runs equally fast wherever it is placed");
    gathering.assume(FREE_INTERRUPTIONS);
    if table.has(FAIL) || table.has(STOP) {
        gathering.assume("a job without an end ends when it failed or was stopped, where the trace says so");
    }
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
        let kind = row.text(TYPE).unwrap_or_default().to_lowercase();
        if !types.is_empty() && !types.contains(&kind) {
            gathering.leave_out("of other types than those asked for (types=…)");
            return Ok(None);
        }
        let gpus = required_gpus(row, GPUS)?;
        let submitted = match gathering.stamped {
            true => gathering.required_stamp(row, SUBMIT)?,
            false => required_seconds(row, SUBMIT)?,
        };
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
