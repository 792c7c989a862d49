//! Traces of Shockwave's program (Zheng et al., NSDI 2023): Gavel's fields, how the batch size changes, and a run time.

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{Gathering, Job, Request, Wanted, no_gpus, required_gpus, required_seconds, span};
use crate::readers::gavel::{MOST_STEPS, slack, weight};
use crate::table::{Header, Layout, Separator, Table};

pub(crate) const OPTIONS: &[&str] = &["ends"];

const STEPS: usize = 5;
const GPUS: usize = 6;
const MODE: usize = 7;
const WEIGHT: usize = 8;
const SLO: usize = 9;
const DURATION: usize = 10;
const ARRIVAL: usize = 11;
const TRACE: Layout = Layout {
    columns: &[
        "job_type",
        "command",
        "working_directory",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "scale_factor",
        "mode",
        "priority_weight",
        "SLO",
        "duration_s",
        "arrival_time_s",
    ],
    required: 12,
    separator: Separator::Tab,
    header: Header::Optional,
};
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
    gathering.assume("jobs are rigid at their scale factor, in which a worker has one GPU");
    gathering.assume(match request.options.get("ends") {
        Some("iterations") => "policies are told how many steps a job takes (ends=iterations)",
        _ => "policies are not told how many steps a job takes (ends=itself; or iterations)",
    });
    gathering.assume("interruptions cost nothing: the trace does not say how long a restart takes");
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
