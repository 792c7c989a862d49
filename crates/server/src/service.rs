//! The service as a whole: journal, core, executor and the thread that owns them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use cluster::Time;
use engine::{Engine, Event, Input, State};
use executors::Local;
use journal::{Entry, Journal, JournalError, Reader};
use policies::PolicyConfig;

use crate::clock::Clock;
use crate::core::Core;
use crate::data_dir::{journal_path, make_data_dir};
use crate::error::ServerError;
use crate::fact::Fact;
use crate::image::Image;
use crate::ledger::Ledger;
use crate::live::{Change, Inbox, Live, changes_to};
use crate::replica::Replica;
use crate::settings::{Config, DEFAULT_POLICY, Settings};

/// A running service, without its door: see [`crate::http`] for that.
#[derive(Debug)]
pub struct Service {
    pub replica: Arc<Replica>,
    pub inbox: Inbox,
    pub clock: Clock,
    pub data_dir: PathBuf,
    pub config: Config,
    pub started: Instant,
    /// What was missing of the journal when it was opened, in words.
    pub lost: Option<String>,
    past: Mutex<Reader>,
    /// Nothing once it has left.
    thread: Mutex<Option<JoinHandle<Result<(), ServerError>>>>,
}

impl Service {
    /// Takes up where the journal ends, or begins one. `supervisor` is the command that watches over a run.
    pub fn open(settings: Settings, supervisor: Vec<OsString>) -> Result<Service, ServerError> {
        let Settings { data_dir, config, machine } = settings;
        make_data_dir(&data_dir)?;
        let path = journal_path(&data_dir);
        let (mut journal, opened) = Journal::open(&path)?;
        let lost = opened.lost.map(|lost| {
            format!("entries {} to {} of the journal are missing: what they said is lost", lost.from, lost.to)
        });
        if let Some(lost) = &lost {
            tracing::error!("{lost}");
        }
        let draft = config.draft(&machine);
        let past = (opened.last > 0).then(|| Past::read(&journal)).transpose()?;
        let clock = Clock::after(past.as_ref().map_or(Time::ZERO, |past| past.state.now()));
        let now = clock.now();
        let core = match past {
            None => begin(&mut journal, now, &config, draft)?,
            Some(past) => resume(&mut journal, now, &config, &draft, past)?,
        };
        let replica = Arc::new(Replica::new(core.engine.state().clone(), core.ledger.clone(), journal.last()));
        let past = Mutex::new(journal.reader()?);
        let (inbox, messages) = Inbox::new();
        let (news, heard) = mpsc::channel();
        let executor = Local::open(&data_dir, machine, supervisor, news)?;
        let teller = inbox.clone();
        std::thread::Builder::new()
            .name("news".into())
            .spawn(move || heard.into_iter().all(|news| teller.tell(news)))
            .map_err(|error| ServerError::Thread(error.to_string()))?;
        let live = Live {
            core,
            store: Box::new(journal),
            executor: Box::new(executor),
            replica: replica.clone(),
            settings: config.engine_settings(),
            environment: environment(&data_dir, &config),
            unheard: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("live".into())
            .spawn(move || live.run(&messages, clock))
            .map_err(|error| ServerError::Thread(error.to_string()))?;
        let thread = Mutex::new(Some(thread));
        Ok(Service { replica, inbox, clock, data_dir, config, started: Instant::now(), lost, past, thread })
    }

    /// Leaves; whatever runs goes on running. Requests that still wait for something are told so.
    pub fn leave(&self) -> Result<(), ServerError> {
        self.inbox.leave();
        let Some(thread) = self.thread().take() else { return Ok(()) };
        thread.join().map_err(|_| ServerError::Thread("it panicked".into()))?
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<Result<(), ServerError>>>> {
        self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What the journal holds after an entry, oldest first.
    pub(crate) fn entries(&self, after: u64, limit: usize) -> Result<Vec<Entry>, JournalError> {
        self.past.lock().unwrap_or_else(std::sync::PoisonError::into_inner).read(after, limit)
    }

    /// Whether the thread that owns the core is still there.
    pub fn is_alive(&self) -> bool {
        self.thread().as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

/// By which jobs find the service.
fn environment(data_dir: &Path, config: &Config) -> BTreeMap<String, String> {
    let socket = format!("unix:{}", api::socket_in(data_dir).display());
    let mut environment = BTreeMap::from([("MOIRA_SERVER".to_string(), socket)]);
    if let Some(address) = config.listen.first() {
        environment.insert("MOIRA_SERVER_URL".into(), format!("http://{address}"));
    }
    environment
}

/// What the journal says was the case.
struct Past {
    state: State,
    ledger: Ledger,
}

impl Past {
    fn read(journal: &Journal) -> Result<Past, ServerError> {
        let mut past = Past { state: State::default(), ledger: Ledger::default() };
        let mut after = 0;
        if let Some(snapshot) = journal.snapshot()? {
            let Image { state, ledger } = Image::from_text(&snapshot.text)?;
            past = Past { state, ledger };
            after = snapshot.upto;
        }
        journal.for_each(after, |entry: Entry| -> Result<(), ServerError> {
            let fact: Fact = serde_json::from_str(&entry.text)
                .map_err(|error| ServerError::Entry { seq: entry.seq, message: error.to_string() })?;
            let at = Time::from_millis(entry.at);
            if let Fact::Core(event) = &fact {
                past.state.apply(at, event);
            }
            past.ledger.apply(at, &fact, &past.state.books().cluster);
            Ok(())
        })?;
        Ok(past)
    }
}

fn begin(journal: &mut Journal, now: Time, config: &Config, draft: cluster::ClusterDraft) -> Result<Core, ServerError> {
    let text = config.policy.as_deref().unwrap_or(DEFAULT_POLICY);
    let (cluster, queues) = draft.build()?;
    let policy = build_policy(text)?;
    let (engine, beginning) = Engine::new(cluster, queues, text, policy, config.engine_settings());
    append(journal, now, beginning)?;
    Ok(Core { engine, ledger: Ledger::default() })
}

fn resume(
    journal: &mut Journal,
    now: Time,
    config: &Config,
    draft: &cluster::ClusterDraft,
    past: Past,
) -> Result<Core, ServerError> {
    let books = past.state.books();
    let (_, queues) = draft.clone().build()?;
    let names = |tree: &cluster::QueueTree| tree.iter().map(|(_, queue)| queue.name.to_string()).collect::<Vec<_>>();
    if queues != books.queues {
        let difference = format!("{} before, {} now", names(&books.queues).join(", "), names(&queues).join(", "));
        return Err(ServerError::QueuesChanged { difference });
    }
    let changes = changes_to(&books.cluster, draft)?;
    let before = past.state.policy().to_string();
    let text = config.policy.clone().unwrap_or_else(|| before.clone());
    let mut engine = Engine::resume(past.state, build_policy(&text)?, config.engine_settings());
    let mut events = Vec::new();
    if text != before {
        events.push(engine.use_policy(now, &text, build_policy(&text)?));
    }
    let differs = |change: &Change| match change {
        Change::Status(node, availability, broken) => {
            let known = engine.state().books().node_status(*node);
            // What somebody has cordoned or drained stays so.
            let back = *availability == plan::Availability::Open && known.availability != plan::Availability::Lost;
            known.broken != *broken || !(back || known.availability == *availability)
        }
        Change::Join(_) => true,
    };
    let inputs: Vec<Input> = changes
        .into_iter()
        .filter(differs)
        .map(|change| match change {
            Change::Status(node, availability, broken) => {
                Input::Report(Event::NodeChanged { node, availability, broken })
            }
            Change::Join(request) => Input::Request(request),
        })
        .collect();
    let ledger = past.ledger;
    if !inputs.is_empty() {
        tracing::warn!(changes = inputs.len(), "the devices of this machine are not those of before");
        events.extend(engine.handle(now, inputs).events);
    }
    let mut core = Core { engine, ledger };
    for event in &events {
        let cluster = core.engine.state().books().cluster.clone();
        core.ledger.apply(now, &Fact::Core(event.clone()), &cluster);
    }
    append(journal, now, events)?;
    Ok(core)
}

fn append(journal: &mut Journal, now: Time, events: Vec<Event>) -> Result<(), JournalError> {
    let texts: Vec<String> = events.into_iter().map(|event| crate::live::text_of(&Fact::Core(event))).collect();
    if texts.is_empty() {
        return Ok(());
    }
    journal.append(now.as_millis(), &texts).map(drop)
}

fn build_policy(text: &str) -> Result<Box<dyn plan::Policy>, ServerError> {
    let built = PolicyConfig::from_text(text).and_then(|config| config.build());
    built.map_err(|error| ServerError::Policy { policy: text.into(), message: error.to_string() })
}
