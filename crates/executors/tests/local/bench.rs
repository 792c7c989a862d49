//! A service of its own for each test, and what tests ask of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::{Bytes, ClaimId, NodeId, Run, Span};
use executors::{
    AcceleratorDraft, Checkpoints, CpuLimit, Ending, Executor, Exit, LaunchOrder, Limits, Local, Machine, News,
    Program, WorkerPlace,
};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const RUN: Run = Run { claim: ClaimId(7), attempt: 0 };
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const TERMINATED: Exit = Exit { code: None, signal: Some(15) };
pub(crate) const KILLED: Exit = Exit { code: None, signal: Some(9) };

/// A service of its own, with its own data directory.
pub(crate) struct Bench {
    pub(crate) local: Option<Local>,
    pub(crate) news: Receiver<News>,
    pub(crate) limit: CpuLimit,
    /// Last, since it must outlive the service.
    pub(crate) data: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::with(CpuLimit::None)
    }

    pub(crate) fn with(limit: CpuLimit) -> Bench {
        Bench::at(tempfile::tempdir().unwrap(), limit)
    }

    pub(crate) fn at(data: tempfile::TempDir, limit: CpuLimit) -> Bench {
        // Other users must be able to pass through to what is theirs.
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let (local, news) = open(data.path(), limit, supervisor());
        Bench { data, limit, local: Some(local), news }
    }

    pub(crate) fn restart(&mut self) {
        self.reopen_with(supervisor());
    }

    pub(crate) fn reopen_with(&mut self, supervisor: Vec<OsString>) {
        self.crash();
        let (local, news) = open(self.data.path(), self.limit, supervisor);
        (self.local, self.news) = (Some(local), news);
    }

    /// The service is gone; its runs are not.
    pub(crate) fn crash(&mut self) {
        self.local = None;
    }

    pub(crate) fn local(&mut self) -> &mut Local {
        self.local.as_mut().expect("the service runs")
    }

    pub(crate) fn run(&mut self, order: &LaunchOrder) -> Ending {
        self.local().launch(order).unwrap();
        self.ending()
    }

    pub(crate) fn start(&mut self, order: &LaunchOrder) {
        self.local().launch(order).unwrap();
        self.wait_for("the start", |news| matches!(news, News::Started { .. }).then_some(()));
    }

    pub(crate) fn ending(&mut self) -> Ending {
        self.wait_for("the end", |news| match news {
            News::Ended { run: RUN, ending } => Some(ending),
            _ => None,
        })
    }

    pub(crate) fn wait_for<T>(&mut self, what: &str, mut wanted: impl FnMut(News) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            let patience = until.saturating_duration_since(Instant::now());
            let news = self.news.recv_timeout(patience).unwrap_or_else(|_| panic!("{what} did not come"));
            if let Some(found) = wanted(news) {
                return found;
            }
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.data.path().join("runs/7.0").join(name)
    }

    pub(crate) fn log(&self, worker: u32) -> String {
        let places = Local::log_paths(self.data.path(), RUN, worker);
        places.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// Waits until the job has written this file, and returns what is in it.
    pub(crate) fn appears(&self, path: &Path) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text,
                _ if Instant::now() > until => panic!("{} does not appear", path.display()),
                _ => sleep(Duration::from_millis(10)),
            }
        }
    }

    /// The processes of the run, known by its token; zombies have no environment any more.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let order = fs::read_to_string(self.file("run.json")).unwrap();
        let order: serde_json::Value = serde_json::from_str(&order).unwrap();
        let mark = format!("MOIRA_RUN_TOKEN={}", order["token"].as_str().unwrap());
        let carries = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|line| line == mark.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(carries).collect()
    }

    pub(crate) fn supervisor(&self) -> Pid {
        let note = fs::read_to_string(self.file("supervisor.json")).unwrap();
        let note: serde_json::Value = serde_json::from_str(&note).unwrap();
        Pid::from_raw(note["identity"]["pid"].as_i64().unwrap() as i32).unwrap()
    }
}

impl Drop for Bench {
    /// A run outlives its service, and must not outlive its test.
    fn drop(&mut self) {
        let folder = self.data.path().as_os_str().as_encoded_bytes();
        let is_below = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.windows(folder.len()).any(|part| part == folder)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut left: Vec<i32> = pids.filter(is_below).collect();
        if self.file("run.json").exists() {
            left.extend(self.processes());
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

pub(crate) fn supervisor() -> Vec<OsString> {
    vec![env!("CARGO_BIN_EXE_supervise-for-tests").into()]
}

pub(crate) fn open(data: &Path, limit: CpuLimit, supervisor: Vec<OsString>) -> (Local, Receiver<News>) {
    let (sender, news) = channel();
    let machine = Machine::of(&[
        AcceleratorDraft { duty: 0.3, ..AcceleratorDraft::of("slow", 2) },
        AcceleratorDraft { cores: 2.0, ..AcceleratorDraft::of("fast", 2) },
    ]);
    let checkpoints = Checkpoints::in_data_dir(data);
    checkpoints.take("", &[]).unwrap();
    (Local::open_with(data, checkpoints, machine.unwrap(), supervisor, sender, limit).unwrap(), news)
}

pub(crate) fn program(script: &str) -> Program {
    Program {
        command: vec!["sh".into(), "-c".into(), script.into()],
        workdir: "/tmp".into(),
        env: BTreeMap::new(),
        umask: None,
        account: None,
        limits: Limits::default(),
        notice: Span::ZERO,
        job_name: "a job".into(),
        queue: "default".into(),
        input: None,
        terminal: None,
    }
}

pub(crate) fn gang(script: &str, workers: u32) -> LaunchOrder {
    order(program(script), workers)
}

pub(crate) fn order(program: Program, workers: u32) -> LaunchOrder {
    LaunchOrder {
        run: RUN,
        program: Arc::new(program),
        workers: (0..workers).map(|_| place(1, 0, &[])).collect(),
        env: BTreeMap::new(),
        start_within: Span::from_secs(10),
        restarts: 0,
        tuning: None,
        origin: None,
        limit: None,
        continues: None,
    }
}

pub(crate) fn place(node: u32, role: u16, devices: &[u8]) -> WorkerPlace {
    let devices = devices.to_vec();
    WorkerPlace { node: NodeId(node), role, devices, share_thousandths: 1000, millicores: 0, memory: Bytes::ZERO }
}

pub(crate) fn code(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

/// Whether the process runs; a zombie does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
