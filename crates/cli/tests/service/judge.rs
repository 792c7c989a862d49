//! The judge of the crash test. It shares nothing with the product and believes nobody but the process table, what the
//! jobs themselves wrote down, and what the service says over its socket; it compares the three.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::processes::Process;

/// A job as it was meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Errand {
    pub(crate) name: String,
    /// At most, if it changes its size.
    pub(crate) workers: u32,
    pub(crate) seconds: f64,
    /// How its first worker ends as long as it is to fail.
    pub(crate) code: i32,
    /// How often it fails before it succeeds.
    pub(crate) fails: u32,
    pub(crate) max_failures: u32,
    /// It ends with 143 when told to stop, and not by the signal itself.
    pub(crate) traps: bool,
    /// So many of them, as an array.
    pub(crate) tasks: Option<u32>,
    /// The name of the job after whose success it is to run.
    pub(crate) after: Option<String>,
    /// It changes its size and ends when it is told to, well.
    pub(crate) elastic: bool,
}

/// Who was killed, and how often.
#[derive(Debug, Clone, Default)]
pub(crate) struct Killed {
    pub(crate) services: u64,
    pub(crate) supervisors: u64,
    workers: u64,
    /// The runs of which a worker was killed: name and attempt.
    runs: BTreeSet<(String, u64)>,
}

impl Killed {
    pub(crate) fn note_worker(&mut self, worker: &Process) {
        self.workers += 1;
        let task = worker.variable("MOIRA_ARRAY_TASK_ID").and_then(|task| task.parse().ok());
        let attempt = worker.variable("MOIRA_ATTEMPT").and_then(|attempt| attempt.parse().ok());
        if let (Some(name), Some(attempt)) = (worker.variable("NAME"), attempt) {
            self.runs.insert((task_name(name, task), attempt));
        }
    }

    fn runs_of(&self, name: &str) -> BTreeSet<u64> {
        self.runs.iter().filter(|(other, _)| other == name).map(|(_, attempt)| *attempt).collect()
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Killed { services, supervisors, workers, .. } = self;
        write!(f, "killed: the service {services} times, {supervisors} supervisors, {workers} workers")
    }
}

/// How a job, or a task of an array, is called in what is written down of it.
pub(crate) fn task_name(name: &str, task: Option<u64>) -> String {
    task.map_or_else(|| name.to_string(), |task| format!("{name}_{task}"))
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
    pub(crate) killed: &'a Killed,
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
/// The exit code of a worker that was killed.
const WORKER_KILLED: i32 = 137;

/// Everything that is wrong, in words.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut total = 0.0;
    faults.extend(strangers(evidence));
    let tasks = evidence.sent.values().flat_map(tasks_of).collect::<BTreeMap<_, _>>();
    for (name, sent) in &tasks {
        let found: Vec<&Value> = evidence.jobs.iter().filter(|job| job["name"] == name.as_str()).collect();
        match (&sent.id, found.as_slice()) {
            (None, []) => {}
            (_, [job]) => {
                total += job["gpu_seconds"].as_f64().unwrap_or(0.0);
                let lines = lines_of(evidence.notes, name);
                let mut own = examine(sent, job, &lines, &evidence.killed.runs_of(name));
                own.extend(follows(sent, job, &lines, evidence));
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

/// Each task of an array as if it had been sent alone.
fn tasks_of(sent: &Sent) -> Vec<(String, Sent)> {
    let of_task = |task: Option<u64>| {
        let id = sent.id.as_ref().map(|id| task_name(id, task));
        (task_name(&sent.errand.name, task), Sent { id, ..sent.clone() })
    };
    match sent.errand.tasks {
        None => vec![of_task(None)],
        Some(tasks) => (0..u64::from(tasks)).map(|task| of_task(Some(task))).collect(),
    }
}

/// It ran only after all of the job it follows had succeeded, and ended without running only if that did not.
fn follows(sent: &Sent, job: &Value, lines: &[Line], evidence: &Evidence<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let never_ran = matches!(job["reason"].as_str(), Some("DependencyFailed" | "Refused"));
    let first = sent.errand.after.as_ref().and_then(|after| evidence.sent.get(after));
    let Some(first) = first else {
        return if never_ran { vec!["failed of a job it does not follow".into()] } else { faults };
    };
    let mut succeeded = true;
    for (name, _) in tasks_of(first) {
        succeeded &= evidence.jobs.iter().any(|job| job["name"] == name.as_str() && job["state"] == "succeeded");
        let last = lines_of(evidence.notes, &name).iter().map(|line| line.at).fold(0.0, f64::max);
        if let Some(line) = lines.iter().find(|line| line.at < last) {
            faults.push(format!("ran at {}, and {name}, which it follows, until {last}", line.at));
        }
    }
    if !succeeded && !lines.is_empty() {
        faults.push(format!("ran, and {} did not succeed", first.errand.name));
    }
    if succeeded && never_ran {
        faults.push(format!("did not run, and {} succeeded", first.errand.name));
    }
    faults
}

fn strangers(evidence: &Evidence<'_>) -> Vec<String> {
    let known: BTreeSet<String> = evidence.sent.values().flat_map(tasks_of).map(|(name, _)| name).collect();
    let is_strange = |job: &&Value| job["name"].as_str().is_none_or(|name| !known.contains(name));
    let say = |job: &Value| format!("job {} has a name nobody submitted: {}", job["id"], job["name"]);
    evidence.jobs.iter().filter(is_strange).map(say).collect()
}

fn examine(sent: &Sent, job: &Value, lines: &[Line], killed: &BTreeSet<u64>) -> Vec<String> {
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
            // Who changes its size says nothing of its end: its exit code is the last worker's.
            for rank in (0..errand.workers).filter(|_| !errand.elastic) {
                if !lines.iter().any(|line| (line.rank, line.attempt, line.code) == (rank, attempts, Some(0))) {
                    fault(format!("succeeded, but worker {rank} did not end well in attempt {attempts}"));
                }
            }
            if job["progress"]["steps"] != STEPS && !errand.elastic {
                fault(format!("what it reported last was lost: {}", job["progress"]));
            }
            if errand.fails > errand.max_failures {
                fault("succeeded and should have been given up".into());
            }
        }
        // Whether that is right is seen from the job it follows.
        "failed" | "refused" if matches!(job["reason"].as_str(), Some("DependencyFailed" | "Refused")) => {
            if attempts > 0 {
                fault(format!("was launched {attempts} times, and was to follow a job that failed"));
            }
        }
        "failed" => {
            let was_killed = killed.contains(&attempts) && job["exit_code"] == WORKER_KILLED;
            if job["exit_code"] != errand.code && !was_killed {
                fault(format!("ended with {} and should have ended with {}", job["exit_code"], errand.code));
            }
            if errand.fails as usize + killed.len() <= errand.max_failures as usize {
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
    let in_words = lines.iter().filter(|line| line.code == Some(errand.code)).map(|line| line.attempt);
    let failed: BTreeSet<u64> = in_words.chain(killed.iter().copied()).collect();
    if (failed.len() as u64) < failures {
        fault(format!("{failures} failures are charged, it has failed {} times", failed.len()));
    }
    faults.extend(runs(errand, attempts, lines));
    if !errand.elastic {
        faults.extend(service_attained(errand, job, attempts, lines));
    }
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
        // Members that join later have numbers beyond the size of the gang.
        let ranks: BTreeSet<u32> = lines.iter().map(|line| line.rank).collect();
        if !errand.elastic && ranks.last().is_some_and(|last| *last >= errand.workers) {
            faults.push(format!("has worker {:?} of {}", ranks.last(), errand.workers));
        }
        for rank in ranks {
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

fn lines_of(notes: &Path, name: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(notes).unwrap().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let rank = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')?.parse().ok());
        let Some(rank) = rank else { continue };
        // The last line of a worker that was killed may be half of one.
        let text = fs::read_to_string(entry.path()).unwrap();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        lines.extend(whole.lines().map(|line| parse(rank, line)));
    }
    lines
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

    fn sent() -> Sent {
        let errand = Errand { workers: 1, seconds: 1.0, code: 7, ..Errand::default() };
        Sent { errand, id: Some("3".into()), cancel_was_sent: false, cancelled_after: None }
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
        examine(&sent(), job, &lines, &BTreeSet::new())
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

    #[test]
    fn a_killed_worker_is_a_failure_and_its_code_is_that_of_the_signal() {
        let mut job = job();
        (job["state"], job["exit_code"], job["failures"]) = (json!("failed"), json!(137), json!(1));
        let lines: Vec<Line> = GOOD.lines().take(2).map(|line| parse(0, line)).collect();
        assert_eq!(examine(&sent(), &job, &lines, &BTreeSet::from([2])), Vec::<String>::new());
        let earlier = examine(&sent(), &job, &lines, &BTreeSet::from([1])).join("; ");
        assert!(earlier.contains("ended with 137 and should have ended with 7"), "{earlier}");
    }

    /// A job and one that follows it, as they ended and what they wrote down.
    fn chain(first: &str, second: Value, first_ran: &str, second_ran: &str) -> Vec<String> {
        let notes = tempfile::tempdir().unwrap();
        fs::write(notes.path().join("a.0"), first_ran).unwrap();
        fs::write(notes.path().join("b.0"), second_ran).unwrap();
        let named = |name: &str, id: &str, after: Option<&str>| {
            let errand = Errand { name: name.into(), after: after.map(Into::into), ..sent().errand };
            (name.to_string(), Sent { errand, id: Some(id.into()), cancel_was_sent: true, cancelled_after: None })
        };
        let sent = BTreeMap::from([named("a", "1", None), named("b", "2", Some("a"))]);
        let jobs = [json!({ "name": "a", "state": first }), second.clone()];
        let killed = Killed::default();
        let evidence = Evidence {
            sent: &sent,
            jobs: &jobs,
            killed: &killed,
            notes: notes.path(),
            devices: 1.0,
            wall_seconds: 1.0,
        };
        follows(&sent["b"], &second, &lines_of(notes.path(), "b"), &evidence)
    }

    #[test]
    fn a_job_runs_after_the_one_it_follows_and_not_if_that_failed() {
        let ran = json!({ "name": "b", "state": "succeeded" });
        let gone = json!({ "name": "b", "state": "failed", "reason": "DependencyFailed" });
        let (early, late) = ("start 1 1.0 -\nend 1 2.0 0\n", "start 1 3.0 -\nend 1 4.0 0\n");
        assert_eq!(chain("succeeded", ran.clone(), early, late), Vec::<String>::new());
        assert_eq!(chain("failed", gone.clone(), early, ""), Vec::<String>::new());
        assert!(chain("succeeded", ran.clone(), late, early)[0].contains("ran at 1, and a, which it follows, until 4"));
        assert!(chain("failed", ran, early, late)[0].contains("ran, and a did not succeed"));
        assert!(chain("succeeded", gone, early, "")[0].contains("did not run, and a succeeded"));
    }

    #[test]
    fn the_tasks_of_an_array_are_looked_at_one_by_one() {
        let of_two = Sent { errand: Errand { name: "a".into(), tasks: Some(2), ..sent().errand }, ..sent() };
        let tasks: Vec<(String, Option<String>)> =
            tasks_of(&of_two).into_iter().map(|(name, it)| (name, it.id)).collect();
        assert_eq!(tasks, [("a_0".to_string(), Some("3_0".to_string())), ("a_1".into(), Some("3_1".into()))]);
    }
}
