//! What came of it: the live history beside the same jobs in the simulator, under the same policy.

use cluster::{ClaimId, Cluster, GpuKind, Span};
use engine::Event;
use executors::AcceleratorDraft;
use policies::PolicyConfig;
use report::{Identity, JobRow, Report};
use sim::{KindSpeeds, Recording, Setup, simulate};
use world::Circumstances;

use super::history::{History, Told};
use super::{live, workload};
use crate::command::trainer::Trainer;
use crate::failure::Failure;
use crate::render::{self, Files};

pub(super) fn tell(happened: &History, files: &Files) -> Result<(), Failure> {
    let end = happened.end();
    let books = end.books();
    let (cluster, queues): (&Cluster, _) = (&books.cluster, &books.queues);
    let Recording { jobs, assumptions, .. } =
        Recording::of(happened.records(), &shares(cluster)).map_err(Failure::new)?;
    let alone = |claim: ClaimId, kind: Option<GpuKind>, workers: u32| -> Option<Span> {
        world::isolated(&jobs[claim.0 as usize], kind, workers, cluster)
    };
    let config = PolicyConfig::from_text(end.policy()).map_err(Failure::new)?;
    let policy = config.build().map_err(Failure::new)?;
    let mut simulated = History::default();
    let setup = Setup {
        circumstances: Circumstances { report_every: Trainer::REPORTS_EVERY, ..Circumstances::default() },
        settings: engine::Settings { safeguards: end.safeguards(), ..live::config().engine_settings() },
        ..Setup::new(cluster.clone(), queues.clone(), jobs.clone())
    };
    simulate(&setup, end.policy(), policy, |at, event: &Event| simulated.push(at, event.clone()))
        .map_err(|invalid| Failure::new(anyhow::anyhow!("cannot simulate the jobs: {invalid}")))?;
    let identity = |name: &str| Identity {
        policy: format!("{} {name}", config.label()),
        workload: "demo".into(),
        ..Identity::default()
    };
    let live = happened.told(identity("live"), &alone);
    let simulated = simulated.told(identity("simulated"), &alone);
    let assumptions: Vec<String> = assumptions.into_iter().map(|line| format!("simulated: {line}")).collect();
    beside(&live, &simulated)?;
    render::line("")?;
    assumptions.iter().try_for_each(|assumption| render::line(assumption))?;
    write(&live, &simulated, assumptions, files)
}

/// The part of a core that an accelerator of each kind is.
fn shares(cluster: &Cluster) -> KindSpeeds {
    let share = |draft: AcceleratorDraft| Some((cluster.kind_named(&draft.kind)?, draft.cores * draft.duty));
    workload::accelerators().into_iter().filter_map(share).collect()
}

/// One line a job, and the means.
fn beside(live: &Told, simulated: &Told) -> Result<(), Failure> {
    render::line("\nWhat happened, and what the simulator says for the same jobs:\n")?;
    let pairs: Vec<(JobRow, JobRow)> = live.fold.jobs().zip(simulated.fold.jobs()).collect();
    let header = ["JOB", "NAME", "LIVE", "SIMULATED", "RESTARTS", "SIMULATED", "GPU TIME", "SIMULATED"];
    let mut rows: Vec<Vec<String>> = pairs.iter().map(|(live, simulated)| row(live, simulated)).collect();
    let mean = |side: fn(&(JobRow, JobRow)) -> &JobRow, figure: fn(&JobRow) -> f64| {
        pairs.iter().map(|pair| figure(side(pair))).sum::<f64>() / pairs.len().max(1) as f64
    };
    let figures: [fn(&JobRow) -> f64; 3] = [
        |job| job.jct.map_or(f64::NAN, Span::as_secs_f64),
        |job| f64::from(job.restarts),
        |job| job.held.as_gpu_secs(),
    ];
    let [times, restarts, held] = figures.map(|figure| [mean(|pair| &pair.0, figure), mean(|pair| &pair.1, figure)]);
    let mut last = vec![String::new(), "mean".into()];
    last.extend(times.map(seconds));
    last.extend(restarts.map(|count| format!("{count:.1}")));
    last.extend(held.map(seconds));
    rows.push(last);
    render::table(&header, rows.into_iter())?;
    for (live, simulated) in pairs.iter().filter(|(live, _)| live.deadline_met.is_some()) {
        let told = |job: &JobRow| if job.deadline_met == Some(true) { "met" } else { "missed" };
        render::line(&format!("\nDeadline of {}: {} live, {} simulated", live.name, told(live), told(simulated)))?;
    }
    Ok(())
}

fn row(live: &JobRow, simulated: &JobRow) -> Vec<String> {
    let jct = |job: &JobRow| job.jct.map_or_else(|| "-".into(), |span| seconds(span.as_secs_f64()));
    vec![
        live.id.to_string(),
        live.name.to_string(),
        jct(live),
        jct(simulated),
        live.restarts.to_string(),
        simulated.restarts.to_string(),
        seconds(live.held.as_gpu_secs()),
        seconds(simulated.held.as_gpu_secs()),
    ]
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

fn write(live: &Told, simulated: &Told, assumptions: Vec<String>, files: &Files) -> Result<(), Failure> {
    let told = [live, simulated];
    let kept = told.map(|told| files.keep(&told.run, &told.figure, told.run.seed)).into();
    let report = Report::new("this machine", assumptions, told.map(|told| told.run.clone()).into());
    files.write(&report, kept, "moira demo")?;
    match files.page() {
        Some(page) => render::line(&format!("\nThe page: {}", page.display())),
        None => render::line("\nNext: moira demo --html demo.html · moira demo --sim · moira serve --help"),
    }
}
