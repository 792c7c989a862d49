//! Text of others on its way to a terminal: whatever could move the cursor, change the title or reverse what is read is
//! shown as what it is. What a job is called, why it failed and what it writes are in its owner's hands.

use std::borrow::Cow;
use std::fmt::Debug;
use std::io;

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

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

/// How the fields of a line in the service's own log are written: others' words neither do anything to a terminal nor
/// begin a line.
pub(crate) fn plain_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let text = format!("{value:?}");
        let text = visible(&text).replace('\n', "\\n");
        match field.name() {
            "message" => writer.write_str(&text),
            name => write!(writer, "{name}={text}"),
        }
    })
    .delimited(" ")
}

/// Where the service's own log is written as JSON.
#[derive(Debug)]
pub(crate) struct PlainJson<W>(pub(crate) W);

impl<W: io::Write> io::Write for PlainJson<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(visible_json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
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
    use std::sync::{Arc, Mutex};

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

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        /// What the lines are if this is logged.
        fn of(self, subscriber: impl tracing::Subscriber + Send + Sync + 'static) -> String {
            tracing::subscriber::with_default(subscriber, || {
                let words = "a\x1b[2Jb\u{9b}c\nINFO forged";
                tracing::warn!(error = %words, name = words, "about {words}");
            });
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn the_log_of_the_service_obeys_no_escape_code_and_no_line_of_it_is_forged() {
        let lines = Lines::default();
        let writer = lines.clone();
        let text =
            tracing_subscriber::fmt().fmt_fields(plain_fields()).with_ansi(false).with_writer(move || writer.clone());
        let text = lines.of(text.finish());
        assert!(text.contains("about a^[[2Jb\u{fffd}c\\nINFO forged error=a^[[2Jb\u{fffd}c\\nINFO forged"), "{text}");
        assert_eq!((text.lines().count(), text.contains(is_dangerous)), (1, false), "{text}");
        let lines = Lines::default();
        let writer = lines.clone();
        let json = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || PlainJson(writer.clone()));
        let text = lines.of(json.finish());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["error"], "a\x1b[2Jb\u{9b}c\nINFO forged", "{text}");
        assert_eq!((text.lines().count(), text.contains(is_dangerous)), (1, false), "{text}");
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
