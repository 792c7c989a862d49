//! Rules that hold around every policy. A policy decides as it was published; then the engine makes sure of these. Each
//! has a name by which it is switched on; a history in which none was chosen has none.

use std::fmt;
use std::str::FromStr;

use cluster::Span;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Safeguards {
    /// No job holds more than its minimum while another waits that would fit if such jobs shrank.
    pub minimum_first: bool,
    /// A queue that is short of its guarantee gets it back from those that borrow.
    pub guarantees: bool,
    /// A job that needs several devices and has waited so long, or for ten rounds, has devices reserved for it.
    pub reserve_after: Option<Span>,
    /// A job of fixed size starts on free devices without waiting for the next round.
    pub at_once: bool,
}

impl Safeguards {
    pub const NONE: Safeguards =
        Safeguards { minimum_first: false, guarantees: false, reserve_after: None, at_once: false };

    /// What a service keeps to unless it is told otherwise.
    pub const ALL: Safeguards = Safeguards {
        minimum_first: true,
        guarantees: true,
        reserve_after: Some(Span::from_minutes(10)),
        at_once: true,
    };

    pub fn is_none(&self) -> bool {
        *self == Safeguards::NONE
    }
}

/// The names, separated by commas.
impl fmt::Display for Safeguards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Safeguards::ALL.reserve_after;
        let reservations = self.reserve_after.map(|after| match Some(after) == usual {
            true => "reservations".to_string(),
            false => format!("reservations={}s", after.as_secs_f64()),
        });
        let named = |on: bool, name: &str| on.then(|| name.to_string());
        let names = [
            named(self.minimum_first, "minimum-first"),
            named(self.guarantees, "guarantees"),
            reservations,
            named(self.at_once, "at-once"),
        ];
        let names: Vec<String> = names.into_iter().flatten().collect();
        f.write_str(if names.is_empty() { "none".into() } else { names.join(",") }.as_str())
    }
}

impl FromStr for Safeguards {
    type Err = String;

    fn from_str(text: &str) -> Result<Safeguards, String> {
        match text.trim() {
            "all" => return Ok(Safeguards::ALL),
            "none" => return Ok(Safeguards::NONE),
            _ => {}
        }
        let mut safeguards = Safeguards::NONE;
        for name in text.split(',').map(str::trim) {
            match name.split_once('=') {
                None if name == "minimum-first" => safeguards.minimum_first = true,
                None if name == "guarantees" => safeguards.guarantees = true,
                None if name == "reservations" => safeguards.reserve_after = Safeguards::ALL.reserve_after,
                None if name == "at-once" => safeguards.at_once = true,
                Some(("reservations", after)) => {
                    let expected =
                        || format!("expected a time like 90s, 10m or 2h after reservations=, found `{after}`");
                    safeguards.reserve_after = Some(span(after).ok_or_else(expected)?);
                }
                _ => {
                    return Err(format!(
                        "expected all, none, or some of minimum-first, guarantees, reservations and at-once, separated \
                         by commas; found `{name}`"
                    ));
                }
            }
        }
        Ok(safeguards)
    }
}

/// Up to a hundred years.
fn span(text: &str) -> Option<Span> {
    let unit = [("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
    let (number, seconds) = unit.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    let seconds = number.parse::<f64>().ok()? * seconds;
    (0.0..3.2e9).contains(&seconds).then(|| Span::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in
            ["none", "minimum-first", "guarantees,reservations=90s", "minimum-first,guarantees,reservations,at-once"]
        {
            assert_eq!(text.parse::<Safeguards>().unwrap().to_string(), text);
        }
        assert_eq!("all".parse(), Ok(Safeguards::ALL));
        assert_eq!("reservations=2m".parse::<Safeguards>().unwrap().reserve_after, Some(Span::from_minutes(2)));
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_there_are() {
        let error = "minimum-first,guarantee".parse::<Safeguards>().unwrap_err();
        assert!(error.contains("found `guarantee`") && error.contains("guarantees, reservations"), "{error}");
        assert!("reservations=-1s".parse::<Safeguards>().is_err());
        assert!("reservations=soon".parse::<Safeguards>().is_err());
    }
}
