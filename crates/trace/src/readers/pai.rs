//! The tasks of Alibaba's PAI cluster (Weng et al., NSDI 2022; cluster-trace-gpu-v2020): `pai_task_table`, published
//! without a header, with the run times of `pai_instance_table` if asked; and the reduced sample.

use std::collections::HashMap;
use std::path::Path;

use cluster::Bytes;

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gang, Gathering, Job, MOST_GPUS, Request, Wanted, between, no_gpus, required_gpus, required_seconds, seconds, span,
};
use crate::table::{Layout, Row, Separator, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["states", "fractions", "cores", "kinds", "instances"];

columns! {
    TASK_COLUMNS:
    JOB = "job_name", TASK = "task_name", INSTANCES = "inst_num", STATUS = "status", START = "start_time",
    END = "end_time", CPU = "plan_cpu", MEMORY = "plan_mem", GPU = "plan_gpu", GPU_TYPE = "gpu_type",
}
const TASK_TABLE: Layout = Layout::bare(TASK_COLUMNS, Separator::Comma);

columns! {
    INSTANCE_COLUMNS:
    OF_JOB = "job_name", OF_TASK = "task_name", OF_INSTANCE = "inst_name", OF_WORKER = "worker_name",
    OF_ID = "inst_id", OF_STATUS = "status", OF_START = "start_time", OF_END = "end_time", OF_MACHINE = "machine",
}
const INSTANCE_TABLE: Layout = Layout::bare(INSTANCE_COLUMNS, Separator::Comma);

columns! {
    REDUCED_COLUMNS:
    ARRIVAL = "arrival_s", GPUS = "num_gpus", DURATION = "duration_s", ROW = "row", CLAMPED = "clamped", OF = "job",
    WITHIN = "task",
}
const REDUCED: Layout = Layout::named(REDUCED_COLUMNS, 3);

const STATES: [&str; 5] = ["Terminated", "Failed", "Running", "Waiting", "Interrupted"];

pub(crate) fn recognise(head: &Head) -> Option<String> {
    if head.has_all(&["row", "job", "task", "arrival_s", "num_gpus", "duration_s"]) {
        return Some(format!("the header has {}", head.header()));
    }
    if head.has_all(&["job_name", "task_name", "inst_num", "plan_gpu"]) {
        return Some("the header has job_name, task_name, inst_num and plan_gpu".into());
    }
    let bare = head.cells.len() == 10 && STATES.contains(&head.cells[STATUS].as_str());
    bare.then(|| format!("there is no header, and the fourth of ten fields is {}", head.cells[STATUS]))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let gathering = Gathering::new(request)?;
    match Head::of(request.path)?.has("arrival_s") {
        true => read_reduced(request, gathering),
        false => read_tasks(request, gathering),
    }
}

fn read_reduced(request: Request<'_>, mut gathering: Gathering<'_>) -> Result<Workload, Error> {
    let mut table = Table::lay_out(request.path, REDUCED)?;
    gathering.id_column = "row".into();
    gathering.assume("the start of a task stands for its submission, its run time for work");
    gathering.assume("GPU counts are taken as fixed, parts of GPUs were rounded up by whoever reduced the table");
    gathering.assume("interruptions cost nothing");
    let mut clamped = 0;
    gathering.read(&mut table, |row, gathering| {
        let (submitted, duration) = (required_seconds(row, ARRIVAL)?, required_seconds(row, DURATION)?);
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        clamped += u64::from(row.text(CLAMPED) == Some("1"));
        let id = row.text(ROW).map(String::from);
        Ok(Some(Job { id, ..Job::new(row.line, submitted, span(duration), gang) }))
    })?;
    if clamped > 0 {
        gathering.assume(format!("{clamped} tasks are marked as cut off at 48 h in the file; they ran longer"));
    }
    gathering.finish()
}

fn read_tasks(request: Request<'_>, mut gathering: Gathering<'_>) -> Result<Workload, Error> {
    let options = request.options;
    let shared = options.choice("fractions", &["share", "round"])? == "share";
    let cores = options.choice("cores", &["drop", "keep"])? == "keep";
    let spans = match options.get("instances") {
        Some(path) => Some(instance_spans(Path::new(path))?),
        None => None,
    };
    let mut table = Table::lay_out(request.path, TASK_TABLE)?;
    gathering.id_column = "job_name".into();
    gathering.assume("every task is a job of its own, with a worker for each instance");
    gathering.assume("the start of a task stands for its submission: the table does not say when it was submitted");
    gathering.assume(match spans {
        Some(_) => "a task runs from the start of its first to the end of its last instance, and that is taken as work",
        None => "the time from start to end is taken as work (instances=PATH takes it from pai_instance_table)",
    });
    gathering.assume(match shared {
        true => "less than 100 % of a GPU is a share of one, of no device memory; more is whole GPUs (fractions=share; or round)",
        false => "parts of GPUs are rounded up to whole ones (fractions=round; or share)",
    });
    gathering.assume(match cores {
        true => "each worker takes the planned CPU cores and memory (cores=keep)",
        false => "planned CPU cores and memory are not looked at (cores=drop; or keep)",
    });
    gathering
        .assume("interruptions cost nothing, and jobs run equally fast on all kinds of GPU (kinds=match binds them)");
    let mut rounded = 0;
    gathering.read(&mut table, |row, gathering| {
        if !gathering.wants_state(row.text(STATUS)) {
            return Ok(None);
        }
        let key = (row.required(JOB, "the name of the job")?, row.required(TASK, "the name of the task")?);
        let (start, end) = match &spans {
            Some(spans) => spans.get(&(key.0.into(), key.1.into())).copied().unzip(),
            None => (seconds(row, START)?, seconds(row, END)?),
        };
        let (Some(start), Some(end)) = (start, end) else {
            gathering.leave_out("that never started or never ended");
            return Ok(None);
        };
        let work = between(row, start, end, END)?;
        let Some(gang) = gang(row, gathering, shared, cores, &mut rounded)? else { return Ok(None) };
        let kinds = gathering.kinds(row.text(GPU_TYPE).filter(|kind| !matches!(*kind, "MISC" | "CPU")));
        let kinds = if gang.slice.is_some() { kinds } else { Vec::new() };
        let id = Some(format!("{}/{}", key.0, key.1));
        Ok(Some(Job { id, kinds, ..Job::new(row.line, start, work, gang) }))
    })?;
    if rounded > 0 {
        gathering.assume(format!("{rounded} tasks ask for more than one GPU but no whole number: rounded up"));
    }
    gathering.finish()
}

fn gang(
    row: &Row<'_>,
    gathering: &mut Gathering<'_>,
    shared: bool,
    cores: bool,
    rounded: &mut u64,
) -> Result<Option<Gang>, Error> {
    let workers = row.count(INSTANCES, 1..=MOST_GPUS)?.unwrap_or(1);
    let percent = row.real(GPU, 0.0..=1e8)?.unwrap_or(0.0);
    let millicores = row.real(CPU, 0.0..=1e9)?.map_or(0, |percent| (percent * 10.0).round() as u64);
    let thousandths = (percent * 10.0).round() as u32;
    if thousandths == 0 {
        let wanted = Wanted { gpus: 0, nodes: Some(workers), millicores: Some(millicores * u64::from(workers)) };
        return gathering.gang(wanted, || row.fault(GPU, "more than 0 % of a GPU", row.text(GPU).unwrap_or_default()));
    }
    let mut gang = match u16::try_from(thousandths) {
        Ok(part) if shared && part < 1000 => Gang::shared(workers, part),
        _ => {
            *rounded += u64::from(thousandths > 1000 && !thousandths.is_multiple_of(1000));
            Gang::whole(workers, thousandths.div_ceil(1000))
        }
    };
    if cores {
        gang.millicores = millicores.min(u64::from(u32::MAX)) as u32;
        let gib = row.real(MEMORY, 0.0..=1e6)?.unwrap_or(0.0);
        gang.memory = Bytes::new((gib * f64::from(1 << 30)) as u64);
    }
    Ok(Some(gang))
}

type Spans = HashMap<(Box<str>, Box<str>), (i64, i64)>;

/// For every task from when to when its instances ran.
fn instance_spans(path: &Path) -> Result<Spans, Error> {
    let mut table = Table::lay_out(path, INSTANCE_TABLE)?;
    let mut spans = Spans::new();
    while let Some(row) = table.next_row()? {
        let (Some(start), Some(end)) = (seconds(&row, OF_START)?, seconds(&row, OF_END)?) else { continue };
        between(&row, start, end, OF_END)?;
        let key = (row.text(OF_JOB).unwrap_or_default().into(), row.text(OF_TASK).unwrap_or_default().into());
        let span = spans.entry(key).or_insert((start, end));
        *span = (span.0.min(start), span.1.max(end));
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};
    use cluster::Grain;

    const TASKS: &str = "j1,worker,2,Terminated,100.0,160.0,600.0,29.3,25.0,T4\n\
                         j1,ps,1,Terminated,100.0,160.0,600.0,10.0,,\n\
                         j2,tensorflow,1,Failed,90.0,95.0,600.0,10.0,200.0,V100\n\
                         j3,worker,1,Waiting,,,600.0,10.0,100.0,MISC\n";

    #[test]
    fn tasks_become_jobs_and_parts_of_gpus_shares() {
        assert_eq!(lines("pai", TASKS, ""), ["1m30s j2/tensorflow unknown 2 5s", "1m40s j1/worker unknown 0.5 60s"]);
        let jobs = read("pai", TASKS, "").unwrap().jobs;
        let grain = jobs[1].spec.roles[0].slice.map(|slice| slice.grain);
        assert!(matches!(grain, Some(Grain::Share { thousandths: 250, .. })), "{grain:?}");
        assert!(assumes("pai", TASKS, "", "1 jobs are left out: that never started or never ended"));
        assert_eq!(lines("pai", TASKS, "fractions=round&states=terminated"), ["1m40s j1/worker unknown 2 60s"]);
    }

    #[test]
    fn kinds_are_matched_with_those_of_the_cluster_if_asked() {
        let workload = read("pai", TASKS, "kinds=match").unwrap();
        assert_eq!((workload.jobs[0].spec.kinds.len(), workload.jobs[1].spec.kinds.len()), (0, 1));
        let told = "1 jobs ask for kinds of GPU that the cluster does not have: they may run on any";
        assert!(workload.assumptions.iter().any(|line| line == told));
    }

    #[test]
    fn run_times_can_come_from_the_instances() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("instances.csv");
        let rows = "j1,worker,a,w1,i1,Terminated,110.0,150.0,m1\nj1,worker,b,w2,i1,Terminated,105.0,140.0,m2\n";
        std::fs::write(&path, rows).unwrap();
        let options = format!("instances={}", path.display());
        assert_eq!(lines("pai", TASKS, &options), ["1m45s j1/worker unknown 0.5 45s"]);
    }

    #[test]
    fn the_reduced_table_is_read() {
        let text = "row,job,task,arrival_s,num_gpus,duration_s,clamped\n9,e2,worker,16,8,167731,0\n";
        assert_eq!(lines("pai", text, ""), ["16s 9 unknown 8 167731s"]);
    }

    #[test]
    fn bad_rows_name_file_line_and_column() {
        let text = TASKS.replace("160.0,600.0,29.3", "60.0,600.0,29.3");
        let expected = "FILE:1: column `end_time`: expected a time after the start, by at most 100 years, found 60.0";
        assert_eq!(fault("pai", &text, ""), expected);
        assert_eq!(
            fault("pai", "a,b,1\n", ""),
            "FILE:1: expected 10 fields, found 3; this is the last line, was the file cut short?"
        );
        let text = TASKS.replace("25.0,T4", "-25.0,T4");
        assert_eq!(
            fault("pai", &text, ""),
            "FILE:1: column `plan_gpu`: expected a number from 0 to 100000000, found -25.0"
        );
    }
}
