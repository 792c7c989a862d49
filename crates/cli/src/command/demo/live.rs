//! The live demonstration: a service of its own in a folder of its own, real jobs, and nothing left of them afterwards.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use api::{Client, JobId};
use server::{Config, Service, Settings, http};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::history::History;
use super::outcome;
use super::screen::Screen;
use super::workload::{Part, accelerators};
use crate::command::serve::supervisor;
use crate::failure::Failure;
use crate::render::{self, Files};

/// How often the screen is drawn anew.
const FRAME: Duration = Duration::from_millis(500);
/// A demonstration that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(900);
/// How long jobs have to end when the demonstration is interrupted; longer than they may take to save their state.
const FAREWELL: Duration = Duration::from_secs(30);
/// The exit code of a command that was interrupted.
const INTERRUPTED: u8 = 130;

/// How the jobs came to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    ByThemselves,
    Interrupted,
}

pub(super) fn run(parts: &[Part], files: &Files) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the threads of the service")?;
    // Before there is anything to clean up.
    let interruptions = runtime.block_on(async { Interruptions::new() })?;
    let folder = tempfile::Builder::new().prefix("moira-demo-").tempdir().context("cannot make a folder")?;
    let settings =
        Settings::new(folder.path().into(), config(), Path::new("the demonstration")).map_err(Failure::new)?;
    let service = Arc::new(Service::open(settings, supervisor(None)?).map_err(Failure::new)?);
    render::line(&format!(
        "A service on this machine with 2 fast and 4 slow virtual accelerators; {} real trainings; policy {}\n",
        parts.len(),
        server::DEFAULT_POLICY
    ))?;
    let ended = runtime.block_on(serve(service.clone(), parts, interruptions));
    runtime.shutdown_timeout(Duration::from_secs(2));
    service.leave().map_err(Failure::new)?;
    let history = ended.and_then(|ended| match ended {
        Ended::ByThemselves => History::read(folder.path()),
        Ended::Interrupted => Err(Failure::silent(INTERRUPTED)),
    });
    folder.close().context("cannot remove the folder of the demonstration")?;
    outcome::tell(&history?, files)
}

/// How the service is set up.
pub(super) fn config() -> Config {
    Config { accelerators: accelerators(), start_deadline: api::Duration::from_secs(60), ..Config::default() }
}

/// Whatever comes, no job is left.
async fn serve(service: Arc<Service>, parts: &[Part], interruptions: Interruptions) -> Result<Ended, Failure> {
    let (leave, leaving) = watch::channel(false);
    let serving = tokio::spawn(http::serve(service.clone(), leaving));
    let client = Client::in_data_dir(&service.data_dir);
    let ended = perform(&service, &client, parts, interruptions).await;
    let farewell = match ended {
        Ok(Ended::ByThemselves) => Ok(()),
        _ => end_all(&service, &client).await,
    };
    leave.send(true).ok();
    // Whoever is in the middle of something gets a moment; all jobs have ended.
    timeout(Duration::from_secs(2), serving).await.ok();
    farewell.and(ended)
}

/// Submits every job when its time has come and shows what becomes of them, until all have ended.
async fn perform(
    service: &Service,
    client: &Client,
    parts: &[Part],
    mut interruptions: Interruptions,
) -> Result<Ended, Failure> {
    let mut lines = service.replica.lines();
    let mut screen = Screen::new(service.clock.now());
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    wait_for_door(service).await?;
    let (began, mut waiting) = (Instant::now(), parts.iter());
    let mut next = waiting.next();
    loop {
        let due = next.map(|part| began + part.arrives);
        tokio::select! {
            () = until(due) => {
                if let Some(part) = next {
                    let job = part.request(&service.data_dir, service.clock.now().as_millis())?;
                    client.submit(&job, None).await.map_err(Failure::new)?;
                }
                next = waiting.next();
            }
            heard = lines.recv() => match heard {
                Ok(batch) => screen.tell(&service.replica.read(), &batch)?,
                // The table is drawn from what is the case, whatever was missed.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(Failure::new(anyhow!("the service is gone"))),
            },
            _ = frames.tick() => {
                screen.draw(&service.replica.read(), service.clock.now())?;
                if next.is_none() && all_ended(service) {
                    return Ok(Ended::ByThemselves);
                }
                if !service.is_alive() || began.elapsed() > LONGEST {
                    return Err(Failure::new(anyhow!("the demonstration did not come to its end")));
                }
            }
            () = interruptions.next() => return Ok(Ended::Interrupted),
        }
    }
}

/// The wish of whoever started it that it should end.
#[derive(Debug)]
struct Interruptions([Signal; 2]);

impl Interruptions {
    fn new() -> Result<Interruptions, Failure> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Interruptions([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

async fn wait_for_door(service: &Service) -> Result<(), Failure> {
    let socket = api::socket_in(&service.data_dir);
    for _ in 0..500 {
        if socket.exists() {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Err(Failure::new(anyhow!("the service does not listen")))
}

fn all_ended(service: &Service) -> bool {
    service.replica.read().state.books().claims().live_count() == 0
}

/// Cancels whatever lives and waits until it is gone.
async fn end_all(service: &Service, client: &Client) -> Result<(), Failure> {
    let live: Vec<u32> = service.replica.read().state.books().claims().live().map(|claim| claim.id.0).collect();
    for claim in live {
        // One that has just ended is refused, and that is as well.
        client.cancel(JobId::job(claim)).await.ok();
    }
    let gone = async {
        while !all_ended(service) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(FAREWELL, gone).await.map_err(|_| Failure::new(anyhow!("some jobs did not end when they were cancelled")))
}
