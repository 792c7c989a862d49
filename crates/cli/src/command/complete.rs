//! Completion of command lines: the script that clap writes for a shell, and before it what only a service or a table
//! knows: numbers of jobs, names of queues, nodes and policies.

use std::time::Duration;

use api::{Client, JobQuery, JobState};
use clap::{Arg, ArgAction, Args, Command};
use clap_complete::Shell;
use policies::POLICIES;

use super::service;
use crate::failure::Failure;
use crate::{manual, render};

/// Words of a command line, the last of which is to be completed.
#[derive(Debug, Args)]
pub(crate) struct Complete {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What may stand at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// Of jobs that have not ended, or of all.
    Jobs {
        live: bool,
    },
    Queues,
    Nodes,
    Policies,
}

/// A shell waits for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many of them are of use.
const MOST: u32 = 100;

/// Prints the script for a shell.
pub(crate) fn script(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut manual::whole(), "moira", &mut script);
    let addition = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    };
    script.extend_from_slice(addition.as_bytes());
    render::bytes(&script)
}

const BASH: &str = r#"
_moira_known() {
    local known
    known="$(moira complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ -n "$known" ]]; then
        COMPREPLY=($(compgen -W "$known" -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        _moira "$@"
    fi
}
complete -F _moira_known -o bashdefault -o default moira
"#;

const ZSH: &str = r#"
_moira_known() {
    local -a known
    known=("${(@f)$(moira complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${known[1]}" ]]; then
        compadd -- "${known[@]}"
    else
        _moira "$@"
    fi
}
compdef _moira_known moira
"#;

const FISH: &str = r#"
complete -c moira -a '(moira complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"#;

impl Complete {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let Some(sort) = sort_of(&words) else { return Ok(()) };
        // Whoever presses a key is not told of errors.
        for word in candidates(sort).unwrap_or_default() {
            render::line(&word)?;
        }
        Ok(())
    }
}

/// What the last of these words stands for.
fn sort_of(words: &[&str]) -> Option<Sort> {
    let (last, before) = words.split_last()?;
    // What comes after -- is a job's own affair.
    if last.starts_with('-') || before.contains(&"--") {
        return None;
    }
    let whole = manual::whole();
    let (mut command, mut path) = (&whole, String::new());
    let mut option: Option<&Arg> = None;
    for word in before {
        if option.take().is_some() {
            continue;
        }
        if let Some(below) = command.find_subcommand(word) {
            command = below;
            path = format!("{path} {}", below.get_name()).trim().to_string();
        } else if word.starts_with('-') {
            option = option_named(command, word).filter(|option| takes_value(option));
        }
    }
    match option {
        Some(option) => of_option(option),
        None => of_place(&path),
    }
}

fn option_named<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let long = word.strip_prefix("--");
    let short = word.strip_prefix('-').filter(|short| short.chars().count() == 1).and_then(|it| it.chars().next());
    command.get_arguments().find(|argument| match long {
        Some(long) => argument.get_long() == Some(long),
        None => short.is_some() && argument.get_short() == short,
    })
}

fn takes_value(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

fn of_option(option: &Arg) -> Option<Sort> {
    match option.get_long()? {
        "queue" => Some(Sort::Queues),
        "policy" => Some(Sort::Policies),
        "after" => Some(Sort::Jobs { live: true }),
        _ => None,
    }
}

fn of_place(path: &str) -> Option<Sort> {
    match path {
        "cancel" | "hold" | "release" | "priority" | "wait" => Some(Sort::Jobs { live: true }),
        "show" | "logs" | "explain" | "requeue" => Some(Sort::Jobs { live: false }),
        "node drain" | "node cordon" | "node uncordon" => Some(Sort::Nodes),
        "policy show" | "policy set" => Some(Sort::Policies),
        _ => None,
    }
}

fn candidates(sort: Sort) -> Result<Vec<String>, Failure> {
    if sort == Sort::Policies {
        return Ok(POLICIES.iter().map(|entry| entry.name.to_string()).collect());
    }
    service::ask(async |client| {
        let found = tokio::time::timeout(PATIENCE, known(client, sort)).await;
        Ok(found.ok().and_then(Result::ok).unwrap_or_default())
    })
}

async fn known(client: &Client, sort: Sort) -> Result<Vec<String>, api::Error> {
    Ok(match sort {
        Sort::Jobs { live } => {
            let states = JobState::ALL.into_iter().filter(|state| live && !state.is_final()).collect();
            let query = JobQuery { states, limit: Some(MOST), ..JobQuery::default() };
            client.jobs(&query).await?.jobs.into_iter().map(|job| job.id).collect()
        }
        Sort::Queues => client.queues().await?.queues.into_iter().map(|queue| queue.name).collect(),
        Sort::Nodes => client.nodes().await?.nodes.into_iter().map(|node| node.name).collect(),
        Sort::Policies => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort(line: &str) -> Option<Sort> {
        sort_of(&line.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn what_stands_at_a_place_is_known_by_the_words_before_it() {
        assert_eq!(sort("cancel "), Some(Sort::Jobs { live: true }));
        assert_eq!(sort("logs --worker 1 7"), Some(Sort::Jobs { live: false }));
        assert_eq!(sort("submit --queue "), Some(Sort::Queues));
        assert_eq!(sort("submit --name x --after 1"), Some(Sort::Jobs { live: true }));
        assert_eq!(sort("sim run --policy t"), Some(Sort::Policies));
        assert_eq!(sort("policy show s"), Some(Sort::Policies));
        assert_eq!(sort("node drain "), Some(Sort::Nodes));
    }

    #[test]
    fn everything_else_is_left_to_the_shell() {
        for line in ["", "can", "cancel --o", "logs --worker ", "submit --name ", "run -- cancel ", "config check m"] {
            assert_eq!(sort(line), None, "{line}");
        }
    }
}
