//! What a user can make happen as often as they like is said seldom, so that nobody can fill the log with it.

use std::collections::BTreeMap;

use cluster::{Span, Time};

/// How often the same is said of one run.
const EVERY: Span = Span::from_secs(60);
/// Of so many it is remembered when it was said; beyond that those of long ago are forgotten.
const MOST_KEPT: usize = 10_000;

/// When something was last said of whom.
#[derive(Debug)]
pub(crate) struct Seldom<K>(BTreeMap<K, Said>);

#[derive(Debug)]
struct Said {
    at: Time,
    /// How many times it was not said since.
    unsaid: u64,
}

impl<K> Default for Seldom<K> {
    fn default() -> Seldom<K> {
        Seldom(BTreeMap::new())
    }
}

impl<K: Ord> Seldom<K> {
    /// Whether it is to be said now, and how many times it was not said before.
    pub(crate) fn next(&mut self, whom: K, now: Time) -> Option<u64> {
        if self.0.len() >= MOST_KEPT {
            self.0.retain(|_, said| now.since(said.at) < EVERY);
        }
        if let Some(said) = self.0.get_mut(&whom)
            && now.since(said.at) < EVERY
        {
            said.unsaid += 1;
            return None;
        }
        // Each of very many is new: then it is not said of the newest ones, rather than kept without end.
        if self.0.len() >= MOST_KEPT && !self.0.contains_key(&whom) {
            return None;
        }
        let before = self.0.insert(whom, Said { at: now, unsaid: 0 });
        Some(before.map_or(0, |said| said.unsaid))
    }
}

/// The beginning of a text that somebody else chose the length of.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    let mut cut: String = text.chars().take(longest).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_of_one_is_said_once_a_minute_with_how_often_it_was_not() {
        let mut seldom = Seldom::default();
        let at = |seconds| Time::from_secs(seconds);
        assert_eq!(seldom.next(7, at(0)), Some(0));
        assert!((0..1000).all(|_| seldom.next(7, at(59)).is_none()));
        assert_eq!(seldom.next(8, at(59)), Some(0), "of another one it is said too");
        assert_eq!(seldom.next(7, at(60)), Some(1000));
        assert_eq!(seldom.next(7, at(120)), Some(0));
    }

    #[test]
    fn of_very_many_it_is_not_remembered_without_end() {
        let mut seldom = Seldom::default();
        let said = |seldom: &mut Seldom<usize>, from, now| {
            (from..from + MOST_KEPT + 10).filter(|whom| seldom.next(*whom, Time::from_secs(now)).is_some()).count()
        };
        assert_eq!(said(&mut seldom, 0, 0), MOST_KEPT);
        assert_eq!(seldom.0.len(), MOST_KEPT);
        assert_eq!(said(&mut seldom, 5 * MOST_KEPT, 60), MOST_KEPT, "after a minute it is again");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut(&"ü".repeat(64 << 10), 5), "üüüüü…");
    }
}
