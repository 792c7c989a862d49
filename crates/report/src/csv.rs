//! Tables as comma-separated text, quoted as in RFC 4180; lines end with a line feed alone. A number of which there is
//! none is an empty field.

use std::fmt::{Display, Write};

use cluster::{Span, Time};
use plan::Outcome;

use crate::job::JobRow;
use crate::run::RunReport;
use crate::summary::HEADLINES;

/// One line for each run, after a header.
pub fn runs_csv<'a>(runs: impl IntoIterator<Item = &'a RunReport>) -> String {
    let mut table = Table::default();
    ["policy", "workload", "seed", "knows"].iter().for_each(|name| table.field(name));
    HEADLINES.iter().for_each(|headline| table.field(headline.name));
    table.end_line();
    for run in runs {
        table.field(&run.policy);
        table.field(&run.workload);
        table.field(run.seed);
        table.field(run.knows.join("; "));
        HEADLINES.iter().for_each(|headline| table.maybe((headline.of)(run)));
        table.end_line();
    }
    table.text
}

/// One line for each job, after a header.
pub fn jobs_csv(jobs: impl IntoIterator<Item = JobRow>) -> String {
    let mut table = Table::default();
    let header = "id,name,user,queue,submitted_s,started_s,ended_s,outcome,gpus,jct_s,waiting_s,gpu_hours,launches,\
                  restarts,preemptions,deadline_met";
    header.split(',').for_each(|name| table.field(name));
    table.end_line();
    for job in jobs {
        table.field(job.id);
        table.field(&job.name);
        table.field(&job.user);
        table.maybe(job.queue.as_deref());
        table.field(job.submitted.as_secs_f64());
        table.maybe(job.started.map(Time::as_secs_f64));
        table.maybe(job.ended.map(Time::as_secs_f64));
        table.field(job.outcome.map_or("unfinished", outcome));
        table.field(job.gpus);
        table.maybe(job.jct.map(Span::as_secs_f64));
        table.field(job.waiting.as_secs_f64());
        table.field(job.held.as_gpu_hours());
        table.field(job.launches);
        table.field(job.restarts);
        table.field(job.preemptions);
        table.maybe(job.deadline_met);
        table.end_line();
    }
    table.text
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "finished",
        Outcome::Cancelled => "cancelled",
        Outcome::DependencyFailed => "dependency_failed",
        Outcome::GivenUp => "given_up",
        Outcome::Refused => "refused",
    }
}

#[derive(Default)]
struct Table {
    text: String,
    /// The present line has a field already.
    begun: bool,
}

impl Table {
    fn maybe(&mut self, value: Option<impl Display>) {
        match value {
            Some(value) => self.field(value),
            None => self.field(""),
        }
    }

    fn field(&mut self, value: impl Display) {
        if self.begun {
            self.text.push(',');
        }
        self.begun = true;
        let start = self.text.len();
        write!(self.text, "{value}").expect("a string takes whatever is written to it");
        if self.text[start..].contains([',', '"', '\n', '\r']) {
            let quoted = format!("\"{}\"", self.text[start..].replace('"', "\"\""));
            self.text.replace_range(start.., &quoted);
        }
    }

    fn end_line(&mut self) {
        self.text.push('\n');
        self.begun = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::Tale;
    use cluster::JobDraft;

    #[test]
    fn a_run_is_a_line_and_missing_numbers_are_empty() {
        let text = runs_csv([&Tale::on("1x4 t4").report()]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("policy,workload,seed,knows,jobs,finished,refused,jct_mean_s,"), "{text}");
        assert!(lines[1].starts_with("fifo,tale,7,,0,0,0,,"), "{text}");
        assert_eq!(lines[0].matches(',').count(), lines[1].matches(',').count());
    }

    #[test]
    fn a_job_is_a_line_and_awkward_names_are_quoted() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(10, JobDraft::rigid("bert, \"large\"", 2));
        tale.launch(20, job, &[(0, 0b11)]);
        tale.started(25, job);
        tale.finish(1820, job);
        let expected = "\
            id,name,user,queue,submitted_s,started_s,ended_s,outcome,gpus,jct_s,waiting_s,gpu_hours,launches,\
            restarts,preemptions,deadline_met\n\
            0,\"bert, \"\"large\"\"\",user,root,10,25,1820,finished,2,1810,10,1,1,0,0,\n";
        assert_eq!(jobs_csv(tale.fold.jobs()), expected);
    }
}
