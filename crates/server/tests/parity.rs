//! The service decides as the simulator does: the same workload, once through `sim::simulate` and once through the live
//! loop with a clock and an executor that a test moves by hand, gives the same facts, byte for byte.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use api::{CheckpointReport, JobRequest, Noise, ProgressReport};
use cluster::{Run, Span, Time};
use engine::{Command, Engine, Event, Input, Request};
use executors::{Ending, Executor, ExecutorError, Exit, LaunchOrder, Limits, News, Program, Sighting, workers_of};
use journal::JournalError;
use perf::{StepReport, Tuning};
use policies::PolicyConfig;
use server::core::{Ask, Core, Submission};
use server::{Caller, Fact, Ledger, Live, Replica, Store};
use sim::{HORIZON, Setup, simulate};
use tokio::sync::oneshot;
use trace::{Synthetic, Training, load_cluster};
use world::World;

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

/// What was journaled, and when.
type Book = Arc<Mutex<Vec<(Time, Fact)>>>;
type ToldList = Arc<Mutex<Vec<Told>>>;

fn service(setup: &Setup, policy: &str) -> (Live, Book, ToldList) {
    let built = PolicyConfig::from_text(policy).unwrap().build().unwrap();
    let (engine, beginning) = Engine::new(setup.cluster.clone(), setup.queues.clone(), policy, built, setup.settings);
    let book: Book = Arc::default();
    book.lock().unwrap().extend(beginning.into_iter().map(|event| (Time::ZERO, Fact::Core(event))));
    let told = ToldList::default();
    let replica = Replica::new(engine.state().clone(), Ledger::default(), 2);
    let live = Live {
        core: Core { engine, ledger: Ledger::default() },
        store: Box::new(InMemory(book.clone())),
        executor: Box::new(Scripted(told.clone())),
        replica: Arc::new(replica),
        settings: setup.settings,
        environment: BTreeMap::new(),
        unheard: Vec::new(),
    };
    (live, book, told)
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
        Fact::Numbered(_) | Fact::Reported { .. } | Fact::Ended { .. } => None,
    }
}

type Calls = Vec<(Caller, Ask, oneshot::Sender<server::core::Reply>)>;

/// What comes from a world in memory, as users and an executor would say it.
fn as_heard(batch: Vec<Input>) -> (Calls, Vec<News>) {
    let (mut calls, mut news) = (Calls::new(), Vec::new());
    for input in batch {
        match input {
            Input::Request(Request::Submit { spec, speed, held: false }) => {
                let caller = Caller { uid: 1000, name: spec.user.to_string(), is_admin: false };
                let (program, request) = (program(), JobRequest::new(["train"]));
                let submission = Submission { spec, speed, request, program, key: None, array: None };
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
        Event::RunProgressed { run, report } => vec![said(run, &written(&report))],
        Event::RunFinished { run } => vec![ended(run, false, 0)],
        Event::RunStopped { run, done } => {
            let checkpoint = Some(CheckpointReport { steps: done, seconds: None });
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
        ..ProgressReport::default()
    }
}

fn program() -> Program {
    Program {
        command: vec!["train".into()],
        workdir: "/".into(),
        env: BTreeMap::new(),
        account: None,
        limits: Limits::default(),
        notice: Span::ZERO,
        job_name: "train".into(),
        queue: "root".into(),
    }
}

struct InMemory(Book);

impl Store for InMemory {
    /// Facts are kept as they would be read again from a file.
    fn append(&mut self, at: Time, texts: &[String]) -> Result<u64, JournalError> {
        let mut book = self.0.lock().unwrap();
        book.extend(texts.iter().map(|text| (at, serde_json::from_str(text).unwrap())));
        Ok(book.len() as u64)
    }
}

/// What an executor was told to do.
#[derive(Debug, PartialEq)]
enum Told {
    Launch(Run, Vec<executors::WorkerPlace>, Option<Tuning>),
    Stop(Run, Span),
    Retune(Run, Tuning),
}

impl Told {
    fn by(command: &Command, setup: &Setup) -> Told {
        match command {
            Command::Launch { run, allotment, tuning, .. } => {
                Told::Launch(*run, workers_of(&allotment.placement, &setup.cluster), *tuning)
            }
            Command::Stop { run, grace } => Told::Stop(*run, *grace),
            Command::Retune { run, tuning } => Told::Retune(*run, *tuning),
            Command::Provision { .. } | Command::Release { .. } => panic!("there is no cloud here: {command:?}"),
        }
    }
}

struct Scripted(ToldList);

impl Scripted {
    fn note(&mut self, told: Told) -> Result<(), ExecutorError> {
        self.0.lock().unwrap().push(told);
        Ok(())
    }
}

impl Executor for Scripted {
    fn launch(&mut self, order: &LaunchOrder) -> Result<(), ExecutorError> {
        self.note(Told::Launch(order.run, order.workers.clone(), order.tuning))
    }

    fn stop(&mut self, run: Run, grace: Span) -> Result<(), ExecutorError> {
        self.note(Told::Stop(run, grace))
    }

    fn retune(&mut self, run: Run, tuning: Tuning) -> Result<(), ExecutorError> {
        self.note(Told::Retune(run, tuning))
    }

    fn bookmark(&mut self, _: Run, _: u64) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn last_words(&mut self, _: Run) -> Result<Vec<String>, ExecutorError> {
        Ok(Vec::new())
    }

    fn survey(&mut self) -> Result<Vec<Sighting>, ExecutorError> {
        Ok(Vec::new())
    }

    fn settle(&mut self, _: Run) -> Result<(), ExecutorError> {
        Ok(())
    }
}
