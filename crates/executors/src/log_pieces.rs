//! The files that a worker's output is kept in, as one stream: which part of it each of them holds. A log that is put
//! aside is named by the place in the stream where it begins, so that a reader knows how much came before what is kept.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cluster::Run;
use rustix::fs::OFlags;

use crate::run_dir::RunDir;

/// One file of a log. It is open, so it stays readable whatever becomes of its name.
#[derive(Debug)]
pub struct LogPiece {
    /// Where in the stream it begins.
    pub start: u64,
    /// Where it ended when it was opened; only the last piece grows.
    pub end: u64,
    pub file: File,
}

/// How many times the files are looked at again because one was just put aside.
const TRIES: usize = 20;

/// What is kept of a worker's output, oldest first; nothing if there is none yet. A run that is settled moves from one
/// place to another, perhaps while somebody looks.
pub fn log_pieces(data_dir: &Path, run: Run, worker: u32) -> io::Result<Vec<LogPiece>> {
    for dir in [RunDir::of(data_dir, run), RunDir::settled(data_dir, run)] {
        let pieces = pieces_of(&dir.log(worker))?;
        if !pieces.is_empty() {
            return Ok(pieces);
        }
    }
    Ok(Vec::new())
}

/// All files of a log as they were at one moment.
pub(crate) fn pieces_of(log: &Path) -> io::Result<Vec<LogPiece>> {
    for _ in 0..TRIES {
        let names = names_of(log)?;
        let opened: io::Result<Vec<File>> = names.iter().map(|name| open(&name.path(log))).collect();
        match opened {
            // Names that were put aside are never used again: if none has changed, each file is what its name says.
            Ok(files) if names_of(log)? == names => return with_places(&names, files),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Err(io::Error::other("the files of a log change faster than they can be read"))
}

fn with_places(names: &[Name], files: Vec<File>) -> io::Result<Vec<LogPiece>> {
    let mut next = 0;
    let mut pieces = Vec::with_capacity(files.len());
    for (name, file) in names.iter().zip(files) {
        let start = name.start().unwrap_or(next);
        next = start + file.metadata()?.len();
        pieces.push(LogPiece { start, end: next, file });
    }
    Ok(pieces)
}

/// Never what a link points to, and never a thing that could block.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is no regular file", path.display())));
    }
    Ok(file)
}

/// Where the log that is written to begins in the stream.
pub(crate) fn start_of_current(log: &Path) -> io::Result<u64> {
    let aside = names_of(log)?.into_iter().filter(|name| *name != Name::Current);
    let mut next = 0;
    for name in aside {
        next = name.start().unwrap_or(next) + fs::metadata(name.path(log))?.len();
    }
    Ok(next)
}

/// The place of a log that is put aside.
pub(crate) fn aside(log: &Path, start: u64) -> PathBuf {
    Name::From(start).path(log)
}

/// The logs that were put aside, oldest first.
pub(crate) fn all_aside(log: &Path) -> io::Result<Vec<PathBuf>> {
    let aside = names_of(log)?.into_iter().filter(|name| matches!(name, Name::From(_)));
    Ok(aside.map(|name| name.path(log)).collect())
}

/// What a file of a log is called behind the log's own name; in the order of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// `.2`, of a version that kept two and did not say where they began.
    Older,
    /// `.1` of that version.
    Old,
    From(u64),
    Current,
}

impl Name {
    fn parse(suffix: &str) -> Option<Name> {
        match suffix {
            "" => Some(Name::Current),
            ".1" => Some(Name::Old),
            ".2" => Some(Name::Older),
            _ => suffix.strip_prefix(".at-")?.parse().ok().map(Name::From),
        }
    }

    fn path(self, log: &Path) -> PathBuf {
        let mut path = log.as_os_str().to_os_string();
        match self {
            Name::Older => path.push(".2"),
            Name::Old => path.push(".1"),
            Name::From(start) => path.push(format!(".at-{start}")),
            Name::Current => {}
        }
        path.into()
    }

    fn start(self) -> Option<u64> {
        match self {
            Name::From(start) => Some(start),
            Name::Older | Name::Old | Name::Current => None,
        }
    }
}

fn names_of(log: &Path) -> io::Result<Vec<Name>> {
    let (Some(dir), Some(own)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(|name| Name::parse(name.strip_prefix(own)?)));
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const RUN: Run = Run { claim: cluster::ClaimId(7), attempt: 1 };

    /// A run with these files among its logs.
    fn run(folder: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let data = tempfile::tempdir().unwrap();
        let logs = data.path().join(folder).join("7.1/logs");
        fs::create_dir_all(&logs).unwrap();
        files.iter().for_each(|(name, text)| fs::write(logs.join(name), text).unwrap());
        data
    }

    fn kept(data: &Path) -> Vec<(u64, u64, String)> {
        let text = |piece: LogPiece| {
            let (mut file, mut text) = (piece.file, String::new());
            file.read_to_string(&mut text).unwrap();
            (piece.start, piece.end, text)
        };
        log_pieces(data, RUN, 0).unwrap().into_iter().map(text).collect()
    }

    fn expected(pieces: &[(u64, u64, &str)]) -> Vec<(u64, u64, String)> {
        pieces.iter().map(|(start, end, text)| (*start, *end, text.to_string())).collect()
    }

    #[test]
    fn pieces_come_in_the_order_of_the_stream_and_each_knows_its_place() {
        let files = [
            ("worker-0.log", "new"),
            ("worker-0.log.at-1000", "older"),
            ("worker-0.log.at-1005", "old"),
            ("worker-00.log", "another worker's"),
            ("worker-0.log.swp", "nothing of ours"),
        ];
        let pieces = [(1000, 1005, "older"), (1005, 1008, "old"), (1008, 1011, "new")];
        assert_eq!(kept(run("runs", &files).path()), expected(&pieces));
        assert_eq!(kept(run("done", &files).path()), expected(&pieces), "also when the run is settled");
    }

    #[test]
    fn logs_of_a_version_that_only_counted_them_are_read_from_the_oldest_on() {
        let data = run("done", &[("worker-0.log", "new"), ("worker-0.log.1", "old"), ("worker-0.log.2", "older")]);
        assert_eq!(kept(data.path()), expected(&[(0, 5, "older"), (5, 8, "old"), (8, 11, "new")]));
    }

    #[test]
    fn a_log_that_does_not_exist_yet_has_no_pieces() {
        assert!(kept(run("runs", &[]).path()).is_empty());
        assert!(log_pieces(Path::new("/no/such/place"), RUN, 0).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let data = run("runs", &[]);
        std::os::unix::fs::symlink("/etc/passwd", data.path().join("runs/7.1/logs/worker-0.log")).unwrap();
        assert!(log_pieces(data.path(), RUN, 0).is_err());
    }
}
