//! Traces of the Tiresias simulator (Gu et al., NSDI 2019), which many others took over: `job_id,num_gpu,submit_time,
//! iterations,model_name,duration,interval`; with Muri's further columns as well.

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    FREE_INTERRUPTIONS, Gathering, Job, LONGEST_S, Request, Wanted, no_gpus, required_gpus, span, timed,
};
use crate::readers::gavel::MOST_STEPS;
use crate::table::{Layout, Row, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["unit", "ends"];

columns! {
    COLUMNS:
    GPUS = "num_gpu", SUBMIT = "submit_time", DURATION = "duration", JOB = "job_id", ITERATIONS = "iterations",
    STAGE = "resource_time_0",
}
const TRACE: Layout = Layout::named(COLUMNS, 3);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let trace = head.has_all(&["job_id", "num_gpu", "submit_time", "model_name", "duration"]);
    let others = head.has("expect_time_list") || head.has("ddl");
    (trace && !others).then(|| format!("the header has {}", head.header()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TRACE)?;
    let unit = request.options.choice("unit", &["s", "ms", "min"])?;
    if table.has(STAGE) && request.options.get("unit").is_none() {
        let what = "the columns are Muri's, which counts milliseconds while Tiresias counts seconds: \
                    add `?unit=ms` (or s, min)";
        return Err(Error::File { file: table.file().into(), what: what.into() });
    }
    let unit_s = unit_seconds(unit);
    gathering.assume(format!("times are in {unit} (unit={unit}; or others of s, ms, min)"));
    gathering.assume("durations are taken as work, on all kinds of GPU; jobs are rigid");
    gathering.assume_ends("iterations");
    gathering.assume(FREE_INTERRUPTIONS);
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let (submitted, work) = (required_time(row, SUBMIT, unit_s)?, required_time(row, DURATION, unit_s)?);
        let iterations = row.whole(ITERATIONS, 0..=MOST_STEPS)?;
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, iterations, ..Job::new(row.line, submitted, span(work), gang) }))
    })?;
    gathering.finish()
}

pub(crate) fn unit_seconds(unit: &str) -> f64 {
    match unit {
        "ms" => 0.001,
        "min" => 60.0,
        _ => 1.0,
    }
}

/// A time that must not be missing, in milliseconds.
pub(crate) fn required_time(row: &Row<'_>, column: usize, unit_s: f64) -> Result<i64, Error> {
    row.required(column, &format!("a number from 0 to {}", LONGEST_S / unit_s))?;
    Ok(timed(row, column, unit_s)?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};

    const TRACE: &str = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n\
                         0,1,0,606,vgg19,164,30\n1,8,30,133,vgg11,147,23\n";

    #[test]
    fn durations_are_work_and_iterations_are_told_if_asked() {
        assert_eq!(lines("tiresias", TRACE, ""), ["0s 0 unknown 1 164s", "30s 1 unknown 8 147s"]);
        let jobs = read("tiresias", TRACE, "ends=iterations").unwrap().jobs;
        assert_eq!((jobs[1].spec.iterations(), jobs[1].truth.iterations), (Some(133), 133));
        let rate = |rates: &perf::Rates| if let perf::Rates::Anywhere(rate) = rates { *rate } else { 0.0 };
        assert!((rate(&jobs[1].speed.rates) * 147.0 - 133.0).abs() < 1e-9);
    }

    #[test]
    fn muri_needs_its_unit() {
        let text = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,\
                    resource_time_0,resource_time_1,resource_time_2,priority\n0,1,2000,58,dqn,128,5000,46,490,446,8,0,1\n";
        assert!(fault("tiresias", text, "").contains("add `?unit=ms`"));
        assert_eq!(lines("tiresias", text, "unit=ms"), ["2s 0 unknown 1 5s"]);
        assert!(assumes("tiresias", text, "unit=min", "times are in min (unit=min; or others of s, ms, min)"));
    }

    #[test]
    fn an_id_that_comes_twice_names_file_line_and_column() {
        let expected = "FILE:4: column `job_id`: expected ids that differ (line 2 has the same), found 0";
        assert_eq!(fault("tiresias", &format!("{TRACE}0,1,99,606,vgg19,164,30\n"), ""), expected);
    }
}
