//! How a job is called: `7`, or `7_3` for task 3 of the array 7.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// A job, or one task of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    pub number: u32,
    pub task: Option<u32>,
}

const EXPECTED: &str = "the number of a job like 7, or of a task like 7_3";

impl JobId {
    pub const fn job(number: u32) -> JobId {
        JobId { number, task: None }
    }

    pub const fn task(number: u32, task: u32) -> JobId {
        JobId { number, task: Some(task) }
    }
}

impl FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<JobId, String> {
        let (number, task) = text.split_once('_').map_or((text, None), |(number, task)| (number, Some(task)));
        let id =
            || Some(JobId { number: digits(number)?, task: task.map_or(Some(None), |task| digits(task).map(Some))? });
        id().ok_or_else(|| format!("expected {EXPECTED}, found `{}`", text.chars().take(40).collect::<String>()))
    }
}

fn digits(text: &str) -> Option<u32> {
    // The standard parser would take a sign as well, and two names for one job are one too many.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.task.map_or(Ok(()), |task| write!(f, "_{task}"))
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobId, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = JobId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<JobId, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<JobId, E> {
        let number = u32::try_from(number);
        number.map(JobId::job).map_err(|_| E::custom(format!("expected {EXPECTED}, found a larger number")))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<JobId, E> {
        let known = u64::try_from(number);
        known.map_or_else(
            |_| Err(E::custom(format!("expected {EXPECTED}, found {number}"))),
            |number| self.visit_u64(number),
        )
    }
}

impl PartialSchema for JobId {
    fn schema() -> RefOr<Schema> {
        let written = schema::text("^[0-9]{1,9}(_[0-9]{1,9})?$");
        schema::one_of("a job, or a task of an array", [written, schema::integer(0, i64::from(u32::MAX))])
    }
}

impl ToSchema for JobId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_and_a_task_are_read_and_written() {
        assert_eq!("7".parse(), Ok(JobId::job(7)));
        assert_eq!("7_3".parse(), Ok(JobId::task(7, 3)));
        assert_eq!(JobId::task(7, 3).to_string(), "7_3");
        assert_eq!(serde_json::from_str::<JobId>("7").unwrap(), JobId::job(7));
        assert_eq!(serde_json::to_string(&JobId::task(7, 3)).unwrap(), "\"7_3\"");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "a", "7_", "_3", "+7", "7_3_1", "-1", "99999999999", "../7", "7 "] {
            assert_eq!(text.parse::<JobId>(), Err(format!("expected {EXPECTED}, found `{text}`")));
        }
        assert!(serde_json::from_str::<JobId>("-7").is_err());
    }
}
