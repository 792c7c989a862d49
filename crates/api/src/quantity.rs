//! Amounts of memory as people write them: `64Gi`, `16GB`, plain bytes.

use std::fmt;
use std::str::FromStr;

use cluster::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// An amount of memory of at most an exbibyte; written as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(u64);

const LARGEST: f64 = (1u64 << 60) as f64;

const EXPECTED: &str = "an amount of memory like 64Gi, 16GB, 512Mi, or a number of bytes";

impl Quantity {
    pub const fn new(bytes: u64) -> Quantity {
        Quantity(bytes)
    }

    pub const fn bytes(self) -> Bytes {
        Bytes::new(self.0)
    }

    fn of_bytes(bytes: f64) -> Option<Quantity> {
        (bytes.is_finite() && (0.0..=LARGEST).contains(&bytes)).then(|| Quantity(bytes.round() as u64))
    }
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Quantity, String> {
        let trimmed = text.trim();
        let digits = trimmed.find(|character: char| !character.is_ascii_digit() && character != '.');
        let (value, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
        let bytes = value.parse::<f64>().ok().zip(factor(unit.trim_start())).map(|(value, factor)| value * factor);
        let found: String = text.chars().take(40).collect();
        bytes.and_then(Quantity::of_bytes).ok_or_else(|| format!("expected {EXPECTED}, found `{found}`"))
    }
}

/// Kubernetes' suffixes, with or without the B that people add.
fn factor(unit: &str) -> Option<f64> {
    const NAMES: [&str; 5] = ["k", "m", "g", "t", "p"];
    let lower = unit.to_ascii_lowercase();
    let prefix = lower.strip_suffix('b').unwrap_or(&lower);
    if prefix.is_empty() {
        return Some(1.0);
    }
    // In Kubernetes a small m is a thousandth, which nobody means of bytes.
    if unit == "m" {
        return None;
    }
    let (name, base) = prefix.strip_suffix('i').map_or((prefix, 1000.0_f64), |name| (name, 1024.0));
    let power = NAMES.iter().position(|known| *known == name)?;
    Some(base.powi(power as i32 + 1))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Quantity, E> {
        self.visit_f64(bytes as f64)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Quantity, E> {
        self.visit_f64(bytes as f64)
    }

    fn visit_f64<E: de::Error>(self, bytes: f64) -> Result<Quantity, E> {
        let range = || format!("expected from 0 to {LARGEST} bytes, found {bytes}");
        Quantity::of_bytes(bytes).ok_or_else(|| E::custom(range()))
    }
}

impl PartialSchema for Quantity {
    fn schema() -> RefOr<Schema> {
        let written = schema::text(concat!(
            r"^[0-9]{1,15}[bB]?$|^[0-9]{1,6}(\.[0-9]{1,3})? ?([kKMgGtT]i?[bB]?|m(i[bB]?|[bB]))$",
            r"|^[0-9]{1,3}(\.[0-9]{1,3})? ?[pP]i?[bB]?$",
        ));
        schema::one_of("bytes, or text like 64Gi or 16GB", [schema::integer(0, 1 << 60), written])
    }
}

impl ToSchema for Quantity {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let cases = [
            ("64Gi", 64 << 30),
            ("64GiB", 64 << 30),
            ("16GB", 16_000_000_000),
            ("16G", 16_000_000_000),
            ("512Mi", 512 << 20),
            ("1.5Gi", 3 << 29),
            ("100k", 100_000),
            ("4 GB", 4_000_000_000),
            ("4096", 4096),
            ("10B", 10),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(Quantity(expected)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        for text in ["", "much", "-1Gi", "5Xi", "100m", "Gi", "999999999Pi", "1.2.3G", "∞"] {
            let error = text.parse::<Quantity>().unwrap_err();
            assert_eq!(error, format!("expected {EXPECTED}, found `{text}`"), "{text}");
        }
    }

    #[test]
    fn a_number_is_bytes_and_so_is_what_we_write() {
        assert_eq!(serde_json::from_str::<Quantity>("1024").unwrap(), Quantity(1024));
        assert!(serde_json::from_str::<Quantity>("-1").is_err());
        assert_eq!(serde_json::to_string(&Quantity(1024)).unwrap(), "1024");
    }
}
