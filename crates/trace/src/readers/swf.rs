//! The Standard Workload Format of the Parallel Workloads Archive: eighteen numbers a line, -1 for what is unknown.

use cluster::Name;

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{Gathering, Job, LONGEST_S, MOST_GPUS, Request, Wanted, no_gpus, span};
use crate::table::{Layout, Row, Separator, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["gpus", "states"];

columns! {
    COLUMNS:
    JOB = "job", SUBMIT = "submit", WAIT = "wait", RUN = "run", ALLOCATED = "allocated", CPU_TIME = "cpu_time",
    MEMORY = "memory", REQUESTED = "requested", LIMIT = "requested_time", REQUESTED_MEMORY = "requested_memory",
    STATUS = "status", USER = "user", GROUP = "group", EXECUTABLE = "executable", QUEUE = "queue",
    PARTITION = "partition", PRECEDING = "preceding", THINK = "think",
}
const LOG: Layout = Layout::bare(COLUMNS, Separator::Blanks);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let line = head.text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with(';'))?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let numbers = fields.len() == 18 && fields.iter().all(|field| field.parse::<f64>().is_ok());
    numbers.then(|| "lines have eighteen numbers between blanks".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let allocated = request.options.choice("gpus", &["allocated", "requested"])? == "allocated";
    let mut table = Table::lay_out(request.path, LOG)?;
    gathering.id_column = "job".into();
    gathering.assume(match allocated {
        true => {
            "allocated processors are taken as GPUs, or requested ones where unknown (gpus=allocated; or requested)"
        }
        false => {
            "requested processors are taken as GPUs, or allocated ones where unknown (gpus=requested; or allocated)"
        }
    });
    gathering.assume("run times are taken as work, although measured under another scheduler; jobs are rigid");
    gathering.assume("requested times are the users' estimates; groups stand for tenants");
    gathering.assume("dependencies, think times, queues and memory are not looked at; interruptions cost nothing");
    gathering.read(&mut table, |row, gathering| {
        if !gathering.wants_state(row.text(STATUS).map(state)) {
            return Ok(None);
        }
        let submitted = figure(row, SUBMIT)?.ok_or_else(|| row.fault(SUBMIT, "the time of submission", "-1"))?;
        let Some(run) = figure(row, RUN)? else {
            gathering.leave_out("whose run time is unknown");
            return Ok(None);
        };
        let sizes = (processors(row, ALLOCATED)?, processors(row, REQUESTED)?);
        let (first, second) = if allocated { sizes } else { (sizes.1, sizes.0) };
        let gpus = first.or(second).unwrap_or(0);
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, ALLOCATED))? else {
            return Ok(None);
        };
        let expected = figure(row, LIMIT)?.filter(|limit| *limit > 0).map(span);
        let user = named(row, USER, "user", gathering);
        let tenant = named(row, GROUP, "group", gathering);
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, user, tenant, expected, ..Job::new(row.line, submitted, span(run), gang) }))
    })?;
    gathering.finish()
}

fn state(status: &str) -> &str {
    match status {
        "0" => "failed",
        "1" => "completed",
        "5" => "cancelled",
        _ => "unknown",
    }
}

/// Seconds in milliseconds; nothing for -1.
fn figure(row: &Row<'_>, column: usize) -> Result<Option<i64>, Error> {
    let found = row.text(column).unwrap_or_default();
    match found.parse::<f64>() {
        Ok(-1.0) => Ok(None),
        Ok(seconds) if (0.0..=LONGEST_S).contains(&seconds) => Ok(Some((seconds * 1000.0).round() as i64)),
        _ => Err(row.fault(column, format!("-1 or a number from 0 to {LONGEST_S}"), found)),
    }
}

fn processors(row: &Row<'_>, column: usize) -> Result<Option<u32>, Error> {
    match row.text(column) {
        Some("-1") => Ok(None),
        _ => row.count(column, 0..=MOST_GPUS),
    }
}

/// `user7`; nothing for -1.
fn named(row: &Row<'_>, column: usize, what: &str, gathering: &mut Gathering<'_>) -> Option<Name> {
    let number = row.text(column).filter(|number| *number != "-1")?;
    Some(gathering.name(&format!("{what}{number}")))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};

    const LOG: &str = "; Version: 2.2\n; UnixStartTime: 0\n\
        1 0 5 60 8 -1 -1 16 3600 -1 1 7 2 -1 1 -1 -1 -1\r\n\
        \t2 10 -1 -1 -1 -1 -1 4 3600 -1 5 7 2 -1 1 -1 -1 -1\n\
        3 9 0 30 -1 -1 -1 4 -1 -1 0 -1 -1 -1 1 -1 -1 -1\n";

    #[test]
    fn processors_are_taken_as_gpus() {
        assert_eq!(lines("swf", LOG, ""), ["0s 1 user7 8 60s", "9s 3 unknown 4 30s"]);
        assert_eq!(lines("swf", LOG, "gpus=requested&states=completed"), ["0s 1 user7 16 60s"]);
        assert!(assumes("swf", LOG, "", "1 jobs are left out: whose run time is unknown"));
        let expected = read("swf", LOG, "").unwrap().jobs[0].spec.expected;
        assert_eq!(expected, Some(cluster::Span::from_hours(1)));
    }

    #[test]
    fn a_bad_field_names_file_line_and_column() {
        let expected = "FILE:3: column `run`: expected -1 or a number from 0 to 3155760000, found -60";
        assert_eq!(fault("swf", &LOG.replace("5 60", "5 -60"), ""), expected);
        let expected = "FILE:3: expected 18 fields, found 17";
        assert_eq!(fault("swf", &LOG.replace("1 0 5 60", "1 0 60"), ""), expected);
    }
}
