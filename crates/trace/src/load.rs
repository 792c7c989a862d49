//! Workloads by what people type: the name of a generator, or a format and a file.

use std::path::Path;

use cluster::{Cluster, QueueTree};

use crate::Workload;
use crate::csv::read_csv;
use crate::error::{Error, shown, suggestion};
use crate::philly::read_philly;
use crate::synthetic::Synthetic;

/// Generators and formats that [`load_workload`] knows, with what they stand for.
pub const WORKLOADS: [(&str, &str); 5] = [
    ("demo", "a mixed day of 400 jobs for about 64 GPUs"),
    ("philly-like", "10,000 rigid jobs with the sizes and run times of the Philly trace"),
    ("steady", "10,000 rigid jobs of moderate length in a steady flow"),
    ("csv:PATH", "a table of jobs in Moira's layout"),
    ("philly:PATH", "the reduced job list of the Philly trace"),
];

const OPTIONS: [&str; 8] = ["jobs", "load", "users", "elastic", "adaptive", "deadlines", "urgent", "chains"];

/// The workload meant by `demo`, `steady:jobs=100000,load=0.8`, `csv:PATH` or `philly:PATH`. The seed matters to
/// generators only.
pub fn load_workload(text: &str, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
    let text = text.trim();
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let mut synthetic = match (name, rest) {
        ("csv", Some(path)) => return read_csv(Path::new(path), cluster, queues),
        ("philly", Some(path)) => return read_philly(Path::new(path)),
        ("demo", _) => Synthetic::demo(),
        ("philly-like", _) => Synthetic::philly_like(),
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
    matches!(text.trim().split_once(':'), Some(("csv" | "philly", _)))
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
        ("csv" | "philly", _) => format!("; did you mean `{name}:PATH`?"),
        (_, true) => format!("; did you mean `csv:{}`?", shown(text)),
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
        let known = "(known: demo, philly-like, steady, csv:PATH, philly:PATH)";
        assert_eq!(fault("phily-like"), format!("unknown workload `phily-like`; did you mean `philly-like`? {known}"));
        assert_eq!(fault("csv"), format!("unknown workload `csv`; did you mean `csv:PATH`? {known}"));
        assert_eq!(fault("jobs.xls"), format!("unknown workload `jobs.xls` {known}"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = fault("csv:/nowhere/jobs.csv");
        assert!(error.starts_with("cannot read /nowhere/jobs.csv: No such file"), "{error}");
        assert!(fault("philly:/tmp").starts_with("cannot read /tmp:"), "{}", fault("philly:/tmp"));
    }
}
