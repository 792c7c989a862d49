//! The experiments of Sia: heterogeneous clusters of 64 GPUs, workloads of 160 jobs sampled from two public traces.

use std::path::Path;

use policies::PolicyConfig;
use serde::Deserialize;

use super::{Experiment, Figures, ReproduceError, parse, workloads};

/// A run of the authors' program, as it was summarised.
#[derive(Debug, Deserialize)]
struct Summary {
    avg_jct_s: f64,
    makespan_s: f64,
    restarts_per_job: f64,
    gpu_hours_per_job_attained: f64,
}

/// Table 3 of the paper: mean and 99th percentile of completion, makespan (hours), GPU hours per job.
const PAPER: [(&str, [f64; 4]); 3] =
    [("philly", [0.6, 9.5, 14.2, 4.0]), ("saturn", [0.7, 10.9, 14.9, 4.8]), ("newtrace", [0.7, 4.6, 52.2, 3.0])];

/// All experiments for which the data is there. With `reference`, beside the runs of the authors' program on the first
/// four workloads of each trace.
pub(crate) fn experiments(data: &Path) -> Result<Vec<Experiment>, ReproduceError> {
    let mut all = Vec::new();
    let as_published = PolicyConfig::from_pairs("sia", &["parity=true"]).expect("a known policy");
    let profiles = format!("profiles=sia:{}", data.join("sia").display());
    for (trace, printed) in PAPER {
        let folder = data.join("sia/workloads").join(trace);
        let numbers = if trace == "newtrace" { 1..=2 } else { 1..=4 };
        let files = workloads(&folder, numbers);
        if files.is_empty() {
            continue;
        }
        let [mean, p99, makespan, gpu_hours] = printed.map(Some);
        let paper = Figures { mean_h: mean, p99_h: p99, makespan_h: makespan, gpu_hours, ..Figures::default() };
        let program = reference(data, trace, files.len())?;
        let named = |files: &[std::path::PathBuf], option: &str| -> Vec<String> {
            files.iter().map(|file| format!("sia:{}?{profiles}{option}", file.display())).collect()
        };
        let base = Experiment {
            title: format!("Sia, {trace}, to the letter"),
            policy: as_published.clone(),
            cluster: "sia-hetero-64",
            rents_after: None,
            only: None,
            workloads: named(&files, ""),
            paper: Some(paper),
            program,
        };
        let ours = PolicyConfig::named("sia");
        all.push(base.clone());
        all.push(Experiment { title: format!("Sia, {trace}, as Moira runs it"), policy: ours.clone(), ..base.clone() });
        if trace == "philly" {
            for (title, option) in [("rigid jobs", "&jobs=rigid"), ("strong scaling, batch fixed", "&jobs=scale-gpus")]
            {
                all.push(Experiment {
                    title: format!("Sia, {trace}, {title}"),
                    workloads: named(&files, option),
                    paper: None,
                    program: None,
                    policy: ours.clone(),
                    ..base.clone()
                });
            }
        }
    }
    match all.is_empty() {
        true => Err(ReproduceError::NoWorkloads(data.join("sia/workloads").display().to_string())),
        false => Ok(all),
    }
}

/// What the authors' program gave on as many workloads, if all of them were run.
fn reference(data: &Path, trace: &str, count: usize) -> Result<Option<Figures>, ReproduceError> {
    let folder = data.join("reference/sia");
    let path = |number: usize, what: &str| folder.join(format!("sia_{trace}{number}.{what}"));
    if !(1..=count).all(|number| path(number, "summary.json").exists()) {
        return Ok(None);
    }
    let runs: Vec<Summary> =
        (1..=count).map(|number| parse(&path(number, "summary.json"))).collect::<Result<_, _>>()?;
    let mut completion = Vec::new();
    for number in 1..=count {
        let text = super::read(&path(number, "jobs.csv"))?;
        let mut table = csv::Reader::from_reader(text.as_bytes());
        #[derive(Deserialize)]
        struct Job {
            jct_s: f64,
        }
        for job in table.deserialize() {
            let job: Job = job.map_err(|error| ReproduceError::Data {
                file: path(number, "jobs.csv").display().to_string(),
                why: error.to_string(),
            })?;
            completion.push(job.jct_s);
        }
    }
    completion.sort_by(f64::total_cmp);
    let p99 = completion.get((0.99 * completion.len() as f64) as usize).map(|seconds| seconds / 3600.0);
    let mean = |of: fn(&Summary) -> f64| Some(runs.iter().map(of).sum::<f64>() / count as f64);
    Ok(Some(Figures {
        mean_h: mean(|run| run.avg_jct_s / 3600.0),
        p99_h: p99,
        makespan_h: mean(|run| run.makespan_s / 3600.0),
        gpu_hours: mean(|run| run.gpu_hours_per_job_attained),
        restarts: mean(|run| run.restarts_per_job),
        node_hours: None,
    }))
}
