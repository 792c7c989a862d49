//! What came of it: the live history beside the same jobs in the simulator, under the same policy.

use cluster::{ClaimId, Cluster, GpuKind, Span};
use engine::{Event, State};
use executors::AcceleratorDraft;
use perf::TrueJob;
use plan::Safeguards;
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
    let cluster: &Cluster = &books.cluster;
    let Recording { jobs, assumptions, .. } =
        Recording::of(happened.records(), &shares(cluster)).map_err(Failure::new)?;
    let alone = |claim: ClaimId, kind: Option<GpuKind>, workers: u32| -> Option<Span> {
        world::isolated(&jobs[claim.0 as usize], kind, workers, cluster)
    };
    let config = PolicyConfig::from_text(end.policy()).map_err(Failure::new)?;
    let identity = |name: &str| Identity {
        policy: format!("{} {name}", config.label()),
        workload: "demo".into(),
        ..Identity::default()
    };
    let live = happened.told(identity("live"), &alone);
    let in_turn = PolicyConfig::named(FIRST_COME);
    let in_turn = simulated(&end, &jobs, &in_turn, Safeguards::NONE)?.told(Identity::default(), &alone);
    let simulated = twin(&end, &jobs, &config)?.told(identity("simulated"), &alone);
    let assumptions: Vec<String> = assumptions.into_iter().map(|line| format!("simulated: {line}")).collect();
    beside(&live, &simulated)?;
    render::line("")?;
    assumptions.iter().try_for_each(|assumption| render::line(assumption))?;
    render::line(&format!("\n{}", gain(&config.label(), mean_jct(&live), mean_jct(&in_turn))))?;
    write(&live, &simulated, assumptions, files)
}

/// The same jobs under the policy with the rules that the record says were kept to around it.
fn twin(end: &State, jobs: &[TrueJob], config: &PolicyConfig) -> Result<History, Failure> {
    simulated(end, jobs, config, end.safeguards())
}

fn simulated(end: &State, jobs: &[TrueJob], config: &PolicyConfig, safeguards: Safeguards) -> Result<History, Failure> {
    let books = end.books();
    let policy = config.build().map_err(Failure::new)?;
    let setup = Setup {
        circumstances: Circumstances { report_every: Trainer::REPORTS_EVERY, ..Circumstances::default() },
        settings: engine::Settings { safeguards, ..live::config().engine_settings() },
        ..Setup::new(books.cluster.clone(), books.queues.clone(), jobs.to_vec())
    };
    let mut history = History::default();
    simulate(&setup, &config.label(), policy, |at, event: &Event| history.push(at, event.clone()))
        .map_err(|invalid| Failure::new(anyhow::anyhow!("cannot simulate the jobs: {invalid}")))?;
    Ok(history)
}

/// What people compare with: each job gets what it asks for, in the order in which they came.
const FIRST_COME: &str = "fifo";

/// Of all jobs that ended, in seconds.
fn mean_jct(told: &Told) -> f64 {
    let times: Vec<f64> = told.fold.jobs().filter_map(|job| job.jct).map(Span::as_secs_f64).collect();
    times.iter().sum::<f64>() / times.len() as f64
}

/// What was gained, or lost, in one sentence.
fn gain(policy: &str, live: f64, in_turn: f64) -> String {
    let (live_text, in_turn_text) = (seconds(live), seconds(in_turn));
    let compared = match in_turn / live {
        more if more >= 1.005 => format!("{more:.2} times as long"),
        less => format!("only {less:.2} times as long"),
    };
    format!(
        "With {policy} a job took {live_text} on average; first come, first served would have taken {in_turn_text} for the \
         same jobs (simulated), {compared}."
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_keeps_to_the_rules_that_the_record_says() {
        for safeguards in [Safeguards::ALL, Safeguards::NONE] {
            let (cluster, queues) = cluster::ClusterDraft::parse_short("1x2").unwrap().build().unwrap();
            let config = PolicyConfig::named("fifo");
            let settings = engine::Settings { safeguards, ..engine::Settings::default() };
            let (engine, _) = engine::Engine::new(cluster, queues, "fifo", config.build().unwrap(), settings);
            let twin = twin(engine.state(), &[], &config).unwrap();
            assert_eq!(twin.end().safeguards(), safeguards);
        }
    }

    #[test]
    fn a_gain_is_told_as_one_and_a_loss_as_one() {
        let gained = "With sia a job took 20.0 s on average; first come, first served would have taken 31.0 s for the same \
                      jobs (simulated), 1.55 times as long.";
        assert_eq!(gain("sia", 20.0, 31.0), gained);
        assert!(gain("sia", 20.0, 15.0).ends_with("15.0 s for the same jobs (simulated), only 0.75 times as long."));
    }
}
