//! Archives: entries that a snapshot stands for, in a compressed file of JSON lines. An archive vouches for nothing by
//! itself; it is whole if the chain leads through it from where the one before ended to where the journal says it ends.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use disk::Stream;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::chain::Link;
use crate::layout::{PRIVATE_DIR, PRIVATE_FILE, directory};
use crate::{Entry, JournalError};

/// An archive as the journal has it on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Archive {
    pub(crate) first: u64,
    pub(crate) end: Link,
}

impl Archive {
    /// Where the archive of the journal at `journal` is kept.
    pub(crate) fn path(&self, journal: &Path) -> PathBuf {
        folder(journal).join(format!("{:012}-{:012}.jsonl.gz", self.first, self.end.seq))
    }
}

pub(crate) fn folder(journal: &Path) -> PathBuf {
    directory(journal).join("archive")
}

pub(crate) fn make_folder(folder: &Path) -> Result<(), JournalError> {
    let made = disk::make_dir(folder, PRIVATE_DIR, false);
    // Also if it was made before: that may not be on the disk yet.
    let made = made.and_then(|_| disk::sync_dir(directory(folder)));
    made.map_err(JournalError::io("make the directory", folder))
}

/// The archives that lie in a journal's folder, by the numbers in their names: for when the journal cannot tell.
pub(crate) fn lying_about(journal: &Path) -> Result<Vec<(u64, u64, PathBuf)>, JournalError> {
    let mut found = Vec::new();
    for path in files_in(&folder(journal))? {
        if let Some((first, last)) = numbers(&path) {
            found.push((first, last, path));
        }
    }
    found.sort();
    Ok(found)
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let reading = || JournalError::io("read", folder);
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files.map_err(reading())?.map(|file| file.map(|file| file.path()).map_err(reading())).collect(),
    }
}

/// Whether anything lies where the archives of the journal at `path` are kept.
pub fn has_archives(path: &Path) -> Result<bool, JournalError> {
    Ok(!files_in(&folder(path))?.is_empty())
}

/// Shows the text of every entry that can be read in any archive beside the journal at `path`, whether the journal knows
/// it or not, in no order: for when the journal does not tell all that was. What cannot be read is passed over.
pub fn read_stray_archives(path: &Path, mut each: impl FnMut(&str)) -> Result<(), JournalError> {
    for file in files_in(&folder(path))? {
        let Ok(file) = File::open(&file) else { continue };
        let lines = BufReader::new(GzDecoder::new(BufReader::new(file))).lines();
        for line in lines.map_while(Result::ok) {
            if let Ok(line) = serde_json::from_str::<Line>(&line) {
                each(&line.text);
            }
        }
    }
    Ok(())
}

/// A line of an archive. The text is kept as a string, so that it comes back to the byte.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    seq: u64,
    at: u64,
    text: String,
}

/// Writes an archive beside its final name. Nothing counts until [`Writing::finish`].
pub(crate) struct Writing {
    path: PathBuf,
    partial: PathBuf,
    gz: Compressing,
}

/// Gathered before it is compressed: a line is written in many small pieces, and the encoder clears its whole buffer for
/// each piece it is given.
type Compressing = BufWriter<GzEncoder<BufWriter<Stream>>>;

const GATHERED: usize = 256 << 10;

impl Writing {
    pub(crate) fn start(path: PathBuf) -> Result<Writing, JournalError> {
        let folder = directory(&path);
        make_folder(folder)?;
        let partial = path.with_extension("partial");
        let file = Stream::create(&partial, PRIVATE_FILE).map_err(JournalError::io("write the archive", &partial))?;
        let gz = GzEncoder::new(BufWriter::new(file), Compression::fast());
        let gz = BufWriter::with_capacity(GATHERED, gz);
        Ok(Writing { path, partial, gz })
    }

    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), JournalError> {
        let Entry { seq, at, text } = entry;
        serde_json::to_writer(&mut self.gz, &Line { seq, at, text })
            .map_err(io::Error::from)
            .and_then(|()| self.gz.write_all(b"\n"))
            .map_err(JournalError::io("write the archive", &self.partial))
    }

    /// Makes the file durable, reads it back along the chain, and only then gives it its name.
    pub(crate) fn finish(self, start: Link, end: Link) -> Result<(), JournalError> {
        let Writing { path, partial, gz } = self;
        settle(gz, &partial)
            .and_then(|()| check(&partial, start, end))
            .and_then(|()| disk::rename(&partial, &path).map_err(JournalError::io("move into place", &path)))
            .and_then(|()| disk::sync_dir(directory(&path)).map_err(JournalError::io("sync", directory(&path))))
            .inspect_err(|_| discard(&partial))
    }

    /// Leaves nothing behind, above all on a disk that is full.
    pub(crate) fn abandon(self) {
        discard(&self.partial);
    }
}

fn settle(gz: Compressing, partial: &Path) -> Result<(), JournalError> {
    let writing = || JournalError::io("write the archive", partial);
    let gz = gz.into_inner().map_err(|error| writing()(error.into_error()))?;
    let file = gz.finish().map_err(writing())?.into_inner().map_err(|error| writing()(error.into_error()))?;
    file.sync().map_err(writing())
}

/// The next attempt starts from nothing whether this succeeds or not, and the error that led here is the one to tell.
fn discard(partial: &Path) {
    let _ = disk::remove(partial);
}

/// Reads the archive along the chain from `start` to its end, and fails unless that is `end`.
pub(crate) fn check(path: &Path, start: Link, end: Link) -> Result<(), JournalError> {
    let found = read(path, start, |_| Ok(()))?;
    if found != end {
        let what = format!("it ends at entry {} and not as the journal has it, at entry {}", found.seq, end.seq);
        return Err(JournalError::ArchiveDamaged { path: path.to_path_buf(), what });
    }
    Ok(())
}

/// Shows all entries of an archive that starts after `start`, and says where it ends. That the end is right is for the
/// caller to see.
pub(crate) fn read(
    path: &Path,
    start: Link,
    mut each: impl FnMut(Entry) -> Result<(), JournalError>,
) -> Result<Link, JournalError> {
    let damaged = |what: String| JournalError::ArchiveDamaged { path: path.to_path_buf(), what };
    let file = File::open(path).map_err(JournalError::io("open the archive", path))?;
    let mut lines = BufReader::new(GzDecoder::new(BufReader::new(file)));
    let mut end = start;
    let mut buffer = String::new();
    loop {
        buffer.clear();
        let after = format!("after entry {}", end.seq);
        // The decoder says in the same words that the file is cut and that the disk failed; both mean the same here.
        if lines.read_line(&mut buffer).map_err(|error| damaged(format!("{after}: {error}")))? == 0 {
            return Ok(end);
        }
        let line: Line = serde_json::from_str(&buffer).map_err(|error| damaged(format!("{after}: {error}")))?;
        if line.seq != end.seq + 1 {
            return Err(damaged(format!("{after}: found entry {}", line.seq)));
        }
        end = end.then(line.at, &line.text);
        each(Entry { seq: line.seq, at: line.at, text: line.text })?;
    }
}

fn numbers(path: &Path) -> Option<(u64, u64)> {
    let (first, last) = path.file_name()?.to_str()?.strip_suffix(".jsonl.gz")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
