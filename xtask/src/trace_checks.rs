//! Every public trace in the data beside the repository is read, and compared with what its README or the survey of
//! traces states: rows, GPU hours, percentiles. Where nothing is stated, a line says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use trace::Workload;

use crate::data_checks::Checks;
use crate::say;

pub(crate) fn run(data: &Path, checks: &mut Checks) -> Result<()> {
    for stated in STATED {
        stated.check(data, checks)?;
    }
    openb(data, checks)?;
    itp(data, checks)?;
    gavel(data, checks)?;
    shockwave(data, checks)?;
    profiled(data, checks)?;
    chronus(data, checks)?;
    tiresias(data, checks)?;
    read_only(data)?;
    for (what, why) in SKIPPED {
        say(&format!("skip {what}: {why}"));
    }
    Ok(())
}

/// What is not read, or of which nothing is stated.
const SKIPPED: [(&str, &str); 5] = [
    ("swf", "no log of this format in the data; read in tests of the crate"),
    ("sacct", "no listing of this format in the data; read in tests of the crate"),
    ("gavel/philly_job_distribution.csv", "run times and sizes without arrivals, no workload"),
    ("traces/alibaba_pai_2020/gaia_pai_100k.csv.gz", "arrivals stretched to a year, CPU jobs; only for marginals"),
    ("tiresias/yarn-gput*.csv", "GPU times without arrivals, no workload"),
];

/// What is stated about one file.
struct Stated {
    /// As typed before the path, and the options after it.
    format: &'static str,
    file: &'static str,
    options: &'static str,
    /// Whether the format is told from the file.
    told: bool,
    jobs: f64,
    figures: Option<Figures>,
}

#[derive(Default)]
struct Figures {
    /// Percentiles 10, 25, 50, 75, 90 and 99 of the run time, in seconds.
    run_times_s: [f64; 6],
    mean_s: f64,
    million_gpu_hours: f64,
    /// Percentages of jobs with one, at most four, and at most eight GPUs.
    sizes: [f64; 3],
    largest: f64,
}

const STATED: &[Stated] = &[
    Stated {
        format: "philly",
        file: "traces/philly/philly_jobs.csv.gz",
        options: "",
        told: true,
        jobs: 111_549.0,
        figures: Some(Figures {
            run_times_s: [56.0, 140.0, 1321.0, 5361.0, 33_474.0, 755_541.0],
            mean_s: 35_595.0,
            million_gpu_hours: 3.62,
            sizes: [87.0, 94.0, 99.0],
            largest: 128.0,
        }),
    },
    Stated {
        format: "philly",
        file: "traces/philly/philly_jobs.csv.gz",
        options: "from=2017-10-01&until=2017-12-01",
        told: true,
        jobs: 90_954.0,
        figures: Some(Figures {
            run_times_s: [60.0, 220.0, 1525.0, 5547.0, 28_410.0, 613_368.0],
            mean_s: 29_525.0,
            million_gpu_hours: 2.63,
            sizes: [87.0, 94.0, 99.0],
            largest: 128.0,
        }),
    },
    Stated {
        format: "philly",
        file: "pollux/traces/philly.csv",
        options: "",
        told: true,
        jobs: 82_247.0,
        figures: None,
    },
    Stated { format: "philly", file: "sia/traces/philly.csv", options: "", told: true, jobs: 82_247.0, figures: None },
    Stated {
        format: "philly",
        file: "traces/alibaba_lingjun_2023/jobs.csv",
        options: "",
        told: false,
        jobs: 2498.0,
        figures: Some(Figures {
            run_times_s: [60.0, 120.0, 420.0, 2100.0, 17_688.0, 248_864.0],
            mean_s: 12_765.0,
            million_gpu_hours: 0.31,
            sizes: [9.0, 22.0, 56.0],
            largest: 744.0,
        }),
    },
    Stated {
        format: "helios",
        file: "traces/helios/venus_gpu_jobs.csv.gz",
        options: "",
        told: true,
        jobs: 125_303.0,
        figures: None,
    },
    Stated {
        format: "helios",
        file: "traces/helios/venus_gpu_jobs.csv.gz",
        options: "from=2020-04-01",
        told: true,
        jobs: 125_214.0,
        figures: Some(Figures {
            run_times_s: [18.0, 72.0, 203.0, 1275.0, 17_927.0, 172_800.0],
            mean_s: 9035.0,
            million_gpu_hours: 2.42,
            sizes: [52.0, 65.0, 90.0],
            largest: 200.0,
        }),
    },
    Stated {
        format: "helios",
        file: "traces/helios/venus_2vc_sept_jobs.csv",
        options: "",
        told: true,
        jobs: 1867.0,
        figures: None,
    },
    Stated {
        format: "pai",
        file: "traces/alibaba_pai_2020/pai_task_sample.csv.gz",
        options: "",
        told: true,
        jobs: 60_105.0,
        figures: Some(Figures {
            run_times_s: [41.0, 131.0, 618.0, 3699.0, 12_201.0, 66_192.0],
            mean_s: 5029.0,
            million_gpu_hours: 0.69,
            sizes: [77.0, 83.0, 86.0],
            largest: 400.0,
        }),
    },
    Stated {
        format: "acme",
        file: "traces/acme/kalos_jobs_sample.csv",
        options: "",
        told: true,
        jobs: 800.0,
        figures: None,
    },
    muri("traces/muri/trace1.csv.gz", 1494.0),
    muri("traces/muri/trace2.csv.gz", 5755.0),
    muri("traces/muri/trace3.csv.gz", 992.0),
    muri("traces/muri/trace4.csv.gz", 2638.0),
    muri("traces/muri/cluster_trace.csv.gz", 400.0),
];

const fn muri(file: &'static str, jobs: f64) -> Stated {
    Stated { format: "tiresias", file, options: "unit=ms", told: true, jobs, figures: None }
}

impl Stated {
    fn check(&self, data: &Path, checks: &mut Checks) -> Result<()> {
        let path = data.join(self.file);
        let workload = read(self.format, &path, self.options)?;
        let what = if self.options.is_empty() { self.file.into() } else { format!("{}?{}", self.file, self.options) };
        checks.near(&format!("{what}: jobs"), workload.jobs.len() as f64, self.jobs, 0.0);
        if let Some(figures) = &self.figures {
            figures.check(&what, std::slice::from_ref(&workload), checks);
        }
        if self.told {
            ensure_told(self.format, &path, self.options)?;
        }
        Ok(())
    }
}

impl Figures {
    fn check(&self, what: &str, workloads: &[Workload], checks: &mut Checks) {
        let jobs = || workloads.iter().flat_map(|workload| &workload.jobs);
        let mut runtimes: Vec<f64> = jobs().map(|job| job.truth.iterations as f64 / 1000.0).collect();
        runtimes.sort_by(f64::total_cmp);
        let count = runtimes.len() as f64;
        for (percent, expected) in [10, 25, 50, 75, 90, 99].into_iter().zip(self.run_times_s) {
            let found = percentile(&runtimes, f64::from(percent) / 100.0);
            checks.near(&format!("{what}: run time p{percent} [s]"), found, expected, 0.001);
        }
        checks.near(&format!("{what}: mean run time [s]"), runtimes.iter().sum::<f64>() / count, self.mean_s, 0.001);
        let hours: f64 =
            jobs().map(|job| job.spec.min_gpus().as_f64() * job.truth.iterations as f64 / 3.6e6).sum::<f64>() / 1e6;
        checks.near(&format!("{what}: GPU hours (millions)"), hours, self.million_gpu_hours, 0.01);
        let sizes: Vec<f64> = jobs().map(|job| job.spec.min_gpus().as_f64()).collect();
        for (most, expected) in [1.0, 4.0, 8.0].into_iter().zip(self.sizes) {
            let share = 100.0 * sizes.iter().filter(|&&size| size <= most).count() as f64 / count;
            // The survey rounds to whole percentages.
            checks.near(&format!("{what}: jobs of at most {most} GPUs [%]"), share, expected, 0.51 / expected);
        }
        let largest = sizes.iter().copied().fold(0.0, f64::max);
        checks.near(&format!("{what}: largest job [GPUs]"), largest, self.largest, 0.0);
    }
}

/// Between the two nearest ranks in proportion.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = share * (sorted.len() - 1) as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (rank - rank.floor())
}

fn read(format: &str, path: &Path, options: &str) -> Result<Workload> {
    let (cluster, queues, _) = trace::load_cluster("small")?;
    let query = if options.is_empty() { String::new() } else { format!("?{options}") };
    let text = format!("{format}:{}{query}", path.display());
    trace::load_workload(&text, &cluster, &queues, 1).with_context(|| format!("cannot read {text}"))
}

/// The format is recognised from the file, with the same jobs.
fn ensure_told(format: &str, path: &Path, options: &str) -> Result<()> {
    let options = format!("{options}{}limit=5", if options.is_empty() { "" } else { "&" });
    let workload = read("auto", path, &options)?;
    let told = &workload.assumptions[0];
    ensure!(told.starts_with(&format!("read as {format}: ")), "{}: {told}, not {format}", path.display());
    Ok(())
}

/// Files of a folder whose names end so, in order.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    Ok(files)
}

/// Below the folder of data.
fn short<'a>(data: &Path, path: &'a Path) -> std::path::Display<'a> {
    path.strip_prefix(data).unwrap_or(path).display()
}

fn openb(data: &Path, checks: &mut Checks) -> Result<()> {
    let folder = data.join("traces/alibaba_openb_2023");
    let path = folder.join("openb_pod_list_default.csv.gz");
    let all = read("openb", &path, "zero_gpu=keep&unscheduled=keep")?;
    ensure_told("openb", &path, "")?;
    let count =
        |test: &dyn Fn(f64) -> bool| all.jobs.iter().filter(|job| test(job.spec.min_gpus().as_f64())).count() as f64;
    checks.near("openb: pods", all.jobs.len() as f64, 8152.0, 0.0);
    checks.near("openb: pods that share a GPU", count(&|gpus| gpus > 0.0 && gpus < 1.0), 3078.0, 0.0);
    checks.near("openb: pods of one GPU", count(&|gpus| gpus == 1.0), 3911.0, 0.0);
    checks.near("openb: pods of several GPUs", count(&|gpus| gpus > 1.0), 75.0, 0.0);
    checks.near("openb: pods without GPUs", count(&|gpus| gpus == 0.0), 1088.0, 0.0);
    let asked: f64 = all.jobs.iter().map(|job| job.spec.min_gpus().as_f64()).sum();
    checks.near("openb: GPUs asked for", asked, 6087.0, 0.0005);
    let ranked = read("openb", &path, "zero_gpu=keep&unscheduled=keep&qos=priority")?;
    let sensitive = ranked.jobs.iter().filter(|job| job.spec.priority == 1).count();
    say(&format!(
        "note openb: {sensitive} pods are latency-sensitive or guaranteed (the survey counts 4,647 of the first)"
    ));
    let gpu_jobs = all.jobs.iter().filter(|job| job.spec.uses_gpus());
    let mut runtimes: Vec<f64> = gpu_jobs.map(|job| job.truth.iterations as f64 / 1000.0).collect();
    runtimes.sort_by(f64::total_cmp);
    for (share, expected, tolerance) in [(0.5, 492.0, 0.002), (0.9, 6119.0, 0.001), (0.99, 31.0 * 3600.0, 0.017)] {
        let what = format!("openb: run time p{:.0} of pods with GPUs [s]", share * 100.0);
        checks.near(&what, percentile(&runtimes, share), expected, tolerance);
    }
    for (file, nodes) in [("openb_node_list_all_node.csv", 1523.0), ("openb_node_list_gpu_node.csv", 1213.0)] {
        let (cluster, _) = trace::read_openb_nodes(&folder.join(file))?.build()?;
        checks.near(&format!("{file}: nodes"), cluster.node_count() as f64, nodes, 0.0);
        checks.near(&format!("{file}: GPUs"), f64::from(cluster.gpus()), 6212.0, 0.0);
        let models = [("G2", 4392.0), ("T4", 842.0), ("G3", 312.0), ("P100", 265.0), ("V100M32", 204.0)];
        for (model, gpus) in models.into_iter().chain([("V100M16", 195.0), ("A10", 2.0)]) {
            let kind = cluster.kind_named(model).with_context(|| format!("no {model}"))?;
            checks.near(&format!("{file}: GPUs of {model}"), f64::from(cluster.gpus_of(kind)), gpus, 0.0);
        }
    }
    for path in files(&folder, ".csv.gz")? {
        let options = "zero_gpu=keep&unscheduled=keep";
        let untimed = path.to_string_lossy().contains("multigpu");
        let options = if untimed { format!("{options}&interval_s=1&duration_s=600") } else { options.into() };
        let jobs = read("openb", &path, &options)?.jobs.len();
        say(&format!("read {}: {jobs} pods (no figure stated for variants)", short(data, &path)));
    }
    Ok(())
}

/// The ten clusters of ITP, raw and with deadlines; both packed.
fn itp(data: &Path, checks: &mut Checks) -> Result<()> {
    let figures = Figures {
        run_times_s: [1342.0, 3815.0, 10_537.0, 16_319.0, 28_787.0, 210_110.0],
        mean_s: 18_722.0,
        million_gpu_hours: 1.63,
        sizes: [83.0, 89.0, 99.0],
        largest: 64.0,
    };
    for archive in ["raw-traces.tar.gz", "elasticflow-traces.tar.gz"] {
        let scratch = std::env::temp_dir().join(format!("moira-itp-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let packed = data.join("elasticflow").join(archive);
        let unpacked = Command::new("tar").arg("xzf").arg(&packed).arg("-C").arg(&scratch).status();
        ensure!(unpacked.context("cannot start tar")?.success(), "cannot unpack {}", packed.display());
        let read_all = || -> Result<Vec<Workload>> {
            let clusters = files(&scratch, ".csv")?;
            let clusters: Vec<_> = clusters.iter().filter(|path| path.to_string_lossy().contains("cluster")).collect();
            clusters.iter().try_for_each(|path| ensure_told("elasticflow", path, ""))?;
            clusters.iter().map(|path| read("elasticflow", path, "")).collect()
        };
        let workloads = read_all();
        fs::remove_dir_all(&scratch).ok();
        let workloads = workloads?;
        let jobs: usize = workloads.iter().map(|workload| workload.jobs.len()).sum();
        checks.near(&format!("elasticflow/{archive}: jobs"), jobs as f64, 69_351.0, 0.0);
        figures.check(&format!("elasticflow/{archive}"), &workloads, checks);
    }
    Ok(())
}

fn gavel(data: &Path, checks: &mut Checks) -> Result<()> {
    let folder = data.join("gavel");
    let throughputs = format!("throughputs={}", folder.join("simulation_throughputs.json").display());
    let path = folder.join("msr_philly_seed0_jobs.csv");
    ensure_told("gavel", &path, &throughputs)?;
    let workload = read("gavel", &path, "step_s=0.1")?;
    checks.near("gavel/msr_philly_seed0_jobs.csv: jobs", workload.jobs.len() as f64, 15_264.0, 0.0);
    let known = read("gavel", &path, &format!("{throughputs}&skip_bad_rows=true"))?.jobs.len();
    say(&format!(
        "note gavel/msr_philly_seed0_jobs.csv: throughputs are known for {known} jobs (not for several GPUs of some types)"
    ));
    for path in files(&folder.join("traces_physical_cluster"), ".trace")? {
        ensure_told("gavel", &path, &throughputs)?;
        let jobs = read("gavel", &path, &throughputs)?.jobs.len();
        checks.near(&format!("{}: jobs as lines", short(data, &path)), jobs as f64, lines(&path)? as f64, 0.0);
    }
    Ok(())
}

fn lines(path: &Path) -> Result<usize> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter(|line| !line.trim().is_empty()).count())
}

/// The names of the files start with the number of jobs.
fn shockwave(data: &Path, checks: &mut Checks) -> Result<()> {
    for path in files(&data.join("shockwave/traces"), ".trace")? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stated: f64 = name.split('_').next().unwrap_or_default().parse().context("a number of jobs")?;
        ensure_told("shockwave", &path, "")?;
        let jobs = read("shockwave", &path, "")?.jobs.len();
        checks.near(&format!("shockwave/{name}: jobs"), jobs as f64, stated, 0.0);
    }
    Ok(())
}

/// Pollux and Sia: how many jobs a file has, with nominal run times, which are not compared with anything.
fn profiled(data: &Path, checks: &mut Checks) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("moira-nominal-{}.csv", std::process::id()));
    let applications = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3", "gpt_pmp"];
    let rows = applications.map(|application| format!("{application},3600\n")).concat();
    fs::write(&scratch, format!("application,duration_s\n{rows}"))?;
    let mut folders: Vec<(String, &str, f64)> = vec![
        ("pollux/workloads".into(), "pollux", 160.0),
        ("pollux/workloads-0.5".into(), "pollux", 80.0),
        ("pollux/workloads-1.5".into(), "pollux", 240.0),
        ("pollux/workloads-2.0".into(), "pollux", 320.0),
        ("pollux/workloads-realistic".into(), "pollux", 160.0),
        ("sia/workloads/philly".into(), "sia", 160.0),
        ("sia/workloads/saturn".into(), "sia", 160.0),
        ("sia/workloads/newtrace".into(), "sia", 960.0),
    ];
    folders.extend(
        [10, 20, 30, 40, 50].map(|rate| (format!("sia/workloads/scale/rate_{rate}"), "sia", f64::from(rate) * 8.0)),
    );
    folders.extend(
        [2, 4, 8, 16, 32].map(|scale| (format!("sia/workloads/scale/scale_{scale}x"), "sia", f64::from(scale) * 160.0)),
    );
    let mut check = || -> Result<()> {
        for (folder, format, stated) in &folders {
            let paths = files(&data.join(folder), ".csv")?;
            for path in &paths {
                let workload = read(format, path, &format!("durations={}", scratch.display()))?;
                ensure_told("pollux", path, &format!("durations={}", scratch.display()))?;
                let what = format!("{}: jobs", short(data, path));
                checks.near(&what, workload.jobs.len() as f64, *stated, 0.0);
            }
        }
        Ok(())
    };
    let done = check();
    fs::remove_file(&scratch).ok();
    done
}

fn chronus(data: &Path, checks: &mut Checks) -> Result<()> {
    for (name, strict, soft) in [("SLO", 30_940.0, 0.0), ("MIX1", 21_724.0, 0.0), ("MIX2", 9276.0, 18_525.0)] {
        let path = data.join(format!("chronus/trace_job_Philly_{name}.csv"));
        ensure_told("chronus", &path, "")?;
        let all = read("chronus", &path, "zero_gpu=keep")?;
        let due = |workload: &Workload| workload.jobs.iter().filter(|job| job.spec.deadline.is_some()).count() as f64;
        checks.near(&format!("chronus/{name}: jobs"), all.jobs.len() as f64, 30_940.0, 0.0);
        checks.near(&format!("chronus/{name}: jobs with a deadline"), due(&all), strict + soft, 0.0);
        let without_soft = due(&read("chronus", &path, "zero_gpu=keep&soft=drop")?);
        checks.near(&format!("chronus/{name}: jobs with a strict deadline"), without_soft, strict, 0.0);
        let left = all.jobs.len() - read("chronus", &path, "")?.jobs.len();
        checks.near(&format!("chronus/{name}: jobs without GPUs (about)"), left as f64, 200.0, 0.3);
        if name == "SLO" {
            let slack = |job: &perf::TrueJob| {
                Some(job.spec.deadline?.since(job.submitted).as_secs_f64() * 1000.0 / job.truth.iterations as f64)
            };
            let mut slacks: Vec<f64> = all.jobs.iter().filter_map(slack).collect();
            slacks.sort_by(f64::total_cmp);
            for (share, expected) in [(0.1, 1.4), (0.5, 2.0), (0.9, 3.1)] {
                let found = percentile(&slacks, share);
                let what = format!("chronus/{name}: deadline over duration, p{:.0}", share * 100.0);
                checks.near(&what, found, expected, 0.06);
            }
        }
    }
    Ok(())
}

fn tiresias(data: &Path, checks: &mut Checks) -> Result<()> {
    let path = data.join("tiresias/60_job.csv");
    ensure_told("tiresias", &path, "")?;
    let workload = read("tiresias", &path, "")?;
    for (size, stated) in [(1.0, 30.0), (2.0, 10.0), (4.0, 10.0), (8.0, 10.0)] {
        let found = workload.jobs.iter().filter(|job| job.spec.min_gpus().as_f64() == size).count();
        checks.near(&format!("tiresias/60_job.csv: jobs of {size} GPUs"), found as f64, stated, 0.0);
    }
    // The example in the older layout has its only job twice.
    let example = read("tiresias", &data.join("tiresias/tf_job.csv"), "skip_bad_rows=true")?;
    checks.near("tiresias/tf_job.csv: jobs", example.jobs.len() as f64, 1.0, 0.0);
    Ok(())
}

/// Files whose READMEs state no figure.
fn read_only(data: &Path) -> Result<()> {
    for path in files(&data.join("elasticflow/traces"), ".csv")? {
        ensure_told("elasticflow", &path, "")?;
        let jobs = read("elasticflow", &path, "")?.jobs.len();
        say(&format!("read {}: {jobs} jobs (no figure stated)", short(data, &path)));
    }
    Ok(())
}
