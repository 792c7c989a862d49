//! Reading what a job appends to its progress file: whole lines, each once, and never more than a job may say in the time
//! that has passed. The newest lines win; what is passed over is counted. The meaning of the lines is not known here.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::theirs::open_owned;

/// A longer line is dropped.
const LONGEST: usize = 64 << 10;
/// How often a file is read, and how many bytes at its end are looked at each time.
const EVERY: Duration = Duration::from_secs(1);
const WINDOW: u64 = 1 << 20;
/// Reports that a job may make in a second.
const LINES_PER_SECOND: f64 = 10.0;
/// What may be saved up by a job that was silent, or by one that was not listened to.
const MOST_LINES: f64 = 100.0;

/// How far a progress file has been read, and how much more may be.
#[derive(Debug)]
pub(crate) struct Progress {
    offset: u64,
    /// Lines that may be handed on now.
    allowance: f64,
    read_at: Option<Instant>,
}

/// What one look at a progress file brings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) lines: Vec<String>,
    pub(crate) dropped: Dropped,
}

/// What was passed over because it was too much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) reports: u64,
    /// Bytes that were not even looked at.
    pub(crate) bytes: u64,
}

impl Progress {
    /// Where the last service left off: lines it has put on record are not handed on again.
    pub(crate) fn resume(note: &Path) -> Progress {
        let offset = fs::read_to_string(note).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Progress { offset, allowance: MOST_LINES, read_at: None }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether it is time to read again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.read_at.is_none_or(|at| now >= at + EVERY)
    }

    /// What the job has said since the last time, as far as it may say so much. No file means that it has said nothing.
    pub(crate) fn next(&mut self, path: &Path, owner: u32, now: Instant) -> io::Result<Read> {
        let passed = self.read_at.map_or(Duration::ZERO, |at| now - at);
        self.allowance = (self.allowance + passed.as_secs_f64() * LINES_PER_SECOND).min(MOST_LINES);
        self.read_at = Some(now);
        let file = match open_owned(path, owner) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::default()),
            opened => opened?,
        };
        let size = file.metadata()?.len();
        if size < self.offset {
            // It was cut short, or another one is in its place.
            self.offset = 0;
        }
        let start = self.offset.max(size.saturating_sub(WINDOW));
        let mut read = Read { lines: Vec::new(), dropped: Dropped { reports: 0, bytes: start - self.offset } };
        let window = window(&file, start, size)?;
        let begins_within = begins_within_line(&file, start)?;
        let taken = split(&window, begins_within, &mut read);
        self.offset = start + taken as u64;
        // A run that ends is heard at once, and its last lines count.
        let most = self.allowance.max(LINES_PER_SECOND) as usize;
        let too_many = read.lines.len().saturating_sub(most);
        read.lines.drain(..too_many);
        read.dropped.reports += too_many as u64;
        self.allowance = (self.allowance - read.lines.len() as f64).max(0.0);
        Ok(read)
    }
}

/// The bytes from `start` to `end`, or to where the file really ends by now.
fn window(file: &File, start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (end - start) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], start + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Whether the byte before is not the end of a line: then what follows belongs to a line that was passed over.
fn begins_within_line(file: &File, start: u64) -> io::Result<bool> {
    let Some(before) = start.checked_sub(1) else { return Ok(false) };
    Ok(window(file, before, start)? != b"\n")
}

/// Adds whole lines to what was read, and returns how many bytes are done with. The beginning of a line stays for the next
/// time, unless it is too long already.
fn split(window: &[u8], begins_within: bool, read: &mut Read) -> usize {
    let mut taken = 0;
    let mut passes_over = begins_within;
    while let Some(end) = window[taken..].iter().position(|&byte| byte == b'\n') {
        let line = &window[taken..taken + end];
        taken += end + 1;
        match line.len() {
            _ if std::mem::take(&mut passes_over) => {}
            0 => {}
            length if length > LONGEST => read.dropped.reports += 1,
            _ => read.lines.push(String::from_utf8_lossy(line).into_owned()),
        }
    }
    let rest = window.len() - taken;
    if passes_over {
        return window.len();
    }
    if rest > LONGEST {
        read.dropped.reports += 1;
        return window.len();
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::process::geteuid;

    use super::*;

    /// A progress file and how far it was read, at a time that the test moves on.
    struct Scene {
        dir: tempfile::TempDir,
        progress: Progress,
        now: Instant,
    }

    impl Scene {
        fn new() -> Scene {
            let dir = tempfile::tempdir().unwrap();
            let progress = Progress::resume(&dir.path().join("progress.read"));
            Scene { dir, progress, now: Instant::now() }
        }

        fn append(&self, text: &str) {
            let path = self.dir.path().join("progress.jsonl");
            File::options().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn file(&self) -> File {
            File::options().write(true).open(self.dir.path().join("progress.jsonl")).unwrap()
        }

        fn next(&mut self) -> Read {
            let path = self.dir.path().join("progress.jsonl");
            self.progress.next(&path, geteuid().as_raw(), self.now).unwrap()
        }

        fn after(&mut self, seconds: u64) -> Read {
            self.now += Duration::from_secs(seconds);
            self.next()
        }

        /// As a service does that starts again.
        fn restart(&mut self) {
            let note = self.dir.path().join("progress.read");
            fs::write(&note, self.progress.offset().to_string()).unwrap();
            self.progress = Progress::resume(&note);
        }
    }

    #[test]
    fn lines_come_whole_and_once_also_after_a_restart() {
        let mut scene = Scene::new();
        scene.append("one\ntwo\nthr");
        assert_eq!(scene.next().lines, ["one", "two"]);
        assert_eq!(scene.next(), Read::default());
        scene.restart();
        scene.append("ee\n");
        assert_eq!(scene.next().lines, ["three"]);
    }

    #[test]
    fn lines_that_are_too_long_are_dropped_and_counted_however_long() {
        let mut scene = Scene::new();
        scene.append(&format!("{}\nshort\n", "x".repeat(LONGEST + 1)));
        assert_eq!(scene.next(), Read { lines: vec!["short".into()], dropped: Dropped { reports: 1, bytes: 0 } });
        scene.append(&"y".repeat(LONGEST + 1));
        assert_eq!(scene.next().dropped, Dropped { reports: 1, bytes: 0 });
        scene.restart();
        scene.append(&format!("{}\nlast\n", "y".repeat(100)));
        assert_eq!(scene.next(), Read { lines: vec!["last".into()], dropped: Dropped::default() });
    }

    #[test]
    fn of_more_than_a_job_may_say_the_newest_lines_are_heard_and_the_others_counted() {
        let mut scene = Scene::new();
        let lines: String = (0..150).map(|number| format!("{number}\n")).collect();
        scene.append(&lines);
        let read = scene.next();
        assert_eq!((read.lines.len(), read.dropped.reports), (100, 50), "what a silent job has saved up");
        assert_eq!(read.lines.last().map(String::as_str), Some("149"));
        scene.append(&lines);
        let read = scene.after(1);
        assert_eq!((read.lines.len(), read.dropped.reports), (10, 140), "ten a second from then on");
        scene.append(&lines);
        assert_eq!(scene.after(3).lines.len(), 30);
        scene.restart();
        assert_eq!(scene.next(), Read::default(), "what was dropped is not heard after a restart either");
    }

    #[test]
    fn a_file_of_a_terabyte_is_read_at_its_end_only() {
        let mut scene = Scene::new();
        scene.append("first\n");
        scene.file().set_len(1 << 40).unwrap();
        let read = scene.next();
        assert_eq!((read.lines.len(), read.dropped.bytes), (0, (1 << 40) - WINDOW));
        scene.append("\nlast\n");
        assert_eq!(scene.after(1).lines, ["last"]);
        scene.append("more\n");
        assert_eq!(scene.after(1).lines, ["more"]);
    }

    #[test]
    fn a_file_that_is_cut_short_is_read_from_its_beginning() {
        let mut scene = Scene::new();
        scene.append("one\ntwo\n");
        scene.next();
        scene.file().set_len(0).unwrap();
        scene.append("new\n");
        assert_eq!(scene.next().lines, ["new"]);
    }

    #[test]
    fn of_a_file_in_the_place_of_another_no_half_line_is_heard() {
        let mut scene = Scene::new();
        scene.append("one\ntwo\n");
        scene.next();
        scene.file().set_len(0).unwrap();
        scene.append("a longer line\nwhole\n");
        assert_eq!(scene.next().lines, ["whole"]);
    }

    #[test]
    fn a_file_is_read_once_a_second() {
        let mut scene = Scene::new();
        assert!(scene.progress.is_due(scene.now));
        scene.next();
        assert!(!scene.progress.is_due(scene.now + EVERY / 2) && scene.progress.is_due(scene.now + EVERY));
    }
}
