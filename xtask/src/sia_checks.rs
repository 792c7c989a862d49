//! Sia against its authors' program: their recorded choices replayed, and free runs beside theirs.

use std::path::Path;

use anyhow::{Result, ensure};
use sim::reproduce::{Figures, Measured, Paper, measure};

use crate::data_checks::Checks;
use crate::say;

/// How the record calls our kinds of GPU.
const KINDS: [(&str, &str); 3] = [("t4", "aws"), ("a100", "dgx-ext"), ("rtx2080ti", "rtx")];

pub(crate) fn run(data: &Path, checks: &mut Checks) -> Result<()> {
    for (trace, calls) in [("philly", 932.0), ("saturn", 748.0)] {
        replayed(data, trace, calls, checks)?;
    }
    free(data, checks)
}

/// With the recorded choices imposed, everything else comes out as recorded.
fn replayed(data: &Path, trace: &str, calls: f64, checks: &mut Checks) -> Result<()> {
    let (cluster, queues, _) = trace::load_cluster("sia-hetero-64")?;
    let source = data.join("sia");
    let file = source.join(format!("workloads/{trace}/workload-1.csv"));
    let workload = format!("sia:{}?profiles=sia:{}", file.display(), source.display());
    let workload = trace::load_workload(&workload, &cluster, &queues, 1)?;
    let record = |what: &str| data.join(format!("reference/sia/sia_{trace}1.{what}.csv"));
    let recorded = sim::RecordedRun::read(&record("state"), &record("objective"))?;
    let found = sim::replay(&cluster, &workload, &recorded, &KINDS)?;
    found.differences.iter().for_each(|difference| say(&format!("     {difference}")));
    let mut same = 0_u32;
    for line in csv::Reader::from_path(record("jobs"))?.records() {
        let line = line?;
        let completion_ms = line[3].parse::<u64>()? * 1000;
        same += u32::from(found.completed.get(&line[0]).is_some_and(|at| at.as_millis() == completion_ms));
    }
    let rounds = found.job_rounds as f64;
    let what = |what: &str| format!("sia replay of {trace} 1: {what}");
    checks.near(&what("jobs that end at the recorded second"), f64::from(same), 160.0, 0.0);
    checks.near(&what("rounds of jobs with the recorded epoch"), found.same_epoch as f64, rounds, 0.0);
    checks.near(&what("with the recorded restarts"), found.same_restarts as f64, rounds, 0.0);
    checks.near(&what("with the recorded batch"), found.same_batch as f64, rounds, 0.0);
    checks.near(&what("calls of the policy"), found.calls as f64, calls, 0.0);
    checks.near(&what("calls whose recorded choice costs as recorded"), found.same_cost as f64, calls, 0.01);
    checks.near(&what("calls whose optimum is as recorded"), found.same_optimum as f64, calls, 0.01);
    Ok(())
}

/// Left to itself, with ties broken in another way, the averages are theirs.
fn free(data: &Path, checks: &mut Checks) -> Result<()> {
    let to_the_letter = |title: &str| title.ends_with("to the letter") && !title.contains("newtrace");
    for experiment in Paper::Sia.experiments(data)?.into_iter().filter(|one| to_the_letter(&one.title)) {
        let (cluster, queues, _) = trace::load_cluster(experiment.cluster)?;
        let runs: Vec<Measured> = experiment
            .workloads
            .iter()
            .map(|workload| {
                let jobs = trace::load_workload(workload, &cluster, &queues, 1)?.jobs;
                Ok(measure(&cluster, &queues, jobs, &experiment.policy, None)?)
            })
            .collect::<Result<_>>()?;
        ensure!(experiment.program.is_some(), "{}: the runs of the authors' program are not there", experiment.title);
        let (theirs, ours) = (experiment.program.unwrap_or_default(), Figures::of(&runs));
        let mut near = |what: &str, ours: Option<f64>, theirs: Option<f64>, tolerance: f64| {
            let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
            checks.near(&format!("{}: {what}", experiment.title), known(ours), known(theirs), tolerance);
        };
        near("mean completion [h]", ours.mean_h, theirs.mean_h, 0.05);
        near("GPU hours per job", ours.gpu_hours, theirs.gpu_hours, 0.05);
        near("restarts per job", ours.restarts, theirs.restarts, 0.10);
        near("p99 of completion [h]", ours.p99_h, theirs.p99_h, 0.15);
        near("makespan [h]", ours.makespan_h, theirs.makespan_h, 0.15);
        let trace = if experiment.title.contains("philly") { "philly" } else { "saturn" };
        for (number, run) in (1..).zip(&runs) {
            let summary = data.join(format!("reference/sia/sia_{trace}{number}.summary.json"));
            let theirs = sim::reproduce::mean_completion_s(&summary)?;
            checks.near(&format!("sia on {trace} {number}: mean completion [s]"), run.mean_s(), theirs, 0.10);
        }
    }
    Ok(())
}
