//! Commands about jobs that were submitted.

mod explain;
pub(super) mod failure;
mod logs;
mod ls;
mod named;
mod show;
pub(super) mod wait;

use anyhow::anyhow;
use api::{Client, Error, JobId, JobView};
use clap::Args;

use super::service::{self, Shape, of_service};
use super::submit::new_key;
use crate::failure::Failure;
use crate::render;

pub(crate) use explain::Explain;
pub(crate) use logs::{Following, Logs, Reader, show_array};
pub(crate) use ls::Ls;
pub(crate) use named::{Named, Which};
pub(crate) use show::Show;
pub(crate) use wait::Wait;

/// Some jobs, for a change that each of them takes.
#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Jobs by number, tasks like 7_3, or all your jobs of a name that have not ended
    #[arg(required = true, value_name = "ID|NAME")]
    jobs: Vec<Named>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

/// Jobs that ended without success, to be run once more.
#[derive(Debug, Args)]
pub(crate) struct Requeue {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<JobId>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct Priority {
    #[arg(value_name = "ID")]
    id: JobId,
    /// From -1000 to 1000; higher goes first
    #[arg(value_name = "N", allow_negative_numbers = true)]
    priority: i32,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

impl Change {
    pub(crate) fn cancel(self) -> Result<(), Failure> {
        self.each("cancelled", Client::cancel)
    }

    pub(crate) fn hold(self) -> Result<(), Failure> {
        self.each("held", Client::hold)
    }

    pub(crate) fn release(self) -> Result<(), Failure> {
        self.each("released", Client::release)
    }

    /// One that cannot be changed does not keep the others from it; it is told at the end.
    fn each(self, done: &str, change: impl AsyncFn(&Client, JobId) -> Result<JobView, Error>) -> Result<(), Failure> {
        service::ask(async |client| {
            let (mut refused, mut ids, mut unprinted) = (Vec::new(), Vec::new(), None);
            for named in &self.jobs {
                match named.numbers(client, Which::Live).await {
                    Ok(found) => ids.extend(found),
                    Err(Error::Refused(problem)) => refused.push(problem.to_string()),
                    Err(error) => return Err(of_service(error)),
                }
            }
            for id in ids {
                match service::at_the_allowed_pace(async || change(client, id).await).await {
                    // That nobody reads what is printed keeps no job from the change.
                    Ok(job) => {
                        let sentence = format!("{done} job {id} ({})", job.name);
                        unprinted = print(&job, self.output, &sentence).err().or(unprinted);
                    }
                    Err(Error::Refused(problem)) => refused.push(problem.to_string()),
                    Err(error) => return Err(of_service(error)),
                }
            }
            concluded(&refused, unprinted)
        })
    }
}

/// That a change was refused counts more than that nobody reads of the others.
fn concluded(refused: &[String], unprinted: Option<Failure>) -> Result<(), Failure> {
    match refused {
        [] => unprinted.map_or(Ok(()), Err),
        refused => Err(Failure::new(anyhow!(refused.join("; ")))),
    }
}

impl Requeue {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            let (mut refused, mut unprinted) = (Vec::new(), None);
            for &id in &self.ids {
                let key = new_key()?;
                match client.requeue(id, &key).await {
                    Ok(job) => {
                        let sentence = format!("job {} ({}) goes on from job {id}", job.id, job.name);
                        unprinted = print(&job, self.output, &sentence).err().or(unprinted);
                    }
                    Err(Error::Refused(problem)) => refused.push(problem.to_string()),
                    Err(error) => return Err(of_service(error)),
                }
            }
            concluded(&refused, unprinted)
        })
    }
}

impl Priority {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let job = service::ask(async |client| {
            let change = async || client.set_priority(self.id, self.priority).await;
            service::at_the_allowed_pace(change).await.map_err(of_service)
        })?;
        print(&job, self.output, &format!("job {} ({}) now has priority {}", job.id, job.name, job.priority))
    }
}

fn print(job: &JobView, output: Shape, sentence: &str) -> Result<(), Failure> {
    match output {
        Shape::Table => render::line(sentence),
        Shape::Json => service::json(job),
        Shape::Name => render::line(&job.id),
    }
}

/// A job for tests: it waits for one GPU.
#[cfg(test)]
pub(super) fn sample(id: &str) -> JobView {
    JobView {
        id: id.into(),
        name: "train".into(),
        owner: "ada".into(),
        queue: "root".into(),
        priority: 0,
        state: api::JobState::Pending,
        reason: Some("WaitingForResources".into()),
        message: Some("needs 1 GPUs, 0 free".into()),
        failure: None,
        exit_code: None,
        signal: None,
        submitted_at: "2026-11-20T09:00:00Z".into(),
        started_at: None,
        finished_at: None,
        workers: api::WorkersView { have: 0, min: 1, max: 1 },
        processes: 0,
        gpus: 0.0,
        gpus_per_worker: 1.0,
        gpu_kind: None,
        nodes: Vec::new(),
        attempts: 0,
        failures: 0,
        preemptions: 0,
        resizes: 0,
        restart: None,
        resize: None,
        gpu_seconds: 0.0,
        elapsed_seconds: 0.0,
        progress: None,
        usage: None,
        array: None,
        labels: Default::default(),
        depends_on: Vec::new(),
        deadline: None,
        spec: None,
        notice: None,
        summary: false,
    }
}
