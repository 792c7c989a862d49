//! How many GPUs a worker takes: `4`, `0.5`, or with a kind as in `a100:8` and `gpu:a100:8`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// A number of GPUs, not yet examined, and the kind if it was said along with it.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuCount {
    pub count: f64,
    pub kind: Option<String>,
}

const EXPECTED: &str = "a number of GPUs like 1, 8 or 0.5, or a kind and a number like a100:8";

impl GpuCount {
    pub fn of(count: f64) -> GpuCount {
        GpuCount { count, kind: None }
    }
}

impl FromStr for GpuCount {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuCount, String> {
        let trimmed = text.trim();
        let (kind, count) = match trimmed.rsplit_once(':') {
            Some((kind, count)) => (Some(kind), count),
            None => (None, trimmed),
        };
        let kind = kind.map(|kind| kind.strip_prefix("gpu:").unwrap_or(kind)).filter(|kind| *kind != "gpu");
        let sensible = kind.is_none_or(|kind| !kind.is_empty() && !kind.contains(':'));
        // The standard parser also takes `inf` and `nan`, which are no numbers of GPUs.
        let number = count.parse::<f64>().ok().filter(|count| count.is_finite() && sensible);
        let found = || text.chars().take(40).collect::<String>();
        number
            .map(|count| GpuCount { count, kind: kind.map(Into::into) })
            .ok_or_else(|| format!("expected {EXPECTED}, found `{}`", found()))
    }
}

impl fmt::Display for GpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "{kind}:{}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

impl Serialize for GpuCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.kind {
            Some(_) => serializer.collect_str(self),
            None if self.count.fract() == 0.0 && self.count.abs() < 1e9 => serializer.serialize_i64(self.count as i64),
            None => serializer.serialize_f64(self.count),
        }
    }
}

impl<'de> Deserialize<'de> for GpuCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GpuCount, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = GpuCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GpuCount, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<GpuCount, E> {
        Ok(GpuCount::of(count as f64))
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<GpuCount, E> {
        Ok(GpuCount::of(count as f64))
    }

    fn visit_f64<E: de::Error>(self, count: f64) -> Result<GpuCount, E> {
        Ok(GpuCount::of(count))
    }
}

impl PartialSchema for GpuCount {
    fn schema() -> RefOr<Schema> {
        let with_kind = schema::text(r"^(gpu:)?([^:\s]{1,64}:)?[0-9]{1,4}(\.[0-9]{1,3})?$");
        schema::one_of("GPUs of each worker: 1, 8, 0.5, a100:8", [schema::number(0.0, 4096.0), with_kind])
    }
}

impl ToSchema for GpuCount {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(kind: &str, count: f64) -> GpuCount {
        GpuCount { count, kind: Some(kind.into()) }
    }

    #[test]
    fn a_number_may_name_its_kind() {
        assert_eq!("a100:8".parse(), Ok(of_kind("a100", 8.0)));
        assert_eq!("gpu:a100:8".parse(), Ok(of_kind("a100", 8.0)));
        assert_eq!("gpu:2".parse(), Ok(GpuCount::of(2.0)));
        assert_eq!("0.5".parse(), Ok(GpuCount::of(0.5)));
        assert_eq!(of_kind("a100", 8.0).to_string(), "a100:8");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "many", "a100", "a100:", ":8", "gpu:a:b:8", "nan", "a100:inf"] {
            assert_eq!(text.parse::<GpuCount>(), Err(format!("expected {EXPECTED}, found `{text}`")));
        }
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        for json in ["4", "0.5", "\"a100:8\"", "-1"] {
            let count: GpuCount = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&count).unwrap(), json);
        }
    }
}
