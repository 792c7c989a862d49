//! Workloads of Pollux (Qiao et al., OSDI 2021) and Sia (Subramanya et al., SOSP 2023), which name applications, sizes
//! and batches, but no run times: those come from measured profiles, which are not part of the workload, from the
//! catalogue of trainings if nothing else is said, or from a table of nominal ones.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use cluster::{BatchRange, Recovery, Scaling, Span, WorkerRange};
use perf::{Adaptation, BatchRule, KindLimits, Speed, Truth};

use crate::Workload;
use crate::catalogue;
use crate::error::Error;
use crate::profiles::Profiles;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gathering, Job, MOST_GPUS, Request, Trained, Wanted, Work, no_gpus, required_gpus, required_seconds, span,
};
use crate::table::{Header, Layout, Row, Separator, Table};

pub(crate) const OPTIONS: &[&str] = &["durations", "profiles", "jobs"];

/// The most workers a job of the authors' simulators may have.
const MOST_WORKERS: u32 = 64;

const TIME: usize = 0;
const APPLICATION: usize = 1;
const REPLICAS: usize = 2;
const BATCH: usize = 3;
const NAME: usize = 4;
const CATEGORY: usize = 5;
const WORKLOAD: Layout = Layout {
    columns: &["time", "application", "num_replicas", "batch_size", "name", "category"],
    required: 4,
    separator: Separator::Comma,
    header: Header::Loose,
};

const DURATION: usize = 1;
const DURATIONS: Layout = Layout {
    columns: &["application", "duration_s", "num_replicas", "batch_size"],
    required: 2,
    separator: Separator::Comma,
    header: Header::Strict,
};

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let found = head.has_all(&["time", "application", "num_replicas", "batch_size"]);
    found.then(|| "the header has time, application, num_replicas and batch_size (Sia's is the same)".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    match (request.options.get("profiles"), request.options.get("durations")) {
        (None, Some(durations)) => read_lasting(request, durations),
        (None, None) => read_trained(request, catalogue::NAME),
        (Some(profiles), _) => read_trained(request, profiles),
    }
}

/// What may be changed about a job while it runs, as the workloads of Sia call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Category {
    /// Workers and batch.
    Adaptive,
    /// Workers, up to those asked for.
    ScaleGpus,
    /// Workers, as many as the batch asked for has shares for: what Optimus is given in the artifact of Pollux.
    FixedBatch,
    Rigid,
}

impl Category {
    const ALL: [(&'static str, Category); 4] = [
        ("adaptive", Category::Adaptive),
        ("scale-gpus", Category::ScaleGpus),
        ("fixed-batch", Category::FixedBatch),
        ("rigid", Category::Rigid),
    ];
    const EXPECTED: &'static str = "adaptive, scale-gpus, fixed-batch or rigid";

    fn named(name: &str) -> Option<Category> {
        Category::ALL.iter().find(|(known, _)| *known == name).map(|(_, category)| *category)
    }
}

/// What is known about a job beforehand, and what is really the case.
type KnownAndTrue = (Arc<Speed>, Arc<Truth>);

/// Jobs whose truth are the measured profiles of their applications, or what the catalogue has instead.
fn read_trained(request: Request<'_>, source: &str) -> Result<Workload, Error> {
    let profiles = Profiles::read(source, request.cluster)?;
    let all = match request.options.get("jobs") {
        None => None,
        Some(text) => Some(Category::named(text).ok_or_else(|| {
            Error::Name(format!("jobs: expected {}, found `{}`", Category::EXPECTED, crate::error::shown(text)))
        })?),
    };
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, WORKLOAD)?;
    gathering.id_column = table.name(NAME).into();
    let measured = format!("those measured in {source}");
    let source = if source == catalogue::NAME { catalogue::SOURCE } else { measured.as_str() };
    gathering.assume(format!("step times, gradient noise and epochs are {source}"));
    gathering.assume("every job runs all its epochs: no target is given at which it would end");
    let mut shared: BTreeMap<(String, Category, u32, u32), KnownAndTrue> = BTreeMap::new();
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, REPLICAS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, REPLICAS))? else {
            return Ok(None);
        };
        let submitted = required_seconds(row, TIME)?;
        let name = row.required(APPLICATION, "an application")?;
        let application = profiles.get(name).ok_or_else(|| row.fault(APPLICATION, profiles.known(name), name))?;
        let batch = row.whole(BATCH, 1..=u32::MAX)?.ok_or_else(|| row.fault(BATCH, "a batch size", ""))?;
        let category = category(row, all)?;
        let key = (name.to_string(), category, gpus, batch);
        let (speed, truth) =
            shared.entry(key).or_insert_with(|| application.speed_and_truth(rule(category, batch))).clone();
        let adaptation = speed.adaptation.as_ref().expect("jobs with profiles are tuned");
        let runs = |limits: &KindLimits| limits.replicas(gpus).is_some();
        let asked = adaptation.kinds.iter().any(|limits| runs(limits) && request.cluster.gpus_of(limits.kind) >= gpus);
        let range = |max| WorkerRange { min: application.least_workers(), max };
        if category != Category::Adaptive && !adaptation.kinds.iter().any(runs) {
            return Err(row.fault(REPLICAS, format!("a number of GPUs with which {name} can run"), &gpus.to_string()));
        }
        let trained = Trained {
            scaling: match category {
                Category::Adaptive => {
                    let batch = BatchRange { initial: adaptation.initial, max: adaptation.max };
                    Scaling::Adaptive(range(MOST_WORKERS), batch)
                }
                Category::ScaleGpus => Scaling::Elastic(range(gpus)),
                Category::FixedBatch => Scaling::Elastic(range(most_with_batch(name, adaptation, batch))),
                Category::Rigid => Scaling::Rigid(gpus),
            },
            asked: asked.then_some(gpus),
            recovery: Recovery { restart_cost: application.restart, retries: 3, ..Recovery::default() },
            speed,
            truth,
        };
        let id = row.text(NAME).map(String::from);
        let work = Work::Trained(Box::new(trained));
        Ok(Some(Job { id, work, ..Job::new(row.line, submitted, Span::ZERO, gang) }))
    })?;
    gathering.finish()
}

/// The workers for which a fixed batch has shares. The authors hold NeuMF to one: its whole training takes a minute.
fn most_with_batch(application: &str, adaptation: &Adaptation, batch: u32) -> u32 {
    let shares = adaptation.kinds.iter().map(|limits| batch / limits.local_min).max().unwrap_or(1);
    if application == "ncf" { 1 } else { shares.clamp(1, MOST_WORKERS) }
}

fn category(row: &Row<'_>, all: Option<Category>) -> Result<Category, Error> {
    match (all, row.text(CATEGORY)) {
        (Some(category), _) => Ok(category),
        (None, None) => Ok(Category::Adaptive),
        (None, Some(text)) => Category::named(text).ok_or_else(|| row.fault(CATEGORY, Category::EXPECTED, text)),
    }
}

/// How a job of a category treats its batch.
fn rule(category: Category, batch: u32) -> BatchRule {
    match category {
        Category::Adaptive => BatchRule::Tuned { asked: Some(batch) },
        Category::ScaleGpus | Category::FixedBatch | Category::Rigid => BatchRule::Fixed(batch),
    }
}

/// Jobs that last as long as a table says.
fn read_lasting(request: Request<'_>, path: &str) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, WORKLOAD)?;
    let durations = read_durations(Path::new(path))?;
    gathering.id_column = table.name(NAME).into();
    gathering.assume(format!("work is what {path} says an application takes, not what was measured in this workload"));
    gathering
        .assume("jobs are rigid at the replicas they ask for: what other sizes and batches would do needs profiles");
    gathering.assume("interruptions cost nothing: the workload does not say how long a restart takes");
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, REPLICAS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, REPLICAS))? else {
            return Ok(None);
        };
        let submitted = required_seconds(row, TIME)?;
        let application = row.required(APPLICATION, "an application")?;
        let batch = row.whole(BATCH, 1..=u32::MAX)?;
        // The narrowest row that fits.
        let keys = [(Some(gpus), batch), (Some(gpus), None), (None, batch), (None, None)];
        let found = keys.iter().find_map(|&(gpus, batch)| durations.get(&(application.to_string(), gpus, batch)));
        let unknown = || {
            row.fault(
                APPLICATION,
                format!("an application whose run time with {gpus} GPUs is in the table of durations"),
                application,
            )
        };
        let work = *found.ok_or_else(unknown)?;
        let id = row.text(NAME).map(String::from);
        Ok(Some(Job { id, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    gathering.finish()
}

type Durations = HashMap<(String, Option<u32>, Option<u32>), Span>;

/// Run times by application, and where the table says so by replicas and batch; empty cells stand for any.
fn read_durations(path: &Path) -> Result<Durations, Error> {
    let mut table = Table::lay_out(path, DURATIONS)?;
    let mut durations = Durations::new();
    while let Some(row) = table.next_row()? {
        let application = row.required(0, "an application")?.to_string();
        let key = (application, row.count(2, 1..=MOST_GPUS)?, row.whole(3, 1..=u32::MAX)?);
        durations.insert(key, span(required_seconds(&row, DURATION)?));
    }
    Ok(durations)
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};

    const WORKLOAD: &str = "name,time,application,num_replicas,batch_size\n\
                            cifar10-0,107,cifar10,6,2048\nncf-1,135,ncf,1,32768\n";

    #[test]
    fn without_profiles_jobs_are_those_of_the_catalogue() {
        let told = "step times, gradient noise and epochs are the catalogue's, fitted to measurements of Sia \
                    (docs/catalogue.md)";
        assert!(assumes("pollux", WORKLOAD, "", told));
        let workload = read("sia", WORKLOAD, "profiles=catalogue").unwrap();
        assert_eq!(workload.jobs, read("sia", WORKLOAD, "").unwrap().jobs);
        let job = &workload.jobs[0];
        assert_eq!((job.spec.scaling.min(), job.spec.scaling.max(), job.spec.asked), (1, 64, Some(6)));
        assert_eq!((job.truth.iterations, job.spec.iterations()), (39_062, Some(39_062)));
        let error = fault("sia", WORKLOAD, "profiles=somewhere");
        assert_eq!(error, "profiles: expected `sia:DIR`, `pollux:DIR` or `catalogue`, found somewhere");
    }

    #[test]
    fn a_pipeline_asks_for_whole_replicas() {
        let gpt = |gpus: u32| format!("name,time,application,num_replicas,batch_size\ngpt-0,5,gpt_pmp,{gpus},48\n");
        let asked = |gpus: u32| read("sia", &gpt(gpus), "").unwrap().jobs[0].spec.asked;
        assert_eq!((asked(8), asked(6), asked(3)), (Some(8), Some(6), None), "2 stages on a100, 8 on rtx2080ti");
        assert_eq!(read("sia", &gpt(8), "").unwrap().jobs[0].spec.scaling.min(), 2);
        let expected = "FILE:2: column `num_replicas`: expected a number of GPUs with which gpt_pmp can run, found 3";
        assert_eq!(fault("sia", &gpt(3), "jobs=rigid"), expected);
    }

    #[test]
    fn nominal_run_times_are_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.csv");
        std::fs::write(&path, "application,num_replicas,batch_size,duration_s\ncifar10,,,900\ncifar10,6,,300\n")
            .unwrap();
        let options = format!("durations={}", path.display());
        let expected = "FILE:3: column `application`: expected an application whose run time with 1 GPUs is in the table \
                        of durations, found ncf";
        assert_eq!(fault("sia", WORKLOAD, &options), expected);
        assert_eq!(
            lines("sia", WORKLOAD, &format!("{options}&skip_bad_rows=true")),
            ["1m47s cifar10-0 unknown 6 300s"]
        );
    }
}
