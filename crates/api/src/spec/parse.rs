//! From text to data, with errors that name the field, the line and what may have been meant.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::JobRequest;
use crate::problem::{Problem, did_you_mean};

/// How a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    Toml,
}

impl Format {
    /// By the ending of a file's name.
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "json" => Some(Format::Json),
            "yaml" | "yml" => Some(Format::Yaml),
            "toml" => Some(Format::Toml),
            _ => None,
        }
    }
}

impl JobRequest {
    pub fn parse(text: &str, format: Format) -> Result<JobRequest, Problem> {
        read(text, format)
    }
}

/// Anything that goes over the wire, from text in one of the formats.
pub fn read<T: DeserializeOwned>(text: &str, format: Format) -> Result<T, Problem> {
    let outcome = match format {
        Format::Json => read_json(text),
        Format::Yaml => read_yaml(text),
        Format::Toml => read_toml(text),
    };
    outcome.map_err(Mistake::problem)
}

/// What a parser had to say.
struct Mistake {
    /// The fields that lead to it; none if the text itself cannot be read.
    path: Option<String>,
    message: String,
    /// Line and column, from 1.
    place: Option<(u64, u64)>,
}

impl Mistake {
    fn problem(self) -> Problem {
        let place = self.place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
        let Some(path) = self.path else {
            return Problem::malformed(format!("{place}{}", self.message));
        };
        let words: Vec<&str> = self.message.split('`').collect();
        match &words[..] {
            ["unknown field ", unknown, known @ ..] => {
                let field = joined(&path, unknown);
                let known = known.iter().skip(1).step_by(2).copied();
                let problem = Problem::new(422, "unknown-field", format!("{place}unknown field `{field}`"));
                let hints = [did_you_mean(unknown, known.clone()), known_fields(unknown, known)];
                match hints.into_iter().flatten().reduce(|meant, known| format!("{meant} {known}")) {
                    Some(hint) => problem.with_field(field).with_suggestion(hint),
                    None => problem.with_field(field),
                }
            }
            ["missing field ", missing, ..] => {
                let field = joined(&path, missing);
                Problem::new(422, "missing-field", format!("{place}missing field `{field}`")).with_field(field)
            }
            _ => {
                let named = if path.is_empty() { String::new() } else { format!("{path}: ") };
                let problem = Problem::new(422, "invalid-field", format!("{place}{named}{}", self.message));
                if path.is_empty() { problem } else { problem.with_field(path) }
            }
        }
    }
}

/// All that could stand there, the nearest to what does first.
fn known_fields<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let known = cluster::nearest_first(typed, known);
    (!known.is_empty()).then(|| format!("known here: {}", known.join(", ")))
}

/// Some parsers count the unknown key itself to the path, some do not.
fn joined(path: &str, field: &str) -> String {
    match path.is_empty() {
        true => field.into(),
        false if path == field || path.ends_with(&format!(".{field}")) => path.into(),
        false => format!("{path}.{field}"),
    }
}

/// The path as people write it: without the dot that stands for the whole, and without what the parser did not know.
fn fields(path: &serde_path_to_error::Path) -> String {
    let text = path.to_string();
    let known = text.split(".?").next().unwrap_or_default();
    if known == "." || known == "?" { String::new() } else { known.into() }
}

fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let plain = |error: &serde_json::Error| {
        let said = error.to_string();
        let message = said.rsplit_once(" at line ").map_or(said.as_str(), |(message, _)| message).to_string();
        (message, (error.line() > 0).then(|| (error.line() as u64, error.column() as u64)))
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let (message, place) = plain(error.inner());
        Mistake { path: error.inner().is_data().then(|| fields(error.path())), message, place }
    })?;
    deserializer.end().map_err(|error| {
        let (message, place) = plain(&error);
        Mistake { path: None, message, place }
    })?;
    Ok(value)
}

fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let place = |error: &toml::de::Error| error.span().map(|span| line_and_column(text, span.start));
    let deserializer = toml::Deserializer::parse(text).map_err(|error| Mistake {
        path: None,
        message: error.message().into(),
        place: place(&error),
    })?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| Mistake {
        path: Some(fields(error.path())),
        message: error.inner().message().into(),
        place: place(error.inner()),
    })
}

fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let mut path = None;
    let read = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = Some(fields(error.path()));
            error.into_inner()
        })
    });
    read.map_err(|error| {
        let error = error.without_snippet();
        let said = error.to_string();
        let first = said.lines().next().unwrap_or_default();
        let message = match error {
            serde_saphyr::Error::MultipleDocuments { .. } => "expected one document, found several".into(),
            // In serde's own words, as the other formats have it.
            serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
                format!("unknown field `{field}`, expected `{}`", expected.join("`, `"))
            }
            _ => first.rsplit_once(" at line ").map_or(first, |(message, _)| message).to_string(),
        };
        let place = error.location().map(|location| (location.line(), location.column()));
        Mistake { path: path.filter(|_| !is_syntax(error)), message, place }
    })
}

/// Whether the text is no YAML at all, or more of it than anybody would write.
fn is_syntax(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error;
    matches!(
        error,
        Error::ExternalMessage { .. }
            | Error::Eof { .. }
            | Error::MultipleDocuments { .. }
            | Error::Budget { .. }
            | Error::ContainerEndMismatch { .. }
            | Error::UnknownAnchor { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. }
    )
}

fn line_and_column(text: &str, at: usize) -> (u64, u64) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line as u64, column as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ArrayRange, CommandLine, GpuCount, WorkersRequest};
    use crate::{Duration, JobId, Quantity};

    const YAML: &str = "
name: llama
command: python train.py --lr 0.1
workdir: /home/me
env: {OMP_NUM_THREADS: '4'}
labels: {project: x}
queue: vision
priority: 5
weight: 2
resources: {gpus: 'a100:2', gpu_memory: 40Gi, cpus: 8, memory: 64Gi}
workers: {min: 1, max: 8, preferred: 4}
batch: {initial: 128, max: 4096, per_gpu: [16, 128]}
steps: 10000
limits: {max_runtime: 1-12:00:00, deadline: 2026-11-20T09:00:00Z, expected_runtime: 1h30m}
checkpoint: {grace: 120s, notice: 10, every: 10m, cost: 5s, restart_cost: 30s}
retry: {max_failures: 3, exit_codes: [33, 34]}
depends_on: [7, '8_3']
array: 0-99%10
hold: true
ulimits: {open_files: 4096, processes: 100, core_file: 0}
";

    const TOML: &str = r#"
name = "llama"
command = "python train.py --lr 0.1"
workdir = "/home/me"
env = { OMP_NUM_THREADS = "4" }
labels = { project = "x" }
queue = "vision"
priority = 5
weight = 2.0
workers = { min = 1, max = 8, preferred = 4 }
batch = { initial = 128, max = 4096, per_gpu = [16, 128] }
steps = 10000
depends_on = [7, "8_3"]
array = { first = 0, last = 99, at_once = 10 }
hold = true
ulimits = { open_files = 4096, processes = 100, core_file = 0 }
[resources]
gpus = "gpu:a100:2"
gpu_memory = "40GiB"
cpus = 8.0
memory = 68719476736
[limits]
max_runtime = "36h"
deadline = 2026-11-20T09:00:00Z
expected_runtime = 5400
[checkpoint]
grace = "2m"
notice = 10.0
every = 600
cost = "5s"
restart_cost = "30s"
[retry]
max_failures = 3
exit_codes = [33, 34]
"#;

    fn problem(text: &str, format: Format) -> String {
        JobRequest::parse(text, format).unwrap_err().to_string()
    }

    #[test]
    fn every_field_is_read() {
        let job = JobRequest::parse(YAML, Format::Yaml).unwrap();
        assert_eq!(job.command, CommandLine::Shell("python train.py --lr 0.1".into()));
        assert_eq!(job.resources.gpus, Some(GpuCount { count: 2.0, kind: Some("a100".into()) }));
        assert_eq!(job.resources.memory, Some(Quantity::new(64 << 30)));
        assert_eq!(job.workers, WorkersRequest { min: 1, max: 8, preferred: Some(4) });
        assert_eq!(job.limits.max_runtime, Some(Duration::from_secs(129_600)));
        assert_eq!(job.depends_on, [JobId::job(7), JobId::task(8, 3)]);
        assert_eq!(job.array, Some(ArrayRange { first: 0, last: 99, step: 1, at_once: Some(10) }));
        assert_eq!(job.check(), Ok(()));
    }

    #[test]
    fn the_three_formats_say_the_same() {
        let yaml = JobRequest::parse(YAML, Format::Yaml).unwrap();
        let toml = JobRequest::parse(TOML, Format::Toml).unwrap();
        assert_eq!(toml, yaml);
        let json = serde_json::to_string(&yaml).unwrap();
        assert_eq!(JobRequest::parse(&json, Format::Json).unwrap(), yaml);
    }

    #[test]
    fn a_command_is_enough_and_necessary() {
        let job = JobRequest::parse("command: [sleep, 60]", Format::Yaml).unwrap();
        assert_eq!(job, JobRequest::new(["sleep", "60"]));
        assert_eq!(serde_json::to_string(&job).unwrap(), r#"{"command":["sleep","60"]}"#);
        assert_eq!(problem("{\"name\": \"a\"}", Format::Json), "line 1, column 13: missing field `command`");
        assert!(problem("name = \"a\"", Format::Toml).ends_with("missing field `command`"));
        assert!(problem("name: a", Format::Yaml).ends_with("missing field `command`"));
    }

    #[test]
    fn an_unknown_field_is_refused_with_what_was_meant() {
        for (text, format, place) in [
            ("{\"command\": [\"a\"],\n \"worker\": 2}", Format::Json, "line 2, column 9"),
            ("command: [a]\nworker: 2\n", Format::Yaml, "line 2, column 1"),
            ("command = [\"a\"]\nworker = 2\n", Format::Toml, "line 2, column 1"),
        ] {
            let problem = problem(text, format);
            let expected = format!("{place}: unknown field `worker`: did you mean `workers`? known here: workers, ");
            assert!(problem.starts_with(&expected), "{problem}");
            assert!(problem.contains(", depends_on") && problem.contains(", command, "), "{problem}");
        }
    }

    #[test]
    fn an_unknown_field_is_named_with_where_it_stands() {
        let hint = "did you mean `gpus`? known here: gpus, cpus, gpu_kinds, memory, gpu_memory";
        let nested = format!("unknown field `resources.gpu`: {hint}");
        for (text, format) in [
            ("{\"command\": \"a\", \"resources\": {\"gpu\": 1}}", Format::Json),
            ("command: a\nresources:\n  gpu: 1\n", Format::Yaml),
            ("command = \"a\"\nresources.gpu = 1\n", Format::Toml),
        ] {
            let problem = JobRequest::parse(text, format).unwrap_err();
            assert!(problem.to_string().ends_with(&nested), "{format:?}: {problem}");
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some("resources.gpu")), "{format:?}");
            assert_eq!(problem.suggestion.as_deref(), Some(hint), "{format:?}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_where_it_stands() {
        let expected = "expected a number of workers like 4, or a range like {min: 1, max: 8}, found -3";
        for (text, format) in [
            ("{\"command\": \"a\", \"workers\": -3}", Format::Json),
            ("command: a\nworkers: -3\n", Format::Yaml),
            ("command = \"a\"\nworkers = -3\n", Format::Toml),
        ] {
            let problem = JobRequest::parse(text, format).unwrap_err();
            assert!(problem.to_string().ends_with(&format!("workers: {expected}")), "{format:?}: {problem}");
            assert_eq!(problem.field.as_deref(), Some("workers"), "{format:?}");
        }
        let nested = "{\"command\": \"a\", \"limits\": {\"max_runtime\": \"soon\"}}";
        assert!(problem(nested, Format::Json).contains("limits.max_runtime: expected a duration like 90s"));
        let listed = "{\"command\": \"a\", \"depends_on\": [1, \"x\"]}";
        assert!(problem(listed, Format::Json).contains("depends_on[1]: expected the number of a job"));
    }

    #[test]
    fn text_that_cannot_be_read_names_its_line() {
        let bad = |text: &str, format| {
            let problem = JobRequest::parse(text, format).unwrap_err();
            assert_eq!((problem.status, &problem.field), (400, &None), "{problem}");
            problem.to_string()
        };
        assert!(bad("{\n\"command\": \n", Format::Json).starts_with("line 3, column 0: EOF"));
        assert!(bad("{\"command\": \"a\"} x", Format::Json).starts_with("line 1, column 18: trailing characters"));
        assert!(bad("command = \n", Format::Toml).starts_with("line 1, column "));
        assert!(bad("command: [a\nname: b", Format::Yaml).starts_with("line "));
    }

    #[test]
    fn yaml_bombs_do_not_go_off() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(", ")));
        }
        bomb.push_str("command: *a11\n");
        assert!(JobRequest::parse(&bomb, Format::Yaml).is_err());
        let deep = format!("command: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(JobRequest::parse(&deep, Format::Yaml).is_err());
        assert!(JobRequest::parse(&format!("{{\"command\": {}", "[".repeat(100_000)), Format::Json).is_err());
    }

    #[test]
    fn a_key_said_twice_is_refused() {
        assert!(problem("{\"command\": \"a\", \"command\": \"b\"}", Format::Json).contains("duplicate field"));
        assert!(JobRequest::parse("command: a\ncommand: b\n", Format::Yaml).is_err());
    }

    #[test]
    fn a_file_is_read_by_its_ending() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!([of("a.yml"), of("a.yaml"), of("a.json"), of("b/a.toml")].map(|format| format.is_some()), [true; 4]);
        assert_eq!((of("a.txt"), of("yaml")), (None, None));
    }
}
