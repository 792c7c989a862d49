//! `moira show`: everything about one job.

use api::{InterruptionView, JobId, JobView, ProgressView};
use clap::Args;
use cluster::{Bytes, Span};

use super::ls::{gpus, workers};
use crate::command::service::{self, Shape, brief, number, of_service};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[arg(value_name = "ID")]
    id: JobId,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

impl Show {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let job = service::ask(async |client| client.job(self.id).await.map_err(of_service))?;
        match self.output {
            Shape::Json => service::json(&job),
            Shape::Name => render::line(&job.name),
            Shape::Table => lines(&job).iter().try_for_each(|(name, text)| render::line(&format!("{name:<12} {text}"))),
        }
    }
}

/// What there is to say, by name.
fn lines(job: &JobView) -> Vec<(&'static str, String)> {
    let mut lines = vec![("job", format!("{} ({})", job.id, job.name)), ("state", state(job))];
    let mut say = |name, text: Option<String>| lines.extend(text.map(|text| (name, text)));
    say("because", job.message.clone().filter(|message| !message.is_empty()));
    say("ended", ending(job));
    say("user", Some(format!("{} in queue {}, priority {}", job.owner, job.queue, job.priority)));
    say("command", job.spec.as_ref().map(|spec| render::command_line(spec.command.argv())));
    say("folder", job.spec.as_ref().and_then(|spec| spec.workdir.clone()));
    say(
        "gpus",
        Some(format!("{}{}", gpus(job), job.gpu_kind.as_ref().map(|kind| format!(" {kind}")).unwrap_or_default())),
    );
    say("workers", Some(workers(job)));
    say("nodes", (!job.nodes.is_empty()).then(|| job.nodes.join(", ")));
    say("submitted", Some(job.submitted_at.clone()));
    say("started", job.started_at.clone());
    say("finished", job.finished_at.clone());
    say("deadline", job.deadline.clone());
    say("after", (!job.depends_on.is_empty()).then(|| job.depends_on.join(", ")));
    let elapsed = brief(Span::from_secs_f64(job.elapsed_seconds));
    say("used", Some(format!("{elapsed} on devices, {:.3} GPU-hours", job.gpu_seconds / 3600.0)));
    say("launches", Some(launches(job)));
    say("resized", (job.resizes > 0).then(|| format!("{} times without a restart", job.resizes)));
    say("restart", job.restart.as_ref().map(interruption));
    say("resize", job.resize.as_ref().map(interruption));
    say("progress", job.progress.as_ref().map(progress));
    say(
        "resources",
        job.usage.as_ref().map(|usage| {
            let memory = Bytes::new(usage.memory_bytes);
            let gpu =
                usage.gpu_utilisation.map(|share| format!(", GPUs {:.0}% busy", share * 100.0)).unwrap_or_default();
            format!("{} s of CPU time, {memory} of memory{gpu}", number(usage.cpu_seconds))
        }),
    );
    say(
        "tasks",
        job.array.map(|array| {
            let (waiting, running) = (array.pending, array.running);
            format!(
                "{}: {waiting} waiting, {running} running, {} succeeded, {} failed",
                array.count, array.succeeded, array.failed
            )
        }),
    );
    let labels: Vec<String> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    say("labels", (!labels.is_empty()).then(|| labels.join(", ")));
    lines
}

fn state(job: &JobView) -> String {
    job.reason.as_ref().map_or_else(|| job.state.to_string(), |reason| format!("{} ({reason})", job.state))
}

fn ending(job: &JobView) -> Option<String> {
    match (job.exit_code, job.signal) {
        (_, Some(signal)) => Some(format!("by signal {signal}")),
        (Some(code), None) => Some(format!("with exit code {code}")),
        (None, None) => None,
    }
}

fn launches(job: &JobView) -> String {
    format!("{}, {} failed, {} preempted", job.attempts, job.failures, job.preemptions)
}

/// What the latest of a kind cost, and where that time went. During the notice training went on.
fn interruption(view: &InterruptionView) -> String {
    let phase = |(name, seconds): (&str, f64)| format!("{} {}", name.replace('_', " "), number(seconds));
    let phases: Vec<String> = view.phases.measured().map(phase).collect();
    format!("{} s without a step (in seconds: {})", number(view.seconds), phases.join(", "))
}

fn progress(progress: &ProgressView) -> String {
    let share = progress.fraction.map(|fraction| format!("{:.1}%", fraction * 100.0));
    let steps = progress.steps.map(|steps| match progress.total_steps {
        Some(total) => format!("{steps} of {total} steps"),
        None => format!("{steps} steps"),
    });
    let epoch = progress.epoch.map(|epoch| format!("epoch {}", number(epoch)));
    let loss = progress.loss.map(|loss| format!("loss {}", number(loss)));
    let pace = progress.step_seconds.map(|seconds| format!("{seconds:.3} s a step"));
    let batch = progress.batch_size.map(|batch| format!("batch {batch}"));
    let said: Vec<String> = [share, steps, epoch, loss, pace, batch].into_iter().flatten().collect();
    if said.is_empty() { format!("last heard of {}", progress.reported_at) } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::jobs::sample;

    #[test]
    fn a_job_that_waits_is_shown_with_its_reason() {
        let text: Vec<String> = lines(&sample("7")).iter().map(|(name, text)| format!("{name}: {text}")).collect();
        let expected = [
            "job: 7 (train)",
            "state: pending (WaitingForResources)",
            "because: needs 1 GPUs, 0 free",
            "user: ada in queue root, priority 0",
            "gpus: 0/1",
            "workers: 0/1",
            "submitted: 2026-11-20T09:00:00Z",
            "used: 0s on devices, 0.000 GPU-hours",
            "launches: 0, 0 failed, 0 preempted",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn what_an_interruption_cost_is_shown_by_phase() {
        let phases = api::Phases { notice: Some(5.0), process_group: Some(0.5), ..api::Phases::default() };
        let resize = Some(InterruptionView { seconds: 0.5, phases, reported_at: "2026-11-20T09:00:00Z".into() });
        let job = JobView { resizes: 2, resize, ..sample("7") };
        let text: Vec<String> = lines(&job).iter().map(|(name, text)| format!("{name}: {text}")).collect();
        assert!(text.contains(&"resized: 2 times without a restart".to_string()), "{text:?}");
        let cost = "resize: 0.5 s without a step (in seconds: notice 5, process group 0.5)";
        assert!(text.contains(&cost.to_string()), "{text:?}");
    }

    #[test]
    fn progress_is_said_as_far_as_it_is_known() {
        let report = ProgressView {
            steps: Some(120),
            total_steps: Some(200),
            fraction: Some(0.6),
            epoch: None,
            loss: Some(0.25),
            step_seconds: None,
            batch_size: None,
            accumulation: None,
            reported_at: "2026-11-20T09:00:00Z".into(),
        };
        assert_eq!(progress(&report), "60.0%, 120 of 200 steps, loss 0.25");
    }
}
