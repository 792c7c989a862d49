//! JSON read piece by piece, so that a list of any length needs the memory of one element. Knows where it is, not what
//! the members mean.
//!
//! This is not `serde_json`'s stream, which says where it is only in errors: a row that is left out, or has the id of another,
//! could not be named by its line, nor could a text without an end be refused before it fills the memory.

use std::io::BufRead;
use std::path::Path;

use crate::error::{Error, shown};
use crate::table::Source;

const LONGEST_TEXT: usize = 1 << 20;
const DEEPEST: u32 = 64;

/// A file of JSON, at some place in it.
pub(crate) struct Json {
    source: Source,
    line: u64,
    column: u64,
    depth: u32,
}

impl Json {
    pub(crate) fn open(path: &Path) -> Result<Json, Error> {
        let mut json = Json { source: Source::open(path)?, line: 1, column: 1, depth: 0 };
        if json.peek_byte()? == Some(0xef) {
            (0..3).try_for_each(|_| json.step().map(|_| ()))?;
            json.column = 1;
        }
        Ok(json)
    }

    pub(crate) fn file(&self) -> &str {
        &self.source.file
    }

    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Reads an array; `take` reads each of its elements, until it says that it wants no more.
    pub(crate) fn elements(&mut self, mut take: impl FnMut(&mut Json) -> Result<bool, Error>) -> Result<(), Error> {
        self.open_with(b'[', "a list")?;
        if self.next_is(b']')? {
            return self.close();
        }
        loop {
            if !take(self)? {
                return Ok(());
            }
            if self.next_is(b']')? {
                return self.close();
            }
            self.expect(b',', "`,` or `]` after an element")?;
        }
    }

    /// Reads an object; `take` reads the value of each of its members.
    pub(crate) fn members(&mut self, mut take: impl FnMut(&mut Json, &str) -> Result<(), Error>) -> Result<(), Error> {
        self.open_with(b'{', "an object")?;
        if self.next_is(b'}')? {
            return self.close();
        }
        loop {
            let name = self.text()?;
            self.expect(b':', "`:` after the name of a member")?;
            take(self, &name)?;
            if self.next_is(b'}')? {
                return self.close();
            }
            self.expect(b',', "`,` or `}` after a member")?;
        }
    }

    /// A text, a number or a word as text; nothing for `null`.
    pub(crate) fn scalar(&mut self) -> Result<Option<String>, Error> {
        match self.peek()? {
            Some(b'"') => self.text().map(Some),
            Some(b'[' | b'{') | None => Err(self.fault("a text or a number")),
            Some(_) => {
                let mut word = String::new();
                while let Some(byte) =
                    self.peek_byte()?.filter(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
                {
                    word.push(char::from(byte));
                    self.step()?;
                    if word.len() > 64 {
                        return Err(self.fault("a number of at most 64 digits"));
                    }
                }
                let sound = matches!(&*word, "null" | "true" | "false" | "NaN" | "Infinity" | "-Infinity")
                    || word.parse::<f64>().is_ok();
                if !sound {
                    return Err(self.fault("a text, a number, an object or a list"));
                }
                Ok((word != "null").then_some(word))
            }
        }
    }

    /// Passes over whatever comes.
    pub(crate) fn skip(&mut self) -> Result<(), Error> {
        match self.peek()? {
            Some(b'[') => self.elements(|json| json.skip().map(|()| true)),
            Some(b'{') => self.members(|json, _| json.skip()),
            _ => self.scalar().map(|_| ()),
        }
    }

    /// Whether an array comes; a `null` in its place is passed over.
    pub(crate) fn is_list(&mut self) -> Result<bool, Error> {
        match self.peek()? {
            Some(b'[') => Ok(true),
            Some(b'n') => self.scalar().map(|_| false),
            _ => Err(self.fault("a list")),
        }
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        match self.peek()? {
            None => Ok(()),
            Some(_) => Err(self.fault("the end of the file")),
        }
    }

    fn text(&mut self) -> Result<String, Error> {
        self.expect(b'"', "a text in quotes")?;
        let mut bytes = Vec::new();
        loop {
            if bytes.len() > LONGEST_TEXT {
                return Err(self.fault(&format!("texts of at most {LONGEST_TEXT} bytes")));
            }
            match self.step()? {
                None => return Err(self.fault("a closing quote")),
                Some(b'"') => break,
                Some(b'\\') => {
                    let escaped = self.escaped()?;
                    bytes.extend(escaped.encode_utf8(&mut [0; 4]).bytes());
                }
                Some(byte) => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).map_err(|_| self.fault("UTF-8 text"))
    }

    fn escaped(&mut self) -> Result<char, Error> {
        Ok(match self.step()? {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                let high = self.four_digits()?;
                let code = if (0xd800..0xdc00).contains(&high) {
                    let pair = self.step()? == Some(b'\\') && self.step()? == Some(b'u');
                    let low = if pair { self.four_digits()? } else { 0 };
                    0x1_0000 + ((high - 0xd800) << 10) + low.checked_sub(0xdc00).unwrap_or(u32::MAX >> 1)
                } else {
                    high
                };
                char::from_u32(code).ok_or_else(|| self.fault("a character after `\\u`"))?
            }
            _ => return Err(self.fault("a known escape after `\\`")),
        })
    }

    fn four_digits(&mut self) -> Result<u32, Error> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.step()?.and_then(|byte| char::from(byte).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.fault("four hexadecimal digits"))?;
        }
        Ok(code)
    }

    fn open_with(&mut self, byte: u8, what: &str) -> Result<(), Error> {
        self.expect(byte, what)?;
        self.depth += 1;
        if self.depth > DEEPEST { Err(self.fault(&format!("at most {DEEPEST} levels"))) } else { Ok(()) }
    }

    /// Takes the closing bracket that was seen to come.
    fn close(&mut self) -> Result<(), Error> {
        self.depth -= 1;
        self.step().map(|_| ())
    }

    fn next_is(&mut self, byte: u8) -> Result<bool, Error> {
        Ok(self.peek()? == Some(byte))
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<(), Error> {
        if !self.next_is(byte)? {
            return Err(self.fault(what));
        }
        self.step().map(|_| ())
    }

    /// The next byte that is no blank, without taking it.
    fn peek(&mut self) -> Result<Option<u8>, Error> {
        while self.peek_byte()?.is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.step()?;
        }
        self.peek_byte()
    }

    fn peek_byte(&mut self) -> Result<Option<u8>, Error> {
        match self.source.bytes.fill_buf() {
            Ok(bytes) => Ok(bytes.first().copied()),
            Err(source) => Err(self.source.unreadable(self.line, source)),
        }
    }

    fn step(&mut self) -> Result<Option<u8>, Error> {
        let Some(byte) = self.peek_byte()? else { return Ok(None) };
        self.source.bytes.consume(1);
        match byte {
            b'\n' => (self.line, self.column) = (self.line + 1, 1),
            _ => self.column += 1,
        }
        Ok(Some(byte))
    }

    fn fault(&mut self, expected: &str) -> Error {
        let found = match self.peek_byte() {
            Err(error) => return error,
            Ok(None) => "the end of the file; was it cut short?".into(),
            Ok(Some(byte)) => shown(&char::from(byte).to_string()),
        };
        let what = format!("expected {expected}, found {found}");
        Error::Place { file: self.source.file.clone(), line: self.line, column: self.column, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of a list of objects with a member `a`, or what is wrong with it.
    fn read(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        std::fs::write(&path, text).unwrap();
        let read = || -> Result<String, Error> {
            let mut found = String::new();
            let mut json = Json::open(&path)?;
            json.elements(|json| {
                json.members(|json, name| match name {
                    "a" => json.scalar().map(|value| found += &format!("{} ", value.as_deref().unwrap_or("-"))),
                    _ => json.skip(),
                })?;
                Ok(true)
            })?;
            json.end()?;
            Ok(found)
        };
        let text = read().unwrap_or_else(|error| error.to_string());
        text.trim_end().replace(&format!("{}", path.display()), "FILE")
    }

    #[test]
    fn members_of_interest_are_found_among_others() {
        let text = "\u{feff}[{\"a\": \"x\\u00e9\\ud83d\\ude00\\n\", \"b\": [1, {\"a\": []}, null, \"]\"]},\r\n {\"a\":-1.5e3},{\"a\":null},{}]";
        assert_eq!(read(text), "xé😀\n -1.5e3 -");
        assert_eq!(read("[]"), "");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        assert_eq!(read("[{\"a\": 1}\n {}]"), "FILE:2:2: expected `,` or `]` after an element, found {");
        assert_eq!(read("[{\"a\": wrong}]"), "FILE:1:13: expected a text, a number, an object or a list, found }");
        assert_eq!(
            read("[{\"a\":\n"),
            "FILE:2:1: expected a text or a number, found the end of the file; was it cut short?"
        );
        assert_eq!(read("[] x"), "FILE:1:4: expected the end of the file, found x");
        assert_eq!(read("{}"), "FILE:1:1: expected a list, found {");
        let deep = format!("[{}", "{\"b\":".repeat(100));
        assert_eq!(read(&deep), "FILE:1:318: expected at most 64 levels, found \\\"");
    }
}
