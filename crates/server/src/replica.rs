//! A second copy of what is the case, for readers: it applies the same facts, after they are journaled. So reading never
//! waits for a decision, and what is read was durable first.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};

use cluster::{ClaimId, Run, Time};
use executors::Usage;
use tokio::sync::{broadcast, watch};

use crate::fact::Fact;
use crate::ledger::Ledger;
use crate::measures::Measures;
use engine::{Reservation, State};

#[derive(Debug)]
pub struct Replica {
    shown: RwLock<Shown>,
    lines: broadcast::Sender<Arc<Vec<Line>>>,
    version: watch::Sender<u64>,
    pub measures: Measures,
}

/// What readers see.
#[derive(Debug, Clone)]
pub struct Shown {
    pub state: State,
    pub ledger: Ledger,
    /// The number of the last journal entry that is in it.
    pub seq: u64,
    /// What runs use at the moment; not journaled until they end.
    pub usage: BTreeMap<Run, Usage>,
    /// What keeps the service from taking anything on.
    pub trouble: Option<String>,
    /// What keeps it from taking new jobs on, while all else goes on.
    pub degraded: Option<String>,
    /// What is reserved in this state, once somebody has asked.
    pub(crate) reservations: OnceLock<Vec<Reservation>>,
}

/// A fact with its place in the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub seq: u64,
    pub at: Time,
    /// The decision it belongs to.
    pub decision: u64,
    pub fact: Fact,
}

/// So many batches a reader may lag behind before it has to read the journal instead.
const BACKLOG: usize = 1024;

impl Replica {
    pub fn new(state: State, ledger: Ledger, seq: u64) -> Replica {
        let (usage, reservations) = (BTreeMap::new(), OnceLock::new());
        let shown = Shown { state, ledger, seq, usage, trouble: None, degraded: None, reservations };
        Replica {
            shown: RwLock::new(shown),
            lines: broadcast::channel(BACKLOG).0,
            version: watch::channel(0).0,
            measures: Measures::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Applies what was just journaled, up to the entry `last`.
    pub(crate) fn apply(&self, now: Time, facts: Vec<Fact>, last: u64) {
        let first = last + 1 - facts.len() as u64;
        let mut lines = Vec::with_capacity(facts.len());
        self.change(|shown| {
            for (seq, fact) in (first..).zip(facts) {
                self.measures.observe(now, &fact, shown);
                shown.apply(now, &fact);
                lines.push(Line { seq, at: now, decision: shown.ledger.decisions(), fact });
            }
            shown.seq = last;
        });
        // Nobody listening is no fault.
        self.lines.send(Arc::new(lines)).ok();
    }

    pub(crate) fn used(&self, run: Run, usage: Usage) {
        self.change(|shown| {
            shown.usage.insert(run, usage);
        });
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        self.change(|shown| shown.trouble = trouble);
    }

    pub(crate) fn set_degraded(&self, degraded: Option<String>) {
        self.change(|shown| shown.degraded = degraded);
    }

    /// What happens from now on.
    pub fn lines(&self) -> broadcast::Receiver<Arc<Vec<Line>>> {
        self.lines.subscribe()
    }

    /// Changes whenever something does.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Shown)) {
        let mut shown = self.shown.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut shown);
        drop(shown);
        self.version.send_modify(|version| *version += 1);
    }
}

impl Shown {
    pub(crate) fn apply(&mut self, now: Time, fact: &Fact) {
        if let Fact::Core(event) = fact {
            self.state.apply(now, event);
            self.reservations.take();
        }
        if let Fact::Ended { run, .. } = fact {
            self.usage.remove(run);
        }
        self.ledger.apply(now, fact, &self.state.books().cluster);
    }

    /// What a claim's present run uses.
    pub fn usage_of(&self, claim: ClaimId) -> Option<Usage> {
        let run = self.state.books().claim(claim).run();
        let ended = || self.ledger.job(claim).and_then(|job| job.ending.as_ref()).map(|(_, ending)| ending.usage);
        self.usage.get(&run).copied().or_else(ended)
    }
}
