//! `moira ls`: jobs, one a line.

use std::io::{self, IsTerminal};
use std::time::Duration;

use api::{Client, JobPage, JobQuery, JobState, JobView};
use clap::{Args, ValueEnum};
use cluster::Span;

use crate::command::service::{self, brief, number, of_service, or_dash, since};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Also jobs that have ended; with -o json they are there anyway
    #[arg(short, long, conflicts_with = "states")]
    all: bool,
    /// Only jobs in this state; may be given several times
    #[arg(long = "state", value_name = "STATE")]
    states: Vec<JobState>,
    /// Only jobs of this user
    #[arg(short, long)]
    user: Option<String>,
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this name
    #[arg(long)]
    name: Option<String>,
    /// At most so many; 100 if nothing is said, and with -o json and -o name all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: Option<u32>,
    /// Go on behind what a shorter list said is `next`
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
    /// Show it anew every two seconds, until interrupted
    #[arg(short, long)]
    watch: bool,
    #[arg(long)]
    no_headers: bool,
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Form {
    /// For eyes
    #[default]
    Table,
    /// With nodes, workers, launches and messages
    Wide,
    /// For programs: the page of the API itself
    Json,
    /// Only the ids
    Name,
}

/// So many are shown to eyes; programs want to see all, and a program that wants a million can ask for pages.
const USUAL: u32 = 100;
const MOST: u32 = 1_000_000;

/// The service gives no longer page.
const LONGEST_PAGE: u32 = 1000;

const REFRESH: Duration = Duration::from_secs(2);

const COLUMNS: [&str; 12] =
    ["ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", "REASON", "GPUS", "KIND", "AGE", "ELAPSED", "PROGRESS"];

const WIDE_COLUMNS: [&str; 5] = ["WORKERS", "NODES", "STARTS", "GPU-HOURS", "MESSAGE"];

impl Ls {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            loop {
                let page = self.page(client).await?;
                if self.watch && io::stdout().is_terminal() {
                    render::clear_screen()?;
                }
                self.print(&page)?;
                if !self.is_for_programs() {
                    tell_trouble(client).await;
                }
                if !self.watch {
                    return Ok(());
                }
                tokio::time::sleep(REFRESH).await;
            }
        })
    }

    /// As many pages as it takes.
    async fn page(&self, client: &Client) -> Result<JobPage, Failure> {
        let mut query = self.query();
        let mut jobs: Vec<JobView> = Vec::new();
        let limit = self.limit.unwrap_or(if self.is_for_programs() { MOST } else { USUAL });
        loop {
            query.limit = Some((limit - jobs.len() as u32).min(LONGEST_PAGE));
            let page = client.jobs(&query).await.map_err(of_service)?;
            jobs.extend(page.jobs);
            if page.next.is_none() || jobs.len() as u32 >= limit {
                return Ok(JobPage { jobs, next: page.next });
            }
            query.after = page.next;
        }
    }

    fn is_for_programs(&self) -> bool {
        matches!(self.output, Form::Json | Form::Name)
    }

    fn query(&self) -> JobQuery {
        let live = || JobState::ALL.into_iter().filter(|state| !state.is_final()).collect();
        let states = match (self.all || self.output == Form::Json, self.states.is_empty()) {
            (true, false) => self.states.clone(),
            (true, true) => Vec::new(),
            (false, true) => live(),
            (false, false) => self.states.clone(),
        };
        JobQuery {
            states,
            owner: self.user.clone(),
            queue: self.queue.clone(),
            name: self.name.clone(),
            mine: false,
            limit: None,
            after: self.after.clone(),
        }
    }

    fn print(&self, page: &JobPage) -> Result<(), Failure> {
        let wide = self.output == Form::Wide;
        match self.output {
            Form::Json => return service::json(page),
            Form::Name => return page.jobs.iter().try_for_each(|job| render::line(&job.id)),
            Form::Table | Form::Wide => {}
        }
        if page.jobs.is_empty() && !self.no_headers {
            return render::line(if self.all { "no jobs" } else { "no jobs; `--all` also shows what has ended" });
        }
        let mut columns: Vec<&str> = if self.no_headers { Vec::new() } else { COLUMNS.to_vec() };
        if wide && !self.no_headers {
            columns.extend(WIDE_COLUMNS);
        }
        render::table(&columns, page.jobs.iter().map(|job| row(job, wide)))?;
        match &page.next {
            Some(next) if !self.no_headers => render::line(&format!("more: --limit, or --after {next}")),
            _ => Ok(()),
        }
    }
}

fn row(job: &JobView, wide: bool) -> Vec<String> {
    let mut cells = vec![
        job.id.clone(),
        job.name.clone(),
        job.owner.clone(),
        job.queue.clone(),
        job.priority.to_string(),
        job.state.to_string(),
        or_dash(job.failure.as_ref().map(|failure| &failure.message).or(job.reason.as_ref())),
        gpus(job),
        or_dash(job.gpu_kind.as_ref()),
        or_dash(since(&job.submitted_at).map(brief)),
        brief(Span::from_secs_f64(job.elapsed_seconds)),
        progress(job),
    ];
    if wide {
        cells.extend([
            workers(job),
            if job.nodes.is_empty() { "-".into() } else { job.nodes.join(",") },
            job.attempts.to_string(),
            format!("{:.2}", job.gpu_seconds / 3600.0),
            or_dash(job.message.as_ref()),
        ]);
    }
    cells
}

/// What it has over what it wants.
pub(super) fn gpus(job: &JobView) -> String {
    let [least, most] =
        [job.workers.min, job.workers.max].map(|workers| number(f64::from(workers) * job.gpus_per_worker));
    let wants = if least == most { least } else { format!("{least}..{most}") };
    format!("{}/{wants}", number(job.gpus))
}

pub(super) fn workers(job: &JobView) -> String {
    let workers = job.workers;
    let wants =
        if workers.min == workers.max { workers.min.to_string() } else { format!("{}..{}", workers.min, workers.max) };
    format!("{}/{wants}", workers.have)
}

/// Tasks done of an array; else the share that is done, or the steps, if it reports them.
fn progress(job: &JobView) -> String {
    if let Some(array) = &job.array {
        return format!("{}/{} tasks", array.succeeded + array.failed, array.count);
    }
    let Some(progress) = &job.progress else { return "-".into() };
    match (progress.fraction, progress.steps) {
        (Some(fraction), _) => format!("{:.0}%", fraction * 100.0),
        (None, Some(steps)) => format!("{steps} steps"),
        (None, None) => "-".into(),
    }
}

/// Says below the list if the service does not do all it should. That it cannot be asked is no reason not to list jobs.
async fn tell_trouble(client: &Client) {
    if let Ok(health) = client.ready().await
        && health.status != "ok"
    {
        service::tell(&format!("{}: {}", health.status, health.message.unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::jobs::sample;

    #[test]
    fn a_job_that_waits_shows_what_it_wants_and_why() {
        let row = row(&sample("7"), false);
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row[..9], ["7", "train", "ada", "root", "0", "pending", "WaitingForResources", "0/1", "-"]);
        assert_eq!(super::row(&sample("7"), true).len(), COLUMNS.len() + WIDE_COLUMNS.len());
    }

    #[test]
    fn gpus_are_shown_as_had_and_wanted() {
        let workers = api::WorkersView { have: 2, min: 1, max: 8 };
        let job = JobView { workers, gpus: 8.0, gpus_per_worker: 4.0, ..sample("7") };
        assert_eq!((gpus(&job), super::workers(&job)), ("8/4..32".into(), "2/1..8".into()));
    }

    #[test]
    fn an_array_shows_how_many_of_its_tasks_are_over() {
        let array =
            api::ArrayView { first: 0, count: 10, at_once: None, pending: 3, running: 2, succeeded: 4, failed: 1 };
        assert_eq!(progress(&JobView { array: Some(array), ..sample("7") }), "5/10 tasks");
    }
}
