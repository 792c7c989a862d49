//! The service itself, and the supervisor it starts for every run.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::{Accepted, Config, Service, Settings, http};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::log::{self, Log};
use crate::render;
use crate::unit::Unit;
use crate::visible::{PlainJson, plain_fields};

/// Where the service keeps everything, and where clients find it.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDir {
    /// Where journal, socket, logs and checkpoints are; also how clients find the service
    #[arg(long, env = "MOIRA_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    data_dir: DataDir,
    /// A TOML file; `moira.toml` in the data directory if there is one. See `moira config show`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen on this loopback address too, like 127.0.0.1:7070
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// Which policy decides, like sia or fifo:backfill=easy
    #[arg(long)]
    policy: Option<String>,
    /// Go on although a part of the journal is lost, after reading what that was
    #[arg(long)]
    accept_loss: bool,
    /// Go on in a copy of another data directory, under an identity of its own
    #[arg(long)]
    accept_copy: bool,
    /// Let the queues of the configuration take the place of those in force, which else stay as `moira queue apply` or the
    /// first start left them
    #[arg(long)]
    queues_from_file: bool,
    /// Print a unit for systemd that starts the service with these options, and start nothing
    #[arg(long, conflicts_with_all = ["accept_loss", "accept_copy", "queues_from_file"])]
    print_unit: bool,
    /// How the log is written; JSON unless it goes to a terminal. What is in it: RUST_LOG
    #[arg(long, value_enum)]
    log: Option<LogFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Arguments of the hidden supervisor.
#[derive(Debug, Args)]
pub(crate) struct Supervise {
    #[arg(required_unless_present_any = ["notify", "notify_as_user"])]
    directory: Option<PathBuf>,
    /// Become this worker of the run instead
    #[arg(long)]
    worker: Option<u32>,
    /// Watch over the delivery of one notification instead
    #[arg(long, exclusive = true)]
    notify: bool,
    /// Deliver it, for the process of this number that watches over it
    #[arg(long, value_name = "PID", exclusive = true)]
    notify_as_user: Option<i32>,
    /// Become this shell beside that worker instead
    #[arg(long, requires = "worker")]
    shell: Option<String>,
    /// How many files the run may have open, unless it raises that itself
    #[arg(long)]
    open_files: Option<u64>,
}

impl DataDir {
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.data_dir.clone().or_else(api::default_data_dir);
        let path = path.ok_or_else(|| Failure::usage("there is no home directory: say where with --data-dir"))?;
        // Jobs get it in their environment, wherever they run.
        std::path::absolute(&path).with_context(|| path.display().to_string()).map_err(Failure::from)
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.print_unit {
            return self.print_unit();
        }
        executors::keep_files_private();
        self.start_log();
        let settings = self.settings()?;
        let open_files = http::raise_file_limit();
        let service = Service::open(settings, supervisor(Some(open_files))?).map_err(Failure::new)?;
        let runtime = tokio::runtime::Runtime::new().context("cannot start the threads of the service")?;
        let service = Arc::new(service);
        let served = runtime.block_on(until_told(service.clone()));
        // Streams that nobody reads any more end here.
        runtime.shutdown_timeout(std::time::Duration::from_secs(2));
        let left = service.leave().map_err(Failure::new);
        served.and(left)
    }

    fn print_unit(&self) -> Result<(), Failure> {
        let data_dir = self.data_dir.path()?;
        // What is wrong is better said now than by a unit that fails.
        let checkpoint_dir = self.settings()?.config.checkpoint_dir;
        let mut options = Vec::new();
        if let Some(file) = &self.config {
            let file = std::path::absolute(file).with_context(|| file.display().to_string())?;
            options.extend(["--config".to_string(), file.display().to_string()]);
        }
        options.extend(self.listen.iter().flat_map(|address| ["--listen".to_string(), address.to_string()]));
        options.extend(self.policy.iter().flat_map(|policy| ["--policy".to_string(), policy.clone()]));
        let format = self.log.and_then(|format| format.to_possible_value());
        options.extend(format.iter().flat_map(|format| ["--log".to_string(), format.get_name().to_string()]));
        let unit = Unit {
            binary: &std::env::current_exe().context("cannot find this program's own file")?,
            data_dir: &data_dir,
            checkpoint_dir: checkpoint_dir.as_deref(),
            options,
            system: rustix::process::geteuid().is_root(),
        };
        render::line(unit.text().trim_end())
    }

    fn settings(&self) -> Result<Settings, Failure> {
        let data_dir = self.data_dir.path()?;
        let (mut config, file) = configuration(&data_dir, self.config.as_deref())?;
        config.listen.extend(&self.listen);
        config.policy = self.policy.clone().or(config.policy);
        let named = file.unwrap_or_else(|| "the command line".into());
        if self.queues_from_file && config.queues.is_none() {
            let message = format!("--queues-from-file: {} names no queues: `queues = []` closes all", named.display());
            return Err(Failure::usage(message));
        }
        let settings = Settings::new(data_dir, config, &named).map_err(Failure::new)?;
        let accepted = Accepted { loss: self.accept_loss, copy: self.accept_copy };
        Ok(Settings { accepted, queues_from_file: self.queues_from_file, ..settings })
    }

    fn start_log(&self) {
        let said = std::env::var_os("RUST_LOG");
        let filter = said.as_deref().map_or_else(|| Some(log::usual()), |said| log::filter(said.to_str()?));
        let understood = filter.is_some();
        let terminal = std::io::stderr().is_terminal();
        let format = self.log.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
        let log = tracing_subscriber::registry().with(filter.unwrap_or_else(log::usual));
        let lines = tracing_subscriber::fmt::layer();
        match format {
            LogFormat::Text => {
                let lines = lines.fmt_fields(plain_fields()).with_writer(|| Log { json: false });
                log.with(lines.with_ansi(terminal)).init();
            }
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_writer(|| PlainJson(Log { json: true }));
                log.with(lines).init();
            }
        }
        if !understood {
            tracing::warn!(said = ?said.unwrap_or_default(), "RUST_LOG is a level, or a list like info,server=debug");
        }
    }
}

/// The configuration in the file that was named, or else in that of the data directory, and where that is.
pub(crate) fn configuration(data_dir: &Path, named: Option<&Path>) -> Result<(Config, Option<PathBuf>), Failure> {
    let beside = data_dir.join("moira.toml");
    let file = named.map(Path::to_path_buf).or_else(|| beside.exists().then_some(beside));
    let config = file.as_deref().map_or_else(|| Ok(Config::default()), Config::read);
    Ok((config.map_err(Failure::new)?, file))
}

/// The command that watches over a run: this binary itself. Where the service has raised the number of its open files,
/// `open_files` is what runs are to have instead.
pub(crate) fn supervisor(open_files: Option<u64>) -> Result<Vec<OsString>, Failure> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let limit = open_files.map(|count| format!("--open-files={count}").into());
    Ok([binary.into(), "supervise".into()].into_iter().chain(limit).collect())
}

/// Serves until the process is told to end.
pub(crate) async fn until_told(service: Arc<Service>) -> Result<(), Failure> {
    let (leave, leaving) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let serving = http::serve(service.clone(), leaving);
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.map_err(Failure::new),
        () = until_dead(&service) => tracing::error!("the service cannot go on"),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("leaving; jobs go on running");
    leave.send(true).ok();
    serving.await.map_err(Failure::new)
}

/// Until the thread that decides is gone, which it is only if it cannot go on.
async fn until_dead(service: &Service) {
    while service.is_alive() {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

impl Supervise {
    /// The words as the service and a supervisor write them; none if they are others, which the usual way says clearly.
    pub(crate) fn of_words(words: impl Iterator<Item = OsString>) -> Option<Supervise> {
        let mut words = words.peekable();
        words.next_if(|word| word == "supervise")?;
        let number = |text: &OsString| text.to_str()?.strip_prefix("--open-files=")?.parse().ok();
        let open_files = words.peek().and_then(number);
        if open_files.is_some() {
            words.next();
        }
        let directory = PathBuf::from(words.next()?);
        if directory == Path::new("--notify") && words.next().is_none() {
            return Some(Supervise {
                directory: None,
                worker: None,
                shell: None,
                notify: true,
                notify_as_user: None,
                open_files,
            });
        }
        if directory == Path::new("--notify-as-user") {
            let watcher = Some(words.next()?.to_str()?.parse().ok()?);
            let is_whole = words.next().is_none();
            let told = Supervise {
                directory: None,
                worker: None,
                shell: None,
                notify: false,
                notify_as_user: watcher,
                open_files,
            };
            return is_whole.then_some(told);
        }
        let worker = match words.next() {
            None => None,
            Some(word) if word == "--worker" => Some(words.next()?.to_str()?.parse().ok()?),
            Some(_) => return None,
        };
        let shell = match words.next_if(|word| word == "--shell") {
            Some(_) if worker.is_some() => Some(words.next()?.into_string().ok()?),
            Some(_) => return None,
            None => None,
        };
        let is_whole = words.next().is_none() && directory.is_absolute();
        let directory = Some(directory);
        is_whole.then_some(Supervise { directory, worker, shell, notify: false, notify_as_user: None, open_files })
    }

    pub(crate) fn run(self) -> ExitCode {
        if let Some(count) = self.open_files {
            limit_open_files(count);
        }
        match (self.notify, self.notify_as_user) {
            (true, _) => return executors::watch_over_notification(),
            (false, Some(watcher)) => return executors::notify_as_user(watcher, post),
            (false, None) => {}
        }
        let Some(directory) = self.directory else { return ExitCode::FAILURE };
        if let Some(rank) = self.worker {
            return executors::become_worker(&directory, rank, self.shell.as_deref());
        }
        tracing_subscriber::fmt()
            .fmt_fields(plain_fields())
            .with_writer(|| Log { json: false })
            .with_ansi(false)
            .init();
        match executors::supervise(&directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(%error, "the supervisor leaves");
                ExitCode::FAILURE
            }
        }
    }
}

/// Sends a message about a job.
fn post(url: &str, message: &str) -> Result<(), executors::Unsent> {
    api::post(url, message).map_err(|api::Unsent { why, again }| executors::Unsent { why, again })
}

/// Takes back what the service has raised for itself: some programs do not expect more than is usual.
fn limit_open_files(count: u64) {
    let limit = Rlimit { current: Some(count), ..getrlimit(Resource::Nofile) };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, count, "the number of open files could not be limited");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_supervisor_and_a_worker_are_read_without_the_rest_of_the_command_line() {
        let read = |line: &str| {
            let read = Supervise::of_words(line.split(' ').map(OsString::from))?;
            Some((read.directory?.display().to_string(), read.worker, read.open_files))
        };
        assert_eq!(read("supervise /d/runs/7.1"), Some(("/d/runs/7.1".into(), None, None)));
        assert_eq!(
            read("supervise --open-files=1024 /d/runs/7.1 --worker 3"),
            Some(("/d/runs/7.1".into(), Some(3), Some(1024)))
        );
        let notifies = |line: &str| {
            let read = Supervise::of_words(line.split(' ').map(OsString::from))?;
            Some((read.notify, read.notify_as_user, read.open_files))
        };
        assert_eq!(notifies("supervise --open-files=1024 --notify"), Some((true, None, Some(1024))));
        assert_eq!(notifies("supervise --notify-as-user 77"), Some((false, Some(77), None)));
        for other in [
            "supervise --notify more",
            "supervise --notify-as-user",
            "supervise --notify-as-user x",
            "submit /d",
            "supervise",
            "supervise --help",
            "supervise runs/7.1",
            "supervise /d --worker x",
            "supervise /d more",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
