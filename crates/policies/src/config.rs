//! Which policy, with which parameters. As text until a policy reads it; the defaults stand in the table of policies.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use cluster::{GpuTime, Span, suggestion};
use plan::text::parse_span;

use crate::{Entry, POLICIES};

/// The name of a policy and the parameters that differ from their defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyConfig {
    pub name: String,
    pub parameters: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    UnknownPolicy {
        name: String,
    },
    UnknownParameter {
        policy: &'static str,
        key: String,
    },
    BadValue {
        key: String,
        expected: String,
        found: String,
    },
    /// Something that should have been `KEY=VALUE`.
    NotAPair {
        found: String,
    },
    NotToml {
        message: String,
    },
}

impl PolicyConfig {
    /// A policy with its defaults.
    pub fn named(name: &str) -> PolicyConfig {
        PolicyConfig { name: name.into(), parameters: BTreeMap::new() }
    }

    /// A policy and a list of `KEY=VALUE`.
    pub fn from_pairs<S: AsRef<str>>(name: &str, pairs: &[S]) -> Result<PolicyConfig, ConfigError> {
        let mut config = PolicyConfig::named(name);
        for pair in pairs {
            let pair = pair.as_ref();
            let (key, value) = pair.split_once('=').ok_or_else(|| ConfigError::NotAPair { found: pair.into() })?;
            config.parameters.insert(key.trim().into(), value.trim().into());
        }
        config.check_keys()?;
        Ok(config)
    }

    /// A name, or a name with parameters: `fifo:backfill=easy,depth=50`. What follows a comma and is no pair belongs to
    /// the value before it, so that a list may be a value.
    pub fn from_text(text: &str) -> Result<PolicyConfig, ConfigError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let mut pairs: Vec<String> = Vec::new();
        for part in parameters.split(',').filter(|part| !part.is_empty()) {
            match pairs.last_mut() {
                Some(last) if !part.contains('=') => *last = format!("{last},{part}"),
                _ => pairs.push(part.into()),
            }
        }
        PolicyConfig::from_pairs(name, &pairs)
    }

    /// As [`PolicyConfig::from_text`] reads it.
    pub fn to_text(&self) -> String {
        let set: Vec<String> = self.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if set.is_empty() { self.name.clone() } else { format!("{}:{}", self.name, set.join(",")) }
    }

    /// `policy = "NAME"` and one line per parameter.
    pub fn from_toml(text: &str) -> Result<PolicyConfig, ConfigError> {
        let one_line = |message: &str| message.lines().next().unwrap_or_default().to_lowercase();
        let mut table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError::NotToml { message: one_line(error.message()) })?;
        let name = table.remove("policy").ok_or_else(|| bad_value("policy", "the name of a policy", "nothing"))?;
        let mut config = PolicyConfig::named(&scalar("policy", &name)?);
        for (key, value) in &table {
            config.parameters.insert(key.clone(), scalar(key, value)?);
        }
        config.check_keys()?;
        Ok(config)
    }

    /// The name and the parameters that were set: `fifo(backfill=easy)`.
    pub fn label(&self) -> String {
        let set: Vec<String> = self.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if set.is_empty() { self.name.clone() } else { format!("{}({})", self.name, set.join(",")) }
    }

    /// Whether the authors' program is to be followed to the letter, in the simulator too.
    pub fn parity(&self) -> bool {
        self.parameters.get("parity").is_some_and(|value| value == "true")
    }

    /// Whether a job that moves in the same shape loses nothing: so in the simulator of Sia's authors, while that of
    /// Pollux' charges every change of place.
    pub fn moves_are_free(&self) -> bool {
        self.parity() && self.name == "sia"
    }

    /// Whether the nodes of a job count in the order in which the policy takes them, the emptiest first, which is also
    /// that of the workers on them: so for the policies that Pollux was compared with, in their authors' simulator.
    pub fn takes_emptiest_nodes(&self) -> bool {
        self.parity() && matches!(self.name.as_str(), "pollux-tiresias" | "pollux-optimus")
    }

    /// The policy itself, all its parameters checked.
    pub fn build(&self) -> Result<Box<dyn plan::Policy>, ConfigError> {
        crate::build(self)
    }

    /// The policy's row in the table.
    pub fn entry(&self) -> Result<&'static Entry, ConfigError> {
        let found = POLICIES.iter().find(|entry| entry.name == self.name);
        found.ok_or_else(|| ConfigError::UnknownPolicy { name: self.name.clone() })
    }

    /// Whether the policy exists and knows every parameter.
    pub fn check_keys(&self) -> Result<(), ConfigError> {
        let entry = self.entry()?;
        let known = |key: &String| entry.parameters.iter().any(|parameter| parameter.name == key);
        match self.parameters.keys().find(|key| !known(key)) {
            None => Ok(()),
            Some(key) => Err(ConfigError::UnknownParameter { policy: entry.name, key: key.clone() }),
        }
    }

    /// Every parameter of the policy with its value, defaults included.
    pub fn all(&self) -> Result<Vec<(&'static str, String)>, ConfigError> {
        let parameters = self.entry()?.parameters.iter();
        parameters.map(|parameter| Ok((parameter.name, self.text(parameter.name)?))).collect()
    }

    /// The value of a parameter as written, or its default.
    pub fn text(&self, key: &str) -> Result<String, ConfigError> {
        if let Some(value) = self.parameters.get(key) {
            return Ok(value.clone());
        }
        let entry = self.entry()?;
        let default = entry.parameters.iter().find(|parameter| parameter.name == key);
        let default = default.ok_or_else(|| ConfigError::UnknownParameter { policy: entry.name, key: key.into() })?;
        Ok(default.default.into())
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let found = self.text(key)?;
        let chosen = choices.iter().find(|(word, _)| *word == found).map(|(_, choice)| *choice);
        chosen.ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            bad_value(key, format!("one of {}", words.join(", ")), found)
        })
    }

    pub fn switch(&self, key: &str) -> Result<bool, ConfigError> {
        self.choice(key, &[("true", true), ("false", false)])
    }

    /// A span of time such as `5m`; nothing for `0`.
    pub fn span(&self, key: &str) -> Result<Option<Span>, ConfigError> {
        let found = self.text(key)?;
        let span = parse_span(&found).ok_or_else(|| bad_value(key, "a span of time like 5m or 1h30m", found))?;
        Ok((!span.is_zero()).then_some(span))
    }

    /// A span of time that is not zero.
    pub fn round(&self, key: &str) -> Result<Span, ConfigError> {
        self.span(key)?.ok_or_else(|| bad_value(key, "a span of time above 0", "0"))
    }

    pub fn count(&self, key: &str) -> Result<usize, ConfigError> {
        let found = self.text(key)?;
        found.parse().map_err(|_| bad_value(key, "a whole number of at least 0", found))
    }

    /// A finite number of at least `least`.
    pub fn number(&self, key: &str, least: f64) -> Result<f64, ConfigError> {
        let found = self.text(key)?;
        let number = found.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= least);
        number.ok_or_else(|| bad_value(key, format!("a number of at least {least}"), found))
    }

    pub fn gpu_time(&self, key: &str) -> Result<GpuTime, ConfigError> {
        let found = self.text(key)?;
        gpu_time(&found).ok_or_else(|| bad_value(key, "a number of GPU seconds above 0", found))
    }

    /// Ascending GPU times, separated by commas.
    pub fn thresholds(&self, key: &str) -> Result<Vec<GpuTime>, ConfigError> {
        let found = self.text(key)?;
        let thresholds: Option<Vec<GpuTime>> = found.split(',').map(|one| gpu_time(one.trim())).collect();
        let ascending = thresholds.filter(|list| list.windows(2).all(|pair| pair[0] < pair[1]));
        ascending.ok_or_else(|| bad_value(key, "ascending numbers of GPU seconds, separated by commas", found))
    }
}

fn gpu_time(text: &str) -> Option<GpuTime> {
    let secs = text.parse::<f64>().ok().filter(|secs| (1e-6..1e12).contains(secs))?;
    Some(GpuTime::from_raw((secs * 1e6).round() as u64))
}

/// A value of a configuration file as the same text that would stand after `KEY=`.
fn scalar(key: &str, value: &toml::Value) -> Result<String, ConfigError> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(switch) => Ok(switch.to_string()),
        toml::Value::Array(list) => {
            let texts: Result<Vec<String>, ConfigError> = list.iter().map(|value| scalar(key, value)).collect();
            Ok(texts?.join(","))
        }
        other => Err(bad_value(key, "text, a number, true or false, or a list of these", other.type_str())),
    }
}

pub(crate) fn bad_value(key: &str, expected: impl Into<String>, found: impl Into<String>) -> ConfigError {
    ConfigError::BadValue { key: key.into(), expected: expected.into(), found: found.into() }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownPolicy { name } => {
                let known: Vec<&str> = POLICIES.iter().map(|entry| entry.name).collect();
                write!(
                    f,
                    "unknown policy `{name}`{} (known: {})",
                    suggestion(name, known.iter().copied()),
                    known.join(", ")
                )
            }
            ConfigError::UnknownParameter { policy, key } => {
                let entry = POLICIES.iter().find(|entry| entry.name == *policy);
                let parameters = entry.map_or(&[][..], |entry| entry.parameters);
                let known: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
                let list = if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
                write!(
                    f,
                    "policy `{policy}` has no parameter `{key}`{} ({list})",
                    suggestion(key, known.iter().copied())
                )
            }
            ConfigError::BadValue { key, expected, found } => write!(f, "{key}: expected {expected}, found `{found}`"),
            ConfigError::NotAPair { found } => write!(f, "expected KEY=VALUE, found `{found}`"),
            ConfigError::NotToml { message } => write!(f, "cannot read the policy configuration: {message}"),
        }
    }
}

impl Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, pairs: &[&str]) -> String {
        let built = PolicyConfig::from_pairs(name, pairs).and_then(|config| crate::build(&config).map(|_| ()));
        built.expect_err("the configuration is faulty").to_string()
    }

    #[test]
    fn a_list_may_be_the_value_of_a_parameter() {
        let config = PolicyConfig::from_text("tiresias:thresholds=4,8,promote=2").unwrap();
        assert_eq!(config.parameters["thresholds"], "4,8");
        assert_eq!(config.to_text(), "tiresias:promote=2,thresholds=4,8");
        assert_eq!(PolicyConfig::from_text(&config.to_text()), Ok(config));
        assert_eq!(PolicyConfig::named("fifo").to_text(), "fifo");
    }

    #[test]
    fn an_unknown_policy_is_named_with_the_nearest_known_one() {
        let error = error("tiresia", &[]);
        assert!(error.starts_with("unknown policy `tiresia`; did you mean `tiresias`? (known: fifo, "), "{error}");
    }

    #[test]
    fn a_name_like_no_other_suggests_nothing() {
        assert!(!error("quantum", &[]).contains("did you mean"));
    }

    #[test]
    fn an_unknown_parameter_is_named_with_the_known_ones() {
        let expected =
            "policy `fifo` has no parameter `backfil`; did you mean `backfill`? (it has backfill, depth, estimates)";
        assert_eq!(error("fifo", &["backfil=easy"]), expected);
    }

    #[test]
    fn a_bad_value_says_what_was_expected() {
        let expected = "backfill: expected one of none, easy, conservative, found `eesy`";
        assert_eq!(error("fifo", &["backfill=eesy"]), expected);
        assert_eq!(error("las", &["round=soon"]), "round: expected a span of time like 5m or 1h30m, found `soon`");
        assert_eq!(error("las", &["round=0"]), "round: expected a span of time above 0, found `0`");
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        assert_eq!(error("fifo", &["backfill"]), "expected KEY=VALUE, found `backfill`");
    }

    #[test]
    fn toml_and_pairs_mean_the_same() {
        let text = "policy = \"tiresias\"\nthresholds = [3600, 7200]\npromote = 8\n";
        let pairs = ["thresholds=3600,7200", "promote=8"];
        assert_eq!(PolicyConfig::from_toml(text), PolicyConfig::from_pairs("tiresias", &pairs));
    }

    #[test]
    fn toml_without_a_policy_is_refused() {
        let error = PolicyConfig::from_toml("round = \"5m\"").unwrap_err().to_string();
        assert_eq!(error, "policy: expected the name of a policy, found `nothing`");
    }

    #[test]
    fn defaults_are_shown_with_what_was_given() {
        let all = PolicyConfig::from_pairs("las", &["round=1m"]).unwrap().all().unwrap();
        assert_eq!(all, [("round", "1m".to_string()), ("ties", "running".to_string())]);
    }
}
