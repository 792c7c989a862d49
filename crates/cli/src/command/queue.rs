//! `moira queue`: through what tenants share the cluster.

use std::path::PathBuf;

use api::{QueueChanges, QueueRequest, QueueView, QueuesRequest};
use clap::{Args, Subcommand};
use server::Config;

use super::service::{self, Listing, Shape, number, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List the queues and who uses what of them
    Ls(Listing),
    /// Make the queues what a file says: add, change and close them while the service runs
    ///
    /// The file is a configuration (TOML): all of its `[[queues]]` count, all else is passed over. A queue that is left out
    /// is closed: it takes no new jobs, and those in it go on. Everything is checked before anything is changed.
    Apply(Apply),
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The file with the `[[queues]]`
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

const COLUMNS: [&str; 10] =
    ["NAME", "PARENT", "GPUS", "GUARANTEE", "LIMIT", "WEIGHT", "RUNNING", "PENDING", "PENDING-GPUS", "STATE"];

impl Queue {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Queue::Ls(listing) => list(&listing),
            Queue::Apply(apply) => apply.run(),
        }
    }
}

fn list(listing: &Listing) -> Result<(), Failure> {
    let mut page = service::ask(async |client| client.queues().await.map_err(of_service))?;
    // One that is closed and empty is only a name.
    page.queues.retain(|queue| !queue.closed || queue.running + queue.pending > 0);
    match listing.output {
        Shape::Json => service::json(&page),
        Shape::Name => page.queues.iter().try_for_each(|queue| render::line(&queue.name)),
        Shape::Table => render::table(listing.header(&COLUMNS), page.queues.iter().map(row)),
    }
}

fn row(queue: &QueueView) -> Vec<String> {
    vec![
        queue.name.clone(),
        or_dash(queue.parent.as_ref()),
        number(queue.gpus),
        number(queue.guarantee),
        or_dash(queue.limit.map(number)),
        number(queue.weight),
        queue.running.to_string(),
        queue.pending.to_string(),
        number(queue.pending_gpus),
        if queue.closed { "closed" } else { "open" }.into(),
    ]
}

impl Apply {
    fn run(self) -> Result<(), Failure> {
        let request = self.request()?;
        let changes =
            service::ask(async |client| client.apply_queues(&request, self.dry_run).await.map_err(of_service))?;
        match self.output {
            Output::Json => service::json(&changes),
            Output::Text => tell(&changes),
        }
    }

    fn request(&self) -> Result<QueuesRequest, Failure> {
        let config = Config::read(&self.file).map_err(Failure::new)?;
        let Some(queues) = config.queues else {
            let file = self.file.display();
            return Err(Failure::usage(format!("{file} names no queues: to close all of them write `queues = []`")));
        };
        Ok(QueuesRequest { queues: queues.into_iter().map(QueueRequest::from).collect() })
    }
}

fn tell(changes: &QueueChanges) -> Result<(), Failure> {
    if changes.changes.is_empty() {
        return render::line("nothing changes: the queues are as the file says");
    }
    for change in &changes.changes {
        render::line(&change.text)?;
        if !change.jobs.is_empty() {
            render::line(&format!("  jobs in it that go on: {}", change.jobs.join(", ")))?;
        }
    }
    match changes.applied {
        true => Ok(()),
        false => render::line("nothing was changed: leave out --dry-run to apply this"),
    }
}
