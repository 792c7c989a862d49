//! What is said after the path of a trace: `PATH?retries=last&zero_gpu=keep`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, shown, suggestion};
use crate::readers::clock::{Zone, parse_stamp};

/// Options that every format of other people's traces has.
pub(crate) const COMMON: [&str; 9] =
    ["skip_bad_rows", "limit", "from", "until", "origin", "timezone", "zero_gpu", "names", "queues"];

/// Options of one reading, checked to be known ones.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    format: &'static str,
    values: BTreeMap<String, String>,
}

/// The path and the options of `PATH?a=b&c=d`. A file whose name contains a question mark is taken as it is.
pub(crate) fn split(text: &str) -> (PathBuf, &str) {
    match text.rsplit_once('?') {
        Some((path, options)) if !Path::new(text).exists() => (path.into(), options),
        _ => (text.into(), ""),
    }
}

impl Options {
    pub(crate) fn parse(format: &'static str, text: &str, known: &[&str]) -> Result<Options, Error> {
        let mut options = Options { format, values: BTreeMap::new() };
        for part in text.split('&').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(options.fault(format!("expected options like `limit=1000`, found {}", shown(part))));
            };
            let (key, value) = (key.trim(), value.trim());
            if !known.contains(&key) {
                let near = suggestion(key, known.iter().copied());
                let known = known.join(", ");
                return Err(options.fault(format!("unknown option `{}`{near} (known: {known})", shown(key))));
            }
            if options.values.insert(key.into(), value.into()).is_some() {
                return Err(options.fault(format!("option `{key}` stands there twice")));
            }
        }
        Ok(options)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Which of some words is chosen; the first unless said otherwise.
    pub(crate) fn choice(&self, key: &str, words: &[&'static str]) -> Result<&'static str, Error> {
        let Some(value) = self.get(key) else { return Ok(words[0]) };
        let found = words.iter().find(|&&word| word == value);
        found.copied().ok_or_else(|| self.expected(key, &words.join(" or ")))
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, Error> {
        Ok(self.choice(key, &["false", "true"])? == "true")
    }

    pub(crate) fn whole(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.parse().ok().filter(|&number| number > 0);
        found.map(Some).ok_or_else(|| self.expected(key, "a whole number above 0"))
    }

    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.parse().ok().filter(|number| (1e-6..=1e9).contains(number));
        found.map(Some).ok_or_else(|| self.expected(key, "a number above 0"))
    }

    pub(crate) fn zone(&self) -> Result<Zone, Error> {
        let Some(value) = self.get("timezone") else { return Ok(Zone::default()) };
        // A plus sign is a blank to whoever takes this for the query of an address.
        let value = value.replace(' ', "+");
        Zone::parse(&value).ok_or_else(|| self.expected("timezone", "an offset like +08:00"))
    }

    /// A moment as a stamp or in seconds of the trace's own clock; in milliseconds.
    pub(crate) fn moment(&self, key: &str) -> Result<Option<i64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let seconds = || value.parse::<f64>().ok().filter(|seconds| seconds.abs() < 1e11);
        let found = parse_stamp(value, self.zone()?).or_else(|| Some((seconds()? * 1000.0).round() as i64));
        found.map(Some).ok_or_else(|| self.expected(key, "a date like 2017-10-01 or seconds"))
    }

    /// The words of `a|b`, in small letters; none if the option is not given.
    pub(crate) fn words(&self, key: &str) -> Vec<String> {
        self.get(key)
            .into_iter()
            .flat_map(|value| value.split(['|', ',']))
            .map(|word| word.trim().to_lowercase())
            .collect()
    }

    pub(crate) fn fault(&self, what: String) -> Error {
        Error::Name(format!("workload {}: {what}", self.format))
    }

    fn expected(&self, key: &str, expected: &str) -> Error {
        let found = shown(self.get(key).unwrap_or_default());
        self.fault(format!("expected {expected} for `{key}`, found {found}"))
    }
}
