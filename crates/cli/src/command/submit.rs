//! `moira submit`: hand a job over and go on.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow};
use api::{
    ArrayRange, BatchRequest, CommandLine, Duration, Format, GpuCount, JobId, JobRequest, NotifyEvent, NotifyRequest,
    Problem, Quantity, Umask, WorkersRequest,
};
use clap::Args;

use super::export::{self, Export};
use super::jobs::failure::verdict;
use super::jobs::wait::ended;
use super::run::exit_code;
use super::service::{self, Shape};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    job: JobOptions,
    /// Wait until it has ended, and end with its exit code
    #[arg(long)]
    wait: bool,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

/// A job on the command line. What is said here counts more than what the file says.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobOptions {
    /// A job in a file (YAML, TOML or JSON by its ending), or - for YAML or JSON from standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// What the job is called; its program's name if nothing is said
    #[arg(long)]
    name: Option<String>,
    /// GPUs of each worker: 1, 8, a share like 0.5, 0 for none, or with a kind like a100:8 [default: 1]
    #[arg(long, value_name = "N|KIND:N", allow_negative_numbers = true)]
    gpus: Option<GpuCount>,
    /// A kind of GPU it can use; may be given several times [default: any]
    #[arg(long = "gpu-kind", value_name = "KIND")]
    gpu_kinds: Vec<String>,
    /// Workers: 2, or a range like 1..8 in which the scheduler chooses [default: 1]
    #[arg(long, value_name = "N|MIN..MAX")]
    workers: Option<WorkersRequest>,
    /// Cores of each worker
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Memory of each worker, like 64Gi
    #[arg(long, value_name = "SIZE")]
    memory: Option<Quantity>,
    /// Examples in one step, and how far that may grow: the job's batch is then tuned while it runs
    #[arg(long, value_name = "INITIAL..MAX", value_parser = batch)]
    batch: Option<BatchRequest>,
    /// End the job after so long on devices, like 90m, 2d or 1-12:00:00
    #[arg(long, value_name = "DURATION")]
    max_runtime: Option<Duration>,
    /// When it should be done, like 2026-11-20T09:00:00Z
    #[arg(long, value_name = "MOMENT")]
    deadline: Option<String>,
    #[arg(long, env = "MOIRA_QUEUE", value_name = "NAME")]
    queue: Option<String>,
    /// From -1000 to 1000; higher goes first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Start only when this job has succeeded; may be given several times
    #[arg(long, value_name = "ID")]
    after: Vec<JobId>,
    /// Run it many times: 0-99, every second 0-99:2, ten at once 0-99%10
    #[arg(long, value_name = "RANGE")]
    array: Option<ArrayRange>,
    /// Start it again after so many failures; preemptions never count [default: 0]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Which of the variables here the job gets: ALL, NONE, or names like PATH,HF_HOME,WANDB_*; never MOIRA_*,
    /// torchrun's and CUDA_VISIBLE_DEVICES [default: PATH, VIRTUAL_ENV, CONDA_*, LD_LIBRARY_PATH, PYTHONPATH, LANG, LC_*,
    /// TZ]
    #[arg(long, value_name = "ALL|NONE|LIST")]
    export: Option<Export>,
    /// A further variable for the job: NAME=VALUE, or NAME for the value it has here
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// It may be stopped to make room and started again later; --interruptible=false never, and then it has to fit into
    /// what its queue is guaranteed [default: yes with a range of workers, a batch range or checkpoints; else only while
    /// its queue borrows]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    interruptible: Option<bool>,
    /// Tell of it: a command for `sh -c` that reads JSON from its standard input, or an address that the service allows; may
    /// be given several times
    #[arg(long, value_name = "COMMAND|URL")]
    notify: Vec<String>,
    /// Of what --notify tells: start, end, failure and preemption, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "notify")]
    notify_on: Vec<NotifyEvent>,
    /// Let it wait until `moira release`
    #[arg(long)]
    hold: bool,
    /// Where it runs [default: here]
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// The same key with the same job submits it once, however often it is sent
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// How often, and after how long, a service is asked again that could not tell whether the job was recorded.
const TRIES: usize = 10;
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// From so many tasks on an array is worth a warning: each makes a directory for each of its runs.
const MANY_TASKS: u64 = 1000;

impl Submit {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let job = self.job.request()?;
        if job.pty.is_some() {
            return Err(Failure::usage("pty: a job with a terminal needs somebody at it: use `moira run`"));
        }
        let submitted = service::ask(async |client| self.job.submit(client, &job).await)?;
        if let Some(notice) = &submitted.notice {
            service::tell(&format!("note: {notice}"));
        }
        let printed = match self.output {
            Shape::Table => render::line(&format!("submitted job {} ({})", submitted.id, submitted.name)),
            // With --wait it is shown once, as it ended.
            Shape::Json if self.wait => Ok(()),
            Shape::Json => service::json(&submitted),
            Shape::Name => render::line(&submitted.id),
        };
        if self.wait { self.await_end(&submitted, printed.err()) } else { printed }
    }

    /// The exit code is that of the job, whether or not anybody reads how it ended.
    fn await_end(&self, submitted: &api::JobView, unprinted: Option<Failure>) -> Result<(), Failure> {
        let id: JobId = submitted.id.parse().map_err(|message: String| Failure::new(anyhow!(message)))?;
        let seen = Some(std::time::Instant::now());
        let job = service::ask(async |client| ended(client, id, None, seen).await.map_err(service::of_service))?;
        let printed = match self.output {
            Shape::Table => render::line(&verdict(&job)),
            Shape::Json => service::json(&job),
            Shape::Name => Ok(()),
        };
        Failure::in_the_end(exit_code(&job), unprinted.or(printed.err()))
    }
}

/// Whether it remains unknown if the job was recorded. Once that is in doubt, a service that cannot record anything at the
/// moment, or is not there, does not say what became of it.
fn is_no_answer(error: &api::Error, in_doubt: bool) -> bool {
    match error {
        api::Error::Refused(problem) => problem.is("unknown-outcome") || in_doubt && problem.is("not-durable"),
        error => in_doubt && service::is_absence(error),
    }
}

impl JobOptions {
    /// Whether standard input is the job itself.
    pub(crate) fn is_read_from_input(&self) -> bool {
        self.file.as_deref() == Some(Path::new("-"))
    }

    /// The job that file and options make together, examined.
    pub(crate) fn request(&self) -> Result<JobRequest, Failure> {
        self.request_from(std::env::vars_os())
    }

    /// The same, by a caller with this environment.
    fn request_from(&self, environment: impl Iterator<Item = (OsString, OsString)>) -> Result<JobRequest, Failure> {
        let mut job = self.written()?;
        let exported = export::exported(self.export.as_ref(), environment).map_err(Failure::usage)?;
        if !exported.left_out.is_empty() {
            service::tell(&format!("not passed on, since it is no plain text: {}", exported.left_out.join(", ")));
        }
        for (name, value) in exported.variables {
            // What the file says was said for this job.
            job.env.entry(name).or_insert(value);
        }
        job.umask.get_or_insert(Umask::new(executors::umask_at_start()));
        self.overwrite(&mut job)?;
        let workdir = job.workdir.as_deref().map_or(Path::new("."), Path::new);
        job.workdir = Some(absolute(workdir)?);
        job.check().map_err(|faults| Failure::usage(Problem::invalid(faults)))?;
        Ok(job)
    }

    pub(crate) async fn submit(&self, client: &api::Client, job: &JobRequest) -> Result<api::JobView, Failure> {
        if let Some(tasks) = job.array.map(ArrayRange::count).filter(|&tasks| tasks >= MANY_TASKS) {
            service::tell(&format!(
                "warning: this array makes {tasks} run directories with logs of their own; `retention` in the configuration \
                 says how many are kept, and a program that does several pieces of work in one task needs fewer"
            ));
        }
        let key = self.idempotency_key.clone().map_or_else(new_key, Ok)?;
        let mut in_doubt = false;
        for _ in 0..TRIES {
            match client.submit(job, Some(&key)).await {
                Err(error) if is_no_answer(&error, in_doubt) => {
                    in_doubt = true;
                    service::tell("it is not known yet whether the job was recorded: asking again");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answer => return answer.map_err(service::of_service),
            }
        }
        Err(Failure::new(anyhow!(
            "it is not known whether the job was recorded: ask again later with --idempotency-key {key}"
        )))
    }

    /// What the file says, or a job of nothing but the command.
    fn written(&self) -> Result<JobRequest, Failure> {
        let Some(path) = &self.file else {
            if self.command.is_empty() {
                return Err(Failure::usage("nothing to run: say a command after --, or a job with --file"));
            }
            return Ok(JobRequest::new(self.command.clone()));
        };
        if self.is_read_from_input() {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read the job from standard input")?;
            return JobRequest::parse(&text, Format::Yaml).map_err(Failure::usage);
        }
        let format = Format::of(path).ok_or_else(|| {
            Failure::usage(format!("{}: expected a file that ends in .yaml, .toml or .json", path.display()))
        })?;
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        JobRequest::parse(&text, format).map_err(|problem| Failure::usage(format!("{}: {problem}", path.display())))
    }

    fn overwrite(&self, job: &mut JobRequest) -> Result<(), Failure> {
        if !self.command.is_empty() {
            job.command = CommandLine::Words(self.command.clone());
        }
        set(&mut job.name, &self.name);
        set(&mut job.resources.gpus, &self.gpus);
        set(&mut job.resources.cpus, &self.cpus);
        set(&mut job.resources.memory, &self.memory);
        set(&mut job.batch, &self.batch);
        set(&mut job.limits.max_runtime, &self.max_runtime);
        set(&mut job.limits.deadline, &self.deadline);
        set(&mut job.queue, &self.queue);
        set(&mut job.array, &self.array);
        set(&mut job.interruptible, &self.interruptible);
        if !self.gpu_kinds.is_empty() {
            job.resources.gpu_kinds.clone_from(&self.gpu_kinds);
        }
        job.workers = self.workers.unwrap_or(job.workers);
        job.priority = self.priority.unwrap_or(job.priority);
        job.retry.max_failures = self.retries.unwrap_or(job.retry.max_failures);
        job.hold |= self.hold;
        job.depends_on.extend(&self.after);
        job.notify.extend(self.notify.iter().map(|to| told(to, &self.notify_on)));
        if let Some(workdir) = &self.workdir {
            job.workdir = Some(unicode(workdir)?);
        }
        for entry in &self.env {
            let (name, value) = variable(entry)?;
            job.env.insert(name, value);
        }
        Ok(())
    }
}

/// Of its own for each submission, so that asking again never submits it twice.
pub(crate) fn new_key() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    let drawn = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    drawn.context("cannot draw an idempotency key")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn set<T: Clone>(field: &mut Option<T>, said: &Option<T>) {
    if said.is_some() {
        field.clone_from(said);
    }
}

/// `NAME=VALUE`, or `NAME` for the value it has in our own environment.
fn variable(entry: &str) -> Result<(String, String), Failure> {
    if let Some((name, value)) = entry.split_once('=') {
        return Ok((name.into(), value.into()));
    }
    let value = std::env::var(entry).map_err(|_| Failure::usage(format!("--env {entry}: it has no value here")))?;
    Ok((entry.into(), value))
}

/// What begins like an address is one; all else is a command.
fn told(to: &str, events: &[NotifyEvent]) -> NotifyRequest {
    let is_url = to.starts_with("https://") || to.starts_with("http://");
    NotifyRequest {
        command: (!is_url).then(|| CommandLine::Shell(to.into())),
        url: is_url.then(|| to.into()),
        events: events.to_vec(),
    }
}

/// `128..4096`; one number is both.
fn batch(text: &str) -> Result<BatchRequest, String> {
    let (initial, max) = text.split_once("..").unwrap_or((text, text));
    match (initial.trim().parse(), max.trim().parse()) {
        (Ok(initial), Ok(max)) => Ok(BatchRequest { initial, max, per_gpu: None }),
        _ => Err("expected a batch size and how far it may grow, like 128..4096".into()),
    }
}

fn absolute(path: &Path) -> Result<String, Failure> {
    let context = || format!("cannot find the folder {}", path.display());
    let mut whole = std::path::absolute(path).with_context(context)?;
    // What `..` means depends on links; only the file system knows.
    if whole.components().any(|part| part == Component::ParentDir) {
        whole = whole.canonicalize().with_context(context)?;
    }
    unicode(&whole)
}

fn unicode(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().ok_or_else(|| anyhow!("the folder {} has no name in Unicode", path.display()))?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        job: JobOptions,
    }

    fn options(line: &str) -> JobOptions {
        Line::try_parse_from(std::iter::once("submit").chain(line.split(' '))).unwrap().job
    }

    #[test]
    fn a_command_line_is_a_whole_job() {
        let job = options(
            "--name a --gpus a100:2 --workers 1..4 --batch 128..4096 --max-runtime 1h --priority -5 --after 7 \
             --after 8_1 --array 0-9%2 --retries 3 --env A=b=c --hold --workdir /tmp -- python train.py --lr 0.1",
        );
        let job = job.request().unwrap();
        assert_eq!(job.command.argv(), ["python", "train.py", "--lr", "0.1"]);
        assert_eq!(job.workers, WorkersRequest { min: 1, max: 4, preferred: None });
        assert_eq!(job.batch, Some(BatchRequest { initial: 128, max: 4096, per_gpu: None }));
        assert_eq!((job.priority, job.retry.max_failures, job.hold), (-5, 3, true));
        assert_eq!(job.interruptible, None);
        assert_eq!(job.depends_on, [JobId::job(7), JobId::task(8, 1)]);
        assert_eq!(job.env["A"], "b=c");
        assert_eq!(job.workdir.as_deref(), Some("/tmp"));
    }

    #[test]
    fn whom_to_tell_is_a_command_or_an_address_and_adds_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "command: a\nnotify:\n- command: [mail, ann]\n  events: [start]\n").unwrap();
        let line =
            format!("--file {} --notify ./tell --notify https://a.org/x --notify-on end,failure", file.display());
        let job = options(&line).request().unwrap();
        let shown: Vec<String> = job.notify.iter().map(|it| serde_json::to_string(it).unwrap()).collect();
        let expected = [
            r#"{"command":["mail","ann"],"events":["start"]}"#,
            r#"{"command":"./tell","events":["end","failure"]}"#,
            r#"{"url":"https://a.org/x","events":["end","failure"]}"#,
        ];
        assert_eq!(shown, expected);
        let refused = |line: &str| Line::try_parse_from(std::iter::once("submit").chain(line.split(' '))).unwrap_err();
        assert!(refused("--notify a --notify-on done b").to_string().contains("expected start, end, failure"));
        assert!(refused("--notify-on end b").to_string().contains("--notify"));
    }

    #[test]
    fn options_of_the_job_need_no_dashes_before_them() {
        assert_eq!(options("--gpus 2 python train.py --name b").command, ["python", "train.py", "--name", "b"]);
    }

    #[test]
    fn options_count_more_than_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "command: a\nname: x\npriority: 3\nworkers: 2\nenv: {A: '1'}\n").unwrap();
        let job = options(&format!("--file {} --name y --env B=2", file.display())).request().unwrap();
        assert_eq!((job.name.as_deref(), job.priority), (Some("y"), 3));
        assert_eq!(job.workers, WorkersRequest::exactly(2));
        assert_eq!((job.env["A"].as_str(), job.env["B"].as_str()), ("1", "2"));
    }

    #[test]
    fn a_job_runs_where_it_was_submitted_with_the_callers_umask() {
        let job = options("true").request().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(job.workdir.as_deref(), here.to_str());
        assert_eq!(job.umask, Some(Umask::new(executors::umask_at_start())));
    }

    #[test]
    fn what_is_said_for_the_job_counts_more_than_the_callers_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "command: a\numask: '0077'\nenv: {PATH: /file, TZ: file}\n").unwrap();
        let line = format!("--file {} --env TZ=option", file.display());
        let here = [("PATH", "/here"), ("TZ", "here"), ("LANG", "C")].map(|(name, value)| (name.into(), value.into()));
        let job = options(&line).request_from(here.into_iter()).unwrap();
        let found: Vec<String> = job.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(found, ["LANG=C", "PATH=/file", "TZ=option"]);
        assert_eq!(job.umask, Some(Umask::new(0o077)));
    }

    #[test]
    fn nonsense_is_refused_before_anybody_is_asked() {
        let refused = |line: &str| format!("{:?}", options(line).request().unwrap_err());
        assert!(refused("--gpus -1 true").contains("a worker cannot have fewer than 0 GPUs"));
        assert!(refused("--name a").contains("nothing to run"));
        assert!(refused("--env MOIRA_UNSET_HERE true").contains("it has no value here"));
        assert!(refused("--file job.txt").contains("expected a file that ends in .yaml"));
    }
}
