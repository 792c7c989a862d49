//! Many tasks of one job: `0-99`, `0-99:2`, `0-99%10`, or `{first: 0, last: 99, at_once: 10}`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// The numbers of the tasks, both ends included, and how many of them may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ArrayRange {
    pub first: u32,
    pub last: u32,
    pub step: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
}

const EXPECTED: &str = "a range of tasks like 0-99, 0-99%10 (ten at once) or {first: 0, last: 99}";

impl ArrayRange {
    /// How many tasks there are; none if the ends are the wrong way round.
    pub fn count(self) -> u64 {
        match self.step > 0 && self.last >= self.first {
            true => u64::from((self.last - self.first) / self.step) + 1,
            false => 0,
        }
    }

    pub fn tasks(self) -> impl Iterator<Item = u32> {
        (0..self.count()).map(move |index| self.first + index as u32 * self.step)
    }

    pub fn contains(self, task: u32) -> bool {
        self.step > 0 && (self.first..=self.last).contains(&task) && (task - self.first).is_multiple_of(self.step)
    }
}

impl FromStr for ArrayRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ArrayRange, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        let read = || {
            let (range, at_once) = match text.trim().split_once('%') {
                Some((range, at_once)) => (range, Some(number(at_once)?)),
                None => (text.trim(), None),
            };
            let (ends, step) = match range.split_once(':') {
                Some((ends, step)) => (ends, number(step)?),
                None => (range, 1),
            };
            let (first, last) = ends.split_once('-').unwrap_or((ends, ends));
            Some(ArrayRange { first: number(first)?, last: number(last)?, step, at_once })
        };
        read().ok_or_else(|| format!("expected {EXPECTED}, found `{}`", text.chars().take(40).collect::<String>()))
    }
}

impl fmt::Display for ArrayRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)?;
        if self.step != 1 {
            write!(f, ":{}", self.step)?;
        }
        self.at_once.map_or(Ok(()), |at_once| write!(f, "%{at_once}"))
    }
}

/// The form with names.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    #[schema(maximum = 1000000)]
    first: u32,
    #[schema(maximum = 1000000)]
    last: u32,
    #[serde(default = "one")]
    #[schema(minimum = 1)]
    step: u32,
    #[serde(default)]
    #[schema(minimum = 1)]
    at_once: Option<u32>,
}

fn one() -> u32 {
    1
}

impl<'de> Deserialize<'de> for ArrayRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ArrayRange, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = ArrayRange;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ArrayRange, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ArrayRange, A::Error> {
        let Named { first, last, step, at_once } = Named::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ArrayRange { first, last, step, at_once })
    }
}

impl PartialSchema for ArrayRange {
    fn schema() -> RefOr<Schema> {
        let written = schema::text("^[0-9]{1,7}(-[0-9]{1,7})?(:[1-9][0-9]{0,6})?(%[1-9][0-9]{0,6})?$");
        schema::one_of("tasks 0-99, every second 0-99:2, ten at once 0-99%10", [written, Named::schema()])
    }
}

impl ToSchema for ArrayRange {}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> ArrayRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_as_slurm_users_write_them() {
        assert_eq!(range("0-99%10"), ArrayRange { first: 0, last: 99, step: 1, at_once: Some(10) });
        assert_eq!(range("1-7:3").tasks().collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!(range("5").tasks().collect::<Vec<_>>(), [5]);
        assert_eq!(range("0-8:3%2").to_string(), "0-8:3%2");
        assert!(range("1-7:3").contains(4) && !range("1-7:3").contains(5));
    }

    #[test]
    fn the_largest_range_is_counted_and_not_made() {
        assert_eq!(range("0-4294967295").count(), 1 << 32);
        assert_eq!(range("0-9:0").count(), 0);
        assert_eq!(range("9-0").count(), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a-b", "0-", "-5", "0-9%", "0-9:", "0-9,11", "0-99999999999"] {
            assert_eq!(text.parse::<ArrayRange>(), Err(format!("expected {EXPECTED}, found `{text}`")));
        }
    }

    #[test]
    fn the_form_with_names_says_the_same() {
        let named: ArrayRange = serde_json::from_str(r#"{"first": 0, "last": 99, "at_once": 10}"#).unwrap();
        assert_eq!(named, range("0-99%10"));
        let again: ArrayRange = serde_json::from_value(serde_json::to_value(named).unwrap()).unwrap();
        assert_eq!(again, named);
    }
}
