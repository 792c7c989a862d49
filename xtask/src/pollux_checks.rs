//! Pollux (OSDI 2021) and the two policies it was compared with, against what its authors' simulator gives on the same
//! workloads; and the searches of Pollux against each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use cluster::ClusterDraft;
use policies::PolicyConfig;
use serde::Deserialize;
use sim::pollux::{Fared, compare_searches, fared, setup_for};

use crate::data_checks::Checks;
use crate::say;

/// A policy that is deterministic there too: the jobs it is given, and the mean of all completion times.
struct Baseline {
    policy: &'static str,
    jobs: &'static str,
    reference: &'static str,
    mean_s: f64,
    /// Completion times of the jobs of the small example, from a to d.
    example_s: [f64; 4],
}

const BASELINES: [Baseline; 2] = [
    Baseline {
        policy: "pollux-tiresias",
        jobs: "rigid",
        reference: "osdi_tiresias_w6.jobs.csv",
        mean_s: 3469.69375,
        example_s: [28592.0, 8513.0, 7207.0, 9400.0],
    },
    Baseline {
        policy: "pollux-optimus",
        jobs: "fixed-batch",
        reference: "osdi_optimus_w6.jobs.csv",
        mean_s: 5301.875,
        example_s: [14182.0, 3005.0, 127.0, 2911.0],
    },
];

const EXAMPLE: &str = "name,time,application,num_replicas,batch_size\n\
                       a,10,yolov3,8,64\nb,100,cifar10,4,2048\nc,130,ncf,1,32768\nd,180,cifar10,6,2048\n";

/// Nodes of the cluster of the paper, and of the small example.
const CLUSTER: &str = "16x4 t4";
const SMALL: &str = "2x4 t4";

/// Decisions of one history between two at which searches are compared, and seeds of the plain one.
const EVERY: usize = 90;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

pub(crate) fn run(data: &Path, checks: &mut Checks) -> Result<()> {
    for baseline in &BASELINES {
        against_baseline(data, baseline, checks)?;
        small_example(data, baseline, checks)?;
    }
    against_pollux(data, checks)?;
    searches(data, checks)
}

/// Every job of workload 6: when it is done, to the second, and how often it was restarted.
fn against_baseline(data: &Path, baseline: &Baseline, checks: &mut Checks) -> Result<()> {
    let Baseline { policy, jobs, mean_s, .. } = baseline;
    let workload = data.join("pollux/workloads/workload-6.csv");
    let found = played(data, &workload, policy, Some(jobs), CLUSTER)?;
    checks.near(&format!("{policy}: workload 6, mean completion [s]"), mean(&found), *mean_s, 0.005);
    let path = data.join("reference/sia").join(baseline.reference);
    let mut reader = csv::Reader::from_path(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut to_the_second, mut restarts, mut all) = (0.0, 0.0, 0.0);
    for row in reader.deserialize() {
        let row: Reference = row.with_context(|| format!("cannot use {}", path.display()))?;
        let job = found.get(&row.name).with_context(|| format!("no job {} in the workload", row.name))?;
        to_the_second += f64::from(u8::from(job.completion_s == row.jct_s));
        restarts += f64::from(u8::from(job.restarts == row.restarts));
        all += 1.0;
    }
    checks.near(&format!("{policy}: workload 6, jobs done to the very second"), to_the_second, all, 0.1);
    checks.near(&format!("{policy}: workload 6, jobs restarted as often"), restarts, all, 0.1);
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Reference {
    name: String,
    jct_s: f64,
    restarts: u32,
}

fn small_example(data: &Path, baseline: &Baseline, checks: &mut Checks) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("moira-pollux-example-{}.csv", std::process::id()));
    fs::write(&scratch, EXAMPLE).with_context(|| format!("cannot write {}", scratch.display()))?;
    let found = played(data, &scratch, baseline.policy, Some(baseline.jobs), SMALL);
    fs::remove_file(&scratch).ok();
    let found = found?;
    for (name, expected) in ["a", "b", "c", "d"].into_iter().zip(baseline.example_s) {
        let found = found.get(name).context("the example has four jobs")?.completion_s;
        checks.near(&format!("{}: small example, job {name} [s]", baseline.policy), found, expected, 0.0);
    }
    Ok(())
}

/// The mean over the workloads that are there, beside what the authors publish for the same ones.
fn against_pollux(data: &Path, checks: &mut Checks) -> Result<()> {
    #[derive(Deserialize)]
    struct Summary {
        avgs: BTreeMap<String, f64>,
    }
    let path = data.join("pollux/results-jobload/pollux-1.0/summary.json");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Summary { avgs } = serde_json::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for (name, published) in avgs {
        let workload = data.join(format!("pollux/workloads/{name}.csv"));
        if workload.exists() {
            let mean = mean(&played(data, &workload, "pollux", None, CLUSTER)?);
            say(&format!("     pollux: {name}, mean completion {mean:.1} s, the authors' {published:.1} s"));
            found.push(mean);
            expected.push(published);
        }
    }
    say(&format!("     pollux: {:.1} s for {} histories", started.elapsed().as_secs_f64(), found.len()));
    let over_all = |means: &[f64]| means.iter().sum::<f64>() / means.len() as f64;
    checks.near("pollux: mean completion over all workloads [s]", over_all(&found), over_all(&expected), 0.1);
    Ok(())
}

/// On moments of workload 6 the fast search must be as good as the plain one with any seed.
fn searches(data: &Path, checks: &mut Checks) -> Result<()> {
    let workload = data.join("pollux/workloads/workload-6.csv");
    let config = PolicyConfig::from_pairs("pollux", &["parity=true"])?;
    let (cluster, queues) = ClusterDraft::parse_short(CLUSTER)?.build()?;
    let setup = setup_for(&cluster, &queues, &named(data, &workload, None), &config)?;
    let seeds: Vec<u64> = SEEDS.collect();
    let moments = compare_searches(&setup, EVERY, &seeds)?;
    let pairs = moments.iter().flat_map(|moment| moment.plain.iter().map(|&plain| (moment.fast, plain)));
    let not_below = pairs.clone().filter(|(fast, plain)| *fast >= plain - 1e-9).count();
    let gain = pairs.clone().map(|(fast, plain)| fast / plain).sum::<f64>() / pairs.clone().count() as f64;
    let (count, all) = (moments.len(), pairs.count());
    checks.near(
        &format!("pollux: fast not below plain, of {count} moments x {} seeds", seeds.len()),
        not_below as f64,
        all as f64,
        0.0,
    );
    say(&format!("     pollux: the objective of the fast search is {gain:.4} times that of the plain one"));
    Ok(())
}

fn played(
    data: &Path,
    workload: &Path,
    policy: &str,
    jobs: Option<&str>,
    cluster: &str,
) -> Result<BTreeMap<String, Fared>> {
    let config = PolicyConfig::from_pairs(policy, &["parity=true"])?;
    let (cluster, queues) = ClusterDraft::parse_short(cluster)?.build()?;
    let setup = setup_for(&cluster, &queues, &named(data, workload, jobs), &config)?;
    Ok(fared(&setup, &config)?)
}

fn named(data: &Path, workload: &Path, jobs: Option<&str>) -> String {
    let jobs = jobs.map_or(String::new(), |jobs| format!("&jobs={jobs}"));
    format!("pollux:{}?profiles=pollux:{}{jobs}", workload.display(), data.join("pollux").display())
}

fn mean(fared: &BTreeMap<String, Fared>) -> f64 {
    fared.values().map(|job| job.completion_s).sum::<f64>() / fared.len() as f64
}
