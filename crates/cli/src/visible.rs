//! Text of others on its way to a terminal: whatever could move the cursor, change the title or reverse what is read is
//! shown as what it is. What a job is called, why it failed and what it writes are in its owner's hands.

use std::borrow::Cow;

/// The same text with control characters made visible. Line breaks and tabs stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(|character| is_dangerous(character) || character == '\r') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    text.chars().for_each(|character| push(&mut shown, character, false));
    Cow::Owned(shown)
}

/// A text in JSON, which is still the same value: what JSON would let pass is escaped.
pub(crate) fn visible_json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let escaped = |character: char| match is_dangerous(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// A log on its way to a terminal, piece by piece. Progress bars return to the beginning of their line, and may.
#[derive(Debug, Default)]
pub(crate) struct VisibleLog {
    /// The beginning of a character whose rest is in the next piece.
    rest: Vec<u8>,
}

impl VisibleLog {
    pub(crate) fn piece(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut shown = String::with_capacity(bytes.len());
        let chunks: Vec<_> = bytes.utf8_chunks().collect();
        for (index, chunk) in chunks.iter().enumerate() {
            chunk.valid().chars().for_each(|character| push(&mut shown, character, true));
            let is_last = index + 1 == chunks.len();
            match chunk.invalid() {
                [] => {}
                unfinished if is_last && may_be_unfinished(unfinished) => self.rest = unfinished.to_vec(),
                _ => shown.push(char::REPLACEMENT_CHARACTER),
            }
        }
        shown
    }
}

/// Whether bytes that are no character can become one by those that follow.
fn may_be_unfinished(bytes: &[u8]) -> bool {
    let error = str::from_utf8(bytes).expect_err("it is no character");
    error.error_len().is_none()
}

fn push(shown: &mut String, character: char, may_return: bool) {
    match character {
        '\r' if may_return => shown.push(character),
        // As terminals show what is typed: escape is ^[, and delete is ^?.
        '\0'..='\u{1f}' | '\u{7f}' if is_dangerous(character) || character == '\r' => {
            shown.push('^');
            shown.push(char::from(character as u8 ^ 0x40));
        }
        _ if is_dangerous(character) => shown.push(char::REPLACEMENT_CHARACTER),
        _ => shown.push(character),
    }
}

/// Control characters, and those that change the direction of what follows.
fn is_dangerous(character: char) -> bool {
    let is_layout = matches!(character, '\n' | '\r' | '\t');
    (character.is_control() && !is_layout) || api::changes_direction(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_are_shown_and_not_obeyed() {
        assert_eq!(visible("a\x1b[31mred\x1b]0;title\x07"), "a^[[31mred^[]0;title^G");
        assert_eq!(
            visible("C1: \u{9b}31m, delete: \x7f, nul: \0, back: \r"),
            "C1: \u{fffd}31m, delete: ^?, nul: ^@, back: ^M"
        );
        assert_eq!(visible("safe \u{202e}gpj.exe"), "safe \u{fffd}gpj.exe");
        assert!(matches!(visible("one\ttwo\nthrée ρ 🙂"), Cow::Borrowed(_)), "what is harmless stays");
    }

    #[test]
    fn json_stays_the_same_value() {
        let text = serde_json::to_string("a\x1bb\u{9b}c\u{202e}d\x7f").unwrap();
        let shown = visible_json(&text);
        assert!(!shown.contains(is_dangerous), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), "a\x1bb\u{9b}c\u{202e}d\x7f");
    }

    fn log(pieces: &[&[u8]]) -> String {
        let mut log = VisibleLog::default();
        pieces.iter().map(|piece| log.piece(piece)).collect()
    }

    #[test]
    fn a_log_may_return_to_the_beginning_of_a_line_and_nothing_more() {
        assert_eq!(log(&[b"50%\r100%\n\x1b[2J"]), "50%\r100%\n^[[2J");
    }

    #[test]
    fn a_character_may_come_in_pieces_and_an_escape_code_cannot_hide_in_them() {
        assert_eq!(log(&[b"\xc3", b"\xa9\xf0\x9f", b"\x99\x82"]), "é🙂");
        assert_eq!(log(&[b"\xc2", b"\x9b31m"]), "\u{fffd}31m");
        assert_eq!(log(&[b"\xff\xfeok"]), "\u{fffd}\u{fffd}ok");
        assert_eq!(log(&[b"\xc3", b"\x1b[m"]), "\u{fffd}^[[m");
        assert_eq!(log(&[b"\x9b31m"]), "\u{fffd}31m", "not as a single byte either");
    }
}
