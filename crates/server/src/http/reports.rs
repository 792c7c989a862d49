//! How much a job may report over HTTP: as much as in its progress file, which the executor reads (see
//! `executors::progress`). Each report is on record, so one job could else push out what others have on record.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cluster::{ClaimId, Time};

use crate::access::Rate;
use crate::seldom::Seldom;

/// As in a progress file.
const PER_SECOND: f64 = 10.0;
/// What a job that was silent has saved up: 100 reports.
const SAVED_SECONDS: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Reports {
    rate: Rate<ClaimId>,
    said: Mutex<Seldom<ClaimId>>,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports { rate: Rate::saving(SAVED_SECONDS), said: Mutex::default() }
    }
}

impl Reports {
    /// Whether a job may report once more now.
    pub(crate) fn admits(&self, claim: ClaimId, now: Instant) -> bool {
        self.rate.admits(claim, 1.0, Some(PER_SECOND), now)
    }

    /// Whether it is to be said now that a report was dropped, and of how many it was not said before.
    pub(crate) fn next_said(&self, claim: ClaimId, now: Time) -> Option<u64> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).next(claim, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_may_report_as_often_as_in_its_file() {
        let (reports, now) = (Reports::default(), Instant::now());
        let admitted = |job, now| (0..1000).filter(|_| reports.admits(ClaimId(job), now)).count();
        assert_eq!(admitted(7, now), 100);
        assert_eq!(admitted(7, now + Duration::from_secs(1)), 10);
        assert_eq!(admitted(8, now), 100, "another job has its own allowance");
    }
}
