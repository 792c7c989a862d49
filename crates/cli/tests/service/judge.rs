//! The judge of the crash test. It shares nothing with the product and believes nobody but the process table, what the
//! jobs themselves wrote down, and what the service says over its socket; it compares the three.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::processes::Process;

/// A job as it was meant.
#[derive(Debug, Clone)]
pub(crate) struct Errand {
    pub(crate) name: String,
    pub(crate) workers: u32,
    pub(crate) seconds: f64,
    /// How its first worker ends as long as it is to fail.
    pub(crate) code: i32,
    /// How often it fails before it succeeds.
    pub(crate) fails: u32,
    pub(crate) max_failures: u32,
    /// It ends with 143 when told to stop, and not by the signal itself.
    pub(crate) traps: bool,
}

/// What is known of a submission from the side of whoever made it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) errand: Errand,
    /// Its number, once it was acknowledged.
    pub(crate) id: Option<String>,
    pub(crate) cancel_was_sent: bool,
    /// Launches so far when its end was acknowledged.
    pub(crate) cancelled_after: Option<u64>,
}

/// Everything the judge looks at.
pub(crate) struct Evidence<'a> {
    pub(crate) sent: &'a BTreeMap<String, Sent>,
    /// All jobs, as the service shows them in the end.
    pub(crate) jobs: &'a [Value],
    /// Where the jobs wrote down what they did.
    pub(crate) notes: &'a Path,
    pub(crate) devices: f64,
    pub(crate) wall_seconds: f64,
}

/// A line that a worker wrote.
#[derive(Debug)]
struct Line {
    rank: u32,
    attempt: u64,
    at: f64,
    /// How it ended; nothing at its start.
    code: Option<i32>,
}

/// What a job reports right before it ends well.
pub(crate) const STEPS: u64 = 42;

/// A machine that is busy takes so long, at most, to start a run and to hear of its end, service restarts included.
const LATENESS: f64 = 15.0;
/// Times are written down in hundredths.
const ROUNDING: f64 = 0.03;

/// Everything that is wrong, in words.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut total = 0.0;
    faults.extend(strangers(evidence));
    for (name, sent) in evidence.sent {
        let found: Vec<&Value> = evidence.jobs.iter().filter(|job| job["name"] == name.as_str()).collect();
        match (&sent.id, found.as_slice()) {
            (None, []) => {}
            (_, [job]) => {
                total += job["gpu_seconds"].as_f64().unwrap_or(0.0);
                let own = examine(sent, job, &lines_of(evidence.notes, sent));
                faults.extend(own.into_iter().map(|fault| format!("{name} (job {}): {fault}", job["id"])));
            }
            (Some(id), []) => faults.push(format!("{name}: was acknowledged as job {id} and is not there")),
            (_, several) => faults.push(format!("{name}: is there {} times", several.len())),
        }
    }
    let available = evidence.devices * evidence.wall_seconds;
    if total > available {
        faults.push(format!("{total} GPU seconds were charged and only {available} were there"));
    }
    faults
}

fn strangers(evidence: &Evidence<'_>) -> Vec<String> {
    let is_strange = |job: &&Value| job["name"].as_str().is_none_or(|name| !evidence.sent.contains_key(name));
    let say = |job: &Value| format!("job {} has a name nobody submitted: {}", job["id"], job["name"]);
    evidence.jobs.iter().filter(is_strange).map(say).collect()
}

fn examine(sent: &Sent, job: &Value, lines: &[Line]) -> Vec<String> {
    let errand = &sent.errand;
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(text);
    let state = job["state"].as_str().unwrap_or_default();
    let attempts = job["attempts"].as_u64().unwrap_or(0);
    let failures = job["failures"].as_u64().unwrap_or(0);
    if sent.id.as_ref().is_some_and(|id| job["id"] != id.as_str()) {
        fault(format!("was acknowledged under another number, {:?}", sent.id));
    }
    match state {
        "succeeded" => {
            if job["exit_code"] != 0 {
                fault(format!("succeeded with exit code {}", job["exit_code"]));
            }
            for rank in 0..errand.workers {
                if !lines.iter().any(|line| (line.rank, line.attempt, line.code) == (rank, attempts, Some(0))) {
                    fault(format!("succeeded, but worker {rank} did not end well in attempt {attempts}"));
                }
            }
            if job["progress"]["steps"] != STEPS {
                fault(format!("what it reported last was lost: {}", job["progress"]));
            }
            if errand.fails > errand.max_failures {
                fault("succeeded and should have been given up".into());
            }
        }
        "failed" => {
            if job["exit_code"] != errand.code {
                fault(format!("ended with {} and should have ended with {}", job["exit_code"], errand.code));
            }
            if errand.fails <= errand.max_failures {
                fault(format!("failed and should have been tried again: {failures} failures"));
            }
            if failures != u64::from(errand.max_failures) + 1 {
                fault(format!("was given up after {failures} failures of {}", errand.max_failures));
            }
        }
        "cancelled" if sent.cancel_was_sent => {}
        "cancelled" => fault("was cancelled by nobody".into()),
        other => fault(format!("ended as {other}: {}", job["message"])),
    }
    if let Some(known) = sent.cancelled_after
        && attempts > known
    {
        fault(format!("was cancelled after {known} launches and was launched again: {attempts}"));
    }
    let failed: BTreeSet<u64> =
        lines.iter().filter(|line| line.code == Some(errand.code)).map(|line| line.attempt).collect();
    if (failed.len() as u64) < failures {
        fault(format!("{failures} failures are charged, it has failed {} times", failed.len()));
    }
    faults.extend(runs(errand, attempts, lines));
    faults.extend(service_attained(errand, job, attempts, lines));
    faults
}

/// Every run at most once, and never two at the same time.
fn runs(errand: &Errand, attempts: u64, lines: &[Line]) -> Vec<String> {
    let mut faults = Vec::new();
    let intervals = intervals(lines);
    for (&attempt, &(begin, _)) in &intervals {
        if !(1..=attempts).contains(&attempt) {
            faults.push(format!("ran as attempt {attempt}, but had {attempts} launches"));
        }
        for rank in 0..errand.workers {
            let is_start = |line: &&Line| (line.rank, line.attempt, line.code) == (rank, attempt, None);
            let starts = lines.iter().filter(is_start).count();
            if starts > 1 {
                faults.push(format!("worker {rank} of attempt {attempt} was started {starts} times"));
            }
        }
        let earlier = intervals.range(..attempt).find(|(_, (_, end))| *end > begin);
        if let Some((earlier, (_, end))) = earlier {
            faults.push(format!("attempt {attempt} began at {begin}, and attempt {earlier} went on until {end}"));
        }
    }
    faults
}

/// What was charged covers what the job saw of itself, and not much more.
fn service_attained(errand: &Errand, job: &Value, attempts: u64, lines: &[Line]) -> Option<String> {
    let charged = job["gpu_seconds"].as_f64()?;
    let seen: f64 = intervals(lines).values().map(|(begin, end)| end - begin).sum();
    let (workers, attempts) = (f64::from(errand.workers), attempts as f64);
    let (least, most) = (workers * (seen - ROUNDING * attempts), workers * (seen + LATENESS * attempts));
    (!(least..=most).contains(&charged))
        .then(|| format!("{charged} GPU seconds were charged, expected {least} to {most} in {attempts} attempts"))
}

/// The first and the last that was heard of each attempt.
fn intervals(lines: &[Line]) -> BTreeMap<u64, (f64, f64)> {
    let mut intervals: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for line in lines {
        let known = intervals.entry(line.attempt).or_insert((line.at, line.at));
        *known = (known.0.min(line.at), known.1.max(line.at));
    }
    intervals
}

fn lines_of(notes: &Path, sent: &Sent) -> Vec<Line> {
    let of_rank = |rank: u32| {
        let text = fs::read_to_string(notes.join(format!("{}.{rank}", sent.errand.name))).unwrap_or_default();
        text.lines().map(|line| parse(rank, line)).collect::<Vec<_>>()
    };
    (0..sent.errand.workers).flat_map(of_rank).collect()
}

/// `start ATTEMPT TIME -` or `end ATTEMPT TIME CODE`.
fn parse(rank: u32, line: &str) -> Line {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_, attempt, at, code] = words.as_slice() else { panic!("a worker wrote `{line}`") };
    Line { rank, attempt: attempt.parse().unwrap(), at: at.parse().unwrap(), code: code.parse().ok() }
}

/// Whether two attempts of a job are alive at this moment. A process that is seen alive again after another was is proof
/// that both were alive at once.
pub(crate) fn together(processes: &[Process]) -> Option<String> {
    let mut known: BTreeMap<&str, &Process> = BTreeMap::new();
    for process in processes {
        let (Some(job), Some(attempt)) = (process.variable("MOIRA_JOB_ID"), process.variable("MOIRA_ATTEMPT")) else {
            continue;
        };
        let other = known.entry(job).or_insert(process);
        let same = other.variable("MOIRA_ATTEMPT") == Some(attempt);
        if !same && other.lives() && process.lives() && other.lives() {
            return Some(format!("job {job} runs twice at once: {other:?} and {process:?}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ERRAND: Errand =
        Errand { name: String::new(), workers: 1, seconds: 1.0, code: 7, fails: 0, max_failures: 0, traps: false };

    fn sent() -> Sent {
        Sent { errand: ERRAND, id: Some("3".into()), cancel_was_sent: false, cancelled_after: None }
    }

    fn job() -> Value {
        json!({
            "id": "3",
            "state": "succeeded",
            "exit_code": 0,
            "attempts": 2,
            "failures": 0,
            "gpu_seconds": 3.0,
            "progress": { "steps": STEPS },
        })
    }

    fn faults(job: &Value, text: &str) -> Vec<String> {
        let lines: Vec<Line> = text.lines().map(|line| parse(0, line)).collect();
        examine(&sent(), job, &lines)
    }

    const GOOD: &str = "start 1 10.0 -\nstart 2 12.0 -\nend 2 13.0 0";

    #[test]
    fn a_job_that_was_preempted_and_ended_well_is_in_order() {
        assert_eq!(faults(&job(), GOOD), Vec::<String>::new());
    }

    #[test]
    fn every_fault_is_found() {
        let with = |field: &str, value: Value| {
            let mut job = job();
            job[field] = value;
            faults(&job, GOOD).join("; ")
        };
        assert!(with("exit_code", json!(1)).contains("succeeded with exit code 1"));
        assert!(with("progress", json!(null)).contains("what it reported last was lost"));
        assert!(with("state", json!("cancelled")).contains("cancelled by nobody"));
        assert!(with("state", json!("running")).contains("ended as running"));
        assert!(with("id", json!("4")).contains("another number"));
        assert!(with("attempts", json!(1)).contains("ran as attempt 2, but had 1 launches"));
        assert!(with("failures", json!(1)).contains("it has failed 0 times"));
        assert!(with("gpu_seconds", json!(0.5)).contains("0.5 GPU seconds were charged"));
        assert!(with("gpu_seconds", json!(500.0)).contains("500 GPU seconds were charged"));
        let twice = faults(&job(), "start 1 10.0 -\nend 1 12.5 0\nstart 2 12.0 -\nend 2 13.0 0").join("; ");
        assert!(twice.contains("attempt 2 began at 12, and attempt 1 went on until 12.5"), "{twice}");
        let again = faults(&job(), &format!("{GOOD}\nstart 2 13.0 -")).join("; ");
        assert!(again.contains("worker 0 of attempt 2 was started 2 times"), "{again}");
    }
}
