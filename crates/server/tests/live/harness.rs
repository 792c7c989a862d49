//! The live loop without a clock, a disk or processes: what is journaled stays in memory, and an executor takes note of
//! what it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use api::Scene;
use cluster::{Run, Span, Time};
use engine::{Command, Engine};
use executors::{
    Executor, ExecutorError, LaunchOrder, Limits, News, NotifyOrder, Program, ResizeOrder, Sighting, WorkerPlace,
    workers_of,
};
use journal::JournalError;
use perf::Tuning;
use policies::PolicyConfig;
use server::core::Core;
use server::{Fact, Ledger, Live, Replica, Store};
use sim::Setup;

/// What was journaled, and when.
pub(crate) type Book = Arc<Mutex<Vec<(Time, Fact)>>>;
pub(crate) type ToldList = Arc<Mutex<Vec<Told>>>;

/// In which jobs are submitted at that second, by Ada.
pub(crate) fn scene(live: &Live, second: u64) -> Scene<'_> {
    let books = live.core.engine.state().books();
    Scene {
        cluster: &books.cluster,
        queues: &books.queues,
        owner: "ada",
        now: Time::from_secs(second),
        zero_unix_ms: 0,
        expected: None,
        claims_of: &|_| None,
    }
}

pub(crate) fn service(setup: &Setup, policy: &str) -> (Live, Book, ToldList) {
    let built = PolicyConfig::from_text(policy).unwrap().build().unwrap();
    let (engine, beginning) = Engine::new(setup.cluster.clone(), setup.queues.clone(), policy, built, setup.settings);
    let book: Book = Arc::default();
    book.lock().unwrap().extend(beginning.into_iter().map(|event| (Time::ZERO, Fact::Core(event))));
    let told = ToldList::default();
    let replica = Replica::new(engine.state().clone(), Ledger::default(), 2);
    let live = Live {
        core: Core::new(engine, Ledger::default()),
        store: Box::new(InMemory(book.clone())),
        executor: Box::new(Scripted { told: told.clone(), seen: Vec::new(), outcome: None }),
        replica: Arc::new(replica),
        settings: setup.settings,
        environment: BTreeMap::new(),
        notify_urls: Vec::new(),
        unheard: Vec::new(),
        forgetting: server::Forgetting::new(server::Retention::default()),
        undone: server::Undone::default(),
        postponed: server::Postponed::default(),
        doubt: None,
    };
    (live, book, told)
}

pub(crate) fn program() -> Program {
    Program {
        command: vec!["train".into()],
        workdir: "/".into(),
        env: BTreeMap::new(),
        umask: None,
        account: None,
        limits: Limits::default(),
        notice: Span::ZERO,
        job_name: "train".into(),
        queue: "root".into(),
        input: None,
        terminal: None,
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

    fn reopen(&mut self) -> Result<u64, JournalError> {
        Ok(self.0.lock().unwrap().len() as u64)
    }
}

/// What an executor was told to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Launch(Run, Vec<WorkerPlace>, Option<Tuning>),
    Stop(Run, Span),
    Retune(Run, Tuning),
    Resize(Run, Vec<WorkerPlace>, Option<Tuning>),
    Notify(u64, String),
}

impl Told {
    pub(crate) fn by(command: &Command, setup: &Setup) -> Told {
        match command {
            Command::Launch { run, allotment, tuning, .. } => {
                Told::Launch(*run, workers_of(&allotment.placement, &setup.cluster), *tuning)
            }
            Command::Stop { run, grace } => Told::Stop(*run, *grace),
            Command::Retune { run, tuning } => Told::Retune(*run, *tuning),
            Command::Resize { run, allotment, tuning, .. } => {
                Told::Resize(*run, workers_of(&allotment.placement, &setup.cluster), *tuning)
            }
            Command::Provision { .. } | Command::Release { .. } => panic!("there is no cloud here: {command:?}"),
        }
    }
}

pub(crate) struct Scripted {
    pub(crate) told: ToldList,
    /// What a survey finds.
    pub(crate) seen: Vec<Sighting>,
    /// What has come of a resize that is ordered again.
    pub(crate) outcome: Option<News>,
}

impl Scripted {
    fn note(&mut self, told: Told) -> Result<(), ExecutorError> {
        self.told.lock().unwrap().push(told);
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

    fn resize(&mut self, order: &ResizeOrder) -> Result<Option<News>, ExecutorError> {
        self.note(Told::Resize(order.run, order.workers.clone(), order.tuning))?;
        Ok(self.outcome.take())
    }

    fn bookmark(&mut self, _: Run, _: u64) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn last_words(&mut self, _: Run) -> Result<Vec<String>, ExecutorError> {
        Ok(Vec::new())
    }

    fn survey(&mut self) -> Result<Vec<Sighting>, ExecutorError> {
        Ok(self.seen.clone())
    }

    fn settle(&mut self, _: Run) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn notify(&mut self, order: NotifyOrder) {
        self.note(Told::Notify(order.number, order.message)).ok();
    }
}
