//! The job list of Microsoft's Philly cluster (Jeon et al., ATC 2019) in its reduced form: submission, GPUs, run time
//! and, for two jobs of three, the virtual cluster.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cluster::{JobDraft, Name, Span, Time};
use perf::{TrueJob, Truth};

use crate::Workload;
use crate::csv::LONGEST_S;
use crate::error::Error;
use crate::table::Table;

const ARRIVAL: usize = 0;
const GPUS: usize = 1;
const DURATION: usize = 2;
const JOB: usize = 3;
const VC: usize = 4;
const COLUMNS: &[&str] = &["arrival_s", "num_gpus", "duration_s", "job_id", "vc", "submit_time"];
const MOST_GPUS: u32 = 1_000_000;

/// Reads `job_id,submit_time,arrival_s,num_gpus,duration_s,vc`, compressed or not.
pub fn read_philly(path: &Path) -> Result<Workload, Error> {
    let mut table = Table::open(path, COLUMNS, 3)?;
    let mut users: HashMap<String, Name> = HashMap::new();
    let mut jobs = Vec::new();
    let mut short = 0;
    while let Some(row) = table.next_row()? {
        let seconds = |column| -> Result<f64, Error> {
            row.required(column, &format!("a number from 0 to {LONGEST_S}"))?;
            Ok(row.real(column, 0.0..=LONGEST_S)?.unwrap_or(0.0))
        };
        let duration = seconds(DURATION)?;
        short += u64::from(duration < 0.001);
        row.required(GPUS, &format!("a whole number from 1 to {MOST_GPUS}"))?;
        let gpus = row.whole(GPUS, 1..=MOST_GPUS)?.unwrap_or(1);
        let vc = row.text(VC).unwrap_or("unknown");
        if !users.contains_key(vc) {
            users.insert(vc.into(), vc.into());
        }
        let name: Name = row.text(JOB).map_or_else(|| format!("line{}", row.line).into(), Name::from);
        let draft = JobDraft { user: users[vc].clone(), ..JobDraft::rigid(name, gpus) };
        let spec = draft.build().map_err(|invalid| row.line_fault(invalid.to_string()))?;
        let submitted = Time::ZERO + Span::from_secs_f64(seconds(ARRIVAL)?);
        jobs.push((submitted, spec, Truth::lasting(Span::from_secs_f64(duration))));
    }
    let Some((_, _, first)) = jobs.first() else {
        let what = "expected at least one job below the header, found none".into();
        return Err(Error::File { file: table.file().into(), what });
    };
    // All run at the same rate, so they share one speed.
    let speed = Arc::new(first.speed.clone());
    jobs.sort_by_key(|(submitted, ..)| *submitted);
    let jobs = jobs.into_iter().map(|(submitted, spec, truth)| TrueJob {
        submitted,
        spec: Arc::new(spec),
        speed: speed.clone(),
        truth: Arc::new(truth),
    });
    Ok(Workload { name: path.display().to_string(), jobs: jobs.collect(), assumptions: assumptions(short) })
}

fn assumptions(short: u64) -> Vec<String> {
    let mut assumptions: Vec<String> = [
        "run times are taken as work, although measured under Philly's own scheduler and probably with retries",
        "GPU counts are taken as fixed: every job is rigid and runs equally fast wherever it is placed",
        "users are unknown: virtual clusters stand for them, or `unknown`; all jobs are in the root queue",
        "interruptions cost nothing: the list does not say how long a restart takes",
    ]
    .map(String::from)
    .into();
    if short > 0 {
        assumptions.push(format!("{short} jobs shorter than 1 ms last 1 ms"));
    }
    assumptions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Workload, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("philly.csv");
        std::fs::write(&path, text).unwrap();
        read_philly(&path)
    }

    #[test]
    fn jobs_come_in_order_of_arrival_with_the_virtual_cluster_as_user() {
        let text = "job_id,submit_time,arrival_s,num_gpus,duration_s,vc\n\
                    1,2017-08-18 01:29:43,60,8,3600,6c71a0\n\
                    2,2017-08-18 01:29:44,0,1,0,\n";
        let workload = read(text).unwrap();
        let line =
            |job: &TrueJob| format!("{} {} {} {}", job.submitted, job.spec.name, job.spec.user, job.truth.iterations);
        let lines: Vec<String> = workload.jobs.iter().map(line).collect();
        assert_eq!(lines, ["0s 2 unknown 1", "1m 1 6c71a0 3600000"]);
        assert!(workload.assumptions.iter().any(|line| line.starts_with("1 jobs shorter")));
    }

    #[test]
    fn a_job_without_gpus_is_refused_with_its_line() {
        let error = read("arrival_s,num_gpus,duration_s\n0,1,5\n1,0,5\n").unwrap_err().to_string();
        let expected = "philly.csv:3: column `num_gpus`: expected a whole number from 1 to 1000000, found 0";
        assert!(error.ends_with(expected), "{error}");
    }
}
