//! What can be wrong with a file or a name, always in one line.

use std::io;

/// Values found in files are repeated in messages up to this many characters.
const SHOWN: usize = 60;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("cannot write {file}: {source}")]
    Write { file: String, source: io::Error },
    #[error("{file}: {what}")]
    File { file: String, what: String },
    #[error("{file}:{line}: {what}")]
    Line { file: String, line: u64, what: String },
    #[error("{file}:{line}: column `{column}`: expected {expected}, found {found}")]
    Field { file: String, line: u64, column: String, expected: String, found: String },
    #[error("{file}:{line}:{column}: {what}")]
    Toml { file: String, line: usize, column: usize, what: String },
    /// A name of a cluster, a workload or one of its options that means nothing.
    #[error("{0}")]
    Name(String),
    /// A workload that cannot be drawn up for this cluster.
    #[error("workload {name}: {what}")]
    Workload { name: String, what: String },
}

impl Error {
    /// Whether something was asked for wrongly, rather than wrong in a file.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Name(_))
    }
}

/// Text from a file, made fit for one line of a message.
pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() {
        return "nothing".into();
    }
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// The known name nearest to a mistyped one, as the end of a sentence; nothing if none is near.
pub(crate) fn suggestion<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let typed: Vec<char> = typed.to_lowercase().chars().take(SHOWN).collect();
    let nearest = known.into_iter().map(|name| (distance(&typed, &name.chars().collect::<Vec<_>>()), name)).min();
    match nearest {
        Some((distance, name)) if distance <= 1.max(name.len() / 3) => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for row in 1..=left.len() {
        let mut current = vec![row];
        for column in 1..=right.len() {
            let differs = usize::from(left[row - 1] != right[column - 1]);
            let mut least = (above[column - 1] + differs).min(above[column] + 1).min(current[column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1]
                && differs == 1;
            if swapped {
                least = least.min(before[column - 2] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_a_different_word_is_not() {
        let known = ["gpus", "duration_s", "demo"];
        assert_eq!(suggestion("gpsu", known), "; did you mean `gpus`?");
        assert_eq!(suggestion("Duration", known), "; did you mean `duration_s`?");
        assert_eq!(suggestion("colour", known), "");
    }

    #[test]
    fn what_is_shown_stays_on_one_line() {
        assert_eq!(shown("a\nb\u{7}"), "a\\nb\\u{7}");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), SHOWN + 1);
    }
}
