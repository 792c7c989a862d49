//! `moira queue`: through what tenants share the cluster.

use api::QueueView;
use clap::Subcommand;

use super::service::{self, Listing, Shape, number, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List the queues and who uses what of them
    Ls(Listing),
}

const COLUMNS: [&str; 9] =
    ["NAME", "PARENT", "GPUS", "GUARANTEE", "LIMIT", "WEIGHT", "RUNNING", "PENDING", "PENDING-GPUS"];

impl Queue {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Queue::Ls(listing) = self;
        let page = service::ask(async |client| client.queues().await.map_err(of_service))?;
        match listing.output {
            Shape::Json => service::json(&page),
            Shape::Name => page.queues.iter().try_for_each(|queue| render::line(&queue.name)),
            Shape::Table => render::table(listing.header(&COLUMNS), page.queues.iter().map(row)),
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
