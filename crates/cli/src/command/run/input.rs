//! What `moira run` reads and sends to the job: a thread reads, since a terminal cannot be waited for otherwise; what it
//! read is sent piece by piece, each once, also if the service is restarted meanwhile.

use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::{Client, Error, InputReply, JobId};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};
use tokio::sync::mpsc;

use crate::command::service::{is_absence, of_service, tell};
use crate::failure::Failure;

/// What is read and not sent yet: so many pieces of so many bytes.
const AHEAD: usize = 4;
const PIECE: usize = 64 << 10;
/// How long a service that has gone is waited for.
const ABSENCE: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(300);

/// Whether there is anything to read: from `/dev/null` there is not, and then a job costs nothing more.
pub(crate) fn is_there() -> bool {
    let Ok(stat) = fstat(io::stdin()) else { return false };
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    // The number of /dev/null, on every Linux.
    !(is_device && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3))
}

/// Reads standard input on a thread of its own; the pieces end where the input does.
pub(crate) fn read() -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let read = move || {
        loop {
            // Reading from a terminal that belongs to another job of the shell would stop this process.
            while is_in_background() {
                if sender.is_closed() {
                    return;
                }
                thread::sleep(TRY_AGAIN);
            }
            let mut piece = vec![0; PIECE];
            match io::stdin().read(&mut piece) {
                Ok(0) => return,
                Ok(count) => piece.truncate(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A terminal that is gone.
                Err(_) => return,
            }
            if sender.blocking_send(piece).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(read).context("cannot read standard input")?;
    Ok(receiver)
}

fn is_in_background() -> bool {
    isatty(io::stdin()) && tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != getpgrp())
}

/// What is read, on its way to the job.
#[derive(Debug)]
pub(crate) struct Feed<'a> {
    client: &'a Client,
    target: Target,
    pieces: mpsc::Receiver<Vec<u8>>,
    offset: u64,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(client: &'a Client, target: Target, pieces: mpsc::Receiver<Vec<u8>>) -> Feed<'a> {
        Feed { client, target, pieces, offset: 0 }
    }

    /// Sends what is read to the job, until there is no more or the job has ended.
    pub(crate) async fn send(&mut self) -> Result<(), Failure> {
        while let Some(piece) = self.pieces.recv().await {
            match send_piece(self.client, &self.target, self.offset, &piece, false).await? {
                Sent::All(length) => self.offset = length,
                Sent::ToNobody => return Ok(()),
            }
        }
        self.finish().await
    }

    /// Ends the input here: nobody is there to send more.
    pub(crate) async fn finish(&mut self) -> Result<(), Failure> {
        send_piece(self.client, &self.target, self.offset, &[], true).await.map(drop)
    }
}

/// Who reads it.
#[derive(Debug)]
pub(crate) enum Target {
    Job(JobId),
    /// A shell beside a job, by its name.
    Shell(JobId, String),
}

impl Target {
    async fn take(&self, client: &Client, offset: u64, piece: &[u8], end: bool) -> Result<InputReply, Error> {
        match self {
            Target::Job(id) => client.send_input(*id, offset, piece, end).await,
            // Its end is that its user leaves.
            Target::Shell(id, shell) => client.type_in_shell(*id, shell, offset, piece).await,
        }
    }
}

enum Sent {
    /// So much so far.
    All(u64),
    /// The job has ended, or another has ended its input.
    ToNobody,
}

async fn send_piece(client: &Client, target: &Target, offset: u64, piece: &[u8], end: bool) -> Result<Sent, Failure> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        let error = match target.take(client, offset, piece, end).await {
            Ok(reply) => return Ok(Sent::All(reply.length)),
            Err(error) => error,
        };
        match &error {
            Error::Refused(problem) if problem.is("input-gap") => {
                tell("[moira: the machine was restarted, and what was sent before is lost: submit the job again]");
                return Ok(Sent::ToNobody);
            }
            Error::Refused(problem) if matches!(problem.status, 404 | 409) => return Ok(Sent::ToNobody),
            Error::Refused(problem) if problem.is("disk-full") && !is_told => {
                tell("[moira: the disk of the service is full: what is typed or sent waits until there is room]");
                is_told = true;
            }
            // It has not started, or too much is under way.
            Error::Refused(problem) if matches!(problem.status, 429 | 503) => {}
            error if is_absence(error) && begun.elapsed() < ABSENCE => {}
            _ => return Err(of_service(error)),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}
