//! A launch order with everything decided that the order leaves open, as `run.json` in the run's directory: with it a
//! supervisor needs to know nothing else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use cluster::{Bytes, Run, Span};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::private::usual_umask;
use crate::run_dir::name_of;
use crate::{Account, Enforcement, ExecutorError, LaunchOrder, Limits};

/// The variable by which every process of a run is known, wherever it has gone.
pub(crate) const TOKEN_VARIABLE: &str = "MOIRA_RUN_TOKEN";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// The number of the format of the files in the directory. Before there was a number it was 1.
    #[serde(default = "first_format")]
    pub(crate) format: u32,
    pub(crate) run: Run,
    /// Known to the run's own processes only.
    pub(crate) token: String,
    /// By which the run's control groups differ from others; everyone can see it. Runs of before have their token there.
    #[serde(default)]
    pub(crate) group: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) workdir: PathBuf,
    pub(crate) account: Option<Account>,
    pub(crate) limits: Limits,
    /// Of the job's own files.
    #[serde(default = "usual_umask")]
    pub(crate) umask: u32,
    pub(crate) notice: Span,
    pub(crate) start_within: Span,
    pub(crate) enforcement: Enforcement,
    /// In order of rank at launch.
    pub(crate) workers: Vec<WorkerAssignment>,
    /// NVIDIA devices whose use is measured.
    pub(crate) gpus: Vec<String>,
    /// The words that start a supervisor; the run's directory follows them.
    pub(crate) supervisor: Vec<OsString>,
    /// What was asked for, for whoever reads the directory.
    pub(crate) order: LaunchOrder,
    /// Of the secret by which the run reports over the network, in hexadecimal. Runs of earlier versions have none.
    #[serde(default)]
    pub(crate) report_sha256: Option<String>,
    /// Whether its supervisor starts shells. Those of earlier versions do not.
    #[serde(default)]
    pub(crate) has_shells: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerAssignment {
    pub(crate) role: u16,
    /// Of a processor's time; none is no limit.
    pub(crate) cores: Option<f64>,
    /// Zero is no limit.
    pub(crate) memory: Bytes,
    /// The whole of it: nothing else is inherited.
    pub(crate) environment: BTreeMap<String, String>,
}

/// The present format of a run's directory. Format 1 had no note of where the run comes from.
pub(crate) const FORMAT: u32 = 2;

fn first_format() -> u32 {
    1
}

impl Assignment {
    /// The user whose processes and files are the job's own.
    pub(crate) fn owner(&self) -> u32 {
        self.account.as_ref().map_or_else(|| geteuid().as_raw(), |account| account.uid)
    }

    /// Whether each worker is in a control group. Those of before were only if they had limits.
    pub(crate) fn has_groups(&self) -> bool {
        self.group.is_some() && !matches!(self.enforcement, Enforcement::Duty | Enforcement::None)
    }

    /// The line in the environment of every process of this run.
    pub(crate) fn mark(&self) -> String {
        mark_of(&self.token)
    }
}

/// The line in the environment of every process of the run with this token.
pub(crate) fn mark_of(token: &str) -> String {
    format!("{TOKEN_VARIABLE}={token}")
}

/// 128 bits nobody else has.
pub(crate) fn new_token() -> Result<String, ExecutorError> {
    draw::<16>().map(|bytes| hex(&bytes))
}

/// The secret by which a run reports over the network: it names the run, and 256 bits follow that nobody can guess.
pub(crate) struct ReportSecret(String);

impl ReportSecret {
    pub(crate) fn draw(run: Run) -> Result<ReportSecret, ExecutorError> {
        Ok(ReportSecret(format!("moira-run_{}_{}", name_of(run), hex(&draw::<32>()?))))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn sha256(&self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

fn draw<const N: usize>() -> Result<[u8; N], ExecutorError> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(ExecutorError::system("draw a token"))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
