//! `moira policy`: what there is, what one of them does, and which one decides in the service.

use clap::{Args, Subcommand};
use policies::{POLICIES, PolicyConfig};

use super::service::{self, Shape};
use crate::failure::Failure;
use crate::options::Output;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the policies
    Ls(Ls),
    /// Show one policy: its paper, its idea, its parameters
    Show(Show),
    /// Show the policy that decides in the running service
    Current(Current),
    /// Let another policy decide in the running service from now on
    Set(Set),
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[arg(value_name = "NAME")]
    name: String,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Current {
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// A name, or a name with parameters like fifo:backfill=easy,depth=50
    #[arg(value_name = "POLICY")]
    policy: String,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

impl PolicyCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            PolicyCommand::Ls(ls) => ls.run(),
            PolicyCommand::Show(show) => show.run(),
            PolicyCommand::Current(current) => current.run(),
            PolicyCommand::Set(set) => set.run(),
        }
    }
}

impl Ls {
    fn run(self) -> Result<(), Failure> {
        match self.output {
            Output::Table => render::table(
                &["NAME", "SUMMARY", "PAPER"],
                POLICIES.iter().map(|entry| vec![entry.name.into(), entry.summary.into(), entry.citation.into()]),
            ),
            Output::Json => {
                let policies: Vec<_> = POLICIES.iter().map(json).collect();
                render::line(&serde_json::json!({ "schema": "moira.policies/1", "policies": policies }).to_string())
            }
            Output::Csv => {
                render::line("name,summary,paper")?;
                POLICIES.iter().try_for_each(|entry| render::csv_line(&[entry.name, entry.summary, entry.citation]))
            }
        }
    }
}

impl Show {
    fn run(self) -> Result<(), Failure> {
        let entry = PolicyConfig::named(&self.name).entry().map_err(Failure::usage)?;
        match self.output {
            Output::Json => render::line(&json(entry).to_string()),
            Output::Csv => {
                render::line("parameter,default,help")?;
                entry
                    .parameters
                    .iter()
                    .try_for_each(|parameter| render::csv_line(&[parameter.name, parameter.default, parameter.help]))
            }
            Output::Table => {
                render::line(entry.header().trim_end())?;
                if entry.parameters.is_empty() {
                    return Ok(());
                }
                render::line("\nParameters (--set KEY=VALUE):")?;
                let row = |parameter: &policies::Parameter| {
                    vec![parameter.name.into(), parameter.default.into(), parameter.help.into()]
                };
                render::table(&["KEY", "DEFAULT", "MEANING"], entry.parameters.iter().map(row))
            }
        }
    }
}

impl Current {
    fn run(self) -> Result<(), Failure> {
        let policy = service::ask(async |client| client.policy().await.map_err(service::of_service))?;
        print_current(&policy, self.output)
    }
}

impl Set {
    fn run(self) -> Result<(), Failure> {
        let policy = service::ask(async |client| client.set_policy(&self.policy).await.map_err(service::of_service))?;
        print_current(&policy, self.output)
    }
}

fn print_current(policy: &api::PolicyView, output: Shape) -> Result<(), Failure> {
    match output {
        Shape::Json => service::json(policy),
        Shape::Name => render::line(&policy.name),
        Shape::Table => {
            let when = policy
                .rhythm_seconds
                .map_or_else(|| "whenever something changes".into(), |secs| format!("every {secs} s"));
            render::line(&format!("{} decides, {when}", policy.name))?;
            policy.parameters.iter().try_for_each(|(key, value)| render::line(&format!("  {key} = {value}")))?;
            policy.safeguards.iter().try_for_each(|names| render::line(&format!("safeguards around it: {names}")))
        }
    }
}

fn json(entry: &policies::Entry) -> serde_json::Value {
    let parameter = |parameter: &policies::Parameter| serde_json::json!({ "name": parameter.name, "default": parameter.default, "help": parameter.help });
    serde_json::json!({
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.citation,
        "parameters": entry.parameters.iter().map(parameter).collect::<Vec<_>>(),
    })
}
