//! Everything that is the case, as one text: what a compacted journal begins with.

use std::path::Path;

use engine::State;
use serde::{Deserialize, Serialize};

use crate::clock::Timeline;
use crate::error::ServerError;
use crate::fact::FORMAT;
use crate::ledger::{FirstLedger, Ledger};

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Image {
    pub(crate) state: State,
    pub(crate) ledger: Ledger,
}

/// The same as it is written: it may be large, and is not copied for that.
#[derive(Serialize)]
struct Shown<'a> {
    format: u32,
    state: &'a State,
    ledger: &'a Ledger,
}

/// What every image says first. The first ones said nothing.
#[derive(Deserialize)]
struct Header {
    format: Option<u32>,
}

#[derive(Deserialize)]
struct FirstImage {
    state: State,
    ledger: FirstLedger,
}

/// The part of an image that says what the clocks were.
#[derive(Deserialize)]
struct Clocks {
    ledger: OfLedger,
}

#[derive(Deserialize)]
struct OfLedger {
    #[serde(default)]
    timeline: Timeline,
}

/// What the wall clock said at each moment up to an entry of the journal at `path`, and which entry that is: from there on
/// the entries themselves say it.
pub fn recorded_timeline(path: &Path) -> Result<(Timeline, u64), ServerError> {
    let Some(snapshot) = journal::snapshot(path)? else { return Ok((Timeline::default(), 0)) };
    let Clocks { ledger } = serde_json::from_str(&snapshot.text).map_err(wrong)?;
    Ok((ledger.timeline, snapshot.upto))
}

fn wrong(error: serde_json::Error) -> ServerError {
    ServerError::Snapshot { message: error.to_string() }
}

impl Image {
    pub(crate) fn text_of(state: &State, ledger: &Ledger) -> String {
        serde_json::to_string(&Shown { format: FORMAT, state, ledger })
            .expect("an image is made of numbers, words and lists")
    }

    pub(crate) fn from_text(text: &str) -> Result<Image, ServerError> {
        let Header { format } = serde_json::from_str(text).map_err(wrong)?;
        match format {
            None => {
                let FirstImage { state, ledger } = serde_json::from_str(text).map_err(wrong)?;
                Ok(Image { state, ledger: ledger.into() })
            }
            Some(format) if format <= FORMAT => serde_json::from_str(text).map_err(wrong),
            Some(format) => {
                let message = format!("it has format {format}, this program knows formats up to {FORMAT}");
                Err(ServerError::Snapshot { message })
            }
        }
    }
}
