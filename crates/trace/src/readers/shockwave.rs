//! Traces of Shockwave's program (Zheng et al., NSDI 2023): Gavel's fields, how the batch size changes, and a run time.

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{Gathering, Job, Request, Wanted, no_gpus, required_gpus, required_seconds, span};
use crate::readers::gavel::{MOST_STEPS, assume_as_gavel, slack, weight};
use crate::table::{Layout, Separator, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["ends"];

columns! {
    COLUMNS:
    TYPE = "job_type", COMMAND = "command", DIRECTORY = "working_directory", STEPS_ARGUMENT = "num_steps_arg",
    NEEDS_DATA = "needs_data_dir", STEPS = "total_steps", GPUS = "scale_factor", MODE = "mode",
    WEIGHT = "priority_weight", SLO = "SLO", DURATION = "duration_s", ARRIVAL = "arrival_time_s",
}
const TRACE: Layout = Layout::bare(COLUMNS, Separator::Tab);
const MODES: [&str; 3] = ["static", "accordion", "gns"];

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let fields: Vec<&str> = head.first_line().split('\t').collect();
    let trace = fields.len() == 12 && MODES.contains(&fields[MODE].trim());
    trace.then(|| format!("lines have twelve fields between tabs, the eighth of which is {}", fields[MODE].trim()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, TRACE)?;
    gathering.assume("the stated run time is taken as work, on all kinds of GPU");
    assume_as_gavel(&mut gathering);
    let mut changing = 0;
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let mode = row.required(MODE, "static, accordion or gns")?;
        if !MODES.contains(&mode) {
            return Err(row.fault(MODE, "static, accordion or gns", mode));
        }
        changing += u64::from(mode != "static");
        let (submitted, duration) = (required_seconds(row, ARRIVAL)?, required_seconds(row, DURATION)?);
        let work = span(duration);
        let deadline = slack(row, SLO)?.map(|slack| work.scale(slack));
        let iterations = row.whole(STEPS, 1..=MOST_STEPS)?;
        let weight = weight(row, WEIGHT)?;
        Ok(Some(Job { deadline, weight, iterations, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    if changing > 0 {
        gathering.assume(format!("{changing} jobs change their batch size as they go: they keep one speed here"));
    }
    gathering.finish()
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines};

    const TRACE: &str = "LM (batch size 10)\tpython3 m.py\tlm\t--steps\t1\t1345\t2\tgns\t1\t-1.000000\t1418\t7\n";

    #[test]
    fn the_stated_run_time_is_the_work() {
        assert_eq!(lines("shockwave", TRACE, ""), ["7s line1 unknown 2 1418s"]);
        assert!(assumes("shockwave", TRACE, "", "1 jobs change their batch size as they go: they keep one speed here"));
    }

    #[test]
    fn an_unknown_mode_names_file_line_and_column() {
        let expected = "FILE:1: column `mode`: expected static, accordion or gns, found magic";
        assert_eq!(fault("shockwave", &TRACE.replace("gns", "magic"), ""), expected);
    }
}
