//! The service as a whole: journal, core, executor and the thread that owns them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use api::HookUrl;
use cluster::{ClaimId, Time};
use engine::{Engine, Event, Input, Request, State};
use executors::{Checkpoints, KnownJob, Local, Origin, set_aside_foreign};
use journal::{Entry, Journal, JournalError, Reader};
use policies::PolicyConfig;

use crate::clock::{Clock, Reading, Timeline};
use crate::core::{Core, Step};
use crate::data_dir::make_data_dir;
use crate::error::ServerError;
use crate::fact::{Caller, Deed, Fact};
use crate::identity;
use crate::ledger::Ledger;
use crate::live::{Change, Inbox, Live, Undone, changes_to};
use crate::notification;
use crate::opening::{Opening, Past};
use crate::postponed::Postponed;
use crate::queues::Review;
use crate::replica::Replica;
use crate::reserve::Reserved;
use crate::retention::{Forgetting, keep_tidy, keepers};
use crate::seldom::cut;
use crate::settings::{Config, DEFAULT_POLICY, Settings};
use crate::store::JournalStore;

/// So much of what was lost is on record with who accepted it.
const LONGEST_LOSS: usize = 1000;

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
    /// The beginnings of addresses that may be told of jobs.
    pub(crate) notify_urls: Vec<HookUrl>,
    past: Mutex<Reader>,
    /// Tells the thread that removes old runs to leave.
    tidying: mpsc::Sender<()>,
    /// Nothing once it has left.
    thread: Mutex<Option<JoinHandle<Result<(), ServerError>>>>,
}

impl Service {
    /// Takes up where the journal ends, or begins one. `supervisor` is the command that watches over a run.
    pub fn open(settings: Settings, supervisor: Vec<OsString>) -> Result<Service, ServerError> {
        let Settings { data_dir, config, machine, accepted, queues_from_file } = settings;
        make_data_dir(&data_dir)?;
        let checkpoints = match &config.checkpoint_dir {
            None => Checkpoints::in_data_dir(&data_dir),
            Some(named) => Checkpoints::at(&data_dir, named)?,
        };
        let opening = Opening::of(&data_dir, &checkpoints, accepted)?;
        take(&checkpoints, &opening)?;
        let draft = config.draft(&machine);
        let reading = Reading::take();
        let clock = opening.past.as_ref().map_or_else(
            || Clock::resume(Time::ZERO, &Timeline::default(), &reading),
            |past| Clock::resume(past.state.now(), past.ledger.timeline(), &reading),
        );
        let now = clock.now();
        let Opening { mut journal, past, first_free, adopt, lost, is_copy } = opening;
        let mut core = match past {
            None => begin(&mut journal, now, &config, draft)?,
            Some(past) => resume(&mut journal, now, &config, &draft, past, queues_from_file)?,
        };
        // What was made before there were notes gets them before the journal says that there are.
        for aside in set_aside(&data_dir, &checkpoints, &journal, adopt, &core)? {
            tracing::warn!(path = %aside.display(), "this belongs to another job or data directory: it was moved aside");
        }
        settle_numbers(&mut journal, now, &mut core, first_free)?;
        note_accepted(&mut journal, now, lost.as_deref(), is_copy)?;
        identity::write(&data_dir, journal.identity())?;
        set_clock(&mut journal, now, &mut core, reading)?;
        let replica = Arc::new(Replica::new(core.engine.state().clone(), core.ledger.clone(), journal.last()));
        let past = Mutex::new(journal.reader()?);
        let (inbox, messages) = Inbox::new();
        let (news, heard) = mpsc::channel();
        let executor = Local::open(&data_dir, checkpoints, machine, supervisor, news)?;
        let teller = inbox.clone();
        std::thread::Builder::new()
            .name("news".into())
            .spawn(move || heard.into_iter().all(|news| teller.tell(news)))
            .map_err(|error| ServerError::Thread(error.to_string()))?;
        let notify_urls = notification::allowed_urls(&config.notify_urls).unwrap_or_default();
        let live = Live {
            core,
            store: Box::new(Reserved::new(JournalStore::new(journal, config.retention.journal_entries), &data_dir)?),
            executor: Box::new(executor),
            replica: replica.clone(),
            settings: config.engine_settings(),
            environment: environment(&data_dir, &config),
            notify_urls: notify_urls.clone(),
            unheard: Vec::new(),
            forgetting: Forgetting::new(config.retention.clone()),
            undone: Undone::default(),
            postponed: Postponed::default(),
            doubt: None,
        };
        let tidying = start_tidying(&data_dir, &config, &replica)?;
        let thread = std::thread::Builder::new()
            .name("live".into())
            .spawn(move || live.run(&messages, clock))
            .map_err(|error| ServerError::Thread(error.to_string()))?;
        let thread = Mutex::new(Some(thread));
        let started = Instant::now();
        Ok(Service { replica, inbox, clock, data_dir, config, started, lost, notify_urls, past, tidying, thread })
    }

    /// Leaves; whatever runs goes on running. Requests that still wait for something are told so.
    pub fn leave(&self) -> Result<(), ServerError> {
        // A thread that is gone has left.
        self.tidying.send(()).ok();
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

fn start_tidying(data_dir: &Path, config: &Config, replica: &Arc<Replica>) -> Result<mpsc::Sender<()>, ServerError> {
    let (tidying, leave) = mpsc::channel();
    let (data_dir, limits, replica) = (data_dir.to_path_buf(), config.retention.clone(), replica.clone());
    std::thread::Builder::new()
        .name("retention".into())
        .spawn(move || keep_tidy(&data_dir, &limits, &replica, &leave))
        .map_err(|error| ServerError::Thread(error.to_string()))?;
    Ok(tidying)
}

/// Numbers that nobody else has from now on, and which data directory this is: both are facts.
pub(crate) fn settle_numbers(
    journal: &mut Journal,
    now: Time,
    core: &mut Core,
    first_free: u32,
) -> Result<(), ServerError> {
    let mut facts = Vec::new();
    let (identity, before) = (journal.identity(), core.ledger.identity());
    if before != Some(identity) {
        facts.push(Fact::Identified { identity, copy_of: before });
    }
    if first_free > core.ledger.next_number() {
        tracing::warn!(first_free, "numbers are passed over: they stood for jobs that were lost");
        facts.push(Fact::Core(core.engine.begin_numbers(now, ClaimId(first_free))));
    }
    for fact in &facts {
        core.ledger.apply(now, fact, &core.engine.state().books().cluster);
    }
    journal.set_mark(u64::from(core.ledger.next_number()));
    append(journal, now, &facts)?;
    Ok(())
}

/// Jobs that have not ended keep their checkpoints.
fn take(checkpoints: &Checkpoints, opening: &Opening) -> Result<(), ServerError> {
    let keepers = opening.past.as_ref().map(|past| keepers(&past.state, &past.ledger)).unwrap_or_default();
    Ok(checkpoints.take(&opening.journal.identity().to_string(), &keepers)?)
}

fn set_aside(
    data_dir: &Path,
    checkpoints: &Checkpoints,
    journal: &Journal,
    adopt: bool,
    core: &Core,
) -> Result<Vec<PathBuf>, ServerError> {
    let identity = journal.identity().to_string();
    let claims = core.engine.state().books().claims();
    let known = |job: ClaimId| {
        let claim = claims.get(job)?;
        let origin = Origin { data_dir: identity.clone(), job, submitted: claim.submitted };
        Some(KnownJob { origin, launches: claim.progress.launches })
    };
    // There may be none yet.
    if !data_dir.join("runs").exists() {
        return Ok(Vec::new());
    }
    Ok(set_aside_foreign(data_dir, checkpoints, &identity, adopt, known)?)
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

pub(crate) fn begin(
    journal: &mut Journal,
    now: Time,
    config: &Config,
    draft: cluster::ClusterDraft,
) -> Result<Core, ServerError> {
    let text = config.policy.as_deref().unwrap_or(DEFAULT_POLICY);
    let (cluster, queues) = draft.build()?;
    let policy = build_policy(text)?;
    let (engine, beginning) = Engine::new(cluster, queues, text, policy, config.engine_settings());
    append(journal, now, &facts_of(beginning))?;
    Ok(Core::new(engine, Ledger::default()))
}

fn resume(
    journal: &mut Journal,
    now: Time,
    config: &Config,
    draft: &cluster::ClusterDraft,
    past: Past,
    queues_from_file: bool,
) -> Result<Core, ServerError> {
    let books = past.state.books();
    // Those in the journal are in force, also where devices are missing that they promise.
    let changes = changes_to(&books.cluster, &without_queues(draft))?;
    let before = past.state.policy().to_string();
    let text = config.policy.clone().unwrap_or_else(|| before.clone());
    let mut engine = Engine::resume(past.state, build_policy(&text)?, config.engine_settings());
    let mut events = Vec::new();
    if text != before {
        events.push(engine.use_policy(now, &text, build_policy(&text)?));
    }
    // A directory of before there were any gets them here.
    if config.safeguards != engine.state().safeguards() {
        events.push(engine.use_safeguards(now, config.safeguards));
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
    let mut deed = None;
    if let Some(review) = queues_to_apply(engine.state(), &ledger, config, queues_from_file)? {
        deed = Some(Deed::ChangeQueues(review.in_words()));
        let change = Request::ChangeQueues(Box::new(review.queues));
        events.extend(engine.handle(now, vec![Input::Request(change)]).events);
    }
    let mut core = Core::new(engine, ledger);
    for event in &events {
        let cluster = core.engine.state().books().cluster.clone();
        core.ledger.apply(now, &Fact::Core(event.clone()), &cluster);
    }
    let mut step = Step { facts: facts_of(events), ..Step::default() };
    core.announce(now, &mut step);
    step.facts.extend(deed.map(|deed| Fact::Did { by: Caller::of_this_process(), deed }));
    append(journal, now, &step.facts)?;
    Ok(core)
}

pub(crate) fn without_queues(draft: &cluster::ClusterDraft) -> cluster::ClusterDraft {
    cluster::ClusterDraft { queues: Vec::new(), ..draft.clone() }
}

/// The queues in the journal are those in force. What the configuration says differently is said, and done only where
/// that was asked for.
fn queues_to_apply(
    state: &State,
    ledger: &Ledger,
    config: &Config,
    queues_from_file: bool,
) -> Result<Option<Review>, ServerError> {
    let Some(drafts) = &config.queues else {
        let open = open_queues(state);
        if !open.is_empty() {
            tracing::info!(queues = open.join(", "), "the configuration does not say queues: those in force stay");
        }
        return Ok(None);
    };
    match Review::of(state, ledger, drafts) {
        Ok(review) if review.changes.is_empty() => Ok(None),
        Ok(review) if queues_from_file => {
            review.changes.iter().for_each(|change| tracing::info!("{change}, as the configuration says"));
            Ok(Some(review))
        }
        Ok(review) => {
            let difference = review.in_words().join("; ");
            tracing::warn!(
                difference,
                "the queues of the configuration are not those in force, which stay: apply them with `moira queue apply \
                 -f FILE` or `moira serve --queues-from-file`"
            );
            Ok(None)
        }
        Err(problem) if queues_from_file => Err(ServerError::Queues { message: problem.detail }),
        Err(problem) => {
            let difference = problem.detail;
            tracing::warn!(
                difference,
                "the queues of the configuration are not those in force, and could not be applied"
            );
            Ok(None)
        }
    }
}

/// Names of the queues below the root that take jobs.
pub(crate) fn open_queues(state: &State) -> Vec<&str> {
    let all = state.books().queues.iter().skip(1);
    all.filter(|(_, queue)| !queue.closed).map(|(_, queue)| &*queue.name).collect()
}

/// Puts on record what an administrator has accepted to go on with.
fn note_accepted(journal: &mut Journal, now: Time, lost: Option<&str>, is_copy: bool) -> Result<(), JournalError> {
    let loss = lost.map(|what| Deed::AcceptLoss(cut(what, LONGEST_LOSS)));
    let deeds = loss.into_iter().chain(is_copy.then_some(Deed::AcceptCopy));
    let facts: Vec<Fact> = deeds.map(|deed| Fact::Did { by: Caller::of_this_process(), deed }).collect();
    append(journal, now, &facts)
}

/// Puts on record what the clocks of the machine say now, unless it is what they said before.
fn set_clock(journal: &mut Journal, now: Time, core: &mut Core, reading: Reading) -> Result<(), JournalError> {
    let Some(found) = core.ledger.timeline().compare(now, reading) else { return Ok(()) };
    let mut step = Step::default();
    core.hear_clock(now, found, &mut step);
    append(journal, now, &step.facts)
}

fn facts_of(events: Vec<Event>) -> Vec<Fact> {
    events.into_iter().map(Fact::Core).collect()
}

pub(crate) fn append(journal: &mut Journal, now: Time, facts: &[Fact]) -> Result<(), JournalError> {
    let texts: Vec<String> = facts.iter().map(crate::live::text_of).collect();
    if texts.is_empty() {
        return Ok(());
    }
    journal.append(now.as_millis(), &texts).map(drop)
}

pub(crate) fn build_policy(text: &str) -> Result<Box<dyn plan::Policy>, ServerError> {
    let built = PolicyConfig::from_text(text).and_then(|config| config.build());
    built.map_err(|error| ServerError::Policy { policy: text.into(), message: error.to_string() })
}
