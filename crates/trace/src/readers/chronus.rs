//! Traces of Chronus (Gao et al., SoCC 2021): Philly jobs with one or several deadlines, in minutes.

use cluster::Span;

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{FREE_INTERRUPTIONS, Gathering, Job, Request, Wanted, no_gpus, required_gpus, span};
use crate::readers::gavel::MOST_STEPS;
use crate::readers::tiresias::{required_time, unit_seconds};
use crate::table::{Layout, Row, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["unit", "ends", "soft"];

columns! {
    COLUMNS:
    GPUS = "num_gpu", SUBMIT = "submit_time", DURATION = "duration", DEADLINES = "expect_time_list", JOB = "job_id",
    USER = "user", ITERATIONS = "iterations", BEST_EFFORT = "best_effort", TYPE = "job_type",
}
const TRACE: Layout = Layout::named(COLUMNS, 4);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    head.has("expect_time_list").then(|| "the header has expect_time_list".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TRACE)?;
    let unit = request.options.choice("unit", &["min", "s", "ms"])?;
    let soft = request.options.choice("soft", &["first", "last", "drop"])?;
    let unit_s = unit_seconds(unit);
    gathering.assume(format!("times are in {unit} (unit={unit}; or others of s, ms, min)"));
    gathering.assume("durations are taken as work, on all kinds of GPU; jobs are rigid");
    gathering.assume(match soft {
        "first" => "the first of several soft deadlines counts, their values do not (soft=first; or last, drop)",
        "last" => "the last of several soft deadlines counts, their values do not (soft=last; or first, drop)",
        _ => "soft deadlines do not count (soft=drop; or first, last)",
    });
    gathering.assume("the user is Philly's virtual cluster, and the deadlines are the authors', not the users'");
    gathering.assume(FREE_INTERRUPTIONS);
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let (submitted, work) = (required_time(row, SUBMIT, unit_s)?, required_time(row, DURATION, unit_s)?);
        let deadline = deadline(row, soft, unit_s)?;
        let iterations = row.whole(ITERATIONS, 0..=MOST_STEPS)?;
        let tenant = row.text(USER).map(|user| gathering.name(user));
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, tenant, deadline, iterations, ..Job::new(row.line, submitted, span(work), gang) }))
    })?;
    gathering.finish()
}

/// When a job is due after its submission, from a list like `159-189-229`.
fn deadline(row: &Row<'_>, soft: &str, unit_s: f64) -> Result<Option<Span>, Error> {
    let best_effort = row.whole(BEST_EFFORT, 0..=1_u8)? == Some(1);
    let dropped = soft == "drop" && row.text(TYPE) == Some("soft");
    let Some(text) = row.text(DEADLINES).filter(|_| !best_effort && !dropped) else {
        return Ok(None);
    };
    let chosen = if soft == "last" { text.rsplit('-').next() } else { text.split('-').next() };
    let due = chosen.unwrap_or_default().parse::<f64>().ok().filter(|due| (0.0..=1e9).contains(due));
    let due = due.ok_or_else(|| row.fault(DEADLINES, "times after the submission like 159 or 159-189", text))?;
    Ok(Some(Span::from_secs_f64(due * unit_s)))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};

    const TRACE: &str = "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,\
        expect_value_list,best_effort,job_type\n\
        0,vc_a,1,10,5530,mobilenet_v2,2,5,4-9,10-8,0,soft\n\
        1,vc_b,4,5,760,alexnet,1,6,3,10,0,strict\n\
        2,vc_b,1,7,760,alexnet,1,6,7,10,1,best\n\
        3,vc_b,0,8,760,alexnet,1,6,7,10,1,best\n";

    fn deadlines(options: &str) -> Vec<Option<f64>> {
        let jobs = read("chronus", TRACE, options).unwrap().jobs;
        jobs.iter().map(|job| Some(job.spec.deadline?.since(job.submitted).as_secs_f64())).collect()
    }

    #[test]
    fn minutes_become_seconds_and_deadlines_follow_the_submission() {
        assert_eq!(lines("chronus", TRACE, ""), ["5m 1 vc_b 4 60s", "7m 2 vc_b 1 60s", "10m 0 vc_a 1 120s"]);
        assert_eq!(deadlines(""), [Some(180.0), None, Some(240.0)]);
        assert_eq!(deadlines("soft=last"), [Some(180.0), None, Some(540.0)]);
        assert_eq!(deadlines("soft=drop"), [Some(180.0), None, None]);
        assert!(assumes("chronus", TRACE, "", "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)"));
    }

    #[test]
    fn a_bad_deadline_names_file_line_and_column() {
        let expected =
            "FILE:3: column `expect_time_list`: expected times after the submission like 159 or 159-189, found soon";
        assert_eq!(fault("chronus", &TRACE.replace("6,3,10", "6,soon,10"), ""), expected);
    }
}
