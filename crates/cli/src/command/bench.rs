//! `moira bench`: how fast Moira itself is. Figures depend on the machine, so they are printed with it and with a fixed
//! calibration loop, and never go into a report.

mod against;
mod rounds;
mod serve;
mod short;

use std::fs;
use std::hint::black_box;
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sim::{Setup, simulate};

use self::against::{Against, PolicyFigures, SimFigures};
use crate::failure::Failure;
use crate::options::{self, Output, Scene};
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Simulate on one thread and print jobs, events, decisions, CPU seconds and memory; without a workload, generated
    /// ones of growing length at a load of 0.8
    Sim(BenchSim),
    /// Ask a policy about clusters full of jobs, no two alike, and print what a decision costs; and what the solver takes
    /// for menus alone
    Policy(BenchPolicy),
    /// Start the service, submit, list, kill and start it again, and print what it withstands beside what it must
    Serve(serve::BenchServe),
}

#[derive(Debug, Args)]
pub(crate) struct BenchPolicy {
    /// A policy to measure; may be repeated
    #[arg(long = "policy", value_name = "NAME", default_values = ["sia"])]
    policies: Vec<String>,
    /// GPUs, jobs and kinds of GPU; may be repeated
    #[arg(long = "size", value_name = "GPUS/JOBS/KINDS", default_values = ["64/6/3", "2048/1000/3", "100000/30000/6"])]
    sizes: Vec<String>,
    /// Rounds in which a part of the jobs has changed
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    against: Against,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// What one sort of decision took.
#[derive(Debug, Serialize)]
struct Decided {
    what: String,
    gpus: u32,
    jobs: u32,
    kinds: u16,
    /// CPU milliseconds: the median and the worst.
    median_ms: f64,
    worst_ms: f64,
    /// How far the worst of them may be from the best, as the certificates say; in millionths.
    gap_ppm: Option<f64>,
    /// What the authors' program took in a like case.
    reference: &'static str,
}

#[derive(Debug, Serialize)]
struct PolicyReport {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    decisions: Vec<Decided>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchSim {
    /// A policy to measure; may be repeated
    #[arg(long = "policy", value_name = "NAME", default_values = ["fifo", "tiresias"])]
    policies: Vec<String>,
    /// A cluster to measure on; may be repeated
    #[arg(long = "cluster", value_name = "NAME|FILE", default_values = ["64x8 v100"])]
    clusters: Vec<String>,
    /// A workload; may be repeated
    #[arg(
        long = "workload",
        value_name = "NAME|FORMAT:PATH",
        default_values = ["steady:jobs=10000,load=0.8", "steady:jobs=100000,load=0.8", "steady:jobs=1000000,load=0.8"]
    )]
    workloads: Vec<String>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    against: Against,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// One measured simulation.
#[derive(Debug, Serialize)]
struct Measured {
    policy: String,
    cluster: String,
    workload: String,
    jobs: usize,
    /// Jobs that had to wait for devices.
    waited: usize,
    events: u64,
    decisions: u64,
    cpu_s: f64,
    jobs_per_cpu_s: f64,
    /// CPU time over n log2 n, in nanoseconds: does not grow if cost grows no worse than that.
    cpu_ns_per_n_log_n: f64,
    /// Of the process so far.
    peak_memory_mib: Option<f64>,
}

/// What figures were measured on.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    /// CPU seconds of a fixed loop of a thousand million steps, to compare machines by.
    calibration_s: f64,
}

impl Machine {
    fn measured() -> Machine {
        Machine { cpu: cpu_model(), calibration_s: calibrate() }
    }
}

#[derive(Debug, Serialize)]
struct BenchReport {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    runs: Vec<Measured>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Bench::Sim(bench) => bench.run(),
            Bench::Policy(bench) => bench.run(),
            Bench::Serve(bench) => bench.run(),
        }
    }
}

impl BenchSim {
    fn run(self) -> Result<(), Failure> {
        if let Some(other) = self.against.other() {
            let arguments = self.arguments();
            return self.against.compare(other, self.output, None, |binary| {
                against::own_report(binary, &arguments).map(SimFigures::figures)
            });
        }
        let mut report = BenchReport { schema: "moira.bench/1", machine: Machine::measured(), runs: Vec::new() };
        for workload in &self.workloads {
            for cluster in &self.clusters {
                let scene = Scene {
                    cluster: cluster.clone(),
                    workloads: vec![workload.clone()],
                    profiles: None,
                    skip_bad_rows: false,
                    world: None,
                    safeguards: plan::Safeguards::NONE,
                    threads: None,
                    output: self.output,
                };
                let site = scene.site()?;
                let loaded = trace::load_workload(workload, &site.cluster, &site.queues, self.seed);
                let setup = Setup::new(site.cluster, site.queues, loaded.map_err(options::of_source)?.jobs);
                for policy in &self.policies {
                    report.runs.push(measure(&setup, policy, &site.name, workload)?);
                }
            }
        }
        print(&report, self.output)
    }

    /// What another process needs to be told to measure the same.
    fn arguments(&self) -> Vec<String> {
        let lists = [("--policy", &self.policies), ("--cluster", &self.clusters), ("--workload", &self.workloads)];
        let lists = lists.into_iter().flat_map(|(name, values)| repeated(name, values));
        ["sim".into()].into_iter().chain(lists).chain([format!("--seed={}", self.seed)]).collect()
    }
}

/// `--name=value` for every value.
fn repeated<'a>(name: &'a str, values: &'a [String]) -> impl Iterator<Item = String> + 'a {
    values.iter().map(move |value| format!("{name}={value}"))
}

fn measure(setup: &Setup, policy: &str, cluster: &str, workload: &str) -> Result<Measured, Failure> {
    let config = options::policy(policy)?;
    let built = config.build().map_err(Failure::usage)?;
    let (mut events, mut decisions) = (0_u64, 0_u64);
    let before = cpu_time();
    let state = simulate(setup, policy, built, |_, event| {
        events += 1;
        decisions += u64::from(matches!(event, engine::Event::Planned(_)));
    });
    let cpu_s = (cpu_time() - before).as_secs_f64();
    let state = state.map_err(Failure::new)?;
    let waited = state.books().claims().iter().filter(|claim| claim.progress.last_launch > Some(claim.submitted));
    let jobs = setup.jobs.len();
    Ok(Measured {
        policy: policy.into(),
        cluster: cluster.into(),
        workload: workload.into(),
        jobs,
        waited: waited.count(),
        events,
        decisions,
        cpu_s,
        jobs_per_cpu_s: jobs as f64 / cpu_s,
        cpu_ns_per_n_log_n: cpu_s * 1e9 / (jobs as f64 * (jobs as f64).log2()),
        peak_memory_mib: peak_memory_mib(std::process::id()),
    })
}

impl BenchPolicy {
    fn run(self) -> Result<(), Failure> {
        if let Some(other) = self.against.other() {
            let arguments = self.arguments();
            return self.against.compare(other, self.output, None, |binary| {
                against::own_report(binary, &arguments).map(PolicyFigures::figures)
            });
        }
        let sizes = self.sizes.iter().map(|size| parse_size(size)).collect::<Result<Vec<_>, _>>()?;
        let mut decisions = Vec::new();
        for &(gpus, jobs, kinds) in &sizes {
            decisions.push(self.solve(gpus, jobs, kinds));
            for policy in &self.policies {
                let config = options::policy(policy)?;
                decisions.extend(self.decide(&config, gpus, jobs, kinds)?);
            }
        }
        let report = PolicyReport { schema: "moira.bench.policy/1", machine: Machine::measured(), decisions };
        print_decisions(&report, self.output)
    }

    fn arguments(&self) -> Vec<String> {
        let lists = [("--policy", &self.policies), ("--size", &self.sizes)];
        let lists = lists.into_iter().flat_map(|(name, values)| repeated(name, values));
        let rest = [format!("--rounds={}", self.rounds), format!("--seed={}", self.seed)];
        ["policy".into()].into_iter().chain(lists).chain(rest).collect()
    }

    /// The solver alone, from menus to a proven bound.
    fn solve(&self, gpus: u32, jobs: u32, kinds: u16) -> Decided {
        let mut times = Vec::new();
        let mut gap: f64 = 0.0;
        for seed in self.seed..self.seed + u64::from(self.rounds) {
            let program = solver::instances::elastic(seed, jobs as usize, gpus, u32::from(kinds), -0.5);
            let before = cpu_time();
            let solution = solver::solve(&program, solver::Effort::quick(), &solver::Warm::default());
            times.push(cpu_time() - before);
            gap = gap.max(solution.gap());
        }
        Decided::new("solve, cold".into(), (gpus, jobs, kinds), times, Some(gap * 1e6))
    }

    /// Menus, program, placement and check: first with nothing known, then with a twentieth of the jobs changed.
    fn decide(
        &self,
        config: &policies::PolicyConfig,
        gpus: u32,
        jobs: u32,
        kinds: u16,
    ) -> Result<[Decided; 2], Failure> {
        let mut crowd = sim::Crowd::new(gpus, jobs, kinds, self.seed);
        let mut policy = config.build().map_err(Failure::usage)?;
        let mut ask = |crowd: &mut sim::Crowd| {
            let snapshot = crowd.snapshot();
            let before = cpu_time();
            let plan = policy.plan(&snapshot);
            let faults = plan::check(&plan, &snapshot);
            let took = cpu_time() - before;
            assert!(faults.is_empty(), "{} makes a faulty plan: {faults:?}", config.label());
            crowd.follow(&plan, 0.05);
            took
        };
        let cold = ask(&mut crowd);
        // The first rounds after a start move everybody; what is measured is what comes after.
        for _ in 0..3 {
            ask(&mut crowd);
        }
        let steady = (0..self.rounds).map(|_| ask(&mut crowd)).collect();
        let size = (gpus, jobs, kinds);
        Ok([
            Decided::new(format!("{}, cold", config.label()), size, vec![cold], None),
            Decided::new(format!("{}, 5 % changed", config.label()), size, steady, None),
        ])
    }
}

impl Decided {
    fn new(
        what: String,
        (gpus, jobs, kinds): (u32, u32, u16),
        mut times: Vec<Duration>,
        gap_ppm: Option<f64>,
    ) -> Decided {
        times.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        // As measured of the published program (two loaded cores, CPU time): whole policy calls.
        let reference = match gpus {
            64 if gap_ppm.is_none() => "27 ms (64 GPUs, 5.6 jobs)",
            2048 if gap_ppm.is_none() => "226 ms, worst 19 s (1,024 GPUs, 117 jobs)",
            _ => "",
        };
        let (median_ms, worst_ms) = (ms(times[times.len() / 2]), ms(times[times.len() - 1]));
        Decided { what, gpus, jobs, kinds, median_ms, worst_ms, gap_ppm, reference }
    }
}

fn parse_size(text: &str) -> Result<(u32, u32, u16), Failure> {
    let parts: Vec<&str> = text.split('/').collect();
    let wrong = || Failure::usage(format!("--size: expected GPUS/JOBS/KINDS like 2048/1000/3, found `{text}`"));
    let [gpus, jobs, kinds] = parts[..] else { return Err(wrong()) };
    let size = gpus.parse().ok().zip(jobs.parse().ok()).zip(kinds.parse().ok());
    let ((gpus, jobs), kinds): ((u32, u32), u16) = size.ok_or_else(wrong)?;
    let sensible = (1..=16).contains(&kinds) && (u32::from(kinds) * 8..=1_000_000).contains(&gpus) && jobs <= 1_000_000;
    if sensible && jobs > 0 { Ok((gpus, jobs, kinds)) } else { Err(wrong()) }
}

fn print_decisions(report: &PolicyReport, output: Output) -> Result<(), Failure> {
    let row = |one: &Decided| {
        let size = [one.gpus.to_string(), one.jobs.to_string(), one.kinds.to_string()];
        let times = [format!("{:.3}", one.median_ms), format!("{:.3}", one.worst_ms)];
        let gap = one.gap_ppm.map_or(String::new(), |gap| format!("{gap:.1}"));
        let ends = [gap, one.reference.to_string()];
        [vec![one.what.clone()], size.to_vec(), times.to_vec(), ends.to_vec()].concat()
    };
    let columns = ["what", "gpus", "jobs", "kinds", "median_ms", "worst_ms", "gap_ppm", "reference"];
    print_as(output, report, &report.machine, &columns, report.decisions.iter().map(row))
}

fn print(report: &BenchReport, output: Output) -> Result<(), Failure> {
    let row = |run: &Measured| {
        vec![
            run.policy.clone(),
            run.cluster.clone(),
            run.workload.clone(),
            run.jobs.to_string(),
            run.waited.to_string(),
            run.events.to_string(),
            run.decisions.to_string(),
            format!("{:.3}", run.cpu_s),
            format!("{:.0}", run.jobs_per_cpu_s),
            format!("{:.1}", run.cpu_ns_per_n_log_n),
            run.peak_memory_mib.map_or("unknown".into(), |mib| format!("{mib:.0}")),
        ]
    };
    let columns = [
        "policy",
        "cluster",
        "workload",
        "jobs",
        "waited",
        "events",
        "decisions",
        "cpu_s",
        "jobs_per_cpu_s",
        "ns_per_nlogn",
        "peak_mib",
    ];
    print_as(output, report, &report.machine, &columns, report.runs.iter().map(row))
}

/// A report as JSON, or its rows as lines or as a table below what they were measured on.
fn print_as(
    output: Output,
    report: &impl Serialize,
    machine: &Machine,
    columns: &[&str],
    mut rows: impl Iterator<Item = Vec<String>>,
) -> Result<(), Failure> {
    match output {
        Output::Json => {
            let text = serde_json::to_string(report).expect("a report can be written as JSON");
            render::line(&text)
        }
        Output::Csv => {
            render::csv_line(columns)?;
            rows.try_for_each(|row| render::csv_line(&row))
        }
        Output::Table => {
            let Machine { cpu, calibration_s } = machine;
            render::line(&format!("CPU: {cpu}; calibration loop: {calibration_s:.2} s"))?;
            render::table(columns, rows)
        }
    }
}

/// CPU time of this process, all threads together.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn calibrate() -> f64 {
    let before = cpu_time();
    let mut x = 1_u64;
    for step in 0..1_000_000_000_u64 {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step));
    }
    black_box(x);
    (cpu_time() - before).as_secs_f64()
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or("unknown".into(), |(_, name)| name.trim().into())
}

/// The most memory a process has had at once; unknown where the system does not say.
fn peak_memory_mib(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib / 1024.0)
}
