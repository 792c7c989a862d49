//! Everything that is the case, as one text: what a compacted journal begins with.

use engine::State;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::ledger::Ledger;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) state: State,
    pub(crate) ledger: Ledger,
}

impl Image {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("an image is made of numbers, words and lists")
    }

    pub(crate) fn from_text(text: &str) -> Result<Image, ServerError> {
        serde_json::from_str(text).map_err(|error| ServerError::Snapshot { message: error.to_string() })
    }
}
