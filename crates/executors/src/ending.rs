//! How a run came to its end, and what it used on the way. Facts only: whether an end is a failure, a preemption or a
//! success is for the engine to say.

use cluster::{Bytes, Span};
use serde::{Deserialize, Serialize};

/// The end of a run, as its supervisor saw it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Ending {
    /// Whether every worker got as far as the user's command.
    pub started: bool,
    pub told_to_stop: bool,
    /// By rank in the gang that was the last: a run may have been resized.
    pub exits: Vec<Exit>,
    /// The rank of the worker that failed before all others: they were stopped because of it.
    #[serde(default)]
    pub failed_first: Option<u32>,
    /// The same worker by the number that its log goes by: after a resize that is not its rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_member: Option<u32>,
    /// What that worker was allowed of memory, if it failed because it wanted more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<Bytes>,
    /// Why the run could not start or could not go on with other workers, or that its supervisor was lost.
    pub trouble: Option<String>,
    /// Its workers agreed to change and did not go on: that is the trouble, and nobody's fault but theirs.
    #[serde(default)]
    pub hung: bool,
    /// It was told to stop by its supervisor, since it had lasted as long as it may.
    #[serde(default)]
    pub limit_reached: bool,
    /// How long it lasted by the clock of its boot, from the start of the first worker to the end of the last; of a run
    /// that was lost with its machine, up to its last sign of life. None if nobody measured it.
    #[serde(default)]
    pub ran: Option<Span>,
    pub usage: Usage,
}

/// The end of one worker. Neither code nor signal: it never ran, or nobody saw its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// What a run has used so far.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_seconds: f64,
    /// The most that was resident at once, over all processes.
    pub memory_bytes: u64,
    /// Mean over the run's devices and over time.
    pub gpu_percent: Option<f64>,
    /// The most that was in use at once, over all devices.
    pub gpu_memory_bytes: Option<u64>,
}

impl Ending {
    /// The exit code of the run as a whole: that of the worker that failed first, else 0. None if nobody can tell.
    pub fn exit_code(&self) -> Option<i32> {
        if let Some(rank) = self.failed_first {
            return self.exits.get(rank as usize).and_then(|exit| exit.as_code());
        }
        let all_seen = !self.exits.is_empty() && self.exits.iter().all(|exit| exit.as_code().is_some());
        (all_seen && self.trouble.is_none()).then_some(0)
    }
}

impl Exit {
    /// As a shell would say it: 128 and the number of the signal for a death by signal.
    pub fn as_code(self) -> Option<i32> {
        self.signal.map(|signal| 128 + signal).or(self.code)
    }

    pub(crate) fn is_failure(self) -> bool {
        self.as_code() != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Exit = Exit { code: Some(0), signal: None };
    const KILLED: Exit = Exit { code: None, signal: Some(9) };

    #[test]
    fn a_gang_has_the_code_of_the_worker_that_failed_first() {
        let crashed = Exit { code: Some(3), signal: None };
        let ending = Ending { exits: vec![KILLED, crashed], failed_first: Some(1), ..Ending::default() };
        assert_eq!(ending.exit_code(), Some(3));
    }

    #[test]
    fn a_death_by_signal_is_128_and_its_number() {
        let ending = Ending { exits: vec![KILLED], failed_first: Some(0), ..Ending::default() };
        assert_eq!(ending.exit_code(), Some(137));
    }

    #[test]
    fn a_parameter_server_that_was_stopped_after_the_workers_does_not_count() {
        let ending = Ending { exits: vec![DONE, KILLED], ..Ending::default() };
        assert_eq!(ending.exit_code(), Some(0));
    }

    #[test]
    fn nobody_knows_the_code_of_a_run_whose_supervisor_was_lost() {
        let ending = Ending { exits: vec![Exit::default()], trouble: Some("lost".into()), ..Ending::default() };
        assert_eq!(ending.exit_code(), None);
    }
}
