//! Workloads by what people type: the name of a generator, or a format and a file.

use std::path::Path;

use cluster::{Cluster, QueueTree};

use crate::Workload;
use crate::error::{Error, shown, suggestion};
use crate::like::load_like;
use crate::readers::{FORMATS, read};
use crate::synthetic::Synthetic;
use crate::training::{self, Training};

/// Generators and formats that [`load_workload`] knows, with what they stand for.
pub const WORKLOADS: [(&str, &str); 23] = [
    ("demo", "a mixed day of 400 jobs for about 64 GPUs"),
    ("steady", "10,000 rigid jobs of moderate length in a steady flow"),
    ("training", "200 trainings of real models that adapt to the GPUs they get, for about 64 GPUs"),
    ("like-philly", "10,000 jobs like those of Microsoft's Philly clusters in 2017"),
    ("like-helios-venus", "10,000 jobs like those of SenseTime's Venus cluster in 2020"),
    ("like-pai", "10,000 jobs like those of Alibaba's PAI cluster in 2020"),
    ("like-acme", "10,000 jobs like those of Shanghai AI Laboratory's Seren cluster in 2023"),
    ("auto:PATH", "a file in any of the formats below, told from how it begins"),
    ("csv:PATH", "a table of jobs in Moira's layout"),
    ("sacct:PATH", "Slurm's history, from `sacct --parsable2`"),
    ("swf:PATH", "a log in the Standard Workload Format"),
    ("philly:PATH", "Microsoft's Philly trace: the job log or a reduced table"),
    ("helios:PATH", "SenseTime's Helios trace: the cluster log or a reduced table"),
    ("pai:PATH", "Alibaba's PAI trace of 2020: the task table or a reduced one"),
    ("openb:PATH", "Alibaba's pods of 2023, which share GPUs"),
    ("acme:PATH", "Shanghai AI Laboratory's Acme trace"),
    ("gavel:PATH", "a trace of Gavel's programs (needs throughputs)"),
    ("shockwave:PATH", "a trace of Shockwave's program"),
    ("pollux:PATH", "a workload of Pollux, which names real models"),
    ("sia:PATH", "a workload of Sia, which names real models"),
    ("tiresias:PATH", "a trace of the Tiresias simulator, or of Muri's"),
    ("chronus:PATH", "a trace of Chronus, with deadlines"),
    ("elasticflow:PATH", "a trace of ElasticFlow, or of the ITP clusters"),
];

const OPTIONS: [&str; 8] = ["jobs", "load", "users", "elastic", "adaptive", "deadlines", "urgent", "chains"];

/// The workload meant by `demo`, `steady:jobs=100000,load=0.8`, `csv:PATH` or `philly:PATH?retries=last`. The seed
/// matters to generators only.
pub fn load_workload(text: &str, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
    let text = text.trim();
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    if let Some(workload) = rest.and_then(|rest| read(name, rest, cluster, queues)) {
        return workload;
    }
    let mut synthetic = match (name, rest) {
        _ if name.starts_with("like-") => return load_like(text, cluster, queues, seed),
        (training::GENERATOR, _) => {
            let workload = Training::parse(rest)?.generate(cluster, queues, seed)?;
            return Ok(Workload { name: text.into(), ..workload });
        }
        ("demo", _) => Synthetic::demo(),
        ("steady", _) => Synthetic::steady(),
        _ => return Err(unknown(text, name)),
    };
    for option in rest.into_iter().flat_map(|rest| rest.split(',')).map(str::trim).filter(|option| !option.is_empty()) {
        set(&mut synthetic, option)?;
    }
    Ok(Workload { name: text.into(), ..synthetic.generate(cluster, queues, seed)? })
}

/// Whether the workload is read from a file, and so is the same for every seed.
pub fn is_file(text: &str) -> bool {
    text.trim().split_once(':').is_some_and(|(name, _)| is_format(name))
}

fn is_format(name: &str) -> bool {
    name == "auto" || FORMATS.iter().any(|format| format.name == name)
}

fn set(synthetic: &mut Synthetic, option: &str) -> Result<(), Error> {
    let name = synthetic.name.clone();
    let fault = |expected: &str, found: &str| {
        Error::Name(format!("workload {name}: expected {expected}, found {}", shown(found)))
    };
    let (key, value) = option.split_once('=').ok_or_else(|| fault("options like `jobs=1000`", option))?;
    let (key, value) = (key.trim(), value.trim());
    let whole = || value.parse::<u32>().map_err(|_| fault(&format!("a whole number for `{key}`"), value));
    let real = || value.parse::<f64>().map_err(|_| fault(&format!("a number for `{key}`"), value));
    match key {
        "jobs" => synthetic.jobs = whole()? as usize,
        "load" => synthetic.load = real()?,
        "users" => synthetic.users = whole()?,
        "elastic" => synthetic.elastic = real()?,
        "adaptive" => synthetic.adaptive = real()?,
        "deadlines" => synthetic.deadlines = real()?,
        "urgent" => synthetic.urgent = real()?,
        "chains" => synthetic.chains = real()?,
        _ => {
            let near = suggestion(key, OPTIONS);
            let what =
                format!("workload {name}: unknown option `{}`{near} (known: {})", shown(key), OPTIONS.join(", "));
            return Err(Error::Name(what));
        }
    }
    Ok(())
}

fn unknown(text: &str, name: &str) -> Error {
    let names = || WORKLOADS.iter().map(|(name, _)| *name);
    let hint = match (name, Path::new(text).exists()) {
        (name, _) if is_format(name) => format!("; did you mean `{name}:PATH`?"),
        (_, true) => format!("; did you mean `auto:{}`?", shown(text)),
        _ => suggestion(name, names().map(|name| name.trim_end_matches(":PATH"))),
    };
    let known = names().collect::<Vec<_>>().join(", ");
    Error::Name(format!("unknown workload `{}`{hint} (known: {known})", shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_cluster;

    fn load(text: &str) -> Result<Workload, Error> {
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        load_workload(text, &cluster, &queues, 1)
    }

    fn fault(text: &str) -> String {
        load(text).expect_err("this means nothing").to_string()
    }

    #[test]
    fn options_change_a_generator() {
        let workload = load("steady:jobs=500, load=0.5").unwrap();
        assert_eq!((workload.jobs.len(), workload.name.as_str()), (500, "steady:jobs=500, load=0.5"));
        assert!(workload.assumptions[0].contains("offered load 0.5 of 64 GPUs"), "{}", workload.assumptions[0]);
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        assert_eq!(fault("steady:jobs=many"), "workload steady: expected a whole number for `jobs`, found many");
        assert_eq!(fault("steady:jobs=0"), "workload steady: expected from 1 to 10000000 jobs, found 0");
        assert_eq!(fault("steady:load=NaN"), "workload steady: expected a load from 0.001 to 1000, found NaN");
        assert_eq!(fault("steady:jobs"), "workload steady: expected options like `jobs=1000`, found jobs");
        let error = fault("demo:laod=1");
        assert!(error.starts_with("workload demo: unknown option `laod`; did you mean `load`?"), "{error}");
    }

    #[test]
    fn names_that_mean_nothing_list_those_that_do() {
        let known = WORKLOADS.map(|(name, _)| name).join(", ");
        let known = format!("(known: {known})");
        assert_eq!(fault("stedy"), format!("unknown workload `stedy`; did you mean `steady`? {known}"));
        assert_eq!(fault("csv"), format!("unknown workload `csv`; did you mean `csv:PATH`? {known}"));
        assert_eq!(fault("jobs.xls"), format!("unknown workload `jobs.xls` {known}"));
    }

    #[test]
    fn every_generator_is_listed_and_documented() {
        let page = include_str!("../../../docs/workloads.md");
        let generators = crate::LIKENESSES.iter().map(|(name, _)| format!("like-{name}"));
        for name in generators.chain(["demo".into(), "steady".into(), "training".into()]) {
            assert!(WORKLOADS.iter().any(|(known, _)| *known == name), "{name} is not listed");
            assert!(page.contains(&format!("workload `{name}`")), "docs/workloads.md does not describe {name}");
            assert!(!load(&format!("{name}:jobs=50")).unwrap().jobs.is_empty());
        }
    }

    #[test]
    fn every_format_is_listed() {
        let listed = |format: &&str| WORKLOADS.iter().any(|(name, _)| name.strip_suffix(":PATH") == Some(format));
        assert!(FORMATS.iter().map(|format| format.name).chain(["auto"]).all(|name| listed(&name)));
        assert!(is_file("auto:x") && is_file("sacct:x?limit=1") && !is_file("steady:jobs=1") && !is_file("csv"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = fault("csv:/nowhere/jobs.csv");
        assert!(error == "cannot read /nowhere/jobs.csv", "{error}");
        assert!(fault("philly:/tmp") == "cannot read /tmp", "{}", fault("philly:/tmp"));
    }
}
