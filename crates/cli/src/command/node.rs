//! `moira node`: the machines, and taking them out of service.

use api::{NodeChange, NodePage, NodeView};
use clap::{Args, Subcommand};

use super::service::{self, Listing, Shape, number, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// List the nodes and who is on them
    Ls(Listing),
    /// Start nothing new on a node, and move away what runs there
    Drain(Change),
    /// Start nothing new on a node
    Cordon(Change),
    /// Take a node into service again
    Uncordon(Change),
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

const COLUMNS: [&str; 6] = ["NAME", "KIND", "GPUS", "FREE", "STATE", "JOBS"];

impl Node {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Node::Ls(listing) => list(listing),
            Node::Drain(change) => change.run(NodeChange::Drain),
            Node::Cordon(change) => change.run(NodeChange::Cordon),
            Node::Uncordon(change) => change.run(NodeChange::Uncordon),
        }
    }
}

impl Change {
    fn run(self, change: NodeChange) -> Result<(), Failure> {
        let mut nodes = service::ask(async |client| {
            let mut nodes = Vec::new();
            for name in &self.names {
                nodes = client.change_node(name, change).await.map_err(of_service)?.nodes;
            }
            Ok(nodes)
        })?;
        nodes.retain(|node| self.names.contains(&node.name));
        print(&NodePage { nodes }, Listing::of(self.output))
    }
}

fn list(listing: Listing) -> Result<(), Failure> {
    let page = service::ask(async |client| client.nodes().await.map_err(of_service))?;
    print(&page, listing)
}

fn print(page: &NodePage, listing: Listing) -> Result<(), Failure> {
    match listing.output {
        Shape::Json => service::json(page),
        Shape::Name => page.nodes.iter().try_for_each(|node| render::line(&node.name)),
        Shape::Table => render::table(listing.header(&COLUMNS), page.nodes.iter().map(row)),
    }
}

fn row(node: &NodeView) -> Vec<String> {
    vec![
        node.name.clone(),
        or_dash(node.kind.as_ref()),
        node.gpus.to_string(),
        number(node.free),
        node.state.clone(),
        if node.jobs.is_empty() { "-".into() } else { node.jobs.join(",") },
    ]
}
