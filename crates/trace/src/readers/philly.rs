//! The jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019): the published `cluster_job_log`, a list in JSON with
//! every attempt of every job, and the two tables to which derived copies reduce it.

use cluster::{Name, Span};

use crate::Workload;
use crate::error::{Error, shown};
use crate::readers::auto::Head;
use crate::readers::clock::is_never;
use crate::readers::gather::{
    Gathering, Job, LONGEST_S, Request, Wanted, no_gpus, required_gpus, required_seconds, span,
};
use crate::readers::json::Json;
use crate::table::{Layout, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["retries", "states"];

columns! {
    COLUMNS:
    GPUS = "num_gpus", DURATION = "duration_s|duration", ARRIVAL = "arrival_s", JOB = "job_id", VC = "vc|cluster",
    SUBMIT = "submit_time|timestamp", GPU_TIME = "gpu_time",
}
const TABLE: Layout = Layout::named(COLUMNS, 2);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    if head.text.trim_start().starts_with('[') && head.text.contains("\"attempts\"") {
        return Some("it is a list in JSON whose members have `attempts`".into());
    }
    let reduced = head.has_all(&["arrival_s", "num_gpus", "duration_s", "vc"]);
    let pollux = head.has_all(&["timestamp", "duration", "num_gpus", "gpu_time", "cluster"]);
    (reduced && !head.has("user") || pollux).then(|| format!("the header has {}", head.header()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let retries = request.options.choice("retries", &["merge", "last", "first", "span"])?;
    if Head::of(request.path)?.text.trim_start().starts_with('[') {
        read_log(request, &mut gathering, retries)?;
        return gathering.finish();
    }
    if request.options.get("retries").is_some() {
        let what = "a table of jobs does not tell attempts apart: expected no `retries`, found one";
        return Err(request.options.fault(what.into()));
    }
    read_table(request, &mut gathering)?;
    gathering.finish()
}

fn read_table(request: Request<'_>, gathering: &mut Gathering<'_>) -> Result<(), Error> {
    let mut table = Table::lay_out(request.path, TABLE)?;
    if !table.has(ARRIVAL) && !table.has(SUBMIT) {
        let what = "missing column `arrival_s` or `submit_time`".into();
        return Err(Error::Line { file: table.file().into(), line: 1, what });
    }
    gathering.stamped = table.has(SUBMIT);
    gathering
        .assume("run times are taken as work, although measured under another scheduler and probably with retries");
    gathering.assume("GPU counts are taken as fixed: every job is rigid and runs equally fast wherever it is placed");
    gathering.assume("users are unknown: virtual clusters stand for them, or `unknown`");
    gathering.assume("interruptions cost nothing: the list does not say how long a restart takes");
    gathering.read(&mut table, |row, gathering| {
        let duration = required_seconds(row, DURATION)?;
        let gpus = required_gpus(row, GPUS)?;
        let submitted = match gathering.stamped {
            true => gathering.required_stamp(row, SUBMIT)?,
            false => required_seconds(row, ARRIVAL)?,
        };
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let tenant = row.text(VC).map(|vc| gathering.name(vc));
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, tenant, ..Job::new(row.line, submitted, span(duration), gang) }))
    })
}

/// A job of the log, with the places of what may be wrong about it.
#[derive(Default)]
struct Entry {
    line: u64,
    id: Option<String>,
    status: Option<String>,
    vc: Option<String>,
    user: Option<String>,
    submitted: Option<String>,
    submitted_line: u64,
    attempts: Vec<Attempt>,
}

#[derive(Default)]
struct Attempt {
    line: u64,
    start: Option<String>,
    end: Option<String>,
    gpus: u32,
    nodes: u32,
}

fn read_log(request: Request<'_>, gathering: &mut Gathering<'_>, retries: &'static str) -> Result<(), Error> {
    let mut json = Json::open(request.path)?;
    gathering.stamped = true;
    gathering.id_column = "jobid".into();
    gathering.assume(match retries {
        "merge" => "a job with several attempts runs as long as all of them together (retries=merge; or last, first, span)",
        "last" => "of several attempts the last is the job (retries=last; or merge, first, span)",
        "first" => "of several attempts the first is the job (retries=first; or merge, last, span)",
        _ => "a job runs from the start of its first to the end of its last attempt, gaps included (retries=span; or merge, last, first)",
    });
    gathering.assume("run times are taken as work, although measured under Philly's own scheduler");
    gathering.assume("GPUs are those the attempt held: every job is rigid and runs equally fast wherever it is placed");
    gathering.assume("interruptions cost nothing: the log does not say how long a restart takes");
    let mut ended = true;
    json.elements(|json| {
        let entry = read_entry(json)?;
        let found = job(json.file(), &entry, gathering, retries);
        gathering.take(found, false)?;
        ended = gathering.wants_more();
        Ok(ended)
    })?;
    if ended { json.end() } else { Ok(()) }
}

fn read_entry(json: &mut Json) -> Result<Entry, Error> {
    let mut entry = Entry::default();
    json.members(|json, name| {
        entry.line = if entry.line == 0 { json.line() } else { entry.line };
        match name {
            "jobid" => entry.id = json.scalar()?,
            "status" => entry.status = json.scalar()?,
            "vc" => entry.vc = json.scalar()?,
            "user" => entry.user = json.scalar()?,
            "submitted_time" => (entry.submitted_line, entry.submitted) = (json.line(), json.scalar()?),
            "attempts" if json.is_list()? => json.elements(|json| {
                entry.attempts.push(read_attempt(json)?);
                Ok(true)
            })?,
            "attempts" => {}
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok(entry)
}

fn read_attempt(json: &mut Json) -> Result<Attempt, Error> {
    let mut attempt = Attempt::default();
    json.members(|json, name| {
        attempt.line = if attempt.line == 0 { json.line() } else { attempt.line };
        match name {
            "start_time" => attempt.start = json.scalar()?,
            "end_time" => attempt.end = json.scalar()?,
            "detail" if json.is_list()? => json.elements(|json| {
                attempt.nodes += 1;
                json.members(|json, name| match name {
                    "gpus" if json.is_list()? => json.elements(|json| {
                        attempt.gpus += 1;
                        json.skip().map(|()| true)
                    }),
                    "gpus" => Ok(()),
                    _ => json.skip(),
                })?;
                Ok(true)
            })?,
            "detail" => {}
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok(attempt)
}

fn job(file: &str, entry: &Entry, gathering: &mut Gathering<'_>, retries: &str) -> Result<Option<Job>, Error> {
    let fault = |line, column: &str, expected: String, found: &str| Error::Field {
        file: file.into(),
        line,
        column: column.into(),
        expected,
        found: shown(found),
    };
    if !gathering.wants_state(entry.status.as_deref()) {
        return Ok(None);
    }
    let moment = |gathering: &Gathering<'_>, text: &Option<String>, line, column: &str| {
        let Some(text) = text.as_deref().filter(|text| !text.is_empty() && !is_never(text)) else { return Ok(None) };
        let stamp = || "a time like 2017-10-09 07:03:03 from 1970 to 2199".to_string();
        gathering.parse_moment(text).map(Some).ok_or_else(|| fault(line, column, stamp(), text))
    };
    let Some(submitted) = moment(gathering, &entry.submitted, entry.submitted_line, "submitted_time")? else {
        return Err(fault(entry.line, "submitted_time", "the time of submission".into(), ""));
    };
    let mut runs = Vec::new();
    for attempt in &entry.attempts {
        let start = moment(gathering, &attempt.start, attempt.line, "attempts.start_time")?;
        let end = moment(gathering, &attempt.end, attempt.line, "attempts.end_time")?;
        let (Some(start), Some(end)) = (start, end) else { continue };
        if !(0.0..=LONGEST_S * 1000.0).contains(&((end - start) as f64)) {
            let expected = "a time after the start, by at most 100 years".into();
            return Err(fault(attempt.line, "attempts.end_time", expected, attempt.end.as_deref().unwrap_or_default()));
        }
        runs.push((start, end, attempt));
    }
    let chosen = match retries {
        "first" => runs.first(),
        _ => runs.last(),
    };
    let Some(&(start, end, attempt)) = chosen else {
        gathering.leave_out("without an attempt that started and ended");
        return Ok(None);
    };
    let work = match retries {
        "merge" => runs.iter().map(|(start, end, _)| end - start).sum(),
        "span" => end - runs.iter().map(|(start, ..)| *start).min().unwrap_or(start),
        _ => end - start,
    };
    let wanted = Wanted { gpus: attempt.gpus, nodes: Some(attempt.nodes), millicores: None };
    let no_gpus = || fault(attempt.line, "attempts.detail", "at least one GPU".into(), "0");
    let Some(gang) = gathering.gang(wanted, no_gpus)? else { return Ok(None) };
    let user: Option<Name> = entry.user.as_deref().map(|user| gathering.name(user));
    let tenant = entry.vc.as_deref().map(|vc| gathering.name(vc));
    let job = Job::new(entry.line, submitted, Span::from_millis(work.max(0) as u64), gang);
    Ok(Some(Job { id: entry.id.clone(), user, tenant, ..job }))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines};

    const LOG: &str = r#"[
 {"status": "Pass", "vc": "ee", "jobid": "app_1", "user": "ann", "submitted_time": "2017-10-09 07:00:00",
  "attempts": [
   {"start_time": "2017-10-09 07:10:00", "end_time": "2017-10-09 07:20:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0"]}]},
   {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:30:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu4", "gpu7"]}]}]},
 {"status": "Killed", "vc": "ee", "jobid": "app_2", "user": "bob", "submitted_time": "2017-10-09 06:00:00",
  "attempts": [{"start_time": "2017-10-09 06:00:05", "end_time": null, "detail": []}]},
 {"status": "Failed", "vc": "ff", "jobid": "app_3", "user": "bob", "submitted_time": "2017-10-09 06:59:00",
  "attempts": [{"start_time": "2017-10-09 07:00:00", "end_time": "2017-10-09 07:00:01",
                "detail": [{"ip": "m9", "gpus": ["gpu3"]}]}]}
]"#;

    #[test]
    fn the_log_is_read_with_all_attempts_merged() {
        assert_eq!(lines("philly", LOG, ""), ["0s app_3 bob 1 1s", "1m app_1 ann 4 2400s"]);
        assert!(assumes("philly", LOG, "", "1 jobs are left out: without an attempt that started and ended"));
        assert!(assumes("philly", LOG, "", "time 0 is 2017-10-09 06:59:00 (+00:00), the first submission (origin=…)"));
        assert!(assumes(
            "philly",
            LOG,
            "",
            "1 jobs stand below others that were submitted later: sorted by submission"
        ));
    }

    #[test]
    fn what_becomes_of_several_attempts_is_an_option() {
        assert_eq!(lines("philly", LOG, "retries=last&states=pass"), ["0s app_1 ann 4 1800s"]);
        assert_eq!(lines("philly", LOG, "retries=first&states=pass"), ["0s app_1 ann 1 600s"]);
        assert_eq!(lines("philly", LOG, "retries=span&states=pass"), ["0s app_1 ann 4 4800s"]);
    }

    #[test]
    fn a_bad_attempt_names_line_and_member_and_can_be_skipped() {
        let log = LOG.replace("2017-10-09 08:30:00", "2017-10-09 07:30:00");
        let expected = "FILE:6: column `attempts.end_time`: expected a time after the start, by at most 100 years, \
                        found 2017-10-09 07:30:00";
        assert_eq!(fault("philly", &log, ""), expected);
        assert_eq!(lines("philly", &log, "skip_bad_rows=true"), ["0s app_3 bob 1 1s"]);
        assert!(assumes("philly", &log, "skip_bad_rows=true", &format!("left out: {expected}")));
        let cut = &LOG[..LOG.len() / 2];
        assert!(fault("philly", cut, "skip_bad_rows=true").contains("was it cut short?"));
    }

    const TABLE: &str = "job_id,submit_time,arrival_s,num_gpus,duration_s,vc\n\
                         1,2017-08-18 01:29:43,60,8,3600,6c71a0\n\
                         2,2017-08-18 01:28:43,0,1,0,\n";

    #[test]
    fn jobs_of_the_reduced_table_come_in_order_with_the_virtual_cluster_as_user() {
        assert_eq!(lines("philly", TABLE, ""), ["0s 2 unknown 1 0.001s", "1m 1 6c71a0 8 3600s"]);
        assert!(assumes("philly", TABLE, "", "1 jobs shorter than 1 ms last 1 ms"));
        assert_eq!(lines("philly", TABLE, "from=2017-08-18 01:29:00"), ["43s 1 6c71a0 8 3600s"]);
    }

    #[test]
    fn the_list_of_the_pollux_authors_is_read() {
        let text = "timestamp,duration,num_gpus,gpu_time,cluster\n\
                    2017-10-09 07:01:55,10,2,20,ab\n2017-10-09 07:02:00,7,1,7,cd\n";
        assert_eq!(lines("philly", text, ""), ["0s line2 ab 2 10s", "5s line3 cd 1 7s"]);
    }

    #[test]
    fn a_job_without_gpus_is_refused_with_its_line_if_asked() {
        let text = "arrival_s,num_gpus,duration_s\n0,1,5\n1,0,5\n";
        assert_eq!(lines("philly", text, ""), ["0s line2 unknown 1 5s"]);
        let expected = "FILE:3: column `num_gpus`: expected a whole number from 1 to 1000000, found 0";
        assert_eq!(fault("philly", text, "zero_gpu=refuse"), expected);
    }
}
