//! `moira bench serve`: the real service as a child of this process, over its socket, and what it withstands: how many
//! jobs it takes in a second, how fast it lists them, what it needs of memory, how fast it is back after a kill.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use api::{Client, JobId, JobQuery, JobRequest, JobState};
use clap::Args;
use plan::Safeguards;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::against::{Against, Bound, Figure, Strict, this_binary, verdict};
use super::{Machine, peak_memory_mib, print_as, rounds, short};
use crate::failure::Failure;
use crate::options::Output;

#[derive(Debug, Args)]
pub(crate) struct BenchServe {
    /// Connections that submit at the same time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// How long submissions are counted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Jobs in the store when it is listed and started again
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    jobs: u32,
    /// Jobs that live while a round is measured
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    live: u32,
    /// Tasks of an array of short jobs
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// Where the service keeps its data meanwhile; the system's folder for temporary files if nothing is said
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// End with exit code 1 if a bound does not hold; with `relative`, only by those that any machine keeps
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    strict: Option<Strict>,
    #[command(flatten)]
    against: Against,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// One figure, and the bound it has to keep if there is one.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    what: String,
    value: f64,
    unit: &'static str,
    at_least: Option<f64>,
    at_most: Option<f64>,
    holds: Option<bool>,
}

#[derive(Debug, Serialize)]
struct ServeReport {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    /// Others that wanted the processors while it ran: the load of the machine over the last minute, before and after.
    load_before: Option<f64>,
    load_after: Option<f64>,
    findings: Vec<Finding>,
}

const PAGE: u32 = 100;
const PAGES: u32 = 400;
const ROUNDS: u32 = 10;
const EIGHT_DEVICES: &str = "[[accelerators]]\nkind = \"virtual\"\ncount = 8\n";
/// What has not happened by then does not happen any more.
const PATIENCE: Duration = Duration::from_secs(60);

impl BenchServe {
    pub(super) fn run(self) -> Result<(), Failure> {
        if let Some(other) = self.against.other() {
            return self.against.compare(other, self.output, self.strict, |binary| self.figures_of(binary));
        }
        let (machine, load_before) = (Machine::measured(), load());
        let mut findings = Vec::new();
        self.measure_rounds(&mut findings)?;
        self.measure_service(&this_binary()?, &mut findings)?;
        let report = ServeReport { schema: "moira.bench.serve/1", machine, load_before, load_after: load(), findings };
        print(&report, self.output)?;
        let broken = report.findings.iter().filter(|finding| finding.holds == Some(false));
        Strict::judge(self.strict, broken.map(|finding| (&*finding.what, finding.unit)))
    }

    /// The same client drives both services. Rounds are made by this process, so there is nothing to compare them to;
    /// `bench policy` compares decisions.
    fn figures_of(&self, binary: &Path) -> Result<Vec<Figure>, Failure> {
        let mut findings = Vec::new();
        self.measure_service(binary, &mut findings)?;
        let figure = |finding: Finding| Figure {
            what: finding.what,
            value: finding.value,
            unit: finding.unit.into(),
            bound: Bound { at_least: finding.at_least, at_most: finding.at_most },
        };
        Ok(findings.into_iter().map(figure).collect())
    }

    fn measure_rounds(&self, findings: &mut Vec<Finding>) -> Result<(), Failure> {
        let policies = [("fifo", 100.0), ("tiresias", 100.0), (server::DEFAULT_POLICY, 500.0)];
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        for (policy, bound_ms) in policies {
            let rounds = rounds::measure(policy, Safeguards::NONE, self.live, ROUNDS)?;
            let named = |which: &str| format!("round of {policy}, {} jobs on 1000 devices, {which}", self.live);
            let last = rounds.steady.len().saturating_sub(1);
            let steady = |place: usize| rounds.steady.get(place).copied().map_or(f64::NAN, ms);
            findings.push(Finding::at_most(named("cold"), ms(rounds.cold), "CPU ms", bound_ms));
            findings.push(Finding::at_most(named("median"), steady(last / 2), "CPU ms", bound_ms));
            findings.push(Finding::at_most(named("worst"), steady(last), "CPU ms", bound_ms));
        }
        for (policy, _) in policies {
            let rounds = rounds::measure(policy, Safeguards::ALL, self.live, ROUNDS)?;
            let named = |which: &str| {
                format!("round of {policy} with all safeguards, {} jobs, a tenth of them gangs, {which}", self.live)
            };
            let place = |times: &[Duration], place: usize| times.get(place).copied().map_or(f64::NAN, ms);
            let last = rounds.steady.len().saturating_sub(1);
            findings.push(Finding::free(named("cold"), ms(rounds.cold), "CPU ms"));
            findings.push(Finding::free(named("median"), place(&rounds.steady, last / 2), "CPU ms"));
            findings.push(Finding::free(named("worst"), place(&rounds.steady, last), "CPU ms"));
            let between = rounds.between.last().copied().map_or(0.0, ms);
            findings.push(Finding::free(named("worst between rounds"), between, "CPU ms"));
        }
        Ok(())
    }

    fn measure_service(&self, binary: &Path, findings: &mut Vec<Finding>) -> Result<(), Failure> {
        let base = self.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new().prefix("moira-bench-").tempdir_in(&base);
        let folder = folder.with_context(|| format!("cannot make a folder in {}", base.display()))?;
        let runtime = tokio::runtime::Runtime::new().context("cannot start the clients")?;
        runtime.block_on(short::measure(binary, folder.path(), self.tasks, findings))?;
        let folder = folder.path().join("many");
        let start = || runtime.block_on(Served::start(binary, &folder, EIGHT_DEVICES));
        let (mut service, _) = start()?;
        runtime.block_on(self.drive(&service, findings))?;
        let peak = peak_memory_mib(service.process.id()).context("the service's memory is unknown")?;
        findings.push(Finding::at_most(format!("most memory, {} jobs", self.jobs), peak, "MiB", 1024.0));

        service.kill()?;
        let (mut service, took) = start()?;
        findings.extend(service.started(format!("start after a kill, {} jobs in the journal", self.jobs), took)?);
        runtime.block_on(self.all_there(&service))?;

        let (took, peak) = runtime.block_on(service.leave())?;
        findings.push(Finding::free("leave, with a snapshot".into(), took.as_secs_f64(), "s"));
        findings.push(Finding::at_most("most memory, from that start to its end".into(), peak, "MiB", 1024.0));
        let (mut service, took) = start()?;
        findings.extend(service.started(format!("start from a snapshot of {} jobs", self.jobs), took)?);
        runtime.block_on(self.all_there(&service))?;
        service.kill()
    }

    /// Submits as fast as it goes for a while, then until there are enough, then lists.
    async fn drive(&self, service: &Served, findings: &mut Vec<Finding>) -> Result<(), Failure> {
        let counter = Arc::new(AtomicU32::new(0));
        let before = service.cpu_time()?;
        let began = Instant::now();
        let end = began + Duration::from_secs(self.seconds);
        let limit = self.jobs;
        let waits = self.submit(service, &counter, move |number| number < limit && Instant::now() < end).await?;
        let rate = waits.len() as f64 / began.elapsed().as_secs_f64();
        let named = |which: &str| format!("submissions, {} connections, {which}", self.connections);
        findings.push(Finding::at_least(named("each durable"), rate, "per s", 5000.0));
        let cpu = (service.cpu_time()? - before).as_secs_f64() * 1e6 / waits.len() as f64;
        findings.push(Finding::free(named("of the service, each"), cpu, "CPU µs"));
        findings.push(Finding::free(named("p50"), percentile(&waits, 0.50), "ms"));
        findings.push(Finding::free(named("p99"), percentile(&waits, 0.99), "ms"));
        self.submit(service, &counter, move |number| number < limit).await?;
        self.all_there(service).await?;

        let client = service.client();
        let newest = JobQuery { limit: Some(PAGE), ..JobQuery::default() };
        // Pages all over the store, by steps that are no divisor of anything.
        let places = (0..PAGES).map(|page| PAGE + page * 7919 % (self.jobs - PAGE));
        let pages = places.map(|place| JobQuery { after: Some(place.to_string()), ..newest.clone() });
        let named = |which: &str| format!("page of {PAGE} of {} jobs, {which}", self.jobs);
        let first = list(&client, (0..PAGES).map(|_| newest.clone())).await?;
        findings.push(Finding::at_most(named("the newest, p95"), percentile(&first, 0.95), "ms", 50.0));
        let anywhere = list(&client, pages).await?;
        findings.push(Finding::at_most(named("anywhere, p95"), percentile(&anywhere, 0.95), "ms", 50.0));
        let live = JobState::ALL.into_iter().filter(|state| !state.is_final());
        let live = JobQuery { states: live.collect(), ..newest.clone() };
        let unended = list(&client, (0..PAGES).map(|_| live.clone())).await?;
        findings.push(Finding::at_most(named("those that live, p95"), percentile(&unended, 0.95), "ms", 50.0));
        let running = JobQuery { states: vec![JobState::Running], ..newest };
        let searched = list(&client, (0..PAGES).map(|_| running.clone())).await?;
        findings.push(Finding::at_most(named("none fits, p95"), percentile(&searched, 0.95), "ms", 50.0));
        Ok(())
    }

    /// Submits on all connections while `go_on` says so of the next number; how long each waited, in ascending order.
    async fn submit(
        &self,
        service: &Served,
        counter: &Arc<AtomicU32>,
        go_on: impl Fn(u32) -> bool + Clone + Send + 'static,
    ) -> Result<Vec<Duration>, Failure> {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.connections {
            let (client, counter, go_on) = (service.client(), counter.clone(), go_on.clone());
            tasks.spawn(async move {
                let mut waits = Vec::new();
                loop {
                    let number = counter.fetch_add(1, Ordering::Relaxed);
                    if !go_on(number) {
                        counter.fetch_sub(1, Ordering::Relaxed);
                        return Ok(waits);
                    }
                    let began = Instant::now();
                    client.submit(&held_job(number), Some(&format!("bench-{number}"))).await?;
                    waits.push(began.elapsed());
                }
            });
        }
        let mut waits = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            let one: Result<Vec<Duration>, api::Error> = ended.map_err(Failure::new)?;
            waits.extend(one.map_err(Failure::new)?);
        }
        waits.sort_unstable();
        Ok(waits)
    }

    /// Whether the service has as many jobs as were submitted, and no more.
    async fn all_there(&self, service: &Served) -> Result<(), Failure> {
        let client = service.client();
        client.job(JobId::job(self.jobs - 1)).await.context("the last job is not there")?;
        match client.job(JobId::job(self.jobs)).await {
            Err(api::Error::Refused(problem)) if problem.status == 404 => Ok(()),
            other => Err(Failure::new(anyhow!("expected {} jobs, found another: {other:?}", self.jobs))),
        }
    }
}

/// A job that is taken on and never started.
fn held_job(number: u32) -> JobRequest {
    JobRequest { name: Some(format!("held-{number}")), hold: true, ..JobRequest::new(["true"]) }
}

/// Asks for the pages one after the other; how long each took, in ascending order.
async fn list(client: &Client, queries: impl Iterator<Item = JobQuery>) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    for query in queries {
        let began = Instant::now();
        client.jobs(&query).await.map_err(Failure::new)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// The service as a process of its own; killed when it is no longer wanted.
pub(super) struct Served {
    process: Child,
    data_dir: PathBuf,
}

impl Served {
    /// Starts it, and says how long it took until it was ready.
    pub(super) async fn start(binary: &Path, folder: &Path, settings: &str) -> Result<(Served, Duration), Failure> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let config = folder.join("moira.toml");
        fs::write(&config, settings).context("cannot write the configuration of the service")?;
        let log = folder.join("serve.log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let data_dir = folder.join("data");
        let began = Instant::now();
        let process = Command::new(binary)
            .args(["serve", "--log", "text", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(&data_dir)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut service = Served { process, data_dir };
        match service.until_ready(began).await {
            Ok(took) => Ok((service, took)),
            Err(error) => {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("nothing").to_string();
                Err(Failure::new(error.context(format!("the service last said: {last}"))))
            }
        }
    }

    async fn until_ready(&mut self, began: Instant) -> anyhow::Result<Duration> {
        let client = self.client();
        loop {
            if client.ready().await.is_ok_and(|health| health.status == "ok") {
                return Ok(began.elapsed());
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("the service ended before it was ready: {status}");
            }
            if began.elapsed() > PATIENCE {
                bail!("the service was not ready after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(super) fn client(&self) -> Client {
        Client::in_data_dir(&self.data_dir)
    }

    /// How long it took to be ready, and how much of that is its own.
    fn started(&self, what: String, took: Duration) -> Result<[Finding; 2], Failure> {
        let own = Finding::free(format!("{what}, its own"), self.cpu_time()?.as_secs_f64(), "CPU s");
        Ok([Finding::at_most(what, took.as_secs_f64(), "s", 3.0), own])
    }

    /// CPU time so far, all threads together.
    fn cpu_time(&self) -> Result<Duration, Failure> {
        self.cpu_times().map(|times| times.own)
    }

    /// The same with that of all processes which it has started and which have ended, and of those that they have.
    pub(super) fn cpu_time_of_all(&self) -> Result<Duration, Failure> {
        self.cpu_times().map(|times| times.own + times.of_ended_children)
    }

    fn cpu_times(&self) -> Result<CpuTimes, Failure> {
        let path = format!("/proc/{}/stat", self.process.id());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        CpuTimes::in_stat(&text).with_context(|| format!("cannot make sense of {path}")).map_err(Failure::from)
    }

    /// Tells it to leave; how long that took, and the most memory it had at once, as far as could be seen.
    async fn leave(&mut self) -> Result<(Duration, f64), Failure> {
        let began = Instant::now();
        kill_process(Pid::from_child(&self.process), Signal::TERM).context("cannot tell the service to leave")?;
        let mut peak: f64 = 0.0;
        while self.process.try_wait().context("cannot wait for the service")?.is_none() {
            peak = peak.max(peak_memory_mib(self.process.id()).unwrap_or(0.0));
            if began.elapsed() > PATIENCE {
                return Err(Failure::new(anyhow!("the service did not leave in {} s", PATIENCE.as_secs())));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok((began.elapsed(), peak))
    }

    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        killed.map(drop).context("cannot kill the service").map_err(Failure::from)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Whoever was killed already cannot be again.
        self.kill().ok();
    }
}

/// What the kernel says of a process.
#[derive(Debug, PartialEq)]
struct CpuTimes {
    own: Duration,
    of_ended_children: Duration,
}

impl CpuTimes {
    /// User and system time in hundredths of a second, as the kernel writes them behind the name, which may hold anything.
    fn in_stat(stat: &str) -> Option<CpuTimes> {
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let times: Vec<u64> = fields.take(4).map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let [user, system, user_of_children, system_of_children] = times[..] else { return None };
        let hundredths = |count: u64| Duration::from_millis(count * 10);
        let of_ended_children = hundredths(user_of_children + system_of_children);
        Some(CpuTimes { own: hundredths(user + system), of_ended_children })
    }
}

impl Finding {
    pub(super) fn free(what: String, value: f64, unit: &'static str) -> Finding {
        Finding { what, value, unit, at_least: None, at_most: None, holds: None }
    }

    pub(super) fn at_most(what: String, value: f64, unit: &'static str, bound: f64) -> Finding {
        let holds = Bound { at_most: Some(bound), ..Bound::default() }.holds(value);
        Finding { at_most: Some(bound), holds, ..Finding::free(what, value, unit) }
    }

    pub(super) fn at_least(what: String, value: f64, unit: &'static str, bound: f64) -> Finding {
        let holds = Bound { at_least: Some(bound), ..Bound::default() }.holds(value);
        Finding { at_least: Some(bound), holds, ..Finding::free(what, value, unit) }
    }
}

/// In milliseconds, of times in ascending order.
pub(super) fn percentile(times: &[Duration], share: f64) -> f64 {
    let place = (share * times.len() as f64).ceil() as usize;
    times.get(place.saturating_sub(1)).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

/// The load of the machine over the last minute; unknown where the system does not say.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

fn print(report: &ServeReport, output: Output) -> Result<(), Failure> {
    let row = |finding: &Finding| {
        let bound = Bound { at_least: finding.at_least, at_most: finding.at_most }.to_string();
        let holds = verdict(finding.holds);
        let value =
            if finding.value < 10.0 { format!("{:.2}", finding.value) } else { format!("{:.1}", finding.value) };
        vec![finding.what.clone(), value, finding.unit.into(), bound, holds.into()]
    };
    let columns = ["what", "measured", "unit", "bound", "holds"];
    print_as(output, report, &report.machine, &columns, report.findings.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_time_that_was_measured() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!([percentile(&times, 0.5), percentile(&times, 0.95), percentile(&times, 1.0)], [50.0, 95.0, 100.0]);
        assert_eq!(percentile(&times[..1], 0.95), 1.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn cpu_time_is_found_behind_a_name_with_spaces_and_brackets() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 4 1 20 0 1 0 100 1 1";
        let times = CpuTimes { own: Duration::from_millis(420), of_ended_children: Duration::from_millis(50) };
        assert_eq!(CpuTimes::in_stat(stat), Some(times));
        assert_eq!(CpuTimes::in_stat("7 (a"), None);
        assert_eq!(CpuTimes::in_stat("7 (a) S 1"), None);
    }

    #[test]
    fn a_bound_is_missed_by_what_cannot_be_measured() {
        assert_eq!(Finding::at_most(String::new(), f64::NAN, "ms", 1.0).holds, Some(false));
        assert_eq!(Finding::at_least(String::new(), f64::NAN, "ms", 1.0).holds, Some(false));
    }
}
