//! A user at the terminal of a job: from its start on, keys and the size of the window go to the job. What the job writes is
//! shown by those who follow its log.

use std::time::Duration;

use anyhow::Context;
use api::{Client, JobId, JobState, Window};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::input;
use crate::command::service::{is_absence, of_service};
use crate::command::terminal::{self, Escape, Raw};
use crate::failure::Failure;

/// Of keys that cannot be sent at the moment so many are kept; then the terminal keeps the rest.
const MOST_KEYS: usize = 1 << 20;
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// How long a change of the window is tried to be told: the next one, or the next start, tells it again.
const TELL_WINDOW_WITHIN: Duration = Duration::from_secs(5);

/// That the user has left by `~.`.
pub(crate) struct Left;

/// Passes keys on until the user leaves. `tell` tells the other side how large the window is, and `told` is what it knows
/// already.
pub(crate) async fn sit(
    keys: mpsc::Sender<Vec<u8>>,
    told: Window,
    tell: impl AsyncFn(Window),
) -> Result<Left, Failure> {
    let listen = |kind| signal(kind).context("cannot listen to signals");
    let mut resized = listen(SignalKind::window_change())?;
    // Another program may have had the terminal meanwhile.
    let mut continued = listen(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
    let raw = Raw::enter()?;
    let mut typed = input::read()?;
    let (mut escape, mut waiting, mut told) = (Escape::new(), Vec::new(), told);
    loop {
        let window = terminal::window();
        if window != told {
            told = window;
            // One that never answers must not keep the user from leaving.
            let _ = tokio::time::timeout(TELL_WINDOW_WITHIN, tell(window)).await;
        }
        tokio::select! {
            piece = typed.recv(), if waiting.len() < MOST_KEYS => {
                // The end of a terminal is its hang-up, of which a signal tells.
                let Some(piece) = piece else { return std::future::pending().await };
                let (passed, leaves) = escape.take(&piece);
                if leaves {
                    return Ok(Left);
                }
                waiting.extend(passed);
            }
            place = keys.reserve(), if !waiting.is_empty() => match place {
                Ok(place) => place.send(std::mem::take(&mut waiting)),
                // The other side takes nothing any more, and will have ended soon.
                Err(_) => waiting.clear(),
            },
            _ = resized.recv() => {}
            _ = continued.recv() => raw.again()?,
        }
    }
}

/// Until the job runs; one that has ended never does.
pub(crate) async fn until_started(client: &Client, id: JobId) -> Result<(), Failure> {
    let mut events = None;
    loop {
        // Heard from before the job is looked at: what happens afterwards is not missed.
        if events.is_none() {
            events = client.events(None, Some(id)).await.ok();
        }
        match client.job(id).await {
            Ok(job) if job.state == JobState::Running => return Ok(()),
            Ok(job) if job.state.is_final() => return std::future::pending().await,
            Ok(_) => {}
            Err(error) if is_absence(&error) => {}
            Err(error) => return Err(of_service(error)),
        }
        match &mut events {
            Some(heard) => match heard.next().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => events = None,
            },
            None => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}
