//! The mix under the real service, in a folder of its own, with nothing left of it but its history.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use engine::Record;
use serde_json::json;

use super::mix::Training;
use crate::say;

/// How long a training that was told to change its workers has for it, live and simulated.
pub(super) const RESIZE_WITHIN_SECS: u64 = 60;
/// What users would say that a restart costs, before anyone has measured it.
const RESTART_COST: &str = "8s";
/// Longer than any mix may take once all of it has arrived.
const PATIENCE: &str = "30m";

#[derive(Debug)]
pub(super) struct Live<'a> {
    pub(super) root: &'a Path,
    pub(super) python: &'a Path,
    pub(super) policy: &'a str,
    /// The binary of the service.
    pub(super) program: PathBuf,
}

impl Live<'_> {
    /// Runs the mix to its end and writes its history.
    pub(super) fn run(&self, mix: &[Training], history: &Path) -> Result<()> {
        let folder = tempfile::Builder::new().prefix("moira-fidelity-").tempdir().context("cannot make a folder")?;
        let service = Service::start(self, folder.path())?;
        let began = Instant::now();
        for training in mix {
            sleep(training.arrives.saturating_sub(began.elapsed()));
            service.submit(&self.request(training, folder.path()))?;
        }
        service.wait_for(mix)?;
        drop(service);
        let export = ["journal", "export", "--data-dir"];
        ensure_success(Command::new(&self.program).args(export).arg(folder.path()).arg(history))?;
        say(&format!("{} trainings took {:.0} s", mix.len(), began.elapsed().as_secs_f64()));
        Ok(())
    }

    fn configuration(&self) -> String {
        format!(
            "policy = \"{}\"\nresize_within = \"{RESIZE_WITHIN_SECS}s\"\n\n\
             [[accelerators]]\nkind = \"core\"\ncount = 2\n",
            self.policy
        )
    }

    fn request(&self, training: &Training, folder: &Path) -> serde_json::Value {
        let script = self.root.join(training.program.file());
        let [min, max] = training.workers;
        let mut request = json!({
            "name": training.name,
            "command": [self.python, script, "--epochs", training.epochs.to_string()],
            "workdir": folder,
            "env": {"PYTHONPATH": self.root.join("python/src")},
            "workers": {"min": min, "max": max},
            "checkpoint": {"restart_cost": RESTART_COST},
        });
        if let Some(batch) = training.batch {
            request["batch"] = json!({"initial": batch.designed, "max": batch.max, "per_gpu": batch.per_worker});
        }
        request
    }
}

/// The facts of a history that was written out.
pub(super) fn records(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut records = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        let fact = || format!("{}, line {}: expected a fact of a journal", path.display(), index + 1);
        records.push(serde_json::from_str(&line).with_context(fact)?);
    }
    Ok(records)
}

/// A service that runs; with it goes all that it runs.
struct Service<'a> {
    program: &'a Path,
    folder: PathBuf,
    process: Child,
}

impl<'a> Service<'a> {
    fn start(live: &'a Live<'_>, folder: &Path) -> Result<Service<'a>> {
        fs::write(folder.join("moira.toml"), live.configuration())?;
        let log = File::create(folder.join("log"))?;
        let mut command = Command::new(&live.program);
        command.arg("serve").arg("--data-dir").arg(folder).stdin(Stdio::null());
        let process = command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot start the service")?;
        let mut service = Service { program: &live.program, folder: folder.into(), process };
        for _ in 0..500 {
            if service.command("ls").output().is_ok_and(|output| output.status.success()) {
                return Ok(service);
            }
            if service.process.try_wait()?.is_some() {
                break;
            }
            sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(service.folder.join("log")).unwrap_or_default();
        bail!("the service does not answer:\n{log}")
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(self.program);
        command.arg(verb).env("MOIRA_DATA_DIR", &self.folder);
        command
    }

    fn submit(&self, request: &serde_json::Value) -> Result<()> {
        let path = self.folder.join("job.json");
        fs::write(&path, request.to_string())?;
        ensure_success(self.command("submit").arg("--file").arg(&path))
    }

    /// What a training wrote and what became of it, for the message of a failure.
    fn log(&self, id: &str) -> String {
        let said = |verb: &str| {
            let output = self.command(verb).arg(id).output();
            output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default()
        };
        format!("== job {id}\n{}{}", said("logs"), said("explain"))
    }

    /// A service that has just begun numbers its jobs from zero.
    fn wait_for(&self, mix: &[Training]) -> Result<()> {
        let ids = (0..mix.len()).map(|id| id.to_string());
        let ended = self.command("wait").args(["--timeout", PATIENCE]).args(ids).output()?;
        if !ended.status.success() {
            let told = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
            // Each line is `job ID (NAME) STATE`.
            let failed = told.lines().filter(|line| line.starts_with("job ") && !line.ends_with(" succeeded"));
            let logs: Vec<String> = failed.filter_map(|line| line.split(' ').nth(1)).map(|id| self.log(id)).collect();
            bail!("some trainings did not succeed:\n{told}\n{}", logs.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // Without jobs there is nothing to cancel; a service that is gone cannot be asked. Either way it ends.
        let cancelled = self.command("ls").args(["--output", "name"]).output();
        let live = cancelled.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let ids: Vec<&str> = live.split_whitespace().collect();
        if !ids.is_empty() {
            self.command("cancel").args(&ids).output().ok();
            self.command("wait").args(["--timeout", "60s"]).args(&ids).output().ok();
        }
        Command::new("kill").arg(self.process.id().to_string()).status().ok();
        self.process.wait().ok();
    }
}

fn ensure_success(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
