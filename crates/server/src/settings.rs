//! The configuration as people type it, and as it is meant.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use api::Duration;
use cluster::{Gpus, QueueDraft, QueueTree};
use executors::{AcceleratorDraft, Machine};
use plan::Safeguards;
use policies::PolicyConfig;
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::error::ServerError;
use crate::http::{HttpConfig, SocketConfig, check_host_name};
use crate::notification::allowed_urls;
use crate::opening::Accepted;
use crate::retention::Retention;

/// The file `moira.toml`; every key has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which policy decides: a name, or a name with parameters. Without it the one that did when the service was last
    /// up, and at first [`DEFAULT_POLICY`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Which rules hold around the policy: `all`, `none`, or names separated by commas.
    #[serde(with = "as_text")]
    pub safeguards: Safeguards,
    /// Where the checkpoints of jobs lie, if not in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Loopback addresses to listen on beside the socket.
    pub listen: Vec<SocketAddr>,
    /// By these names, besides those of loopback addresses, the service may be asked for over TCP.
    pub hosts: Vec<String>,
    /// Who may use the socket.
    pub socket: SocketConfig,
    /// Virtual accelerators; without any, the GPUs of this machine are used.
    pub accelerators: Vec<AcceleratorDraft>,
    /// Queues below the root. A file that does not say them leaves them to `moira queue apply`; an empty list is to say
    /// that there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<QueueDraft>>,
    /// A gang that is not up after this long has failed.
    pub start_deadline: Duration,
    /// How long a job has to save its state when told to stop, if it does not say.
    pub grace: Duration,
    /// How long a job that can change its workers in place has to do so, before it goes on as it was; zero never lets it.
    pub resize_within: Duration,
    /// How long a job that failed is left alone; twice as long each time it fails again.
    pub rest_after_failure: Duration,
    /// Jobs may tell addresses that begin with one of these: the same scheme, host and port, and a path below.
    pub notify_urls: Vec<String>,
    /// How long HTTP clients may take, and how many there may be.
    pub http: HttpConfig,
    /// Who may do what.
    pub access: Access,
    /// How long what has ended is kept.
    pub retention: Retention,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: None,
            safeguards: Safeguards::ALL,
            checkpoint_dir: None,
            listen: Vec::new(),
            hosts: Vec::new(),
            socket: SocketConfig::default(),
            accelerators: Vec::new(),
            queues: None,
            start_deadline: Duration::from_secs(600),
            grace: Duration::from_secs(30),
            resize_within: Duration::from_secs(60),
            rest_after_failure: Duration::from_secs(1),
            notify_urls: Vec::new(),
            http: HttpConfig::default(),
            access: Access::default(),
            retention: Retention::default(),
        }
    }
}

/// Goodput for jobs that report their speed, least attained service for those that do not; and nobody waits long for a
/// decision.
pub const DEFAULT_POLICY: &str = "sia:explore=1.3,others=tiresias,round=1s";

/// What the service is to do, all of it examined.
#[derive(Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub config: Config,
    pub machine: Machine,
    pub accepted: Accepted,
    /// The queues of the configuration take the place of those in the journal.
    pub queues_from_file: bool,
}

impl Config {
    pub fn from_toml(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string().trim_end().to_string())
    }

    pub fn read(path: &Path) -> Result<Config, ServerError> {
        let text = std::fs::read_to_string(path).map_err(ServerError::file("cannot read", path))?;
        Config::from_toml(&text).map_err(|message| ServerError::Config { path: path.into(), message })
    }

    /// All that can be wrong without starting anything.
    pub fn check(&self) -> Result<(), String> {
        let text = self.policy.as_deref().unwrap_or(DEFAULT_POLICY);
        let policy = PolicyConfig::from_text(text).map_err(|error| format!("policy: {error}"))?;
        let built = policy.build().map_err(|error| format!("policy: {error}"))?;
        if !built.knows().is_empty() {
            return Err(format!("policy: {} needs to be told what only a simulator knows", policy.name));
        }
        if let Some(address) = self.listen.iter().find(|address| !address.ip().is_loopback()) {
            return Err(format!(
                "listen: expected an address of this machine alone, like 127.0.0.1:7070, found {address}: without \
                 TLS nobody else is let in"
            ));
        }
        if let Some((index, address)) =
            self.listen.iter().enumerate().find(|(index, address)| self.listen[..*index].contains(address))
        {
            return Err(format!("listen[{index}]: expected each address once, found {address} again"));
        }
        if let Some(dir) = self.checkpoint_dir.as_ref().filter(|dir| !dir.is_absolute()) {
            let dir = dir.display();
            return Err(format!("checkpoint_dir: expected an absolute path, like /scratch/moira, found {dir}"));
        }
        self.hosts.iter().try_for_each(|name| check_host_name(name))?;
        self.socket.check()?;
        allowed_urls(&self.notify_urls)?;
        self.http.check()?;
        self.access.check()?;
        // Whatever machine it is for.
        QueueTree::build(self.queues.as_deref().unwrap_or_default(), Gpus::MAX)
            .map_err(|invalid| invalid.to_string())?;
        if !self.accelerators.is_empty() {
            let machine = Machine::of(&self.accelerators).map_err(|invalid| invalid.to_string())?;
            self.draft(&machine).build().map_err(|invalid| invalid.to_string())?;
        }
        Ok(())
    }

    /// The cluster the machine makes, with its queues.
    pub fn draft(&self, machine: &Machine) -> cluster::ClusterDraft {
        cluster::ClusterDraft { queues: self.queues.clone().unwrap_or_default(), ..machine.cluster_draft() }
    }

    pub fn engine_settings(&self) -> engine::Settings {
        engine::Settings {
            start_deadline: self.start_deadline.span(),
            grace: self.grace.span(),
            rest: self.rest_after_failure.span(),
            resize_within: Some(self.resize_within.span()).filter(|within| !within.is_zero()),
            safeguards: self.safeguards,
            ..engine::Settings::default()
        }
    }
}

/// Safeguards by their names.
mod as_text {
    use super::Safeguards;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(safeguards: &Safeguards, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(safeguards)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Safeguards, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|message: String| D::Error::custom(format!("safeguards: {message}")))
    }
}

impl Settings {
    /// From a configuration that may be wrong in any way; the path is for the error.
    pub fn new(data_dir: PathBuf, config: Config, path: &Path) -> Result<Settings, ServerError> {
        let wrong = |message| ServerError::Config { path: path.into(), message };
        config.check().map_err(wrong)?;
        let machine = match config.accelerators.as_slice() {
            [] => Machine::find(),
            drafts => Machine::of(drafts)?,
        };
        Ok(Settings { data_dir, config, machine, accepted: Accepted::default(), queues_from_file: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound() {
        assert!(Config::default().check().is_ok());
        assert_eq!(Config::from_toml("").unwrap(), Config::default());
    }

    #[test]
    fn a_service_may_be_told_to_resize_nothing_in_place() {
        let within = |text: &str| Config::from_toml(text).unwrap().engine_settings().resize_within;
        assert_eq!(within(""), Some(cluster::Span::from_secs(60)));
        assert_eq!(within("resize_within = \"5s\""), Some(cluster::Span::from_secs(5)));
        assert_eq!(within("resize_within = \"0s\""), None);
    }

    #[test]
    fn all_safeguards_are_on_unless_the_configuration_says_otherwise() {
        let safeguards = |text: &str| Config::from_toml(text).unwrap().engine_settings().safeguards;
        assert_eq!(safeguards(""), Safeguards::ALL);
        assert_eq!(safeguards("safeguards = \"none\""), Safeguards::NONE);
        let some = Safeguards { minimum_first: true, at_once: true, ..Safeguards::NONE };
        assert_eq!(safeguards("safeguards = \"minimum-first,at-once\""), some);
        let written = toml::to_string(&Config { safeguards: some, ..Config::default() }).unwrap();
        assert_eq!(Config::from_toml(&written).unwrap().safeguards, some);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text: &str| Config::from_toml(text).and_then(|config| config.check()).unwrap_err();
        assert!(message("polcy = \"fifo\"").contains("unknown field `polcy`"), "{}", message("polcy = \"fifo\""));
        assert!(message("policy = \"fifi\"").starts_with("policy: "));
        assert!(message("safeguards = \"minimum\"").contains("safeguards: expected all, none, or some of"));
        assert!(message("policy = \"srtf\"").contains("only a simulator knows"));
        assert!(message("listen = [\"0.0.0.0:80\"]").starts_with("listen: expected an address of this machine"));
        assert!(message("checkpoint_dir = \"scratch\"").starts_with("checkpoint_dir: expected an absolute path"));
        assert!(message("[[accelerators]]\nkind = \"a\"\ncount = 1\nduty = 7").contains("duty"));
        assert!(
            message("listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]").starts_with("listen[1]: expected each address once")
        );
        assert!(message("[[queues]]\nname = \"a\"\n[[queues]]\nname = \"a\"").starts_with("queues[1].name: "));
        assert!(
            message("notify_urls = [\"https://a.org\", \"hooks\"]").starts_with("notify_urls[1]: expected an address")
        );
        assert!(message("notify_urls = [\"https://ann:pw@a.org/\"]").contains("a name and a password"));
        assert!(message("[[queues]]\nname = \"a\"\nparent = \"b\"").starts_with("queues[0].parent: "));
    }
}
