//! How a job that failed is told of where people look first: why, what its workers wrote last, and what to do.

use api::{Client, FailureView, JobId, JobState, JobView, LogQuery};

use crate::command::service::tell;

/// Of each worker so many of its last lines are shown, and of so many workers.
const LAST_LINES: usize = 10;
const LAST_BYTES: u64 = 8 << 10;
const MOST_WORKERS: usize = 16;

/// Says how a job failed; nothing if it did not. `seen` is the worker whose output was shown already: what the others wrote
/// is shown if one of them failed.
pub(crate) async fn tell_all(client: &Client, job: &JobView, seen: Option<u32>) {
    let Some(failure) = &job.failure else { return };
    tell_last_lines(client, job, failure, seen).await;
    tell(&verdict(job));
    tell_steps(failure);
}

/// The same without what the job wrote, for whoever reads just that.
pub(crate) fn tell_briefly(job: &JobView) {
    if let Some(failure) = &job.failure {
        tell(&verdict(job));
        tell_steps(failure);
    }
}

/// The same beside what a worker wrote: what the one that failed wrote last is shown if that is another.
pub(crate) async fn tell_beside(client: &Client, job: &JobView, seen: u32) {
    if job.failure.as_ref().is_some_and(|failure| failure.worker.is_some_and(|failed| failed != seen)) {
        tell_end_of_log(client, job).await;
    }
    tell_briefly(job);
}

/// What the worker that failed wrote last.
pub(crate) async fn tell_end_of_log(client: &Client, job: &JobView) {
    if let Some(failure) = &job.failure {
        tell_last_lines(client, job, failure, None).await;
    }
}

/// What is said below a line that says how the job ended.
pub(crate) async fn tell_details(client: &Client, job: &JobView) {
    if let Some(failure) = &job.failure {
        tell_last_lines(client, job, failure, None).await;
        tell_steps(failure);
    }
}

/// `job 7 (train) failed: worker 1 failed: exit 3`.
pub(crate) fn verdict(job: &JobView) -> String {
    format!("job {} ({}) {}", job.id, job.name, how(job))
}

/// How it ended, or that it has not.
pub(super) fn how(job: &JobView) -> String {
    let state = job.state.to_string().replace('_', " ");
    match (job.state.is_final(), job.exit_code, &job.message) {
        (false, _, _) => format!("is still {state}"),
        (true, _, Some(message)) if job.state != JobState::Succeeded => format!("{state}: {message}"),
        // How a job ends that was told to says nothing.
        (true, Some(code), _) if code != 0 && job.state != JobState::Cancelled => format!("{state}: exit {code}"),
        (true, _, _) => state,
    }
}

fn tell_steps(failure: &FailureView) {
    failure.next_steps.iter().for_each(|step| tell(&format!("  {step}")));
}

async fn tell_last_lines(client: &Client, job: &JobView, failure: &FailureView, seen: Option<u32>) {
    let Ok(id) = failure.task.as_ref().unwrap_or(&job.id).parse::<JobId>() else { return };
    let (workers, more) = whose_last_lines(failure, seen);
    for worker in workers {
        let lines = last_lines(client, id, worker).await;
        if !lines.is_empty() {
            let what = if Some(worker) == failure.worker { ", which failed" } else { "" };
            tell(&format!("last lines of worker {worker}{what}:"));
            lines.iter().for_each(|line| tell(&format!("  {line}")));
        }
    }
    if more > 0 {
        let workers = if more == 1 { "worker" } else { "workers" };
        tell(&format!("{more} more {workers} not shown: moira logs {id} --all-workers"));
    }
}

/// Whose last lines are shown, the worker that failed first; and of how many more they are not.
fn whose_last_lines(failure: &FailureView, seen: Option<u32>) -> (Vec<u32>, usize) {
    let mut workers: Vec<u32> = match (seen, failure.worker) {
        (Some(seen), Some(failed)) if seen != failed => {
            let others = (0..failure.workers).filter(|&worker| worker != seen && worker != failed);
            std::iter::once(failed).chain(others).collect()
        }
        (Some(_), _) => Vec::new(),
        (None, failed) => failed.into_iter().collect(),
    };
    let more = workers.len().saturating_sub(MOST_WORKERS);
    workers.truncate(MOST_WORKERS);
    (workers, more)
}

/// What cannot be had is left out: how the job ended is said all the same.
async fn last_lines(client: &Client, id: JobId, worker: u32) -> Vec<String> {
    let query = LogQuery { worker: Some(worker), tail: Some(LAST_BYTES), ..LogQuery::default() };
    let Ok(mut log) = client.logs(id, &query).await else { return Vec::new() };
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = log.next().await {
        bytes.extend_from_slice(&piece);
    }
    last_of(&bytes, log.offset > 0)
}

/// The last lines of the end of a log; its first line may be half of one.
fn last_of(bytes: &[u8], is_cut: bool) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().skip(usize::from(is_cut)).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::jobs::sample;

    #[test]
    fn how_a_job_ended_is_said_in_words() {
        let say = |state, exit_code, message: Option<&str>| {
            how(&JobView { state, exit_code, message: message.map(Into::into), ..sample("7") })
        };
        assert_eq!(say(JobState::Succeeded, Some(0), None), "succeeded");
        assert_eq!(say(JobState::Failed, Some(3), Some("worker 1 failed: exit 3")), "failed: worker 1 failed: exit 3");
        assert_eq!(say(JobState::Failed, Some(3), None), "failed: exit 3");
        assert_eq!(
            say(JobState::TimedOut, None, Some("it reached its time limit")),
            "timed out: it reached its time limit"
        );
        assert_eq!(say(JobState::Running, None, None), "is still running");
    }

    #[test]
    fn the_last_lines_of_few_workers_are_shown_and_the_others_are_counted() {
        let shown = |workers, seen| {
            let failure = FailureView {
                kind: "exit".into(),
                message: "worker 2 failed: exit 3".into(),
                worker: Some(2),
                workers,
                attempt: 1,
                task: None,
                next_steps: Vec::new(),
            };
            whose_last_lines(&failure, seen)
        };
        assert_eq!(shown(4, Some(0)), (vec![2, 1, 3], 0));
        assert_eq!(shown(4, Some(2)), (vec![], 0), "it is on the screen already");
        assert_eq!(shown(4, None), (vec![2], 0));
        let (workers, more) = shown(20, Some(0));
        assert_eq!((&workers[..3], workers.len(), more), (&[2, 1, 3][..], 16, 3));
    }

    #[test]
    fn only_the_last_lines_are_shown_and_no_half_of_one() {
        let log: String = (0..30).map(|number| format!("line {number}\n")).collect();
        let lines = last_of(log.as_bytes(), true);
        assert_eq!((lines.len(), lines.first().map(String::as_str)), (LAST_LINES, Some("line 20")));
        assert_eq!(last_of(b"f of one\nwhole\n", true), ["whole"]);
        assert_eq!(last_of(b"all\n", false), ["all"]);
    }
}
