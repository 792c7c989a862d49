//! What all tasks of an array write, as one stream of lines, each with the number of its task. The files of tasks stay
//! what they are.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use cluster::{ClaimId, Run};
use executors::{LogFollower, log_pieces};
use tokio::sync::{Notify, mpsc};

use super::Door;
use super::logs::{GLANCE, RARE_GLANCE};

/// So much of a log is read at a time.
const CHUNK: usize = 256 << 10;
/// A longer line is broken.
const LONGEST_LINE: usize = 64 << 10;

pub(super) struct ArrayLogs {
    door: Door,
    worker: u32,
    sender: mpsc::Sender<io::Result<Bytes>>,
    tasks: Vec<Task>,
    bell: Arc<Bell>,
}

/// Rung when there may be more of some logs.
#[derive(Default)]
struct Bell {
    notify: Notify,
    /// Of these tasks, by their place.
    tasks: Mutex<BTreeSet<usize>>,
}

struct Task {
    claim: ClaimId,
    index: u32,
    attempt: u32,
    /// How much of the attempt's log was sent or passed over.
    position: u64,
    /// The beginning of a line that has no end yet.
    line: Vec<u8>,
    stage: Stage,
    follower: Option<Arc<LogFollower>>,
    is_done: bool,
}

/// How often a task was launched, and whether it has ended.
type Stage = (u32, bool);

/// Nobody listens any more, or the service leaves.
struct Over;

/// A part of a log.
struct Part {
    /// Where it begins; behind what was asked for, if that is not kept any more.
    start: u64,
    bytes: Vec<u8>,
}

impl ArrayLogs {
    /// Of these tasks, by claim and number.
    pub(super) fn new(
        door: Door,
        tasks: impl Iterator<Item = (ClaimId, u32)>,
        worker: u32,
        sender: mpsc::Sender<io::Result<Bytes>>,
    ) -> ArrayLogs {
        let task = |(claim, index)| Task {
            claim,
            index,
            attempt: 1,
            position: 0,
            line: Vec::new(),
            stage: (0, false),
            follower: None,
            is_done: false,
        };
        ArrayLogs { door, worker, sender, tasks: tasks.map(task).collect(), bell: Arc::default() }
    }

    /// Sends what there is, and where that is wanted what follows, until all tasks have ended.
    pub(super) async fn run(mut self, follow: bool) {
        if let Err(Over) = self.send_all(follow).await {
            // Only a whole answer ends as one; nobody may be there to hear it.
            self.sender.send(Err(io::Error::other("the service leaves"))).await.ok();
        }
    }

    async fn send_all(&mut self, follow: bool) -> Result<(), Over> {
        let mut versions = self.door.service.replica.version();
        let mut wanted: BTreeSet<usize> = (0..self.tasks.len()).collect();
        let mut leaving = self.door.leaving.clone();
        loop {
            // Asked before the files are read: what was written before the end is then seen.
            versions.mark_unchanged();
            wanted.extend(self.changed_stages());
            let mut patience = RARE_GLANCE;
            for place in std::mem::take(&mut wanted) {
                if self.tasks[place].is_done || self.tasks[place].stage == (0, false) {
                    continue;
                }
                if !self.send_task(place, follow).await? {
                    patience = GLANCE;
                }
            }
            if !follow || self.tasks.iter().all(|task| task.is_done) {
                return Ok(());
            }
            let bell = self.bell.clone();
            let mut glance = std::pin::pin!(tokio::time::sleep(patience));
            loop {
                if *leaving.borrow() {
                    return Err(Over);
                }
                tokio::select! {
                    () = bell.notify.notified() => {
                        wanted = std::mem::take(&mut *bell.tasks.lock().unwrap_or_else(PoisonError::into_inner));
                        break;
                    }
                    () = &mut glance => {
                        wanted = (0..self.tasks.len()).collect();
                        break;
                    }
                    () = self.sender.closed() => return Err(Over),
                    _ = leaving.changed() => return Err(Over),
                    changed = versions.changed() => {
                        changed.map_err(|_| Over)?;
                        wanted = self.changed_stages();
                        if !wanted.is_empty() {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// The tasks that are at another stage than when they were last looked at.
    fn changed_stages(&mut self) -> BTreeSet<usize> {
        let shown = self.door.service.replica.read();
        let claims = shown.state.books().claims();
        let mut changed = BTreeSet::new();
        for (place, task) in self.tasks.iter_mut().enumerate().filter(|(_, task)| !task.is_done) {
            // One that is forgotten has ended.
            let stage = claims.get(task.claim).map_or((0, true), |claim| (claim.progress.launches, !claim.is_live()));
            if std::mem::replace(&mut task.stage, stage) != stage {
                changed.insert(place);
            }
        }
        changed
    }

    /// Sends all there is of a task, attempt after attempt. Whether it will be told when there is more.
    async fn send_task(&mut self, place: usize, follow: bool) -> Result<bool, Over> {
        let (latest, is_over) = self.tasks[place].stage;
        if follow && !is_over && self.tasks[place].follower.is_none() {
            self.tasks[place].follower = self.follower(place);
        }
        loop {
            let (part, is_told) = self.part(place).await;
            let Some(part) = part else {
                let task = &mut self.tasks[place];
                if task.attempt < latest {
                    (task.attempt, task.position) = (task.attempt + 1, 0);
                    let rest = task.take_rest();
                    self.send(rest).await?;
                    continue;
                }
                if is_over || !follow {
                    (task.is_done, task.follower) = (is_over, None);
                    let rest = task.take_rest();
                    self.send(rest).await?;
                }
                return Ok(is_told);
            };
            let lines = self.tasks[place].lines(part);
            self.send(lines).await?;
        }
    }

    fn follower(&self, place: usize) -> Option<Arc<LogFollower>> {
        let told = self.bell.clone();
        let wake = move || {
            told.tasks.lock().unwrap_or_else(PoisonError::into_inner).insert(place);
            told.notify.notify_one();
        };
        self.door.log_bell.as_ref().map(|bell| Arc::new(bell.follower(wake)))
    }

    /// What comes next in the log of a task; nothing if nothing does yet. And whether it will be told when that changes.
    async fn part(&self, place: usize) -> (Option<Part>, bool) {
        let Task { claim, attempt, position, .. } = self.tasks[place];
        let (data_dir, worker) = (self.door.service.data_dir.clone(), self.worker);
        let follower = self.tasks[place].follower.clone();
        let run = Run { claim, attempt };
        let look = move || {
            let is_told = follower.is_some_and(|follower| follower.listen(&data_dir, run, worker).is_ok());
            (part_after(&data_dir, run, worker, position), is_told)
        };
        // Only a service that leaves does not run it.
        let Ok((part, is_told)) = tokio::task::spawn_blocking(look).await else { return (None, true) };
        let part = part.unwrap_or_else(|error| {
            tracing::warn!(job = %claim, attempt, %error, "a log cannot be read");
            None
        });
        (part, is_told)
    }

    async fn send(&self, bytes: Vec<u8>) -> Result<(), Over> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.sender.send(Ok(Bytes::from(bytes))).await.map_err(|_| Over)
    }
}

impl Task {
    /// The lines that a part of its log ends, each with the task's number.
    fn lines(&mut self, part: Part) -> Vec<u8> {
        let mut lines = Vec::new();
        if part.start > self.position {
            lines = self.take_rest();
            let dropped = part.start - self.position;
            lines.extend(format!("[{}] [moira: {dropped} bytes of older output were dropped]\n", self.index).bytes());
        }
        self.position = part.start + part.bytes.len() as u64;
        for piece in part.bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LONGEST_LINE {
                lines.extend(self.take_rest());
            }
        }
        lines
    }

    /// The line that was begun, ended here.
    fn take_rest(&mut self) -> Vec<u8> {
        if self.line.is_empty() {
            return Vec::new();
        }
        let mut line = format!("[{}] ", self.index).into_bytes();
        line.append(&mut self.line);
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        line
    }
}

fn part_after(data_dir: &Path, run: Run, worker: u32, position: u64) -> io::Result<Option<Part>> {
    for mut piece in log_pieces(data_dir, run, worker)? {
        if piece.end <= position {
            continue;
        }
        let start = position.max(piece.start);
        piece.file.seek(SeekFrom::Start(start - piece.start))?;
        let mut bytes = Vec::new();
        piece.file.take(CHUNK as u64).read_to_end(&mut bytes)?;
        return Ok((!bytes.is_empty()).then_some(Part { start, bytes }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        let stage = (1, false);
        Task {
            claim: ClaimId(7),
            index: 3,
            attempt: 1,
            position: 0,
            line: Vec::new(),
            stage,
            follower: None,
            is_done: false,
        }
    }

    fn shown(task: &mut Task, start: u64, text: &str) -> String {
        String::from_utf8(task.lines(Part { start, bytes: text.into() })).unwrap()
    }

    #[test]
    fn every_line_has_the_number_of_its_task_however_it_comes() {
        let mut task = task();
        assert_eq!(shown(&mut task, 0, "one\ntw"), "[3] one\n");
        assert_eq!(shown(&mut task, 6, "o\n\nthr"), "[3] two\n[3] \n");
        assert_eq!(task.take_rest(), b"[3] thr\n");
        assert_eq!(task.take_rest(), b"");
    }

    #[test]
    fn what_is_not_kept_any_more_is_counted() {
        let mut task = task();
        assert_eq!(shown(&mut task, 0, "one\ntw"), "[3] one\n");
        let expected = "[3] tw\n[3] [moira: 94 bytes of older output were dropped]\n[3] later\n";
        assert_eq!(shown(&mut task, 100, "later\n"), expected);
    }

    #[test]
    fn a_line_without_an_end_is_broken() {
        let mut task = task();
        let endless = "x".repeat(LONGEST_LINE);
        assert_eq!(shown(&mut task, 0, &endless), format!("[3] {endless}\n"));
    }
}
