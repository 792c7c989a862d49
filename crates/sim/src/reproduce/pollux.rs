//! The experiments of Pollux: 64 GPUs of one kind, workloads of 160 jobs sampled from the Philly trace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cluster::Span;
use policies::PolicyConfig;
use serde::Deserialize;

use super::{Experiment, Figures, ReproduceError, parse, workloads};

/// What the authors published of one policy: completion times in seconds by workload and job, and their means.
#[derive(Debug, Deserialize)]
struct Summary {
    avgs: BTreeMap<String, f64>,
}

pub(crate) fn experiments(data: &Path) -> Result<Vec<Experiment>, ReproduceError> {
    let folder = data.join("pollux/workloads");
    let files = workloads(&folder, 1..=6);
    if files.is_empty() {
        return Err(ReproduceError::NoWorkloads(folder.display().to_string()));
    }
    let profiles = format!("profiles=pollux:{}", data.join("pollux").display());
    let named = |files: &[PathBuf], option: &str| -> Vec<String> {
        files.iter().map(|file| format!("pollux:{}?{profiles}{option}", file.display())).collect()
    };
    let experiment = |title: &str,
                      policy: &str,
                      settings: &[&str],
                      option: &str,
                      theirs: Option<&str>|
     -> Result<Experiment, ReproduceError> {
        let policy = PolicyConfig::from_pairs(policy, settings).expect("a known policy");
        let program = theirs.map(|theirs| published(data, theirs, &files)).transpose()?.flatten();
        Ok(Experiment {
            title: title.into(),
            policy,
            cluster: "pollux-homo-64",
            rents_after: None,
            only: None,
            workloads: named(&files, option),
            paper: None,
            program,
        })
    };
    let mut all = vec![
        experiment("Pollux, to the letter", "pollux", &["parity=true"], "", Some("pollux"))?,
        experiment("Pollux, as Moira runs it (p = −1)", "pollux", &[], "", Some("pollux"))?,
        experiment("Pollux, p = 1", "pollux", &["p=1"], "", None)?,
        experiment("Pollux, p = −10", "pollux", &["p=-10"], "", None)?,
        experiment("Tiresias, tuned requests", "pollux-tiresias", &["parity=true"], "&jobs=rigid", Some("tiresias"))?,
        experiment(
            "Optimus with an oracle, tuned requests",
            "pollux-optimus",
            &["parity=true"],
            "&jobs=fixed-batch",
            Some("optimus"),
        )?,
    ];
    let untuned = workloads(&data.join("pollux/workloads-realistic"), 1..=5);
    if !untuned.is_empty() {
        let title = "Tiresias, untuned requests (which Pollux does not look at)";
        let base: Experiment = experiment(title, "pollux-tiresias", &["parity=true"], "&jobs=rigid", None)?;
        all.push(Experiment { workloads: named(&untuned, "&jobs=rigid"), ..base });
    }
    all.extend(rented(experiment("", "pollux", &[], "", None)?));
    Ok(all)
}

/// Section 5.3.3 of the paper in our own setting: a fixed cluster, and one that begins with a node and rents up to as many.
fn rented(base: Experiment) -> Vec<Experiment> {
    let policy = PolicyConfig::from_pairs("pollux", &["max_nodes=16"]).expect("a known policy");
    let delay = Some(Span::from_minutes(2));
    let mut all = Vec::new();
    for (what, only) in [("one large job", Some("imagenet")), ("a mixed workload", None)] {
        let workloads = base.workloads.iter().take(1).cloned().collect();
        let fixed = Experiment { title: format!("Pollux, {what}, 16 nodes"), workloads, only, ..base.clone() };
        let (title, cluster) = (format!("Pollux, {what}, nodes rented as they are used"), "1x4 t4");
        all.push(fixed.clone());
        all.push(Experiment { title, cluster, policy: policy.clone(), rents_after: delay, ..fixed });
    }
    all
}

/// The mean over these workloads of what the authors published; nothing if they published none of it.
fn published(data: &Path, policy: &str, files: &[PathBuf]) -> Result<Option<Figures>, ReproduceError> {
    let path = data.join(format!("pollux/results-jobload/{policy}-1.0/summary.json"));
    if !path.exists() {
        return Ok(None);
    }
    let summary: Summary = parse(&path)?;
    let names = files.iter().filter_map(|file| file.file_stem()).map(|stem| stem.to_string_lossy().into_owned());
    let means: Vec<f64> = names.filter_map(|name| summary.avgs.get(&name).copied()).collect();
    let whole = means.len() == files.len();
    let mean_h = whole.then(|| means.iter().sum::<f64>() / means.len() as f64 / 3600.0);
    Ok(mean_h.map(|mean_h| Figures { mean_h: Some(mean_h), ..Figures::default() }))
}
