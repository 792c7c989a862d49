//! Lengths of time as people write them: `90s`, `1h30m`, `2d`, Slurm's `1-12:00:00`, or a number of seconds.

use std::fmt;
use std::str::FromStr;

use cluster::Span;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// A length of time of at most ten years; written as seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(Span);

const LONGEST: Span = Span::from_hours(24 * 3660);

const EXPECTED: &str = "a duration like 90s, 1h30m, 2d, 1-12:00:00, or a number of seconds";

impl Duration {
    pub const fn from_secs(secs: u64) -> Duration {
        Duration(Span::from_secs(secs))
    }

    pub const fn span(self) -> Span {
        self.0
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0.as_secs_f64()
    }

    fn of_secs(secs: f64) -> Option<Duration> {
        let known = secs.is_finite() && secs >= 0.0 && secs <= LONGEST.as_secs_f64();
        known.then(|| Duration(Span::from_secs_f64(secs)))
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Duration, String> {
        let trimmed = text.trim();
        let secs = if trimmed.contains(':') { of_clock(trimmed) } else { of_units(trimmed) };
        let found: String = text.chars().take(40).collect();
        secs.and_then(Duration::of_secs).ok_or_else(|| format!("expected {EXPECTED}, found `{found}`"))
    }
}

/// `D-HH:MM:SS`, `HH:MM:SS` or `MM:SS`, as Slurm reads them.
fn of_clock(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(whole(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<f64> = clock.split(':').map(whole).collect::<Option<_>>()?;
    // After days the first part is hours; without them two parts are minutes and seconds.
    let (hours, minutes, seconds) = match (days, &parts[..]) {
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0.0),
        (None, [minutes, seconds]) => (0.0, *minutes, *seconds),
        _ => return None,
    };
    Some(days.unwrap_or(0.0) * 86_400.0 + hours * 3600.0 + minutes * 60.0 + seconds)
}

/// `1h30m`, each unit at most once and the larger first; `1-12` is Slurm's days and hours; a bare number is seconds.
fn of_units(text: &str) -> Option<f64> {
    if let Ok(secs) = text.parse::<f64>() {
        return text.starts_with(|first: char| first.is_ascii_digit()).then_some(secs);
    }
    if let Some((days, hours)) = text.split_once('-') {
        return Some(whole(days)? * 86_400.0 + whole(hours)? * 3600.0);
    }
    let (mut rest, mut total, mut above) = (text, 0.0, f64::INFINITY);
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let value: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|character: char| character.is_ascii_digit()).unwrap_or(rest.len());
        let unit = unit(&rest[..end]).filter(|&unit| unit < above)?;
        (total, above, rest) = (total + value * unit, unit, &rest[end..]);
    }
    (!text.is_empty()).then_some(total)
}

fn unit(word: &str) -> Option<f64> {
    match word {
        "w" => Some(604_800.0),
        "d" => Some(86_400.0),
        "h" => Some(3600.0),
        "m" | "min" => Some(60.0),
        "s" => Some(1.0),
        "ms" => Some(0.001),
        _ => None,
    }
}

fn whole(text: &str) -> Option<f64> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, secs: u64) -> Result<Duration, E> {
        self.visit_f64(secs as f64)
    }

    fn visit_i64<E: de::Error>(self, secs: i64) -> Result<Duration, E> {
        self.visit_f64(secs as f64)
    }

    fn visit_f64<E: de::Error>(self, secs: f64) -> Result<Duration, E> {
        let range = || format!("expected a duration from 0 seconds to ten years, found {secs}");
        Duration::of_secs(secs).ok_or_else(|| E::custom(range()))
    }
}

impl PartialSchema for Duration {
    fn schema() -> RefOr<Schema> {
        let written = schema::text(concat!(
            // Seconds; Slurm's MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS; and units, the larger first.
            r"^[0-9]{1,8}(\.[0-9]{1,3})?$",
            r"|^[0-9]{1,4}:[0-9]{1,4}(:[0-9]{1,4})?$",
            r"|^[0-9]{1,3}-[0-9]{1,4}(:[0-9]{1,4}){0,2}$",
            r"|^([0-9]{1,2}(\.[0-9]{1,3})?w)?([0-9]{1,3}(\.[0-9]{1,3})?d)?([0-9]{1,4}(\.[0-9]{1,3})?h)?",
            r"([0-9]{1,6}(\.[0-9]{1,3})?(m|min))?([0-9]{1,7}(\.[0-9]{1,3})?s)?([0-9]{1,9}ms)?$",
        ));
        let secs = schema::number(0.0, LONGEST.as_secs_f64());
        schema::one_of("seconds, or text like 90s, 1h30m, 2d or 1-12:00:00", [secs, written])
    }
}

impl ToSchema for Duration {}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(text: &str) -> Result<f64, String> {
        text.parse().map(Duration::as_secs_f64)
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        let cases = [
            ("90s", 90.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
            ("1.5h", 5400.0),
            ("250ms", 0.25),
            ("5min", 300.0),
            ("45", 45.0),
            ("0.5", 0.5),
            ("1d12h", 129_600.0),
        ];
        for (text, expected) in cases {
            assert_eq!(secs(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn slurm_users_write_their_own() {
        let cases = [("1-12:00:00", 129_600.0), ("2-00", 172_800.0), ("01:30:00", 5400.0), ("30:00", 1800.0)];
        for (text, expected) in cases {
            assert_eq!(secs(text), Ok(expected), "{text}");
        }
        assert_eq!(secs("1-06:30"), Ok(109_800.0));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        let nonsense = [
            "", "soon", "-5s", "5x", "1m1h", "1h1h", "inf", "NaN", "1:2:3:4", ":", "9999999d", "1..5s", "h", "1-", "é",
        ];
        for text in nonsense {
            let error = secs(text).unwrap_err();
            assert_eq!(error, format!("expected {EXPECTED}, found `{text}`"), "{text}");
        }
    }

    #[test]
    fn a_number_is_seconds_and_so_is_what_we_write() {
        let read = |json: &str| serde_json::from_str::<Duration>(json).map_err(|error| error.to_string());
        assert_eq!(read("90"), Ok(Duration::from_secs(90)));
        assert_eq!(read("\"1m\""), Ok(Duration::from_secs(60)));
        assert!(read("-1").unwrap_err().starts_with("expected a duration from 0 seconds to ten years, found -1"));
        assert_eq!(serde_json::to_string(&Duration::from_secs(90)).unwrap(), "90.0");
    }
}
