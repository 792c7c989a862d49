//! The one binary: parse, run, exit code.

mod command;
mod failure;
mod log;
mod manual;
mod options;
mod render;
mod unit;
mod visible;

use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

use crate::failure::Failure;

/// A scheduler for deep-learning clusters: compare policies, replay workloads, see why.
#[derive(Debug, Parser)]
#[command(name = "moira", version, about, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service: take jobs and run them on this machine's accelerators
    Serve(command::serve::Serve),
    /// Hand a job over to the service and go on
    Submit(command::submit::Submit),
    /// Hand a job over, show what it writes, and end as it ends
    Run(command::run::Run),
    /// Open a shell beside a running job: on its devices, with its environment
    Shell(command::shell::Shell),
    /// List jobs
    #[command(visible_alias = "ps")]
    Ls(command::jobs::Ls),
    /// Show everything about one job
    Show(command::jobs::Show),
    /// Show what a job's workers wrote
    Logs(command::jobs::Logs),
    /// Say why a job has what it has, and what to do next
    Explain(command::jobs::Explain),
    /// Wait until jobs have ended; the exit code says how
    Wait(command::jobs::Wait),
    /// End jobs
    Cancel(command::jobs::Change),
    /// Let jobs wait; what runs saves its state and stops
    Hold(command::jobs::Change),
    /// Let held jobs go on
    Release(command::jobs::Change),
    /// Run jobs that failed once more, each from its last checkpoint
    Requeue(command::jobs::Requeue),
    /// Give a job another priority
    Priority(command::jobs::Priority),
    /// The queues of the service
    #[command(subcommand)]
    Queue(command::queue::Queue),
    /// The nodes of the service
    #[command(subcommand)]
    Node(command::node::Node),
    /// Watch real jobs being scheduled on this machine, or with --sim how policies differ; needs no files and no network
    Demo(command::demo::Demo),
    /// Simulate a workload on a cluster
    #[command(subcommand)]
    Sim(command::sim::Sim),
    /// Draw, inspect, convert and sample workloads
    #[command(subcommand)]
    Trace(command::trace::Trace),
    /// The policies there are
    #[command(subcommand)]
    Policy(command::policy::PolicyCommand),
    /// Repeat the experiments of a paper and compare with its figures
    Reproduce(command::reproduce::Reproduce),
    /// Measure how fast Moira itself is
    #[command(subcommand)]
    Bench(command::bench::Bench),
    /// The service's configuration file
    #[command(subcommand)]
    Config(command::config::ConfigCommand),
    /// Remove what is not to be kept of jobs, runs and archives, or say what that is; checkpoints only if asked
    Gc(command::gc::Gc),
    /// The service's journal: look whether it is whole, write it out, save what can be saved
    #[command(subcommand)]
    Journal(command::journal::JournalCommand),
    /// Tokens, by which the service knows you over the network
    #[command(subcommand)]
    Token(command::token::Token),
    /// Who did what, from the journal
    Audit(command::audit::Audit),
    /// Watch over one run; started by the service
    #[command(hide = true)]
    Supervise(command::serve::Supervise),
    /// A small real training, for demonstrations and tests
    #[command(hide = true)]
    Trainer(command::trainer::Trainer),
    /// What may stand at a place of a command line; asked by completion scripts
    #[command(hide = true)]
    Complete(command::complete::Complete),
    /// Print a completion script for a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    // Twice for every run or notification, which has no use for anything else of this program.
    if let Some(supervise) = command::serve::Supervise::of_words(std::env::args_os().skip(1)) {
        return supervise.run();
    }
    let json = wants_json(std::env::args());
    let outcome = match parsed() {
        Ok(cli) => run(cli.command),
        Err(error) if error.use_stderr() => Err(Failure::of_parsing(&error)),
        Err(help) => {
            help.print().ok();
            return ExitCode::SUCCESS;
        }
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(json),
    }
}

/// The command line, and from now on the service that it names.
fn parsed() -> Result<Cli, clap::Error> {
    let matches = manual::whole().try_get_matches()?;
    command::service::use_place(manual::place_in(&matches));
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut manual::whole()))
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Supervise(supervise) => return Ok(supervise.run()),
        Command::Serve(serve) => serve.run(),
        Command::Config(config) => config.run(),
        Command::Gc(gc) => gc.run(),
        Command::Journal(journal) => journal.run(),
        Command::Token(token) => token.run(),
        Command::Audit(audit) => audit.run(),
        Command::Submit(submit) => submit.run(),
        Command::Run(run) => run.run(),
        Command::Shell(shell) => shell.run(),
        Command::Ls(ls) => ls.run(),
        Command::Show(show) => show.run(),
        Command::Logs(logs) => logs.run(),
        Command::Explain(explain) => explain.run(),
        Command::Wait(wait) => wait.run(),
        Command::Cancel(change) => change.cancel(),
        Command::Hold(change) => change.hold(),
        Command::Release(change) => change.release(),
        Command::Requeue(requeue) => requeue.run(),
        Command::Priority(priority) => priority.run(),
        Command::Queue(queue) => queue.run(),
        Command::Node(node) => node.run(),
        Command::Demo(demo) => demo.run(),
        Command::Trainer(trainer) => trainer.run(),
        Command::Sim(sim) => sim.run(),
        Command::Trace(trace) => trace.run(),
        Command::Policy(policy) => policy.run(),
        Command::Reproduce(reproduce) => reproduce.run(),
        Command::Bench(bench) => bench.run(),
        Command::Complete(complete) => complete.run(),
        Command::Completions { shell } => command::complete::script(shell),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Whether errors are to be printed as JSON too; asked before parsing, because parsing may be what fails.
fn wants_json(arguments: impl Iterator<Item = String>) -> bool {
    // What comes after -- is a job's own affair.
    let arguments: Vec<String> = arguments.take_while(|argument| argument != "--").collect();
    let value = |pair: &[String]| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json";
    arguments.windows(2).any(value)
        || arguments.iter().any(|argument| argument == "-ojson" || argument == "--output=json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_errors_are_wanted_however_the_option_is_written() {
        let wants = |line: &str| wants_json(line.split(' ').map(String::from));
        assert!(wants("moira sim run -o json"));
        assert!(wants("moira sim run --output=json"));
        assert!(!wants("moira sim run -o csv"));
        assert!(!wants("moira run -- program -o json"));
    }
}
