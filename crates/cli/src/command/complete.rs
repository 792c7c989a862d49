//! Completion of command lines: the script that clap writes for a shell, and before it what only a service or a table
//! knows: numbers of jobs, names of queues, nodes and policies.

use std::time::Duration;

use api::{Client, JobQuery, JobState};
use clap::{Arg, ArgAction, Args, Command};
use clap_complete::Shell;
use policies::POLICIES;

use super::service::{self, Place};
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
    local known word begun="${COMP_WORDS[COMP_CWORD]}"
    known="$(moira complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ -n "$known" ]]; then
        # An equals sign is a word of its own here, and what comes after it is to be completed.
        begun="${begun#=}"
        COMPREPLY=()
        # Not compgen -W, which expands the words and so runs a command that is written in a name.
        while IFS= read -r word; do
            if [[ "$word" == "$begun"* ]]; then COMPREPLY+=("$word"); fi
        done <<< "$known"
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

/// The end of a command line, as far as it is understood.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    sort: Sort,
    /// What is already there of the last word and stays, like `--queue=`.
    kept: String,
    /// The service that the line names.
    place: Place,
}

impl Complete {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(asked) = Asked::of(&self.words) else { return Ok(()) };
        // Whoever presses a key is not told of errors.
        let words = candidates(asked.sort, &asked.place).unwrap_or_default();
        for word in words.iter().filter(|word| is_harmless(word)) {
            render::line(&format!("{}{word}", asked.kept))?;
        }
        Ok(())
    }
}

impl Asked {
    /// What the last of these words stands for.
    fn of(words: &[String]) -> Option<Asked> {
        let is_apart = words.iter().rev().take(2).any(|word| is_break(word));
        let words = joined(words);
        let (last, before) = words.split_last()?;
        // What comes after -- is a job's own affair.
        if before.iter().any(|word| word == "--") {
            return None;
        }
        let whole = manual::whole();
        let said = Said::of(&whole, before);
        let (sort, name) = match (said.option, last.split_once('=')) {
            (Some(option), _) => (of_option(option)?, None),
            (None, Some((name, _))) if name.starts_with('-') => {
                (of_option(option_named(said.command, name)?)?, Some(name))
            }
            (None, _) if last.starts_with('-') => return None,
            (None, _) => (of_place(&said.path)?, None),
        };
        let kept = name.filter(|_| !is_apart).map(|name| format!("{name}=")).unwrap_or_default();
        Some(Asked { sort, kept, place: said.place })
    }
}

/// What the words before the last come to.
struct Said<'a> {
    command: &'a Command,
    path: String,
    /// The option whose value is still to come.
    option: Option<&'a Arg>,
    place: Place,
}

impl<'a> Said<'a> {
    fn of(whole: &'a Command, words: &[String]) -> Said<'a> {
        let mut said = Said { command: whole, path: String::new(), option: None, place: Place::default() };
        for word in words {
            said.hear(word);
        }
        said
    }

    fn hear(&mut self, word: &str) {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if let Some(option) = self.option.take() {
            note_place(&mut self.place, option, word);
        } else if let Some(below) = self.command.find_subcommand(word) {
            self.command = below;
            self.path = format!("{} {}", self.path, below.get_name()).trim().to_string();
        } else if let Some(option) = option_named(self.command, name).filter(|option| takes_value(option)) {
            match value {
                Some(value) => note_place(&mut self.place, option, value),
                None => self.option = Some(option).filter(|option| !option.is_require_equals_set()),
            }
        }
    }
}

/// A word of which Bash makes one although it stands in the midst of another.
fn is_break(word: &str) -> bool {
    matches!(word, "=" | ":")
}

/// The words as they were typed.
fn joined(words: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut goes_on = false;
    for word in words {
        match all.last_mut() {
            Some(last) if goes_on || is_break(word) => last.push_str(word),
            _ => all.push(word.clone()),
        }
        goes_on = is_break(word);
    }
    all
}

fn note_place(place: &mut Place, option: &Arg, value: &str) {
    match option.get_long() {
        Some("server") => place.server = Some(value.into()),
        Some("data-dir") => place.data_dir = Some(value.into()),
        _ => {}
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
        "shell" => Some(Sort::Jobs { live: true }),
        "show" | "logs" | "explain" | "requeue" => Some(Sort::Jobs { live: false }),
        "node drain" | "node cordon" | "node uncordon" => Some(Sort::Nodes),
        "policy show" | "policy set" => Some(Sort::Policies),
        _ => None,
    }
}

/// Whether a word means itself in every shell. Names come from the service, and Bash puts what is completed on the line
/// as it is: one with a space would be two words, and one like `$(reboot)` a command.
fn is_harmless(word: &str) -> bool {
    let is_plain = |character: char| character.is_alphanumeric() || "._=:/@%+,-".contains(character);
    !word.is_empty() && word.chars().all(is_plain)
}

fn candidates(sort: Sort, place: &Place) -> Result<Vec<String>, Failure> {
    if sort == Sort::Policies {
        return Ok(POLICIES.iter().map(|entry| entry.name.to_string()).collect());
    }
    service::ask_at(place, async |client| {
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

    fn asked(line: &str) -> Option<Asked> {
        Asked::of(&line.split(' ').map(String::from).collect::<Vec<_>>())
    }

    fn sort(line: &str) -> Option<Sort> {
        asked(line).map(|asked| asked.sort)
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
    fn an_option_whose_value_needs_an_equals_sign_takes_no_word_after_it() {
        assert_eq!(sort("submit --interruptible --queue "), Some(Sort::Queues));
        assert_eq!(sort("submit --interruptible=false --queue "), Some(Sort::Queues));
    }

    #[test]
    fn a_value_is_completed_behind_an_equals_sign_too() {
        let kept = |line: &str| asked(line).map(|asked| (asked.sort, asked.kept));
        assert_eq!(kept("submit --queue="), Some((Sort::Queues, "--queue=".into())));
        assert_eq!(kept("submit --queue=ro"), Some((Sort::Queues, "--queue=".into())));
        assert_eq!(kept("sim run --policy=s"), Some((Sort::Policies, "--policy=".into())));
        // As Bash takes it apart; what it completes is the last of its words.
        assert_eq!(kept("submit --queue ="), Some((Sort::Queues, String::new())));
        assert_eq!(kept("submit --queue = ro"), Some((Sort::Queues, String::new())));
        assert_eq!(kept("submit --name = ro"), None);
    }

    #[test]
    fn the_service_is_the_one_that_the_line_names() {
        let place = |line: &str| asked(line).unwrap().place;
        let server = |address: &str| Place { server: Some(address.into()), data_dir: None };
        let data_dir = |folder: &str| Place { server: None, data_dir: Some(folder.into()) };
        assert_eq!(place("cancel --server http://a:7070 "), server("http://a:7070"));
        assert_eq!(place("cancel --server=unix:/a/moira.sock "), server("unix:/a/moira.sock"));
        assert_eq!(place("submit --data-dir /a --queue "), data_dir("/a"));
        assert_eq!(place("submit --data-dir=/a --queue="), data_dir("/a"));
        // As Bash takes it apart.
        assert_eq!(place("cancel --server http : //a : 7070 "), server("http://a:7070"));
        assert_eq!(place("cancel --server = unix : /a/moira.sock "), server("unix:/a/moira.sock"));
        assert_eq!(place("cancel "), Place::default());
    }

    #[test]
    fn only_words_that_mean_themselves_in_every_shell_are_offered() {
        for word in ["7", "7_3", "train.v2", "gpu-3.cluster:8080", "team/vision", "für-später"] {
            assert!(is_harmless(word), "{word}");
        }
        for word in [
            "",
            "$(touch x)",
            "`touch`",
            "a b",
            "a;b",
            "a|b",
            "a'b",
            "a\"b",
            "a\\b",
            "*",
            "a[1]",
            "~",
            "a\x1b",
            "!1",
            "<x",
            "{a}",
            "#a",
        ] {
            assert!(!is_harmless(word), "{word}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_shell() {
        for line in ["", "can", "cancel --o", "logs --worker ", "submit --name ", "run -- cancel ", "config check m"] {
            assert_eq!(sort(line), None, "{line}");
        }
    }
}
