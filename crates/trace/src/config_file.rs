//! Small files of settings, read whole.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Error, shown};

const LARGEST_FILE: u64 = 16 << 20;

/// The text of a small file. Larger ones, and such as are no text, are refused before they fill the memory.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let file = &*path.display().to_string();
    let failed = |source| Error::Read { file: file.into(), source };
    let faulty = |what: String| Error::File { file: file.into(), what };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    let line = |at: usize| bytes[..at].iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        return Err(Error::Line { file: file.into(), line: line(at), what: "expected text, found a zero byte".into() });
    }
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(faulty(format!("expected at most {} MiB, found more", LARGEST_FILE >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| faulty(format!("expected UTF-8 text, found {}", error.utf8_error())))
}

/// What a TOML file says, as a `T`; errors name file, line and column.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    parse_toml(&path.display().to_string(), &read_text(path)?)
}

pub(crate) fn parse_toml<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().trim().replace('\n', "; ");
        let Some(at) = error.span().map(|span| span.start.min(text.len())) else {
            return Error::File { file: file.into(), what: message };
        };
        let before = text.get(..at).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = text[start..].lines().next().unwrap_or_default().trim();
        Error::Toml {
            file: file.into(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            what: if line.is_empty() { message } else { format!("{message}, in `{}`", shown(line)) },
        }
    })
}
