//! Which layout a file has, told from how it begins; and how that was known.

use std::io::{BufRead, Read};
use std::path::Path;

use crate::error::{Error, shown};
use crate::readers::{FORMATS, Format};
use crate::table::Source;

/// So much of a file is looked at.
const LOOKED_AT: u64 = 1 << 16;

/// How a file begins.
pub(crate) struct Head {
    pub(crate) text: String,
    /// The fields of the first line, between commas, without quotes.
    pub(crate) cells: Vec<String>,
}

impl Head {
    pub(crate) fn of(path: &Path) -> Result<Head, Error> {
        let mut source = Source::open(path)?;
        let mut bytes = Vec::new();
        let mut part = Read::take(&mut source.bytes, LOOKED_AT);
        // Whatever is wrong further on is for the reader to say.
        while let Ok(read) = part.fill_buf() {
            let read = read.len();
            if read == 0 {
                break;
            }
            bytes.extend_from_slice(&part.fill_buf().unwrap_or_default()[..read]);
            part.consume(read);
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let text = String::from_utf8_lossy(bytes).into_owned();
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let cells = first.split(',').map(|cell| cell.trim().trim_matches('"').to_string()).collect();
        Ok(Head { text, cells })
    }

    pub(crate) fn has(&self, column: &str) -> bool {
        self.cells.iter().any(|cell| cell == column)
    }

    pub(crate) fn has_all(&self, columns: &[&str]) -> bool {
        columns.iter().all(|column| self.has(column))
    }

    /// The columns, in words.
    pub(crate) fn header(&self) -> String {
        let shown: Vec<String> = self.cells.iter().take(8).map(|cell| shown(cell)).collect();
        let more = if self.cells.len() > 8 { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    }

    /// The first line that is neither blank nor a comment.
    pub(crate) fn first_line(&self) -> &str {
        self.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
    }
}

/// The format of a file, and how it is known.
pub(crate) fn recognise(path: &Path) -> Result<(&'static Format, String), Error> {
    let head = Head::of(path)?;
    let found: Vec<(&Format, String)> =
        FORMATS.iter().filter_map(|format| Some((format, (format.recognise)(&head)?))).collect();
    let file = path.display().to_string();
    match <[_; 1]>::try_from(found) {
        Ok([(format, how)]) => Ok((format, how)),
        Err(found) if found.is_empty() => {
            let signs: Vec<String> = FORMATS
                .iter()
                .filter(|format| !format.sign.is_empty())
                .map(|format| format!("{} ({})", format.name, format.sign))
                .collect();
            let first = shown(head.first_line());
            let what = format!("cannot tell the format: the file begins with {first}; looked for {}", signs.join(", "));
            Err(Error::File { file, what })
        }
        Err(found) => {
            let names: Vec<String> = found.iter().map(|(format, how)| format!("{} ({how})", format.name)).collect();
            let what =
                format!("the format may be any of {}; name it, as in `{}:PATH`", names.join(", "), found[0].0.name);
            Err(Error::File { file, what })
        }
    }
}
