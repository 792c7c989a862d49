//! What Slurm's `sacct --parsable2` prints of a cluster's history: fields between bars, named by a header.

use cluster::Span;

use crate::Workload;
use crate::error::{Error, shown};
use crate::readers::auto::Head;
use crate::readers::clock::parse_elapsed;
use crate::readers::gather::{Again, Gathering, Job, LONGEST_S, MOST_GPUS, Request, Wanted, between};
use crate::table::{Layout, Row, Separator, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["states", "retries", "cores", "workers", "kinds", "tenants"];

columns! {
    COLUMNS:
    JOB = "JobID", SUBMIT = "Submit", USER = "User", ACCOUNT = "Account", PARTITION = "Partition", START = "Start",
    END = "End", ELAPSED = "Elapsed", ELAPSED_RAW = "ElapsedRaw", STATE = "State", ALLOCATED = "AllocTRES",
    REQUESTED = "ReqTRES", OLD_ALLOCATED = "AllocGRES", OLD_REQUESTED = "ReqGRES", NODES = "NNodes|AllocNodes",
    CPUS = "AllocCPUS|NCPUS", LIMIT = "Timelimit", LIMIT_RAW = "TimelimitRaw",
}
const LISTING: Layout = Layout { separator: Separator::Bar, ..Layout::named(COLUMNS, 2) };

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let fields: Vec<&str> = head.first_line().split('|').map(str::trim).collect();
    let found = fields.len() > 1 && fields.contains(&"JobID") && fields.contains(&"Submit");
    found.then(|| "the header has JobID and Submit between bars".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let options = request.options;
    let mut gathering = Gathering::new(request)?;
    let head = Head::of(request.path)?;
    if head.first_line().contains("JobID") && !head.first_line().contains('|') {
        let what = "expected fields between bars, found columns of blanks: run sacct with --parsable2".into();
        return Err(Error::Line { file: request.path.display().to_string(), line: 1, what });
    }
    let retries = options.choice("retries", &["merge", "last", "first"])?;
    let by_account = options.choice("tenants", &["account", "partition"])? == "account";
    let mut table = Table::lay_out(request.path, LISTING)?;
    check_columns(&table)?;
    gathering.stamped = true;
    gathering.id_column = "JobID".into();
    gathering.again = match retries {
        "merge" => Again::Merged,
        "last" => Again::Last,
        _ => Again::First,
    };
    gathering.assume("elapsed times are taken as work, although measured under Slurm's own decisions; jobs are rigid");
    gathering
        .assume(format!("rows of a job that was requeued: {retries} (retries=merge adds them up; or last, first)"));
    gathering.assume("GPUs are those allocated, or requested where nothing is said of an allocation");
    gathering.assume(match options.get("cores") {
        Some("keep") => "allocated CPUs are spread evenly over the workers (cores=keep)",
        _ => "allocated CPUs are not looked at (cores=drop; or keep)",
    });
    gathering.assume(match options.get("workers") {
        Some("node") => "a job has a worker for each of its nodes (workers=node)",
        _ => "a job has a worker for each of its GPUs, on any nodes (workers=gpu; or node)",
    });
    gathering.assume("time limits are the users' estimates; dependencies and priorities are not in the listing");
    gathering.assume("interruptions cost nothing: the listing does not say how long a restart takes");
    let mut steps = 0_u64;
    gathering.read(&mut table, |row, gathering| {
        let id = row.required(JOB, "the number of a job")?;
        if id.contains('.') {
            steps += 1;
            return Ok(None);
        }
        if !gathering.wants_state(row.text(STATE)) {
            return Ok(None);
        }
        let submitted = gathering.required_stamp(row, SUBMIT)?;
        let (start, end) = (gathering.stamp(row, START)?, gathering.stamp(row, END)?);
        if unfinished(row, start.is_none(), end.is_none()) {
            gathering.leave_out("that never started or have not ended");
            return Ok(None);
        }
        let Some(work) = work(row, start, end)? else {
            gathering.leave_out("that never started or have not ended");
            return Ok(None);
        };
        let nodes = row.count(NODES, 0..=MOST_GPUS)?;
        let devices = devices(row, nodes)?;
        let millicores = row.count(CPUS, 0..=100_000_000)?.map(|cpus| u64::from(cpus) * 1000);
        let wanted = Wanted { gpus: devices.count, nodes, millicores };
        let no_gpus =
            || row.fault(ALLOCATED, "at least one GPU like gres/gpu=1", row.text(ALLOCATED).unwrap_or_default());
        let Some(gang) = gathering.gang(wanted, no_gpus)? else { return Ok(None) };
        let kinds =
            if devices.count > 0 { gathering.kinds(devices.kinds.iter().map(String::as_str)) } else { Vec::new() };
        let expected = limit(row)?;
        let user = row.text(USER).map(|user| gathering.name(user));
        let tenant = row.text(if by_account { ACCOUNT } else { PARTITION });
        let tenant = tenant.map(|tenant| gathering.name(tenant));
        let job = Job::new(row.line, submitted, work, gang);
        Ok(Some(Job { id: Some(id.into()), user, tenant, kinds, expected, ..job }))
    })?;
    if steps > 0 {
        gathering.assume(format!("{steps} rows are steps of jobs (like 123.batch) and passed over"));
    }
    gathering.finish()
}

fn check_columns(table: &Table) -> Result<(), Error> {
    let any = |columns: &[usize]| columns.iter().any(|&column| table.has(column));
    let fault = |what: &str| Err(Error::Line { file: table.file().into(), line: 1, what: what.into() });
    if !any(&[ALLOCATED, REQUESTED, OLD_ALLOCATED, OLD_REQUESTED]) {
        return fault("missing column `AllocTRES` or `ReqTRES`, which say how many GPUs a job has");
    }
    let timed = any(&[ELAPSED, ELAPSED_RAW]) || (table.has(START) && table.has(END));
    if !timed {
        return fault("missing column `Elapsed`, or `Start` and `End`, which say how long a job ran");
    }
    Ok(())
}

/// Whether a job waits or runs still. Its elapsed time would not be its run time.
fn unfinished(row: &Row<'_>, never_started: bool, never_ended: bool) -> bool {
    let state = row.text(STATE).unwrap_or_default();
    let open = ["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "RESIZING"].contains(&state);
    open || (row.text(START).is_some() && never_started) || (row.text(END).is_some() && never_ended)
}

fn work(row: &Row<'_>, start: Option<i64>, end: Option<i64>) -> Result<Option<Span>, Error> {
    if let Some(seconds) = row.real(ELAPSED_RAW, 0.0..=LONGEST_S)? {
        return Ok(Some(Span::from_secs_f64(seconds)));
    }
    if let Some(text) = row.text(ELAPSED) {
        let found = parse_elapsed(text).filter(|ms| *ms as f64 <= LONGEST_S * 1000.0);
        let ms = found.ok_or_else(|| row.fault(ELAPSED, "a time like 1-02:03:04, of at most 100 years", text))?;
        return Ok(Some(Span::from_millis(ms as u64)));
    }
    match (start, end) {
        (Some(start), Some(end)) => between(row, start, end, END).map(Some),
        _ => Ok(None),
    }
}

/// How long the user said it would run at most.
fn limit(row: &Row<'_>) -> Result<Option<Span>, Error> {
    let endless = |text: &&str| !matches!(*text, "UNLIMITED" | "Partition_Limit");
    if let Some(text) = row.text(LIMIT_RAW).filter(endless) {
        let minutes = text.parse::<f64>().ok().filter(|minutes| (0.0..=LONGEST_S / 60.0).contains(minutes));
        let minutes = minutes.ok_or_else(|| row.fault(LIMIT_RAW, "minutes", text))?;
        return Ok(Some(Span::from_secs_f64(minutes * 60.0)));
    }
    let Some(text) = row.text(LIMIT).filter(endless) else { return Ok(None) };
    let ms = parse_elapsed(text).ok_or_else(|| row.fault(LIMIT, "a time like 1-00:00:00", text))?;
    Ok(Some(Span::from_millis(ms as u64)))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Devices {
    count: u32,
    kinds: Vec<String>,
}

/// The GPUs of a job: from `gres/gpu=4,gres/gpu:a100=4`, or from the older `gpu:a100:4` of each node.
fn devices(row: &Row<'_>, nodes: Option<u32>) -> Result<Devices, Error> {
    for column in [ALLOCATED, REQUESTED] {
        let Some(text) = row.text(column) else { continue };
        let found = resources(text);
        return found.ok_or_else(|| row.fault(column, "resources like cpu=8,gres/gpu=4,mem=64G", &shown(text)));
    }
    for column in [OLD_ALLOCATED, OLD_REQUESTED] {
        let Some(text) = row.text(column) else { continue };
        let found = generic(text).and_then(|devices| {
            let count = devices.count.checked_mul(nodes.unwrap_or(1).max(1))?;
            Some(Devices { count, ..devices })
        });
        return found.ok_or_else(|| row.fault(column, "resources of a node like gpu:a100:4", &shown(text)));
    }
    Ok(Devices::default())
}

fn resources(text: &str) -> Option<Devices> {
    let (mut all, mut typed, mut kinds) = (None, 0_u32, Vec::new());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, amount) = part.split_once('=')?;
        if name == "gres/gpu" {
            all = Some(whole(amount)?);
        } else if let Some(kind) = name.strip_prefix("gres/gpu:") {
            typed = typed.checked_add(whole(amount)?)?;
            kinds.push(kind.to_string());
        }
    }
    Some(Devices { count: all.unwrap_or(typed), kinds })
}

fn generic(text: &str) -> Option<Devices> {
    let mut devices = Devices::default();
    for part in text.split(',').map(str::trim) {
        let part = part.split('(').next().unwrap_or(part);
        let mut words = part.trim_start_matches("gres:").split(':');
        if words.next() != Some("gpu") {
            continue;
        }
        let (kind, amount) = match (words.next(), words.next()) {
            (Some(kind), Some(amount)) => (Some(kind), whole(amount)?),
            (Some(word), None) => word.parse().map_or((Some(word), 1), |amount| (None, amount)),
            (None, _) => (None, 1),
        };
        devices.count = devices.count.checked_add(amount)?;
        devices.kinds.extend(kind.map(String::from));
    }
    Some(devices)
}

fn whole(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count <= MOST_GPUS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::tests::{assumes, fault, lines, read};

    const LISTING: &str = "JobID|User|Account|Partition|Submit|Start|End|Elapsed|State|AllocTRES|NNodes|Timelimit\n\
        10|ann|vision|gpu|2024-03-01T12:00:00|2024-03-01T12:01:00|2024-03-01T13:01:00|01:00:00|COMPLETED|\
        billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1|1|1-00:00:00\n\
        10.batch|||||2024-03-01T12:01:00|2024-03-01T13:01:00|01:00:00|COMPLETED|cpu=8,gres/gpu=4|1|\n\
        11_3|bob|speech|gpu|2024-03-01T12:00:30|2024-03-01T12:00:30|2024-03-01T12:00:40|00:00:10|CANCELLED by 7|\
        cpu=2,gres/gpu:h100=2,node=2|2|UNLIMITED\n\
        12|bob|speech|cpu|2024-03-01T12:00:31|2024-03-01T12:00:30|2024-03-01T12:00:40|00:00:10|COMPLETED|cpu=2|1|10:00\n\
        13|bob|speech|gpu|2024-03-01T12:00:32|Unknown|Unknown|00:00:00|PENDING||1|10:00\n\
        11_3|bob|speech|gpu|2024-03-01T12:00:50|2024-03-01T12:00:50|2024-03-01T12:01:40|00:00:50|COMPLETED|\
        cpu=2,gres/gpu:h100=2,node=2|2|UNLIMITED\n";

    #[test]
    fn jobs_are_read_steps_passed_over_and_requeues_merged() {
        assert_eq!(lines("sacct", LISTING, ""), ["0s 10 ann 4 3600s", "30s 11_3 bob 2 60s"]);
        for told in [
            "1 rows are steps of jobs (like 123.batch) and passed over",
            "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)",
            "1 jobs are left out: that never started or have not ended",
            "1 rows continue a job that stands further up (retries=…)",
        ] {
            assert!(assumes("sacct", LISTING, "", told), "{told}");
        }
        let expected = read("sacct", LISTING, "").unwrap().jobs[0].spec.expected;
        assert_eq!(expected, Some(Span::from_hours(24)));
    }

    #[test]
    fn accounts_kinds_and_nodes_are_matched_with_the_cluster_if_asked() {
        let jobs = read("sacct", LISTING, "queues=match&kinds=match&workers=node&retries=last").unwrap().jobs;
        let (first, second) = (&jobs[0].spec, &jobs[1].spec);
        assert_eq!((first.queue, second.queue), (cluster::QueueId(1), cluster::QueueId(2)));
        assert_eq!((first.kinds.len(), second.kinds.len()), (1, 0));
        assert_eq!((first.scaling.min(), second.scaling.min(), jobs[1].truth.iterations), (1, 2, 50_000));
    }

    #[test]
    fn gpus_are_found_however_slurm_names_them() {
        let found = |text| resources(text).map(|devices| devices.count);
        assert_eq!(
            (found("gres/gpu:a100=2,gres/gpu:t4=1"), found("cpu=1"), found("gres/gpu=x")),
            (Some(3), Some(0), None)
        );
        let found = |text| generic(text).map(|devices| devices.count);
        assert_eq!(
            (found("gpu:4"), found("gpu:v100:2(S:0-1)"), found("gpu"), found("craynetwork:1")),
            (Some(4), Some(2), Some(1), Some(0))
        );
    }

    #[test]
    fn bad_rows_name_file_line_and_column() {
        let expected = "FILE:2: column `Elapsed`: expected a time like 1-02:03:04, of at most 100 years, found an hour";
        assert_eq!(fault("sacct", &LISTING.replace("01:00:00|COMPLETED|b", "an hour|COMPLETED|b"), ""), expected);
        let expected =
            "FILE:2: column `Submit`: expected a time like 2017-10-09 07:03:03 from 1970 to 2199, found 1.3.2024";
        assert_eq!(fault("sacct", &LISTING.replace("2024-03-01T12:00:00|", "1.3.2024|"), ""), expected);
        let blanks = "JobID           User\n------- --------\n";
        assert_eq!(
            fault("sacct", blanks, ""),
            "FILE:1: expected fields between bars, found columns of blanks: run sacct with --parsable2"
        );
    }
}
