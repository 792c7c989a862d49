//! By what means a worker is held to its share of processor time: control groups where they may be made, else stopping
//! and continuing its processes. What is possible is found by trying it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ExecutorError;
use crate::cgroup::{Group, hierarchy_of};

/// The means in use. Part of a run's record, so that whoever cleans up knows where to look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// One hierarchy for everything; groups are made below `base`.
    CgroupV2 {
        base: PathBuf,
        limits_memory: bool,
    },
    /// A hierarchy for each resource.
    CgroupV1 {
        cpu: PathBuf,
        memory: Option<PathBuf>,
    },
    /// The supervisor stops and continues the worker's processes. Memory is not limited.
    Duty,
    None,
}

/// The means that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuLimit {
    /// Control groups if possible, else duty cycling.
    #[default]
    Auto,
    Cgroup,
    Duty,
    None,
}

impl Enforcement {
    /// The means to use here. Control groups that are demanded and cannot be had are an error.
    pub fn choose(wanted: CpuLimit) -> Result<Enforcement, ExecutorError> {
        let found = match wanted {
            CpuLimit::None => return Ok(Enforcement::None),
            CpuLimit::Duty => return Ok(Enforcement::Duty),
            CpuLimit::Auto | CpuLimit::Cgroup => probe(),
        };
        match (found, wanted) {
            (Ok(means), _) => Ok(means),
            (Err(reason), CpuLimit::Cgroup) => Err(ExecutorError::CpuLimit { reason }),
            (Err(reason), _) => {
                tracing::info!(reason, "no control groups for processor time: duty cycling");
                Ok(Enforcement::Duty)
            }
        }
    }
}

impl CpuLimit {
    /// As the variable `MOIRA_CPU_LIMIT` says.
    pub fn from_env() -> Result<CpuLimit, ExecutorError> {
        std::env::var("MOIRA_CPU_LIMIT").map_or(Ok(CpuLimit::Auto), |text| text.parse())
    }
}

impl FromStr for CpuLimit {
    type Err = ExecutorError;

    fn from_str(text: &str) -> Result<CpuLimit, ExecutorError> {
        match text {
            "auto" => Ok(CpuLimit::Auto),
            "cgroup" => Ok(CpuLimit::Cgroup),
            "duty" => Ok(CpuLimit::Duty),
            "none" => Ok(CpuLimit::None),
            other => Err(ExecutorError::CpuLimit {
                reason: format!("expected auto, cgroup, duty or none in MOIRA_CPU_LIMIT, found {other}"),
            }),
        }
    }
}

fn probe() -> Result<Enforcement, String> {
    probe_v2().or_else(|v2| probe_v1().map_err(|v1| format!("version 2: {v2}; version 1: {v1}")))
}

/// Groups can be made below our own if no process is in the way, or beside it, if the service was given a subgroup of
/// what was delegated to it.
fn probe_v2() -> Result<Enforcement, String> {
    let own = hierarchy_of(None).ok_or("no hierarchy is mounted")?;
    let mut reason = String::new();
    for base in [Some(own.as_path()), own.parent()].into_iter().flatten() {
        let with = |limits_memory| Enforcement::CgroupV2 { base: base.into(), limits_memory };
        let tried = enable(base).and_then(|()| try_out(with(true)).or_else(|_| try_out(with(false))));
        match tried {
            Ok(means) => return Ok(means),
            Err(error) => reason = format!("{}: {error}", base.display()),
        }
    }
    Err(reason)
}

fn enable(base: &Path) -> io::Result<()> {
    let has = |file: &str, controller: &str| {
        fs::read_to_string(base.join(file)).map(|list| list.split_whitespace().any(|word| word == controller))
    };
    if !has("cgroup.controllers", "cpu")? {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the cpu controller is not available"));
    }
    for controller in ["cpu", "memory"] {
        if has("cgroup.controllers", controller)? && !has("cgroup.subtree_control", controller)? {
            fs::write(base.join("cgroup.subtree_control"), format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn probe_v1() -> Result<Enforcement, String> {
    let cpu = hierarchy_of(Some("cpu")).ok_or("no hierarchy of cpu is mounted")?;
    let memory = hierarchy_of(Some("memory"));
    let with = |memory| Enforcement::CgroupV1 { cpu: cpu.clone(), memory };
    let tried = try_out(with(memory)).or_else(|_| try_out(with(None)));
    tried.map_err(|error| format!("{}: {error}", cpu.display()))
}

/// Really makes a group with limits, and removes it again.
fn try_out(means: Enforcement) -> io::Result<Enforcement> {
    let name = format!("moira-probe-{}-{:?}", std::process::id(), std::thread::current().id());
    let name: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    let group = Group::below(&means, &name, Some(0.5), 1 << 30, true);
    let made = group.make();
    group.remove();
    made.map(|()| means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_limit_is_refused() {
        let error = "cgroups".parse::<CpuLimit>().unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot limit cpu time: expected auto, cgroup, duty or none in MOIRA_CPU_LIMIT, found cgroups"
        );
    }

    #[test]
    fn there_is_always_some_means() {
        assert_ne!(Enforcement::choose(CpuLimit::Auto).unwrap(), Enforcement::None);
    }
}
