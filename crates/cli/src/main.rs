//! The one binary: parse, run, exit code.

mod command;
mod failure;
mod options;
mod render;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
    /// See how policies differ on a realistic workload; needs no files and no network
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
    /// Print a completion script for a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let json = wants_json(std::env::args());
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) if error.use_stderr() => Err(Failure::of_parsing(&error)),
        Err(help) => {
            help.print().ok();
            return ExitCode::SUCCESS;
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(demo) => demo.run(),
        Command::Sim(sim) => sim.run(),
        Command::Trace(trace) => trace.run(),
        Command::Policy(policy) => policy.run(),
        Command::Reproduce(reproduce) => reproduce.run(),
        Command::Bench(bench) => bench.run(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "moira", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Whether errors are to be printed as JSON too; asked before parsing, because parsing may be what fails.
fn wants_json(arguments: impl Iterator<Item = String>) -> bool {
    let arguments: Vec<String> = arguments.collect();
    let value = |pair: &[String]| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json";
    arguments.windows(2).any(value)
        || arguments.iter().any(|argument| argument == "-ojson" || argument == "--output=json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_errors_are_wanted_however_the_option_is_written() {
        let wants = |line: &str| wants_json(line.split(' ').map(String::from));
        assert!(wants("moira sim run -o json"));
        assert!(wants("moira sim run --output=json"));
        assert!(!wants("moira sim run -o csv"));
    }
}
