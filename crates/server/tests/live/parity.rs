//! The service decides as the simulator does: the same workload, once through `sim::simulate` and once through the live
//! loop with a clock and an executor that a test moves by hand, gives the same facts, byte for byte.

use std::sync::Arc;

use api::{CheckpointReport, JobRequest, Noise, Phases, ProgressReport, RestartKind, RestartReport};
use cluster::{Run, Span, Time};
use engine::{Command, Event, Input, Request};
use executors::{Ending, Exit, News};
use perf::{Interruption, StepReport, TrueJob};
use policies::PolicyConfig;
use server::core::{Ask, Submission};
use server::{Caller, Fact};
use sim::{HORIZON, Setup, simulate};
use tokio::sync::oneshot;
use trace::{Synthetic, Training, load_cluster};
use world::World;

use crate::harness::{Told, program, service};

#[test]
fn fifo_decides_in_the_service_as_in_the_simulator() {
    check("fifo", &["Launch", "RunProgressed", "Retune"]);
}

#[test]
fn tiresias_decides_in_the_service_as_in_the_simulator() {
    check("tiresias", &["Launch", "Stop", "RunStopped"]);
}

#[test]
fn sia_decides_in_the_service_as_in_the_simulator() {
    check("sia", &["Launch", "Stop", "Retune", "Refitted"]);
}

#[test]
fn what_the_service_uses_by_default_decides_there_as_in_the_simulator() {
    check(server::DEFAULT_POLICY, &["Launch", "Stop", "Retune", "Refitted"]);
}

#[test]
fn runs_change_their_workers_in_the_service_as_in_the_simulator() {
    let mut resizes = 0;
    for seed in [1, 2, 3] {
        let (cluster, queues, _) = load_cluster("2x4 t4, 1x8 a100").unwrap();
        let training = Training { jobs: 12, load: 2.0, ..Training::default() };
        let jobs = training.generate(&cluster, &queues, seed).unwrap().jobs;
        let mut setup = Setup::new(cluster, queues, jobs.into_iter().map(in_place).collect());
        setup.circumstances.resize_within = Some(Span::from_secs(60));
        setup.settings.resize_within = Some(Span::from_secs(60));
        let (simulated, lived) = (by_simulation(&setup, "sia"), by_service(&setup, "sia"));
        same(&simulated, &lived, &format!("in place, seed {seed}"));
        resizes += simulated.iter().filter(|line| line.contains("RunResized")).count();
    }
    assert!(resizes > 10, "only {resizes} changes in place");
}

/// The job as one whose workers can change while it goes on.
fn in_place(job: TrueJob) -> TrueJob {
    let mut truth = (*job.truth).clone();
    truth.resize = Some(Span::from_secs(2));
    TrueJob { truth: Arc::new(truth), ..job }
}

/// Trainings that report their speed, and jobs that say nothing of themselves. Some of these words must occur in every
/// history of trainings, else it would prove little.
fn check(policy: &str, words: &[&str]) {
    for seed in [1, 2, 3] {
        let (cluster, queues, _) = load_cluster("2x4 t4, 1x8 a100").unwrap();
        let training = Training { jobs: 12, load: 2.0, ..Training::default() };
        let synthetic = Synthetic { jobs: 60, ..Synthetic::demo() };
        let trainings = training.generate(&cluster, &queues, seed).unwrap();
        let others = synthetic.generate(&cluster, &queues, seed).unwrap();
        for workload in [&trainings, &others] {
            let named = format!("{policy}, workload {}, seed {seed}", workload.name);
            let setup = Setup::new(cluster.clone(), queues.clone(), workload.jobs.clone());
            let (simulated, lived) = (by_simulation(&setup, policy), by_service(&setup, policy));
            same(&simulated, &lived, &named);
            if workload == &trainings {
                let missing = words.iter().find(|word| !simulated.iter().any(|line| line.contains(**word)));
                assert_eq!(missing, None, "{named}");
            }
        }
    }
}

/// Facts of the core with their times, one line each.
type Lines = Vec<String>;

fn by_simulation(setup: &Setup, policy: &str) -> Lines {
    let mut lines = Lines::new();
    let built = PolicyConfig::from_text(policy).unwrap().build().unwrap();
    simulate(setup, policy, built, |at, event| lines.push(line(at, event))).unwrap();
    lines
}

fn line(at: Time, event: &Event) -> String {
    format!("{} {}", at.as_millis(), serde_json::to_string(event).unwrap())
}

fn same(simulated: &[String], lived: &[String], named: &str) {
    let differs = simulated.iter().zip(lived).position(|(ours, theirs)| ours != theirs);
    if let Some(place) = differs {
        panic!(
            "{named}: fact {place} is\n{}\nin the simulator and\n{}\nin the service",
            simulated[place], lived[place]
        );
    }
    assert_eq!(simulated.len(), lived.len(), "{named}: one history is longer than the other");
}

/// The live loop over a world that exists only in memory; what `simulate` does, seen from the other side.
fn by_service(setup: &Setup, policy: &str) -> Lines {
    let mut world = World::new(setup.cluster.clone(), setup.jobs.clone(), &setup.circumstances).unwrap();
    let (mut live, book, told) = service(setup, policy);
    live.core.trust_all_reports();
    let last_submission = setup.jobs.last().map_or(Time::ZERO, |job| job.submitted);
    while let Some((now, batch)) = world.next(live.core.engine.next_wakeup()) {
        if now > last_submission + HORIZON {
            break;
        }
        let known = book.lock().unwrap().len();
        let (calls, news) = as_heard(batch);
        live.turn(now, calls, news).unwrap();
        let issued = commands(&book.lock().unwrap()[known..]);
        let expected: Vec<Told> = issued.iter().map(|command| Told::by(command, setup)).collect();
        assert_eq!(std::mem::take(&mut *told.lock().unwrap()), expected, "the executor is told what is on record");
        issued.iter().for_each(|command| world.carry_out(now, command));
        if world.all_submitted() && live.core.engine.state().books().claims().live_count() == 0 {
            break;
        }
    }
    let book = book.lock().unwrap();
    book.iter().filter_map(|(at, fact)| Some(line(*at, core_event(fact)?))).collect()
}

fn commands(facts: &[(Time, Fact)]) -> Vec<Command> {
    let issued = |(_, fact): &(Time, Fact)| match fact {
        Fact::Core(Event::Issued(command)) => Some(command.clone()),
        _ => None,
    };
    facts.iter().filter_map(issued).collect()
}

/// What the simulator would have on record too. A real job says by a last report how far its saved state is; in the
/// simulator that is part of the stop.
fn core_event(fact: &Fact) -> Option<&Event> {
    match fact {
        Fact::Core(Event::RunProgressed { report, .. }) if report.steps.is_none() => None,
        Fact::Core(event) => Some(event),
        _ => None,
    }
}

type Calls = Vec<(Caller, Ask, oneshot::Sender<server::core::Reply>)>;

/// What comes from a world in memory, as users and an executor would say it.
fn as_heard(batch: Vec<Input>) -> (Calls, Vec<News>) {
    let (mut calls, mut news) = (Calls::new(), Vec::new());
    for input in batch {
        match input {
            Input::Request(Request::Submit { spec, speed, held: false }) => {
                let caller = Caller::new(1000, spec.user.to_string(), api::Role::User);
                let (program, request) = (program(), JobRequest::new(["train"]));
                let submission = Submission {
                    spec,
                    speed,
                    request,
                    program,
                    key: None,
                    array: None,
                    ceiling: Default::default(),
                    continues: Vec::new(),
                };
                calls.push((caller, Ask::Submit(Box::new(submission)), oneshot::channel().0));
            }
            Input::Request(other) => panic!("nobody asked for {other:?}"),
            Input::Report(event) => news.extend(seen(event)),
        }
    }
    (calls, news)
}

fn seen(event: Event) -> Vec<News> {
    let ended = |run, told_to_stop, code| {
        let exits = vec![Exit { code: Some(code), signal: None }];
        let failed_first = (code != 0).then_some(0);
        News::Ended { run, ending: Ending { started: true, told_to_stop, exits, failed_first, ..Ending::default() } }
    };
    match event {
        Event::RunStarted { run } => vec![News::Started { run }],
        Event::RunResized { run } => vec![News::Resized { run }],
        Event::RunProgressed { run, report } => vec![said(run, &written(&report))],
        Event::RunFinished { run } => vec![ended(run, false, 0)],
        Event::RunStopped { run, done } => {
            let checkpoint = Some(CheckpointReport { steps: done, seconds: None, age_seconds: None });
            let last_word = ProgressReport { steps: Some(done), checkpoint, ..ProgressReport::default() };
            vec![said(run, &last_word), ended(run, true, 143)]
        }
        other => panic!("no executor reports {other:?}"),
    }
}

fn said(run: Run, report: &ProgressReport) -> News {
    News::Progress { run, lines: vec![serde_json::to_string(report).unwrap()] }
}

/// A report in the words of a real job.
fn written(report: &StepReport) -> ProgressReport {
    ProgressReport {
        steps: Some(report.done),
        epoch: Some(f64::from(report.epoch)),
        step_seconds: report.steps.map(|steps| steps.step_secs),
        compute_seconds: report.steps.map(|steps| steps.accumulation_secs),
        local_batch: report.steps.map(|steps| steps.local_batch),
        noise: report.noise.map(|noise| Noise { sqr: noise.sqr, var: noise.var }),
        resizable: Some(report.resizable),
        restart: report.interruption.map(|interruption| {
            let (kind, price) = match interruption {
                Interruption::Restart(price) => (RestartKind::Restart, price),
                Interruption::Resize(price) => (RestartKind::Resize, price),
            };
            Box::new(RestartReport { kind, phases: Phases { stop: Some(price.as_secs_f64()), ..Phases::default() } })
        }),
        ..ProgressReport::default()
    }
}
