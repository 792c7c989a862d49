//! How many workers a job may have: `4`, `1..8`, or `{min: 1, max: 8, preferred: 4}`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// A range of workers, both ends included; a job whose ends are the same is rigid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkersRequest {
    pub min: u32,
    pub max: u32,
    /// What a scheduler that does not choose their number should give it.
    pub preferred: Option<u32>,
}

const EXPECTED: &str = "a number of workers like 4, or a range like {min: 1, max: 8}";

impl WorkersRequest {
    pub const fn exactly(workers: u32) -> WorkersRequest {
        WorkersRequest { min: workers, max: workers, preferred: None }
    }
}

impl Default for WorkersRequest {
    fn default() -> WorkersRequest {
        WorkersRequest::exactly(1)
    }
}

/// The form with names.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Range {
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 4096)]
    min: u32,
    #[schema(minimum = 1, maximum = 4096)]
    max: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preferred: Option<u32>,
}

fn one() -> u32 {
    1
}

impl FromStr for WorkersRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkersRequest, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u32>().ok();
        match (number(min), number(max)) {
            (Some(min), Some(max)) => Ok(WorkersRequest { min, max, preferred: None }),
            _ => Err(format!("expected a number of workers like 4, or a range like 1..8, found `{}`", short(text))),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

impl Serialize for WorkersRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            WorkersRequest { min, max, preferred: None } if min == max => serializer.serialize_u32(min),
            WorkersRequest { min, max, preferred } => Range { min, max, preferred }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WorkersRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WorkersRequest, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = WorkersRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<WorkersRequest, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, workers: u64) -> Result<WorkersRequest, E> {
        let known = u32::try_from(workers);
        known.map(WorkersRequest::exactly).map_err(|_| E::custom(format!("expected {EXPECTED}, found {workers}")))
    }

    fn visit_i64<E: de::Error>(self, workers: i64) -> Result<WorkersRequest, E> {
        let known = u32::try_from(workers);
        known.map(WorkersRequest::exactly).map_err(|_| E::custom(format!("expected {EXPECTED}, found {workers}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WorkersRequest, A::Error> {
        let Range { min, max, preferred } = Range::deserialize(MapAccessDeserializer::new(map))?;
        Ok(WorkersRequest { min, max, preferred })
    }
}

impl PartialSchema for WorkersRequest {
    fn schema() -> RefOr<Schema> {
        let forms = [schema::integer(1, 4096), schema::text(r"^[0-9]{1,4}(\.\.[0-9]{1,4})?$"), Range::schema()];
        schema::one_of("a number of workers, or a range within which the scheduler chooses", forms)
    }
}

impl ToSchema for WorkersRequest {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<WorkersRequest, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_is_a_range_of_one() {
        assert_eq!(read("4"), Ok(WorkersRequest::exactly(4)));
        assert_eq!(read("\"1..8\""), Ok(WorkersRequest { min: 1, max: 8, preferred: None }));
        let range = WorkersRequest { min: 2, max: 8, preferred: Some(4) };
        assert_eq!(read(r#"{"min": 2, "max": 8, "preferred": 4}"#), Ok(range));
    }

    #[test]
    fn a_negative_number_is_refused_in_words() {
        assert!(read("-3").unwrap_err().starts_with(&format!("expected {EXPECTED}, found -3")));
        assert!(read(r#"{"min": 2}"#).unwrap_err().starts_with("missing field `max`"));
    }
}
