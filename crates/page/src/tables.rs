//! The tables behind a report as CSV, with a dictionary of their columns. Each table is written, and described, from
//! one list of its columns, so that no column can be without a description.

use std::fmt::Write;

use cluster::{Span, Time};
use plan::Outcome;
use report::{Figure, HEADLINES, JobRow, RunReport, Series};

use crate::text::csv_line;

/// One column of a table whose lines are made of `L`. A number of which there is none is an empty field.
struct Column<L> {
    name: &'static str,
    meaning: &'static str,
    of: fn(&L) -> String,
}

const fn column<L>(name: &'static str, meaning: &'static str, of: fn(&L) -> String) -> Column<L> {
    Column { name, meaning, of }
}

struct JobLine<'a> {
    run: &'a RunReport,
    job: &'a JobRow,
    fair_time_s: Option<f64>,
}

struct SeriesLine<'a> {
    run: &'a RunReport,
    /// Nothing stands for all kinds together.
    kind: Option<&'a str>,
    at_s: u64,
    bucket_s: u64,
    utilisation: Option<f64>,
    fragmentation: Option<f64>,
    queue_length: Option<f64>,
}

const RUN_COLUMNS: [Column<RunReport>; 4] = [
    column("policy", "the policy, with the parameters that differ from its defaults", |run| run.policy.clone()),
    column("workload", "what the workload is called", |run| run.workload.clone()),
    column("seed", "the seed of everything random in the workload and the world", |run| run.seed.to_string()),
    column("knows", "what the policy was told that no real scheduler knows, separated by semicolons", |run| {
        run.knows.join("; ")
    }),
];

const fn job_columns<'a>() -> [Column<JobLine<'a>>; 20] {
    [
        column("policy", "the policy, as in runs.csv", |line| line.run.policy.clone()),
        column("seed", "the seed, as in runs.csv", |line| line.run.seed.to_string()),
        column("id", "number of the job in order of submission, from 0; the same in all runs of one seed", |line| {
            line.job.id.0.to_string()
        }),
        column("name", "name of the job as the workload gives it", |line| line.job.name.to_string()),
        column("user", "who submitted it", |line| line.job.user.to_string()),
        column("queue", "its queue; empty if it asked for one there is not", |line| {
            line.job.queue.as_deref().unwrap_or_default().to_string()
        }),
        column("submitted_s", "when it was submitted, in seconds since the workload began", |line| {
            line.job.submitted.as_secs_f64().to_string()
        }),
        column("started_s", "when all its workers were first up; empty if never", |line| {
            maybe(line.job.started.map(Time::as_secs_f64))
        }),
        column("ended_s", "when it ended; empty if it has not", |line| maybe(line.job.ended.map(Time::as_secs_f64))),
        column(
            "outcome",
            "finished, cancelled, dependency_failed, given_up, timed_out, refused or unfinished",
            |line| outcome(line.job.outcome).to_string(),
        ),
        column("gpus", "the least number of GPUs it asks for", |line| line.job.gpus.as_f64().to_string()),
        column("jct_s", "completion time in seconds, from submission to end; empty if it has not ended", |line| {
            maybe(line.job.jct.map(Span::as_secs_f64))
        }),
        column(
            "fair_time_s",
            "seconds it would take alone with a fair share of the cluster (T_fair); empty if unknown",
            |line| maybe(line.fair_time_s),
        ),
        column("finish_time_ratio", "ρ = jct_s / fair_time_s; above 1 a fair share had served it better", |line| {
            maybe(line.job.jct.zip(line.fair_time_s).map(|(span, fair)| span.as_secs_f64() / fair))
        }),
        column("waiting_s", "seconds in which it lived and held no GPUs", |line| {
            line.job.waiting.as_secs_f64().to_string()
        }),
        column("gpu_hours", "GPU hours held, start-up and saving included", |line| {
            line.job.held.as_gpu_hours().to_string()
        }),
        column("launches", "how often it was launched", |line| line.job.launches.to_string()),
        column("restarts", "launches after the first", |line| line.job.restarts.to_string()),
        column("preemptions", "how often it was told to stop though nobody had cancelled it", |line| {
            line.job.preemptions.to_string()
        }),
        column("deadline_met", "true or false; empty if it has no deadline", |line| maybe(line.job.deadline_met)),
    ]
}

const fn series_columns<'a>() -> [Column<SeriesLine<'a>>; 8] {
    [
        column("policy", "the policy, as in runs.csv", |line| line.run.policy.clone()),
        column("seed", "the seed, as in runs.csv", |line| line.run.seed.to_string()),
        column("gpu_kind", "the kind of GPU; empty for all kinds together", |line| {
            line.kind.unwrap_or_default().to_string()
        }),
        column("at_s", "where the stretch of time begins, in seconds since the first submission", |line| {
            line.at_s.to_string()
        }),
        column("bucket_s", "how long the stretch is, in seconds; the last may be cut short by the end", |line| {
            line.bucket_s.to_string()
        }),
        column("utilisation", "GPUs held, of those in service: mean over the stretch", |line| maybe(line.utilisation)),
        column("fragmentation", "of the free GPUs, the part on nodes of which others are held", |line| {
            maybe(line.fragmentation)
        }),
        column("queue_length", "live jobs that hold nothing; only for all kinds together", |line| {
            maybe(line.queue_length)
        }),
    ]
}

/// What the numbers of a run mean, by the names of [`HEADLINES`].
fn meaning(headline: &str) -> Option<&'static str> {
    Some(match headline {
        "jobs" => "jobs submitted, refused ones included",
        "finished" => "jobs that finished",
        "refused" => "jobs refused because they could never have run",
        "jct_mean_s" => "mean completion time of finished jobs in seconds, from submission to end",
        "jct_p50_s" => "median completion time",
        "jct_p90_s" => "completion time at sorted position ⌊0.9 n⌋",
        "jct_p99_s" => "completion time at sorted position ⌊0.99 n⌋",
        "makespan_s" => "seconds from the first submission to the end of the last job that finished",
        "gpu_hours_per_job" => "GPU hours held per finished job, start-up and saving included",
        "restarts_per_job" => "launches after the first, per finished job",
        "finish_time_ratio_worst" => "largest ρ = completion time / fair time",
        "finish_time_ratio_mean" => "mean ρ",
        "finish_time_ratio_share_above_1" => "part of the jobs with ρ > 1",
        "waiting_mean_s" => "mean seconds in which a finished job lived and held no GPUs",
        "waiting_p99_s" => "the same at sorted position ⌊0.99 n⌋",
        "utilisation" => "GPUs held, of those in service, over the whole run",
        "fragmentation" => "of the free GPUs, the part on nodes of which others are held",
        "queue_length" => "mean number of live jobs that hold nothing",
        "jain_users" => "Jain's index of how evenly users were served compared with their fair share; 1 is even",
        "jain_queues" => "the same for queues",
        "deadlines_met_share" => "part of the deadlines that were met; empty if there are none",
        "preemptions_per_job" => "orders to stop that no cancellation had caused, per finished job",
        "cancelled" => "jobs cancelled",
        "given_up" => "jobs given up after too many failures",
        "timed_out" => "jobs that held GPUs for as long as they may without finishing",
        "dependency_failed" => "jobs that ended because one they were to run after did not finish",
        "unfinished" => "jobs that had not ended at the end of the run",
        "failures" => "runs of jobs that crashed, lost their node or a GPU, or did not start in time",
        "plans_refused" => "decisions of the policy that were refused because they were impossible",
        "decisions" => "how often the policy decided",
        _ => return None,
    })
}

/// One line for each run, after a header.
pub fn runs_csv(runs: &[RunReport]) -> String {
    let mut text = String::new();
    let names = RUN_COLUMNS.iter().map(|column| column.name);
    csv_line(&mut text, names.chain(HEADLINES.iter().map(|headline| headline.name)));
    for run in runs {
        let fields = RUN_COLUMNS.iter().map(|column| (column.of)(run));
        csv_line(&mut text, fields.chain(HEADLINES.iter().map(|headline| maybe((headline.of)(run)))));
    }
    text
}

pub fn jobs_csv_header() -> String {
    header(&job_columns())
}

/// One line for each job of a run.
pub fn jobs_csv(run: &RunReport, figure: &Figure) -> String {
    let jobs = figure.jobs.iter().zip(&figure.fair_times);
    lines(&job_columns(), jobs.map(|(job, &fair_time_s)| JobLine { run, job, fair_time_s }))
}

pub fn series_csv_header() -> String {
    header(&series_columns())
}

/// One line for each stretch of time of a run, for all kinds of GPU together and for each alone.
pub fn series_csv(run: &RunReport, figure: &Figure) -> String {
    let whole = SeriesOf {
        kind: None,
        utilisation: &run.utilisation.series,
        fragmentation: &run.fragmentation.series,
        queue_length: Some(&run.queue_length.series),
    };
    let kinds = figure.kinds.iter().map(|kind| SeriesOf {
        kind: Some(&kind.name),
        utilisation: &kind.utilisation.series,
        fragmentation: &kind.fragmentation.series,
        queue_length: None,
    });
    let all: Vec<SeriesLine<'_>> = std::iter::once(whole).chain(kinds).flat_map(|series| series.lines(run)).collect();
    lines(&series_columns(), all)
}

struct SeriesOf<'a> {
    kind: Option<&'a str>,
    utilisation: &'a Series,
    fragmentation: &'a Series,
    queue_length: Option<&'a Series>,
}

impl<'a> SeriesOf<'a> {
    fn lines(self, run: &'a RunReport) -> impl Iterator<Item = SeriesLine<'a>> {
        let bucket_s = self.utilisation.bucket_s;
        (0..self.utilisation.values.len()).map(move |index| SeriesLine {
            run,
            kind: self.kind,
            at_s: index as u64 * bucket_s,
            bucket_s,
            utilisation: self.utilisation.values[index],
            fragmentation: self.fragmentation.values[index],
            queue_length: self.queue_length.and_then(|series| series.values[index]),
        })
    }
}

/// What is in the folder, and what each column means.
pub fn data_dictionary(command: &str) -> String {
    let mut text = format!(
        "# Data dictionary\n\nWritten by Moira. The same tables again:\n\n```\n{command}\n```\n\n\
         Fields are separated by commas and quoted as in RFC 4180; lines end with a line feed; the encoding is UTF-8. \
         A number of which there is none is an empty field. Times are in seconds of the simulated clock.\n"
    );
    table(&mut text, "runs.csv", "One line for each run: one policy with one seed.", {
        let headlines = HEADLINES.iter().map(|headline| (headline.name, meaning(headline.name).unwrap_or_default()));
        RUN_COLUMNS.iter().map(|column| (column.name, column.meaning)).chain(headlines)
    });
    let jobs = job_columns().into_iter().map(|column| (column.name, column.meaning));
    table(&mut text, "jobs.csv", "One line for each job of each run.", jobs);
    let series = series_columns().into_iter().map(|column| (column.name, column.meaning));
    table(&mut text, "series.csv", "One line for each stretch of time of each run, and for each kind of GPU.", series);
    text
}

fn table(text: &mut String, file: &str, about: &str, columns: impl Iterator<Item = (&'static str, &'static str)>) {
    write!(text, "\n## {file}\n\n{about}\n\n| column | meaning |\n|---|---|\n").expect(WRITTEN);
    for (name, meaning) in columns {
        writeln!(text, "| `{name}` | {meaning} |").expect(WRITTEN);
    }
}

const WRITTEN: &str = "a string takes whatever is written to it";

fn header<L>(columns: &[Column<L>]) -> String {
    let mut text = String::new();
    csv_line(&mut text, columns.iter().map(|column| column.name));
    text
}

fn lines<L>(columns: &[Column<L>], lines: impl IntoIterator<Item = L>) -> String {
    let mut text = String::new();
    for line in lines {
        csv_line(&mut text, columns.iter().map(|column| (column.of)(&line)));
    }
    text
}

fn maybe(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn outcome(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None => "unfinished",
        Some(Outcome::Finished) => "finished",
        Some(Outcome::Cancelled) => "cancelled",
        Some(Outcome::DependencyFailed) => "dependency_failed",
        Some(Outcome::GivenUp) => "given_up",
        Some(Outcome::TimedOut) => "timed_out",
        Some(Outcome::Refused) => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{figure, run};

    #[test]
    fn every_number_of_a_run_has_a_meaning() {
        let silent: Vec<_> =
            HEADLINES.iter().map(|headline| headline.name).filter(|name| meaning(name).is_none()).collect();
        assert!(silent.is_empty(), "{silent:?}");
    }

    #[test]
    fn a_job_has_a_line_with_as_many_fields_as_the_header() {
        let text = jobs_csv_header() + &jobs_csv(&run("fifo", 1, 10.0), &figure(&["ann", "bob, jr"]));
        let expected = "\
            policy,seed,id,name,user,queue,submitted_s,started_s,ended_s,outcome,gpus,jct_s,fair_time_s,\
            finish_time_ratio,waiting_s,gpu_hours,launches,restarts,preemptions,deadline_met\n\
            fifo,1,0,job-0,ann,root,0,0,60,finished,1,60,30,2,0,0.016666666666666666,1,0,0,\n\
            fifo,1,1,job-1,\"bob, jr\",root,0,0,90,finished,1,90,30,3,0,0.025,1,0,0,\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn series_are_told_apart_by_kind() {
        let text = series_csv(&run("fifo", 1, 10.0), &figure(&["ann"]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "fifo,1,,0,60,0.5,0,3");
        assert_eq!(lines[2], "fifo,1,t4,0,60,0.5,0,");
    }

    #[test]
    fn the_dictionary_names_every_column() {
        let text = data_dictionary("moira demo");
        let columns = runs_csv(&[]) + &jobs_csv_header() + &series_csv_header();
        for name in columns.trim().split(['\n', ',']) {
            assert!(text.contains(&format!("| `{name}` | ")), "{name}");
        }
        assert!(text.contains("\nmoira demo\n"));
    }
}
