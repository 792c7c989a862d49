//! Limits on everything a stranger may send. Whether names exist is `build`'s question.

use cluster::{MAX_GPUS_PER_NODE, Weight};

use super::{BatchRequest, CommandLine, JobRequest};
use crate::duration::Duration;
use crate::hook::HookUrl;
use crate::problem::FieldFault;
use crate::time;
use crate::view::PriorityRequest;

const MOST_WORDS: usize = 1000;
const LARGEST_COMMAND: usize = 128 << 10;
const MOST_VARIABLES: usize = 1000;
const LARGEST_ENVIRONMENT: usize = 256 << 10;
const LONGEST_NAME: usize = 128;
const LONGEST_PATH: usize = 4096;
const MOST_TASKS: u64 = 10_000;
const MOST_WORKERS: u32 = 4096;
const MOST_CPUS: f64 = 4096.0;
const MOST_LABELS: usize = 64;
const MOST_KINDS: usize = 64;
const MOST_DEPENDENCIES: usize = 1000;
const MOST_FAILURES: u32 = 1000;
const MOST_NOTIFIED: usize = 4;
const LARGEST_BATCH: u32 = 1 << 30;
const LARGEST_WEIGHT: f64 = 1000.0;
const LONGEST_GRACE: Duration = Duration::from_secs(86_400);

/// What is found wrong, field by field.
#[derive(Default)]
struct Faults(Vec<FieldFault>);

impl JobRequest {
    /// Everything that is wrong whatever the cluster.
    pub fn check(&self) -> Result<(), Vec<FieldFault>> {
        let mut faults = Faults::default();
        self.check_texts(&mut faults);
        self.check_command(&mut faults);
        self.check_environment(&mut faults);
        self.check_labels(&mut faults);
        self.check_resources(&mut faults);
        self.check_workers(&mut faults);
        self.check_limits(&mut faults);
        self.check_lists(&mut faults);
        self.check_notify(&mut faults);
        self.check_terminal(&mut faults);
        if faults.0.is_empty() { Ok(()) } else { Err(faults.0) }
    }

    fn check_texts(&self, faults: &mut Faults) {
        if let Some(name) = &self.name {
            let length = name.chars().count();
            let is_unfit = |character: &char| !is_printable(*character) || *character == '/';
            let unfit = name.chars().find(is_unfit);
            faults.unless((1..=LONGEST_NAME).contains(&length), "name", || {
                format!("expected 1 to {LONGEST_NAME} characters, found {length}")
            });
            faults.unless(unfit.is_none(), "name", || {
                format!("expected printable characters without `/`, found {:?}", unfit.unwrap_or_default())
            });
        }
        if let Some(workdir) = &self.workdir {
            let climbs = workdir.split('/').any(|part| part == "..");
            faults.unless(workdir.starts_with('/'), "workdir", || {
                format!("expected an absolute path, found `{}`", short(workdir))
            });
            faults.unless(!climbs, "workdir", || "expected a path without `..`".into());
            faults.no_nul("workdir", workdir);
            faults.unless(workdir.len() <= LONGEST_PATH, "workdir", || {
                format!("expected at most {LONGEST_PATH} bytes, found {}", workdir.len())
            });
        }
        if let Some(queue) = &self.queue {
            faults.unless((1..=LONGEST_NAME).contains(&queue.len()), "queue", || {
                format!("expected 1 to {LONGEST_NAME} bytes, found {}", queue.len())
            });
        }
        faults.0.extend(PriorityRequest { priority: self.priority }.check().err());
        if let Some(weight) = self.weight {
            let sensible = Weight::from_f64(weight).is_some() && weight <= LARGEST_WEIGHT;
            faults.unless(sensible, "weight", || {
                format!("expected a number from 0.001 to {LARGEST_WEIGHT}, found {weight}")
            });
        }
    }

    fn check_command(&self, faults: &mut Faults) {
        check_command_line("command", &self.command, faults);
    }

    fn check_environment(&self, faults: &mut Faults) {
        faults.at_most("env", "variables", self.env.len(), MOST_VARIABLES);
        let bytes = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        faults.at_most("env", "bytes", bytes, LARGEST_ENVIRONMENT);
        for (name, value) in self.env.iter().take(MOST_VARIABLES) {
            let field = format!("env.{}", short(name));
            faults.unless(is_variable(name), &field, || {
                "expected a name of letters, digits and `_` that does not start with a digit".into()
            });
            faults
                .unless(!name.starts_with("MOIRA_"), &field, || "names that start with MOIRA_ are Moira's own".into());
            faults.no_nul(&field, value);
        }
    }

    fn check_labels(&self, faults: &mut Faults) {
        faults.at_most("labels", "labels", self.labels.len(), MOST_LABELS);
        for (key, value) in self.labels.iter().take(MOST_LABELS) {
            let field = format!("labels.{}", short(key));
            faults.unless(is_label_key(key), &field, || {
                "expected a key of at most 63 letters, digits, `-`, `_` and `.`, perhaps after a DNS name and `/`"
                    .into()
            });
            faults.unless(value.is_empty() || is_label_word(value), &field, || {
                "expected a value of at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
                    .into()
            });
        }
    }

    fn check_resources(&self, faults: &mut Faults) {
        let resources = &self.resources;
        if let Some(gpus) = resources.gpus.as_ref().map(|gpus| gpus.count) {
            let most = f64::from(MAX_GPUS_PER_NODE);
            match gpus {
                gpus if gpus < 0.0 => {
                    faults.add("resources.gpus", format!("a worker cannot have fewer than 0 GPUs, found {gpus}"));
                }
                gpus if gpus.is_nan() || gpus > most => {
                    faults.add("resources.gpus", format!("expected at most {most} GPUs for one worker, found {gpus}"));
                }
                gpus if gpus > 1.0 && gpus.fract() != 0.0 => {
                    faults.add("resources.gpus", format!("expected whole GPUs, or a share of one, found {gpus}"));
                }
                gpus if gpus > 0.0 && !(0.001..=0.999).contains(&gpus) && gpus < 1.0 => {
                    faults.add("resources.gpus", format!("expected a share from 0.001 to 0.999, found {gpus}"));
                }
                _ => {}
            }
        }
        faults.at_most("resources.gpu_kinds", "kinds", resources.gpu_kinds.len(), MOST_KINDS);
        if let Some(cpus) = resources.cpus {
            faults.unless((0.0..=MOST_CPUS).contains(&cpus), "resources.cpus", || {
                format!("expected from 0 to {MOST_CPUS} cores, found {cpus}")
            });
        }
    }

    fn check_workers(&self, faults: &mut Faults) {
        let workers = self.workers;
        for (field, count) in [("min", Some(workers.min)), ("max", Some(workers.max)), ("preferred", workers.preferred)]
        {
            let Some(count) = count.filter(|count| !(1..=MOST_WORKERS).contains(count)) else { continue };
            let field = if workers.min == workers.max { "workers".into() } else { format!("workers.{field}") };
            faults.add(&field, format!("expected from 1 to {MOST_WORKERS} workers, found {count}"));
            break;
        }
        faults.unless(workers.min <= workers.max, "workers.max", || {
            format!("expected at least the minimum of {}, found {}", workers.min, workers.max)
        });
        if let Some(preferred) = workers.preferred.filter(|count| !(workers.min..=workers.max).contains(count)) {
            let range = format!("expected from {} to {}, found {preferred}", workers.min, workers.max);
            faults.add("workers.preferred", range);
        }
        if let Some(batch) = &self.batch {
            check_batch(batch, self.workers.min, faults);
        }
        faults.unless(self.steps != Some(0), "steps", || "expected at least 1, found 0".into());
    }

    fn check_limits(&self, faults: &mut Faults) {
        if let Some(Err(message)) = self.limits.deadline.as_deref().map(time::unix_millis) {
            faults.add("limits.deadline", message);
        }
        let (limits, checkpoint) = (&self.limits, &self.checkpoint);
        let positive = [
            ("limits.max_runtime", limits.max_runtime),
            ("limits.expected_runtime", limits.expected_runtime),
            ("checkpoint.every", checkpoint.every),
        ];
        for (field, length) in positive {
            faults.unless(length != Some(Duration::default()), field, || "expected more than 0 seconds".into());
        }
        let waits = [("checkpoint.grace", checkpoint.grace), ("checkpoint.notice", checkpoint.notice)];
        for (field, length) in waits {
            faults.unless(length.is_none_or(|length| length <= LONGEST_GRACE), field, || {
                format!("expected at most {LONGEST_GRACE}")
            });
        }
    }

    fn check_lists(&self, faults: &mut Faults) {
        let failures = self.retry.max_failures;
        faults.unless(failures <= MOST_FAILURES, "retry.max_failures", || {
            format!("expected at most {MOST_FAILURES}, found {failures}")
        });
        faults.unless(!self.retry.exit_codes.contains(&0), "retry.exit_codes", || {
            "expected codes from 1 to 255: 0 is no failure".into()
        });
        faults.at_most("retry.exit_codes", "codes", self.retry.exit_codes.len(), 255);
        faults.at_most("depends_on", "jobs", self.depends_on.len(), MOST_DEPENDENCIES);
        let Some(array) = self.array else { return };
        faults.unless(array.step > 0, "array.step", || "expected at least 1, found 0".into());
        faults.unless(array.at_once != Some(0), "array.at_once", || "expected at least 1, found 0".into());
        faults.unless(array.first <= array.last, "array.last", || {
            format!("expected at least the first task {}, found {}", array.first, array.last)
        });
        let tasks = array.count();
        faults.unless(tasks <= MOST_TASKS, "array", || format!("expected at most {MOST_TASKS} tasks, found {tasks}"));
    }

    /// Somebody sits at a terminal: a job that has one cannot be many, and cannot go on by itself where it was.
    fn check_terminal(&self, faults: &mut Faults) {
        let Some(window) = self.pty else { return };
        faults.0.extend(window.check(Some("pty")).err());
        faults.unless(self.array.is_none(), "array", || "a job with a terminal is one job: expected no `array`".into());
        faults.unless(self.retry.max_failures == 0, "retry.max_failures", || {
            format!("a job with a terminal is not started again: expected 0, found {}", self.retry.max_failures)
        });
        faults.unless(self.interruptible != Some(true), "interruptible", || {
            "a job with a terminal cannot go on by itself where it was stopped: expected no `true`".into()
        });
        let is_fixed = self.workers.min == self.workers.max && self.batch.is_none();
        let field = if self.batch.is_some() { "batch" } else { "workers" };
        faults.unless(is_fixed, field, || "a job with a terminal has a fixed number of workers and no batch".into());
    }

    fn check_notify(&self, faults: &mut Faults) {
        faults.at_most("notify", "entries", self.notify.len(), MOST_NOTIFIED);
        for (index, notify) in self.notify.iter().take(MOST_NOTIFIED).enumerate() {
            let field = |name: &str| format!("notify[{index}]{name}");
            match (&notify.command, &notify.url) {
                (Some(command), None) => check_command_line(&field(".command"), command, faults),
                (None, Some(url)) => {
                    if let Err(message) = url.parse::<HookUrl>() {
                        faults.add(&field(".url"), message);
                    }
                }
                (Some(_), Some(_)) => faults.add(&field(""), "expected a command or a url, found both".into()),
                (None, None) => faults.add(&field(""), "expected a command or a url, found neither".into()),
            }
            let again = notify.events.iter().enumerate().find(|(at, event)| notify.events[..*at].contains(event));
            if let Some((_, event)) = again {
                faults.add(&field(".events"), format!("expected each event once, found {event} again"));
            }
        }
    }
}

fn check_command_line(field: &str, command: &CommandLine, faults: &mut Faults) {
    match command {
        CommandLine::Shell(text) => {
            faults.unless(!text.trim().is_empty(), field, || "expected a command, found nothing".into());
            faults.no_nul(field, text);
            faults.at_most(field, "bytes", text.len(), LARGEST_COMMAND);
        }
        CommandLine::Words(words) => {
            let program = words.first().is_some_and(|program| !program.is_empty());
            faults.unless(program, field, || "expected a command, found nothing".into());
            faults.at_most(field, "words", words.len(), MOST_WORDS);
            // Each word also takes the byte that ends it, as the kernel counts.
            let bytes = words.iter().map(|word| word.len() + 1).sum();
            faults.at_most(field, "bytes", bytes, LARGEST_COMMAND);
            if let Some(index) = words.iter().position(|word| word.contains('\0')) {
                faults.no_nul(&format!("{field}[{index}]"), &words[index]);
            }
        }
    }
}

fn check_batch(batch: &BatchRequest, fewest_workers: u32, faults: &mut Faults) {
    faults.unless(batch.initial >= 1, "batch.initial", || "expected at least 1, found 0".into());
    faults.unless(batch.max >= batch.initial, "batch.max", || {
        format!("expected at least the initial {}, found {}", batch.initial, batch.max)
    });
    faults.unless(batch.max <= LARGEST_BATCH, "batch.max", || {
        format!("expected at most {LARGEST_BATCH}, found {}", batch.max)
    });
    if let Some([fewest, most]) = batch.per_gpu {
        faults.unless(1 <= fewest && fewest <= most, "batch.per_gpu", || {
            format!("expected the fewest, at least 1, and the most, found {fewest} and {most}")
        });
        faults.unless(fewest_workers > 1 || fewest <= batch.initial, "batch.per_gpu", || {
            format!(
                "a single worker has the initial {} examples: expected no more as the fewest, found {fewest}",
                batch.initial
            )
        });
    }
}

impl Faults {
    fn add(&mut self, field: &str, message: String) {
        self.0.push(FieldFault::new(field, message));
    }

    fn unless(&mut self, holds: bool, field: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(field, message());
        }
    }

    fn at_most(&mut self, field: &str, what: &str, found: usize, most: usize) {
        self.unless(found <= most, field, || format!("expected at most {most} {what}, found {found}"));
    }

    fn no_nul(&mut self, field: &str, text: &str) {
        self.unless(!text.contains('\0'), field, || "expected text without NUL bytes".into());
    }
}

fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// As Kubernetes has them.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((domain, name)) => {
            let part = |part: &str| is_label_word(part) && !part.contains(['_', '.']);
            domain.len() <= 253 && domain.split('.').all(part) && is_label_word(name)
        }
        None => is_label_word(key),
    }
}

fn is_label_word(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    word.len() <= 63 && end(word.bytes().next()) && end(word.bytes().last()) && word.bytes().all(inner)
}

fn short(text: &str) -> String {
    text.chars().filter(|character| is_printable(*character)).take(60).collect()
}

/// Whether it shows itself and does nothing else to the text around it.
pub(super) fn is_printable(character: char) -> bool {
    !character.is_control() && !changes_direction(character)
}

/// Whether it changes the direction of the text that follows, so that a name could look like another one.
pub fn changes_direction(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ArrayRange, GpuCount, NotifyEvent, NotifyRequest, Window, WorkersRequest};

    fn faults(change: impl FnOnce(&mut JobRequest)) -> Vec<String> {
        let mut job = JobRequest::new(["true"]);
        assert_eq!(job.check(), Ok(()));
        change(&mut job);
        job.check().err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    fn fault(change: impl FnOnce(&mut JobRequest)) -> String {
        let faults = faults(change);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn a_job_with_a_terminal_is_one_that_runs_once() {
        let at_terminal = |change: fn(&mut JobRequest)| {
            fault(|job| {
                job.pty = Some(Window::USUAL);
                change(job);
            })
        };
        let array = at_terminal(|job| job.array = Some("0-3".parse().unwrap()));
        assert_eq!(array, "array: a job with a terminal is one job: expected no `array`");
        let retries = at_terminal(|job| job.retry.max_failures = 2);
        assert_eq!(retries, "retry.max_failures: a job with a terminal is not started again: expected 0, found 2");
        let workers = at_terminal(|job| job.workers = "1..2".parse().unwrap());
        assert_eq!(workers, "workers: a job with a terminal has a fixed number of workers and no batch");
        let stopped = at_terminal(|job| job.interruptible = Some(true));
        let expected = "a job with a terminal cannot go on by itself where it was stopped: expected no `true`";
        assert_eq!(stopped, format!("interruptible: {expected}"));
        let size = at_terminal(|job| job.pty = Some(Window { rows: 0, columns: 80 }));
        assert_eq!(size, "pty.rows: expected from 1 to 65535, found 0");
        assert_eq!(faults(|job| job.pty = Some(Window::USUAL)), [] as [&str; 0]);
    }

    #[test]
    fn a_negative_number_of_gpus_is_named() {
        let gpus = |count| move |job: &mut JobRequest| job.resources.gpus = Some(GpuCount::of(count));
        assert_eq!(fault(gpus(-1.0)), "resources.gpus: a worker cannot have fewer than 0 GPUs, found -1");
        assert_eq!(fault(gpus(1.5)), "resources.gpus: expected whole GPUs, or a share of one, found 1.5");
        assert_eq!(fault(gpus(65.0)), "resources.gpus: expected at most 64 GPUs for one worker, found 65");
        assert_eq!(fault(gpus(f64::NAN)), "resources.gpus: expected at most 64 GPUs for one worker, found NaN");
        assert_eq!(fault(gpus(0.0001)), "resources.gpus: expected a share from 0.001 to 0.999, found 0.0001");
        for count in [0.0, 0.5, 1.0, 8.0] {
            assert_eq!(faults(gpus(count)), [] as [&str; 0]);
        }
    }

    #[test]
    fn a_million_tasks_are_too_many() {
        let array = |text: &str| {
            let array: ArrayRange = text.parse().unwrap();
            move |job: &mut JobRequest| job.array = Some(array)
        };
        assert_eq!(fault(array("0-999999")), "array: expected at most 10000 tasks, found 1000000");
        assert_eq!(fault(array("5-1")), "array.last: expected at least the first task 5, found 1");
        assert_eq!(fault(array("0-5:0")), "array.step: expected at least 1, found 0");
        assert_eq!(fault(array("0-5%0")), "array.at_once: expected at least 1, found 0");
        assert_eq!(faults(array("0-9999")), [] as [&str; 0]);
    }

    #[test]
    fn ten_megabytes_of_environment_are_too_many() {
        let error = fault(|job| drop(job.env.insert("A".into(), "x".repeat(10 << 20))));
        assert_eq!(error, "env: expected at most 262144 bytes, found 10485763");
        let many = |job: &mut JobRequest| job.env = (0..1001).map(|index| (format!("V{index}"), "".into())).collect();
        assert_eq!(fault(many), "env: expected at most 1000 variables, found 1001");
    }

    #[test]
    fn names_of_variables_are_those_of_a_shell() {
        let named = |name: &'static str| move |job: &mut JobRequest| drop(job.env.insert(name.into(), "1".into()));
        for bad in ["1A", "A-B", "", "A=B", "É"] {
            assert!(fault(named(bad)).contains("expected a name of letters"), "{bad}");
        }
        assert_eq!(fault(named("MOIRA_JOB_ID")), "env.MOIRA_JOB_ID: names that start with MOIRA_ are Moira's own");
        assert_eq!(faults(named("_A1")), [] as [&str; 0]);
    }

    #[test]
    fn nul_bytes_are_refused_wherever_they_are() {
        assert_eq!(
            fault(|job| job.command = CommandLine::Words(vec!["a".into(), "b\0".into()])),
            "command[1]: expected text without NUL bytes"
        );
        assert_eq!(
            fault(|job| job.command = CommandLine::Shell("a\0".into())),
            "command: expected text without NUL bytes"
        );
        assert_eq!(fault(|job| job.workdir = Some("/a\0".into())), "workdir: expected text without NUL bytes");
        assert_eq!(
            fault(|job| drop(job.env.insert("A".into(), "\0".into()))),
            "env.A: expected text without NUL bytes"
        );
    }

    #[test]
    fn commands_are_limited() {
        let words = |words: Vec<String>| move |job: &mut JobRequest| job.command = CommandLine::Words(words);
        assert_eq!(fault(words(Vec::new())), "command: expected a command, found nothing");
        assert_eq!(fault(words(vec!["a".into(); 1001])), "command: expected at most 1000 words, found 1001");
        let long = vec!["a".into(), "x".repeat(128 << 10)];
        assert_eq!(fault(words(long)), "command: expected at most 131072 bytes, found 131075");
        assert_eq!(
            fault(|job| job.command = CommandLine::Shell("  ".into())),
            "command: expected a command, found nothing"
        );
    }

    #[test]
    fn a_path_does_not_climb_out() {
        let workdir = |path: &'static str| move |job: &mut JobRequest| job.workdir = Some(path.into());
        assert_eq!(fault(workdir("/home/../etc")), "workdir: expected a path without `..`");
        assert_eq!(fault(workdir("home")), "workdir: expected an absolute path, found `home`");
        assert_eq!(faults(workdir("/home/a..b")), [] as [&str; 0]);
    }

    #[test]
    fn a_name_is_short_and_printable() {
        let name = |name: &str| {
            let name = name.to_string();
            move |job: &mut JobRequest| job.name = Some(name)
        };
        assert_eq!(fault(name("a/b")), "name: expected printable characters without `/`, found '/'");
        assert_eq!(fault(name("a\x1b[2Jb")), "name: expected printable characters without `/`, found '\\u{1b}'");
        assert_eq!(fault(name("a\u{202e}b")), "name: expected printable characters without `/`, found '\\u{202e}'");
        assert_eq!(fault(name("a\nb")), "name: expected printable characters without `/`, found '\\n'");
        assert_eq!(fault(name("")), "name: expected 1 to 128 characters, found 0");
        assert_eq!(fault(name(&"x".repeat(129))), "name: expected 1 to 128 characters, found 129");
        assert_eq!(faults(name(&"é".repeat(128))), [] as [&str; 0]);
    }

    #[test]
    fn workers_make_sense() {
        let workers =
            |min, max, preferred| move |job: &mut JobRequest| job.workers = WorkersRequest { min, max, preferred };
        assert_eq!(fault(workers(0, 0, None)), "workers: expected from 1 to 4096 workers, found 0");
        assert_eq!(fault(workers(1, 5000, None)), "workers.max: expected from 1 to 4096 workers, found 5000");
        assert_eq!(fault(workers(4, 2, None)), "workers.max: expected at least the minimum of 4, found 2");
        assert_eq!(fault(workers(1, 4, Some(8))), "workers.preferred: expected from 1 to 4, found 8");
    }

    #[test]
    fn labels_are_those_of_kubernetes() {
        let label = |key: &'static str, value: &'static str| {
            move |job: &mut JobRequest| drop(job.labels.insert(key.into(), value.into()))
        };
        for (key, value) in [("project", "x"), ("moira.dev/team", "a-b_c.d"), ("a", "")] {
            assert_eq!(faults(label(key, value)), [] as [&str; 0], "{key}");
        }
        for (key, value) in [("-a", "x"), ("", "x"), ("a/b/c", "x"), ("a", "-x"), ("a", "x y"), ("a_b/c", "x")] {
            assert_eq!(faults(label(key, value)).len(), 1, "{key}={value}");
        }
    }

    #[test]
    fn batches_and_limits_make_sense() {
        let batch = |initial, max, per_gpu| {
            move |job: &mut JobRequest| job.batch = Some(BatchRequest { initial, max, per_gpu })
        };
        assert_eq!(fault(batch(64, 32, None)), "batch.max: expected at least the initial 64, found 32");
        assert_eq!(
            fault(batch(64, 128, Some([0, 8]))),
            "batch.per_gpu: expected the fewest, at least 1, and the most, found 0 and 8"
        );
        assert_eq!(
            fault(batch(64, 256, Some([128, 128]))),
            "batch.per_gpu: a single worker has the initial 64 examples: expected no more as the fewest, found 128"
        );
        assert_eq!(fault(|job| job.priority = 1001), "priority: expected from -1000 to 1000, found 1001");
        assert_eq!(fault(|job| job.weight = Some(0.0)), "weight: expected a number from 0.001 to 1000, found 0");
        assert_eq!(
            fault(|job| job.retry.exit_codes = vec![0]),
            "retry.exit_codes: expected codes from 1 to 255: 0 is no failure"
        );
        assert!(
            fault(|job| job.limits.deadline = Some("soon".into())).starts_with("limits.deadline: expected a moment")
        );
        assert_eq!(
            fault(|job| job.limits.max_runtime = Some(Duration::default())),
            "limits.max_runtime: expected more than 0 seconds"
        );
    }

    #[test]
    fn who_is_told_is_a_command_or_an_address_and_never_many() {
        let command = |text: &str| Some(CommandLine::Shell(text.into()));
        let url = |text: &str| Some(text.to_string());
        let told = |command, url, events: &[NotifyEvent]| {
            let notify = NotifyRequest { command, url, events: events.to_vec() };
            move |job: &mut JobRequest| job.notify = vec![notify]
        };
        assert_eq!(faults(told(command("mail ann"), None, &[])), [] as [&str; 0]);
        assert_eq!(faults(told(None, url("https://a.org/x"), &[NotifyEvent::End])), [] as [&str; 0]);
        assert_eq!(fault(told(None, None, &[])), "notify[0]: expected a command or a url, found neither");
        let both = told(command("a"), url("https://a.org/"), &[]);
        assert_eq!(fault(both), "notify[0]: expected a command or a url, found both");
        assert_eq!(fault(told(command(" "), None, &[])), "notify[0].command: expected a command, found nothing");
        assert_eq!(fault(told(command("a\0"), None, &[])), "notify[0].command: expected text without NUL bytes");
        assert!(fault(told(None, url("mailto:ann"), &[])).starts_with("notify[0].url: expected an address like"));
        let twice = [NotifyEvent::End, NotifyEvent::End];
        assert_eq!(
            fault(told(command("a"), None, &twice)),
            "notify[0].events: expected each event once, found end again"
        );
        let many = |job: &mut JobRequest| {
            let one = NotifyRequest { command: command("a"), url: None, events: Vec::new() };
            job.notify = vec![one; 5];
        };
        assert_eq!(fault(many), "notify: expected at most 4 entries, found 5");
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let all = faults(|job| {
            job.priority = 5000;
            job.name = Some(String::new());
            job.steps = Some(0);
        });
        assert_eq!(all.len(), 3, "{all:?}");
    }
}
