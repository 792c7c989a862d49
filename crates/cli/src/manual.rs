//! The command line as people see it: what is derived from the commands, examples below every help, and for every command
//! that asks a service the options that say which one.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, CommandFactory, value_parser};

use crate::Cli;
use crate::command::service::Place;

/// The whole command line.
pub(crate) fn whole() -> Command {
    completed(Cli::command(), "")
}

/// Which service the command line names.
pub(crate) fn place_in(matches: &ArgMatches) -> Place {
    let mut matches = matches;
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    // Commands that ask no service do not have these.
    Place {
        server: matches.try_get_one::<String>(SERVER).ok().flatten().cloned(),
        data_dir: matches.try_get_one::<PathBuf>(DATA_DIR).ok().flatten().cloned(),
    }
}

const SERVER: &str = "place-server";
const DATA_DIR: &str = "place-data-dir";

fn completed(mut command: Command, path: &str) -> Command {
    if let Some(examples) = examples_of(path) {
        let lines: String = examples.iter().map(|example| format!("  $ moira {example}\n")).collect();
        command = command.after_help(format!("Examples:\n{}", lines.trim_end()));
    }
    if asks_a_service(path) {
        command = with_place(command);
    }
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_string()).collect();
    for name in names {
        let path = format!("{path} {name}").trim().to_string();
        command = command.mut_subcommand(name, |below| completed(below, &path));
    }
    command
}

fn with_place(command: Command) -> Command {
    let heading = "Which service";
    let server = Arg::new(SERVER)
        .long("server")
        .value_name("ADDRESS")
        .value_parser(value_parser!(String))
        .conflicts_with(DATA_DIR)
        .help_heading(heading)
        .help("Ask the service at this address, like http://127.0.0.1:7070 [default: MOIRA_SERVER]");
    let data_dir = Arg::new(DATA_DIR)
        .long("data-dir")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .help_heading(heading)
        .help("Ask the service whose data is in this folder [default: MOIRA_DATA_DIR, or this user's own]");
    command.arg(server).arg(data_dir)
}

/// Whether a command asks a running service.
fn asks_a_service(path: &str) -> bool {
    const ALONE: [&str; 15] = [
        "submit",
        "run",
        "shell",
        "ls",
        "show",
        "logs",
        "explain",
        "wait",
        "cancel",
        "hold",
        "release",
        "requeue",
        "priority",
        "policy current",
        "policy set",
    ];
    const GROUPS: [&str; 3] = ["queue ", "node ", "token "];
    ALONE.contains(&path) || GROUPS.iter().any(|group| path.starts_with(group))
}

fn examples_of(path: &str) -> Option<&'static [&'static str]> {
    EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, examples)| *examples)
}

/// For every command, by its words.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("", &["demo", "serve", "run --gpus 1 -- python train.py", "sim compare --policy fifo --policy sia"]),
    ("serve", &["serve", "serve --data-dir /srv/moira --policy sia", "serve --listen 127.0.0.1:7070"]),
    (
        "submit",
        &[
            "submit --gpus 2 -- python train.py",
            "submit --workers 1..8 --batch 128..4096 --retries 3 -- python train.py",
            "submit --array 0-99%10 -- ./evaluate.sh",
            "submit --file job.yaml --after 7",
            "submit --notify ./tell-me.sh --notify-on end,preemption -- python train.py",
        ],
    ),
    (
        "run",
        &[
            "run -- python train.py",
            "run --pty -- bash",
            "run --workers 4 --gpus a100:1 -- python train.py",
            "run --no-input --detach-on-hangup -- ./long.sh",
        ],
    ),
    ("shell", &["shell 7", "shell 7_3 -- nvidia-smi", "shell train -- bash -l"]),
    ("ls", &["ls", "ls --all --user ada -o wide", "ls --state running -o json", "ls -o name"]),
    ("show", &["show 7", "show 7_3 -o json"]),
    ("logs", &["logs 7", "logs --follow --all-workers 7", "logs --tail 2000 train", "logs 7_3 --attempt 1"]),
    ("explain", &["explain 7"]),
    ("wait", &["wait 7 8", "wait --timeout 2h train"]),
    ("cancel", &["cancel 7 8_3", "cancel train"]),
    ("hold", &["hold 7 8", "hold train"]),
    ("release", &["release 7 8", "release train"]),
    ("requeue", &["requeue 7", "requeue 7_3 9"]),
    ("priority", &["priority 7 10", "priority 7 -5"]),
    ("queue", &["queue ls", "queue apply --file moira.toml --dry-run"]),
    ("queue apply", &["queue apply --file moira.toml --dry-run", "queue apply --file moira.toml"]),
    ("queue ls", &["queue ls", "queue ls -o json"]),
    ("node", &["node ls", "node drain gpu-1"]),
    ("node ls", &["node ls", "node ls --no-headers"]),
    ("node drain", &["node drain gpu-1"]),
    ("node cordon", &["node cordon gpu-1 gpu-2"]),
    ("node uncordon", &["node uncordon gpu-1"]),
    ("demo", &["demo", "demo --sim", "demo --sim --seeds 1..5 --html report.html"]),
    ("sim", &["sim run --policy tiresias", "sim compare --policy fifo --policy sia"]),
    (
        "sim run",
        &["sim run --policy fifo --set backfill=easy", "sim run --cluster 2x8 --workload steady:jobs=1000,load=0.8"],
    ),
    (
        "sim compare",
        &[
            "sim compare --policy fifo --policy sia --seeds 1..5",
            "sim compare --workload csv:jobs.csv --html report.html",
        ],
    ),
    ("sim rerun", &["sim rerun history.jsonl --policy sia"]),
    ("trace", &["trace generate --like philly --jobs 1000 --output jobs.csv", "trace inspect csv:jobs.csv"]),
    ("trace generate", &["trace generate --like philly --jobs 1000 --gpus 64 --output jobs.csv"]),
    ("trace inspect", &["trace inspect csv:jobs.csv", "trace inspect like-philly"]),
    ("trace convert", &["trace convert sacct:jobs.txt --output jobs.csv"]),
    ("trace sample", &["trace sample csv:jobs.csv --jobs 160 --output sample.csv"]),
    ("policy", &["policy ls", "policy show sia"]),
    ("policy ls", &["policy ls", "policy ls -o json"]),
    ("policy show", &["policy show sia"]),
    ("policy current", &["policy current"]),
    ("policy set", &["policy set sia", "policy set fifo:backfill=easy,depth=50"]),
    ("reproduce", &["reproduce sia --data DIR", "reproduce all --data DIR --out tables.md"]),
    ("bench", &["bench sim", "bench policy --policy sia"]),
    ("bench sim", &["bench sim"]),
    ("bench policy", &["bench policy --policy sia --size 64/6/3"]),
    ("bench serve", &["bench serve --seconds 5"]),
    ("config", &["config check moira.toml", "config show"]),
    ("config check", &["config check moira.toml"]),
    ("config show", &["config show", "config show moira.toml"]),
    ("gc", &["gc --dry-run", "gc --checkpoints=30d"]),
    ("journal", &["journal verify", "journal backup /backup/moira"]),
    ("journal verify", &["journal verify", "journal verify --data-dir /srv/moira"]),
    ("journal export", &["journal export history.jsonl", "journal export --all"]),
    ("journal backup", &["journal backup /backup/moira"]),
    ("journal salvage", &["journal salvage new/journal.db"]),
    ("token", &["token create --file token", "token ls"]),
    ("token create", &["token create --role viewer --expires-in 7d --file token"]),
    ("token ls", &["token ls"]),
    ("token revoke", &["token revoke 3"]),
    ("audit", &["audit", "audit --by ada -o json"]),
    ("completions", &["completions bash"]),
];

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    /// Every command that people see, by its words, with what it is.
    fn all() -> Vec<(String, Command)> {
        fn below(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
            found.push((path.to_string(), command.clone()));
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
                below(sub, format!("{path} {}", sub.get_name()).trim(), found);
            }
        }
        let mut found = Vec::new();
        below(&whole(), "", &mut found);
        found
    }

    #[test]
    fn the_command_line_is_well_formed() {
        whole().debug_assert();
    }

    #[test]
    fn every_help_ends_with_examples() {
        let without = all().into_iter().filter_map(|(path, command)| {
            let help = command.clone().render_help().to_string();
            let long = command.clone().render_long_help().to_string();
            let ends = |help: &str| {
                let examples = help.rsplit_once("Examples:\n").map(|(_, examples)| examples.trim_end());
                examples.is_some_and(|it| !it.is_empty() && it.lines().all(|line| line.starts_with("  $ moira ")))
            };
            (!ends(&help) || !ends(&long)).then_some(path)
        });
        assert_eq!(without.collect::<Vec<_>>(), [] as [&str; 0]);
    }

    #[test]
    fn every_example_is_a_command_that_is_understood_and_is_about_the_command_it_stands_below() {
        for (path, examples) in EXAMPLES {
            for example in *examples {
                assert!(example.starts_with(path), "`{example}` is below the help of `{path}`");
                let words = std::iter::once("moira").chain(example.split(' '));
                let parsed = whole().try_get_matches_from(words);
                assert!(parsed.is_ok(), "`{example}`: {}", parsed.unwrap_err());
            }
        }
        let known: Vec<String> = all().into_iter().map(|(path, _)| path).collect();
        let strange = EXAMPLES.iter().filter(|(path, _)| !known.iter().any(|known| known == path));
        assert_eq!(strange.map(|(path, _)| *path).collect::<Vec<_>>(), [] as [&str; 0]);
    }

    /// Whether a command asks a running service: whoever adds one has to say it here.
    fn asks(command: &crate::Command) -> bool {
        use crate::Command::*;
        use crate::command::policy::PolicyCommand;
        match command {
            Submit(_) | Run(_) | Shell(_) | Ls(_) | Show(_) | Logs(_) | Explain(_) | Wait(_) | Cancel(_) | Hold(_)
            | Release(_) | Requeue(_) | Priority(_) | Queue(_) | Node(_) | Token(_) => true,
            Policy(PolicyCommand::Current(_) | PolicyCommand::Set(_)) => true,
            Policy(PolicyCommand::Ls(_) | PolicyCommand::Show(_)) => false,
            Serve(_)
            | Demo(_)
            | Sim(_)
            | Trace(_)
            | Reproduce(_)
            | Bench(_)
            | Config(_)
            | Gc(_)
            | Journal(_)
            | Audit(_)
            | Supervise(_)
            | Trainer(_)
            | Complete(_)
            | Completions { .. } => false,
        }
    }

    #[test]
    fn every_command_that_asks_a_service_can_be_told_which() {
        for (path, command) in all() {
            let has = |long: &str| command.get_arguments().any(|argument| argument.get_long() == Some(long));
            assert_eq!(has("server"), asks_a_service(&path), "{path}");
            assert!(!asks_a_service(&path) || has("data-dir"), "{path}");
        }
        for (path, examples) in EXAMPLES.iter().filter(|(path, _)| !path.is_empty()) {
            for example in *examples {
                let words = std::iter::once("moira").chain(example.split(' '));
                let matches = whole().try_get_matches_from(words).unwrap();
                let command = Cli::from_arg_matches(&matches).unwrap().command;
                let named: Vec<&str> = std::iter::successors(matches.subcommand(), |(_, below)| below.subcommand())
                    .map(|(name, _)| name)
                    .collect();
                assert_eq!(asks(&command), asks_a_service(&named.join(" ")), "{path}: {example}");
            }
        }
        let matches = whole().try_get_matches_from(["moira", "node", "ls", "--server", "http://127.0.0.1:1"]).unwrap();
        assert_eq!(place_in(&matches).server.as_deref(), Some("http://127.0.0.1:1"));
        let matches = whole().try_get_matches_from(["moira", "serve", "--data-dir", "/d"]).unwrap();
        assert_eq!(place_in(&matches), Place::default(), "a service is told by its own option");
    }
}
