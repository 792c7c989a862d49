//! Options that several commands share, and what they mean.

use std::path::Path;

use anyhow::Context;
use clap::{Args, ValueEnum};
use cluster::{Cluster, Invalid, NodeDraft, QueueTree, Span, Time};
use policies::PolicyConfig;
use serde::Deserialize;
use world::{Circumstances, Cloud, Faults, Interference, Occurrence, Script};

use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// For eyes
    #[default]
    Table,
    /// For programs; schema `moira.report/1`
    Json,
    /// One line a run
    Csv,
}

/// Where to run what.
#[derive(Debug, Clone, Args)]
pub(crate) struct Scene {
    /// A cluster: a name (demo, philly, small, homogeneous-64), a short form like "6x4 t4, 3x8 a100", or a TOML file
    #[arg(long, default_value = "demo", value_name = "NAME|FILE")]
    pub(crate) cluster: String,
    /// A workload: a generator (demo, steady:jobs=10000,load=0.8, like-philly) or a file as FORMAT:PATH (csv, sacct,
    /// philly, auto; see docs/guides/bring-your-trace.md); `sim compare` takes several
    #[arg(long = "workload", default_value = "demo", value_name = "NAME|FORMAT:PATH")]
    pub(crate) workloads: Vec<String>,
    /// Profiles of the applications that a workload of Pollux or Sia names: measured ones in sia:DIR or pollux:DIR, or
    /// those of the built-in catalogue, which is the default
    #[arg(long, value_name = "FORMAT:DIR|catalogue")]
    pub(crate) profiles: Option<String>,
    /// Count and list rows of the workload's file that cannot be read, instead of refusing the file
    #[arg(long)]
    pub(crate) skip_bad_rows: bool,
    /// A TOML file that says what befalls the cluster: failures, interference, nodes that come and go
    #[arg(long, value_name = "FILE")]
    pub(crate) world: Option<std::path::PathBuf>,
    /// Rules around every policy, as a service keeps them: all, none, or some of minimum-first, guarantees, reservations
    /// (or reservations=30m) and at-once, separated by commas; see docs/guides/safeguards.md
    #[arg(long, default_value = "none", value_name = "LIST")]
    pub(crate) safeguards: plan::Safeguards,
    /// Threads to use; also by RAYON_NUM_THREADS. The results do not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
}

/// A cluster with its queues and the name it goes by.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) cluster: Cluster,
    pub(crate) queues: QueueTree,
}

/// The file behind `--world`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WorldFile {
    faults: Faults,
    interference: Interference,
    cloud: Option<CloudFile>,
    events: Vec<EventLine>,
}

/// What can be rented, for policies with `max_nodes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudFile {
    node: NodeDraft,
    delay_s: f64,
}

/// One thing that happens at a time; exactly one of the words says what.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    at_s: f64,
    drain: Option<String>,
    reopen: Option<String>,
    remove: Option<String>,
    /// The number of a job in the workload, from 0.
    cancel: Option<u32>,
    add: Option<NodeDraft>,
}

impl Scene {
    /// The workloads, with the options that `--skip-bad-rows` and `--profiles` stand for.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = String> {
        let with = |workload: String, option: String| {
            let joint = if workload.contains('?') { '&' } else { '?' };
            format!("{workload}{joint}{option}")
        };
        self.workloads.iter().map(move |workload| {
            let mut workload = workload.clone();
            let trained = ["sia:", "pollux:"].iter().any(|format| workload.trim_start().starts_with(format));
            if let Some(profiles) = self.profiles.as_ref().filter(|_| trained) {
                workload = with(workload, format!("profiles={profiles}"));
            }
            if self.skip_bad_rows && trace::is_file(&workload) {
                workload = with(workload, "skip_bad_rows=true".into());
            }
            workload
        })
    }

    pub(crate) fn site(&self) -> Result<Site, Failure> {
        let (cluster, queues, name) = trace::load_cluster(&self.cluster).map_err(of_source)?;
        Ok(Site { name, cluster, queues })
    }

    /// What befalls the cluster; nothing if no file says so.
    pub(crate) fn circumstances(&self, site: &Site) -> Result<Circumstances, Failure> {
        let Some(path) = &self.world else { return Ok(Circumstances::default()) };
        let file: WorldFile = trace::read_toml(path).map_err(of_source)?;
        let mut cluster = site.cluster.clone();
        let mut script = Script::default();
        for (index, event) in file.events.into_iter().enumerate() {
            let (at, occurrence) = event.read(&mut cluster).map_err(|invalid| {
                Failure::new(anyhow::anyhow!("{}: {}", path.display(), invalid.within("events", index)))
            })?;
            script = script.then(at, occurrence);
        }
        let cloud = file
            .cloud
            .map(|cloud| cloud.read(&site.cluster))
            .transpose()
            .map_err(|invalid: Invalid| Failure::new(anyhow::anyhow!("{}: {invalid}", path.display())))?;
        let usual = Circumstances::default();
        let circumstances =
            Circumstances { faults: file.faults, interference: file.interference, script, cloud, ..usual };
        let fault = |invalid: Invalid| Failure::new(anyhow::anyhow!("{}: {invalid}", path.display()));
        circumstances.faults.check().map_err(fault)?;
        circumstances.interference.check().map_err(fault)?;
        Ok(circumstances)
    }

    /// Sets the number of threads for everything that follows.
    pub(crate) fn set_threads(&self) -> Result<(), Failure> {
        let Some(threads) = self.threads else { return Ok(()) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads));
        pool.build_global().context("cannot start the threads").map_err(Failure::new)
    }
}

impl CloudFile {
    fn read(self, cluster: &Cluster) -> Result<Cloud, Invalid> {
        if !(0.0..1e9).contains(&self.delay_s) {
            return Err(Invalid::new("cloud.delay_s", "a number of seconds of at least 0", self.delay_s));
        }
        let node = NodeDraft { count: 1, ..self.node };
        cluster.clone().add(&node, &[])?;
        Ok(Cloud { node, delay: Span::from_secs_f64(self.delay_s) })
    }
}

impl EventLine {
    fn read(self, cluster: &mut Cluster) -> Result<(Time, Occurrence), Invalid> {
        if !(0.0..1e12).contains(&self.at_s) {
            return Err(Invalid::new("events.at_s", "a number of seconds of at least 0", self.at_s));
        }
        let at = Time::ZERO + Span::from_secs_f64(self.at_s);
        let node = |field: &str, name: String| {
            let known = cluster.node_named(&name);
            known.ok_or_else(|| Invalid::new(field, "the name of a node of the cluster", name))
        };
        let occurrence = match (self.drain, self.reopen, self.remove, self.cancel, self.add) {
            (Some(name), None, None, None, None) => Occurrence::Drain(node("events.drain", name)?),
            (None, Some(name), None, None, None) => Occurrence::Reopen(node("events.reopen", name)?),
            (None, None, Some(name), None, None) => Occurrence::Remove(node("events.remove", name)?),
            (None, None, None, Some(job), None) => Occurrence::Cancel(job),
            (None, None, None, None, Some(draft)) => {
                cluster.add(&draft, &[])?;
                Occurrence::Add { node: Box::new(draft), kinds: Vec::new() }
            }
            _ => return Err(Invalid::new("events", "one of drain, reopen, remove, cancel, add", "none or several")),
        };
        Ok((at, occurrence))
    }
}

/// A policy by name, by name with parameters (`fifo:backfill=easy,depth=50`), or by a TOML file.
pub(crate) fn policy(text: &str) -> Result<PolicyConfig, Failure> {
    if text.ends_with(".toml") {
        let path = Path::new(text);
        let config = PolicyConfig::from_toml(&trace::read_text(path).map_err(of_source)?);
        return config.map_err(|error| Failure::new(anyhow::anyhow!("{}: {error}", path.display())));
    }
    PolicyConfig::from_text(text).map_err(Failure::usage)
}

/// `--set KEY=VALUE` applies to every policy that has such a parameter; one that none has is a mistake.
pub(crate) fn set_parameters(policies: &mut [PolicyConfig], settings: &[String]) -> Result<(), Failure> {
    for setting in settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--set takes KEY=VALUE, found `{setting}`")))?;
        let alone = policies.len() == 1;
        let mut known = false;
        for config in policies.iter_mut() {
            let entry = config.entry().map_err(Failure::usage)?;
            // With one policy its own check says best what it would have understood.
            if alone || entry.parameters.iter().any(|parameter| parameter.name == key) {
                known = true;
                config.parameters.insert(key.into(), value.into());
            }
        }
        if !known {
            let names: Vec<&str> = policies.iter().map(|config| config.name.as_str()).collect();
            let names = names.join(", ");
            return Err(Failure::usage(format!(
                "none of {names} has a parameter `{key}`; see `moira policy show NAME`"
            )));
        }
    }
    policies.iter().try_for_each(|config| config.build().map(drop).map_err(Failure::usage))
}

/// `3`, or `1..5` with both ends included.
pub(crate) fn seeds(text: &str) -> Result<Vec<u64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| format!("expected a number or a range like 1..5, found `{text}`"));
    let (first, last) = (number(first)?, number(last)?);
    if last < first || last - first >= 10_000 {
        return Err(format!("expected an ascending range of at most 10000 seeds, found `{text}`"));
    }
    Ok((first..=last).collect())
}

/// What is wrong with a name is wrong usage; what is wrong in a file is a failure.
pub(crate) fn of_source(error: trace::Error) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_seeds_includes_both_ends() {
        assert_eq!(seeds("2..4"), Ok(vec![2, 3, 4]));
        assert_eq!(seeds("7"), Ok(vec![7]));
        assert!(seeds("x").is_err() && seeds("4..2").is_err() && seeds("0..100000").is_err());
    }
}
