//! What a job runs: a list of words, or one text for the shell.

use std::fmt;

use serde::de::{self, SeqAccess};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::check::is_printable;
use crate::schema;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CommandLine {
    /// For `sh -c`.
    Shell(String),
    /// The program and its arguments; no shell looks at them.
    Words(Vec<String>),
}

/// Where a job that is named after nothing is named after its program, so much of it.
const LONGEST_NAME: usize = 64;

impl CommandLine {
    /// What is executed.
    pub fn argv(&self) -> Vec<String> {
        match self {
            CommandLine::Shell(text) => vec!["sh".into(), "-c".into(), text.clone()],
            CommandLine::Words(words) => words.clone(),
        }
    }

    /// The last part of the program's path, without what a name may not contain.
    pub(crate) fn program_name(&self) -> String {
        let first = match self {
            CommandLine::Shell(text) => text.split_whitespace().next(),
            CommandLine::Words(words) => words.first().map(String::as_str),
        };
        let program = first.unwrap_or_default().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let allowed = program.chars().filter(|character| is_printable(*character));
        let name: String = allowed.take(LONGEST_NAME).collect();
        if name.is_empty() { "job".into() } else { name }
    }
}

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CommandLine, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = CommandLine;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of words like [python, train.py], or one text for the shell")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CommandLine, E> {
        Ok(CommandLine::Shell(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut words: A) -> Result<CommandLine, A::Error> {
        let mut all = Vec::new();
        while let Some(Word(word)) = words.next_element()? {
            all.push(word);
        }
        Ok(CommandLine::Words(all))
    }
}

/// A word of a command; `sleep, 60` is as good as `sleep, "60"`.
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl de::Visitor<'_> for WordVisitor {
    type Value = Word;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Word, E> {
        Ok(Word(text.into()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Word, E> {
        Ok(Word(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Word, E> {
        Ok(Word(number.to_string()))
    }
}

impl PartialSchema for CommandLine {
    fn schema() -> RefOr<Schema> {
        let forms = [schema::words(1000), schema::text(r"\S")];
        schema::one_of("a program and its arguments, or one text for the shell", forms)
    }
}

impl ToSchema for CommandLine {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> CommandLine {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_text_is_for_the_shell_and_a_list_is_not() {
        assert_eq!(read(r#""echo $HOME""#).argv(), ["sh", "-c", "echo $HOME"]);
        assert_eq!(read(r#"["echo", "$HOME"]"#).argv(), ["echo", "$HOME"]);
        assert_eq!(read(r#"["sleep", 60]"#).argv(), ["sleep", "60"]);
    }

    #[test]
    fn anything_else_is_refused() {
        let error = serde_json::from_str::<CommandLine>("7").unwrap_err().to_string();
        assert!(error.contains("expected a list of words"), "{error}");
        assert!(serde_json::from_str::<CommandLine>(r#"["a", ["b"]]"#).is_err());
    }

    #[test]
    fn a_job_without_a_name_is_called_like_its_program() {
        assert_eq!(read(r#"["/usr/bin/python3", "train.py"]"#).program_name(), "python3");
        assert_eq!(read(r#""./run.sh --fast""#).program_name(), "run.sh");
        assert_eq!(read(r#"["/"]"#).program_name(), "job");
    }
}
