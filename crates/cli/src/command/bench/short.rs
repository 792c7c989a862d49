//! Short jobs: how long `moira run -- true` takes, how many tasks of an array end in a second, and whether each of them
//! ran once although the service was killed meanwhile. Under the policy of the service's default and under the simplest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use api::{ArrayRange, JobId, JobRequest, JobView};

use super::against::median;
use super::serve::{Finding, Served, percentile};
use crate::failure::Failure;

/// Two devices, as the tables that others were measured with.
const DEVICES: u32 = 2;
const RUNS: usize = 20;
const ARRAYS: usize = 3;
const SIMPLEST: &str = "fifo";
/// So many times as long as what it asks for may a command take. One that sleeps anywhere takes tens of times as long.
const MOST_FOR_A_COMMAND: f64 = 4.0;
/// A service that has not ended all tasks by then is measured by those that it has.
const LONGEST: Duration = Duration::from_secs(60);
/// How often the service is killed while the tasks of an array run, and how long it lives before.
const KILLS: u32 = 5;
const LIFE: Duration = Duration::from_millis(700);
const KILLED_TASKS: u32 = 1000;

/// A service under one policy, and what it makes of short jobs.
struct Short {
    policy: &'static str,
    service: Served,
    runs: Vec<Duration>,
    /// The same program, submitted and waited for without a command.
    waits: Vec<Duration>,
    tasks_per_s: Vec<f64>,
    cpu_ms: Vec<f64>,
}

pub(super) async fn measure(
    binary: &Path,
    folder: &Path,
    tasks: u32,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    let mut default = Short::start(server::DEFAULT_POLICY, binary, folder).await?;
    let mut simplest = Short::start(SIMPLEST, binary, folder).await?;
    // By turns, so that both meet the same machine.
    for _ in 0..RUNS {
        default.run(binary).await?;
        simplest.run(binary).await?;
    }
    for _ in 0..ARRAYS {
        default.array(tasks).await?;
        simplest.array(tasks).await?;
    }
    let over = |what: &str| format!("{what}, {} over {SIMPLEST}", server::DEFAULT_POLICY);
    let run_ratio = p50(&default.runs) / p50(&simplest.runs);
    let command_ratio = p50(&simplest.runs) / p50(&simplest.waits);
    let task_ratio = median(default.tasks_per_s.clone()) / median(simplest.tasks_per_s.clone());
    default.conclude(tasks, findings);
    simplest.conclude(tasks, findings);
    findings.push(Finding::at_most(over("run and wait"), run_ratio, "ratio", 1.2));
    let command = format!("run and wait of `true`, {SIMPLEST}, over submitting it and waiting");
    findings.push(Finding::at_most(command, command_ratio, "times", MOST_FOR_A_COMMAND));
    findings.push(Finding::at_least(over("tasks"), task_ratio, "ratio", 0.8));
    drop((default, simplest));
    killed(binary, folder, findings).await
}

impl Short {
    async fn start(policy: &'static str, binary: &Path, folder: &Path) -> Result<Short, Failure> {
        let (service, _) = Served::start(binary, &folder.join(policy), &config(policy)).await?;
        // The first run reads programs and libraries that the later ones find in memory.
        run_and_wait(binary, &service)?;
        let (runs, waits, tasks_per_s, cpu_ms) = Default::default();
        Ok(Short { policy, service, runs, waits, tasks_per_s, cpu_ms })
    }

    async fn run(&mut self, binary: &Path) -> Result<(), Failure> {
        self.runs.push(run_and_wait(binary, &self.service)?);
        self.waits.push(submit_and_wait(&self.service).await?);
        Ok(())
    }

    async fn array(&mut self, tasks: u32) -> Result<(), Failure> {
        let before = self.service.cpu_time_of_all()?;
        let began = Instant::now();
        let ended = f64::from(tasks_ended(&self.service, tasks).await?);
        self.tasks_per_s.push(ended / began.elapsed().as_secs_f64());
        self.cpu_ms.push((self.service.cpu_time_of_all()? - before).as_secs_f64() * 1000.0 / ended);
        Ok(())
    }

    fn conclude(&self, tasks: u32, findings: &mut Vec<Finding>) {
        let policy = self.policy;
        findings.push(Finding::free(format!("run and wait of `true`, {policy}, p50"), p50(&self.runs), "ms"));
        let array = format!("array of {tasks} `true`, {policy}");
        findings.push(Finding::free(array.clone(), median(self.tasks_per_s.clone()), "per s"));
        findings.push(Finding::free(
            format!("{array}, each with its processes"),
            median(self.cpu_ms.clone()),
            "CPU ms",
        ));
    }
}

fn p50(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    percentile(&times, 0.5)
}

fn config(policy: &str) -> String {
    format!("policy = \"{policy}\"\n[[accelerators]]\nkind = \"virtual\"\ncount = {DEVICES}\n")
}

/// The command that people type, from its start to its end.
fn run_and_wait(binary: &Path, service: &Served) -> Result<Duration, Failure> {
    let began = Instant::now();
    let mut command = Command::new(binary);
    command.args(["run", "--", "true"]).env_remove("MOIRA_SERVER").env("MOIRA_DATA_DIR", service.data_dir());
    let output = command.stdin(Stdio::null()).output().context("cannot run `moira run -- true`")?;
    match output.status.success() {
        true => Ok(began.elapsed()),
        false => Err(Failure::new(anyhow!("`moira run -- true` failed: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// What the command asks for, by a client that is connected already.
async fn submit_and_wait(service: &Served) -> Result<Duration, Failure> {
    let began = Instant::now();
    let job = JobRequest { workdir: Some("/".into()), ..JobRequest::new(["true"]) };
    let id = named(&service.client().submit(&job, None).await.map_err(Failure::new)?)?;
    match service.client().wait(id, LONGEST).await.map_err(Failure::new)?.state.is_final() {
        true => Ok(began.elapsed()),
        false => Err(Failure::new(anyhow!("a program that does nothing does not end within {LONGEST:?}"))),
    }
}

/// How many tasks of an array have ended when all have, or when it takes too long.
async fn tasks_ended(service: &Served, tasks: u32) -> Result<u32, Failure> {
    let client = service.client();
    let id = submit(service, &["true"], tasks).await?;
    let ended = client.wait(id, LONGEST).await.map_err(Failure::new)?;
    if !ended.state.is_final() {
        client.cancel(id).await.map_err(Failure::new)?;
    }
    let array = ended.array.context("the service does not say how many tasks have ended")?;
    match array.failed {
        0 => Ok(array.succeeded),
        failed => Err(Failure::new(anyhow!("{failed} tasks that do nothing failed"))),
    }
}

async fn submit(service: &Served, words: &[&str], tasks: u32) -> Result<JobId, Failure> {
    let array = ArrayRange { first: 0, last: tasks - 1, step: 1, at_once: None };
    let job = JobRequest { array: Some(array), workdir: Some("/".into()), ..JobRequest::new(words.iter().copied()) };
    named(&service.client().submit(&job, None).await.map_err(Failure::new)?)
}

fn named(job: &JobView) -> Result<JobId, Failure> {
    job.id.parse().map_err(|message: String| Failure::new(anyhow!(message)))
}

/// Every task writes its name down; the service is killed and started again a few times before they have ended.
async fn killed(binary: &Path, folder: &Path, findings: &mut Vec<Finding>) -> Result<(), Failure> {
    let folder = folder.join("killed");
    let config = config(server::DEFAULT_POLICY);
    let (mut service, _) = Served::start(binary, &folder, &config).await?;
    let written = folder.join("written");
    let script = format!("echo \"$MOIRA_JOB_ID\" >> {}", written.display());
    let id = submit(&service, &["sh", "-c", &script], KILLED_TASKS).await?;
    let mut kills = 0;
    while kills < KILLS {
        tokio::time::sleep(LIFE).await;
        // A kill when nothing is left to lose says nothing.
        if service.client().job(id).await.map_err(Failure::new)?.state.is_final() {
            break;
        }
        service.kill()?;
        kills += 1;
        (service, _) = Served::start(binary, &folder, &config).await?;
    }
    if kills == 0 {
        let why =
            "all tasks had ended before the service was killed for the first time: what a kill loses is not known";
        return Err(Failure::new(anyhow!(why)));
    }
    let began = Instant::now();
    while !service.client().wait(id, LONGEST).await.map_err(Failure::new)?.state.is_final() {
        if began.elapsed() > 10 * LONGEST {
            return Err(Failure::new(anyhow!("the tasks of an array do not end after {kills} kills of the service")));
        }
    }
    let text = fs::read_to_string(&written).with_context(|| format!("cannot read {}", written.display()))?;
    let (lost, repeated) = lost_and_repeated(&text, KILLED_TASKS);
    let named = |what: &str| format!("of {KILLED_TASKS} tasks while the service is killed up to {KILLS} times, {what}");
    findings.push(Finding::at_least(
        "kills of the service while tasks were left".into(),
        f64::from(kills),
        "kills",
        1.0,
    ));
    findings.push(Finding::at_most(named("lost"), f64::from(lost), "tasks", 1.0));
    findings.push(Finding::at_most(named("repeated"), f64::from(repeated), "tasks", 1.0));
    Ok(())
}

/// How many tasks have written nothing, and how many have written more than once.
fn lost_and_repeated(text: &str, tasks: u32) -> (u32, u32) {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for task in text.lines() {
        *times.entry(task).or_default() += 1;
    }
    let ran = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let repeated = times.values().filter(|&&times| times > 1).count();
    (tasks.saturating_sub(ran), u32::try_from(repeated).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_wrote_nothing_is_lost_and_one_that_wrote_twice_is_repeated() {
        assert_eq!(lost_and_repeated("7_0\n7_1\n7_2\n", 3), (0, 0));
        assert_eq!(lost_and_repeated("7_0\n7_2\n7_2\n7_2\n", 4), (2, 1));
        assert_eq!(lost_and_repeated("", 2), (2, 0));
    }
}
