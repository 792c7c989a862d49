//! Who is told of a job, and of what.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::CommandLine;

/// One who is told: a command that the job's user runs, or an address that the service's configuration allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotifyRequest {
    /// It reads what happened as JSON from its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandLine>,
    /// It gets the same JSON by POST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048, pattern = "^https?://")]
    pub url: Option<String>,
    /// Of these; of all if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 4)]
    pub events: Vec<NotifyEvent>,
}

/// What one may be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NotifyEvent {
    /// It runs for the first time; of an array, the first task does.
    Start,
    /// It has ended, however; of an array, all tasks have.
    End,
    /// It has ended without success and was not cancelled; of an array, the first such task.
    Failure,
    /// It was told to stop to make room, and will start again; of an array, the first such task.
    Preemption,
}

impl NotifyRequest {
    /// Whoever wants to hear of ends hears of failures too: a job is told of once when it has ended. An array is told of when
    /// the first task fails, and again when all have ended.
    pub fn wants(&self, event: NotifyEvent, of_array: bool) -> bool {
        let named = |event| self.events.is_empty() || self.events.contains(&event);
        named(event) || event == NotifyEvent::Failure && !of_array && named(NotifyEvent::End)
    }
}

impl NotifyEvent {
    pub const ALL: [NotifyEvent; 4] =
        [NotifyEvent::Start, NotifyEvent::End, NotifyEvent::Failure, NotifyEvent::Preemption];

    pub fn as_str(self) -> &'static str {
        match self {
            NotifyEvent::Start => "start",
            NotifyEvent::End => "end",
            NotifyEvent::Failure => "failure",
            NotifyEvent::Preemption => "preemption",
        }
    }
}

impl fmt::Display for NotifyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for NotifyEvent {
    type Err = String;

    fn from_str(text: &str) -> Result<NotifyEvent, String> {
        let known = NotifyEvent::ALL.into_iter().find(|event| event.as_str() == text);
        known.ok_or_else(|| format!("expected start, end, failure or preemption, found `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_wants_to_hear_of_ends_hears_of_failures() {
        let wants = |events: &[NotifyEvent], event, of_array| {
            NotifyRequest { command: None, url: None, events: events.to_vec() }.wants(event, of_array)
        };
        use NotifyEvent::{End, Failure, Preemption, Start};
        assert!(NotifyEvent::ALL.into_iter().all(|event| wants(&[], event, false)));
        assert!(wants(&[End], Failure, false) && wants(&[End], End, false) && !wants(&[End], Start, false));
        assert!(wants(&[Failure], Failure, false) && !wants(&[Failure], End, false));
        assert!(!wants(&[End], Failure, true), "the end of an array is told by itself");
        assert!(!wants(&[Start], Preemption, false));
    }
}
