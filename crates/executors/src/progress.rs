//! Reading what a job appends to its progress file: whole lines, each once, and never more at a time than can be
//! handled. The meaning of the lines is not known here.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A longer line is dropped.
const LONGEST: usize = 64 << 10;
/// More lines come with the next piece.
const MOST_LINES: usize = 1_000;
const PIECE: u64 = 1 << 20;

/// How far a progress file has been read.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    offset: u64,
    /// Within a line that is too long.
    is_skipping: bool,
}

impl Progress {
    /// Where the last service left off: lines it has put on record are not handed on again.
    pub(crate) fn resume(note: &Path) -> Progress {
        let offset = fs::read_to_string(note).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Progress { offset, is_skipping: false }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next lines; none if there are no whole ones yet.
    pub(crate) fn next(&mut self, path: &Path) -> io::Result<Vec<String>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < self.offset {
            *self = Progress::default();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut piece = Vec::new();
        file.take(PIECE).read_to_end(&mut piece)?;
        let (lines, taken) = self.split(&piece, path);
        self.offset += taken as u64;
        Ok(lines)
    }

    /// All lines to the end of the file; of more than are handled at a time, the last.
    pub(crate) fn last(mut self, path: &Path) -> io::Result<Vec<String>> {
        let mut last = Vec::new();
        loop {
            let before = self.offset;
            last.append(&mut self.next(path)?);
            last.drain(..last.len().saturating_sub(MOST_LINES));
            if self.offset == before {
                return Ok(last);
            }
        }
    }

    fn split(&mut self, piece: &[u8], path: &Path) -> (Vec<String>, usize) {
        let too_long = || tracing::warn!(file = %path.display(), "a line of progress is too long and is dropped");
        let mut lines = Vec::new();
        let mut taken = 0;
        while lines.len() < MOST_LINES {
            let rest = &piece[taken..];
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                if rest.len() > LONGEST {
                    if !std::mem::replace(&mut self.is_skipping, true) {
                        too_long();
                    }
                    taken = piece.len();
                }
                break;
            };
            taken += end + 1;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            match end {
                0 => {}
                end if end > LONGEST => too_long(),
                end => lines.push(String::from_utf8_lossy(&rest[..end]).into_owned()),
            }
        }
        (lines, taken)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_whole_and_once_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (path, note) = (dir.path().join("progress.jsonl"), dir.path().join("progress.read"));
        fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut progress = Progress::resume(&note);
        assert_eq!(progress.next(&path).unwrap(), ["one", "two"]);
        assert!(progress.next(&path).unwrap().is_empty());
        fs::write(&note, progress.offset().to_string()).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"ee\n").unwrap();
        assert_eq!(Progress::resume(&note).next(&path).unwrap(), ["three"]);
    }

    #[test]
    fn lines_that_are_too_long_are_dropped_however_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress.jsonl");
        fs::write(&path, format!("{}\nshort\n{}\nlast\n", "x".repeat(LONGEST + 1), "y".repeat(3 << 20))).unwrap();
        let mut progress = Progress::default();
        let pieces: Vec<Vec<String>> = (0..5).map(|_| progress.next(&path).unwrap()).collect();
        assert_eq!(pieces.concat(), ["short", "last"]);
    }

    #[test]
    fn many_lines_come_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress.jsonl");
        fs::write(&path, "line\n".repeat(MOST_LINES + 1)).unwrap();
        let mut progress = Progress::default();
        assert_eq!(progress.next(&path).unwrap().len(), MOST_LINES);
        assert_eq!(progress.next(&path).unwrap().len(), 1);
    }

    #[test]
    fn of_many_lines_that_were_never_told_the_last_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress.jsonl");
        fs::write(&path, format!("{}end\n", "line\n".repeat(3 * MOST_LINES))).unwrap();
        let last = Progress::default().last(&path).unwrap();
        assert_eq!((last.len(), last.last().map(String::as_str)), (MOST_LINES, Some("end")));
        assert!(Progress::default().last(&dir.path().join("none")).unwrap().is_empty());
    }
}
