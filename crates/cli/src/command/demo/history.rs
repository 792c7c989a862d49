//! What happened, as the journal tells it.

use std::path::Path;

use cluster::Time;
use engine::{Event, Record, State};
use journal::{Entry, Journal};
use report::{Figure, FigureFold, Fold, Identity, RunReport};
use server::Fact;

use crate::failure::Failure;

/// The facts of the decision core, in order.
#[derive(Debug, Default)]
pub(super) struct History(Vec<Record>);

/// Every number about a history.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) fold: Fold,
    pub(super) run: RunReport,
    pub(super) figure: Figure,
}

impl History {
    /// Of a service that has left.
    pub(super) fn read(data_dir: &Path) -> Result<History, Failure> {
        let (journal, _) = Journal::open(&server::journal_path(data_dir)).map_err(Failure::new)?;
        let mut history = History::default();
        journal.for_each(0, |entry: Entry| -> anyhow::Result<()> {
            if let Fact::Core(event) = serde_json::from_str(&entry.text)? {
                history.push(Time::from_millis(entry.at), event);
            }
            Ok(())
        })?;
        Ok(history)
    }

    pub(super) fn push(&mut self, at: Time, event: Event) {
        self.0.push(Record { at, event });
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.0
    }

    /// How things stood at its end.
    pub(super) fn end(&self) -> State {
        State::replay(&self.0)
    }

    /// `alone` says how long a job would run alone.
    pub(super) fn told(&self, identity: Identity, alone: &report::Isolated<'_>) -> Told {
        let (mut fold, mut figure) = (Fold::new(), FigureFold::new());
        for Record { at, event } in &self.0 {
            fold.observe(*at, event);
            figure.observe(*at, event, &fold);
        }
        let run = fold.finish(identity, alone);
        let figure = figure.finish(&fold, alone);
        Told { fold, run, figure }
    }
}
