//! Everything that is the case, as one text: what a compacted journal begins with.

use engine::State;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::ledger::Ledger;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Image {
    pub(crate) state: State,
    pub(crate) ledger: Ledger,
}

/// The same as it is written: it may be large, and is not copied for that.
#[derive(Serialize)]
struct Shown<'a> {
    state: &'a State,
    ledger: &'a Ledger,
}

impl Image {
    pub(crate) fn text_of(state: &State, ledger: &Ledger) -> String {
        serde_json::to_string(&Shown { state, ledger }).expect("an image is made of numbers, words and lists")
    }

    pub(crate) fn from_text(text: &str) -> Result<Image, ServerError> {
        serde_json::from_str(text).map_err(|error| ServerError::Snapshot { message: error.to_string() })
    }
}
