//! A service of its own for each test: started, killed, started again, and nothing left of it afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::{self, Answer};
use crate::processes;

/// Four devices, which cost nothing; whoever is told to stop has two seconds.
pub(crate) const FOUR_DEVICES: &str = "policy = \"fifo\"\ngrace = \"2s\"\nrest_after_failure = \"100ms\"\n\
                                       [[accelerators]]\nkind = \"t4\"\ncount = 4\n";

/// How long anything may take that should not take long, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Service {
    folder: Option<TempDir>,
    data_dir: PathBuf,
    child: Option<Child>,
    /// For the environment of the service.
    variables: Vec<(String, String)>,
    /// What a shell does before it becomes the service.
    prelude: Option<String>,
    /// For `moira serve`.
    arguments: Vec<String>,
    program: PathBuf,
    /// Where its log goes, if not to a file of the test.
    log: Option<PathBuf>,
}

impl Service {
    /// A running service with this configuration.
    pub(crate) fn start(config: &str) -> Service {
        let mut service = Service::prepare(config);
        service.rise();
        service
    }

    /// A data directory with this configuration, and no service yet.
    pub(crate) fn prepare(config: &str) -> Service {
        let folder = tempfile::Builder::new().prefix("moira-").tempdir().unwrap();
        let mut service = Service::at(folder.path().to_path_buf(), config);
        service.folder = Some(folder);
        service
    }

    /// The same in a directory that belongs to the test.
    pub(crate) fn at(data_dir: PathBuf, config: &str) -> Service {
        fs::write(data_dir.join("moira.toml"), config).unwrap();
        Service {
            folder: None,
            data_dir,
            child: None,
            variables: Vec::new(),
            prelude: None,
            arguments: Vec::new(),
            program: binary().into(),
            log: None,
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    /// Lets a shell do something before it becomes the service, which inherits what comes of it.
    pub(crate) fn start_after(&mut self, words: &str) {
        self.prelude = Some(words.into());
    }

    /// The binary that is started from now on.
    pub(crate) fn use_program(&mut self, program: &Path) {
        self.program = program.to_path_buf();
    }

    /// An argument with which it is started from now on.
    pub(crate) fn with(&mut self, argument: &str) {
        self.arguments.push(argument.into());
    }

    pub(crate) fn log_to(&mut self, path: &Path) {
        self.log = Some(path.into());
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.data_dir.join("moira.sock")
    }

    /// What it wrote into its log so far, over all its lives.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        let name = self.data_dir.file_name().unwrap().to_string_lossy();
        std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().expect("it was started").id() as i32
    }

    /// Starts it and does not wait for anything.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let place = self.log.clone().unwrap_or_else(|| self.log_path());
        let log = OpenOptions::new().create(true).append(true).open(place).unwrap();
        self.child = Some(self.command(log).spawn().expect("the binary runs"));
    }

    fn command(&self, log: File) -> Command {
        let mut command = match &self.prelude {
            None => Command::new(&self.program),
            Some(words) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("{words}; exec \"$0\" \"$@\"")]).arg(&self.program);
                shell
            }
        };
        command.arg("serve").arg("--data-dir").arg(&self.data_dir).args(["--log", "json"]);
        command.args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Starts it and waits until it answers.
    pub(crate) fn rise(&mut self) {
        self.spawn();
        self.until_ready();
    }

    pub(crate) fn until_ready(&mut self) {
        let begun = Instant::now();
        while !self.is_ready() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            if ended.is_some() || begun.elapsed() > PATIENCE {
                panic!("the service does not come up ({ended:?}):\n{}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it answers, or until it has ended by itself.
    pub(crate) fn ready_or_ended(&mut self) -> Option<ExitStatus> {
        let begun = Instant::now();
        while !self.is_ready() {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                self.child = None;
                return Some(status);
            }
            assert!(begun.elapsed() < PATIENCE, "the service neither comes up nor ends:\n{}", self.last_words());
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub(crate) fn is_started(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn is_ready(&self) -> bool {
        http::get(&self.socket(), "/readyz").is_ok_and(|answer| answer.status == 200)
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// As a power cut would, for this one process.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().unwrap();
        }
    }

    /// Waits for it to end by itself.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was started");
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if begun.elapsed() > PATIENCE {
                child.kill().ok();
                panic!("the service goes on:\n{}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A command of the binary about this service.
    pub(crate) fn moira(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(arguments).env("MOIRA_DATA_DIR", &self.data_dir).env_remove("MOIRA_SERVER");
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    /// The JSON that a command prints, which must succeed.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.moira(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// The exit code of a command and what it says on standard error.
    #[track_caller]
    pub(crate) fn failure(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.moira(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
        (output.status.code().expect("it exits"), text)
    }

    /// Submits what the words after `moira submit` say and returns the job's number.
    #[track_caller]
    pub(crate) fn submit(&self, arguments: &[&str]) -> String {
        let submitted = self.json(&[&["submit", "-o", "json"], arguments].concat());
        submitted["id"].as_str().expect("an id is a string").to_string()
    }

    #[track_caller]
    pub(crate) fn show(&self, id: &str) -> Value {
        let answer = self.get(&format!("/v1/jobs/{id}"));
        assert_eq!(answer.status, 200, "job {id}: {}", answer.body);
        answer.body
    }

    #[track_caller]
    /// Who did what, as the journal has it.
    pub(crate) fn audit(&self) -> String {
        let output = self.moira(&["audit", "-o", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        http::get(&self.socket(), path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.last_words()))
    }

    /// Waits until the job is in the state.
    #[track_caller]
    pub(crate) fn until(&self, id: &str, state: &str) -> Value {
        self.until_it(id, state, |job| job["state"] == state)
    }

    /// Waits until something is the case with the job.
    #[track_caller]
    pub(crate) fn until_it(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let job = self.show(id);
            if holds(&job) {
                return job;
            }
            assert!(begun.elapsed() < PATIENCE, "job {id} is not {what}: {job}\n{}", self.last_words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Service {
    /// Nothing of it stays: neither the service nor its jobs; its log and its data if the test failed.
    fn drop(&mut self) {
        self.kill();
        for _ in 0..100 {
            let left = processes::of(&self.data_dir);
            if left.is_empty() {
                break;
            }
            left.iter().for_each(|process| processes::kill(process.pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(20));
        }
        if !std::thread::panicking() {
            fs::remove_file(self.log_path()).ok();
        } else if let Some(folder) = self.folder.take() {
            say(&format!("see {} and {}", self.log_path().display(), folder.keep().display()));
        }
    }
}

/// Waits until something is the case.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The same for what only begins to be the case after a span of its own: a machine that is busy has its patience on top.
#[track_caller]
pub(crate) fn eventually_after(span: Duration, what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() && begun.elapsed() < span {
        std::thread::sleep(Duration::from_millis(20));
    }
    eventually(what, holds);
}

/// A word on standard error, whether the test succeeds or not.
pub(crate) fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_moira"))
}
