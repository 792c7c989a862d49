//! `moira queue`: through what tenants share the cluster.

use api::QueueView;
use clap::{Args, Subcommand};

use super::service::{self, Shape, number, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List the queues and who uses what of them
    Ls(Ls),
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[arg(long)]
    no_headers: bool,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

const COLUMNS: [&str; 9] =
    ["NAME", "PARENT", "GPUS", "GUARANTEE", "LIMIT", "WEIGHT", "RUNNING", "PENDING", "PENDING-GPUS"];

impl Queue {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Queue::Ls(ls) = self;
        let page = service::ask(async |client| client.queues().await.map_err(of_service))?;
        match ls.output {
            Shape::Json => service::json(&page),
            Shape::Name => page.queues.iter().try_for_each(|queue| render::line(&queue.name)),
            Shape::Table => {
                let columns: &[&str] = if ls.no_headers { &[] } else { &COLUMNS };
                render::table(columns, page.queues.iter().map(row))
            }
        }
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
    ]
}
