//! `moira shell`: a shell beside a running job, with the terminal here.

use std::time::{Duration, Instant};

use api::{Client, Error, JobId, ShellRequest, ShellView};
use clap::Args;
use tokio::sync::mpsc;

use super::jobs::{Named, Which};
use super::run::input::{Feed, Target};
use super::run::session::{self, Left};
use super::run::signals::Signals;
use super::service::{self, LogOutput, is_absence, of_service, tell};
use super::terminal;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// The job by number, a task like 7_3, or your newest job of a name
    #[arg(value_name = "ID|NAME")]
    job: Named,
    /// The program and its arguments [default: your login shell]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// As a shell reports a program whose terminal was closed.
const HUNG_UP: u8 = 129;
/// How long a service that has gone is waited for: longer, and the shell is hung up on.
const ABSENCE: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// How long a service has to hear that a user leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

impl Shell {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if !terminal::is_here() {
            let why = "moira shell needs a terminal as standard input and output, and here is none";
            return Err(Failure::usage(why));
        }
        let window = terminal::window();
        let term = std::env::var("TERM").ok().filter(|term| !term.is_empty());
        let request = ShellRequest { command: self.command, window, term };
        let code = service::ask(async |client| {
            let mut signals = Signals::listen()?;
            let ids = self.job.numbers(client, Which::Newest).await.map_err(of_service)?;
            let Some(&id) = ids.first() else { return Err(Failure::usage("there is no such job")) };
            let shell = client.open_shell(id, &request).await.map_err(of_service)?.id;
            let (asker, sender) = (another(client)?, another(client)?);
            let (keys, typed) = mpsc::channel(1);
            let mut feed = Feed::new(&sender, Target::Shell(id, shell.clone()), typed);
            let tell_window = async |window| drop(asker.set_shell_window(id, &shell, window).await);
            // The terminal has its modes again before anything is said.
            let outcome = tokio::select! {
                shown = show(client, id, &shell) => shown.map(|()| None),
                left = session::sit(keys, window, tell_window) => left.map(|Left| Some(HUNG_UP)),
                failed = fail(&mut feed) => Err(failed),
                ask = signals.next() => Ok(Some(ask.exit_code())),
            };
            match outcome {
                Ok(None) => Ok(conclude(id, client.shell(id, &shell).await)),
                Ok(Some(code)) => {
                    leave(&asker, id, &shell).await;
                    Ok(code)
                }
                Err(failure) => {
                    leave(&asker, id, &shell).await;
                    Err(failure)
                }
            }
        })?;
        if code == 0 { Ok(()) } else { Err(Failure::silent(code)) }
    }
}

/// Until keys cannot be passed on; that there are no more is no failure.
async fn fail(feed: &mut Feed<'_>) -> Failure {
    match feed.send().await {
        Err(failure) => failure,
        Ok(()) => std::future::pending().await,
    }
}

/// Shows what is to be seen until the shell has ended; a service that is restarted meanwhile is waited for.
async fn show(client: &Client, id: JobId, shell: &str) -> Result<(), Failure> {
    let (mut offset, mut output, mut seen) = (0, LogOutput::raw(), Instant::now());
    loop {
        match client.shell_output(id, shell, offset).await {
            Ok(mut pieces) => {
                offset = pieces.offset;
                loop {
                    match pieces.next().await {
                        Ok(Some(piece)) => {
                            offset += piece.len() as u64;
                            if !output.pass_on(&piece)? {
                                return Ok(());
                            }
                        }
                        Ok(None) if has_ended(client, id, shell).await => return Ok(()),
                        Ok(None) | Err(Error::Cut { .. }) => break,
                        Err(error) => return Err(of_service(error)),
                    }
                }
                seen = Instant::now();
            }
            // It has ended with its job.
            Err(Error::Refused(problem)) if matches!(problem.status, 404 | 409) => return Ok(()),
            Err(error) if is_absence(&error) && seen.elapsed() < ABSENCE => {}
            Err(error) => return Err(of_service(error)),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// An answer also ends when the service leaves.
async fn has_ended(client: &Client, id: JobId, shell: &str) -> bool {
    match client.shell(id, shell).await {
        Ok(view) => view.ended,
        Err(error) => !is_absence(&error),
    }
}

fn conclude(id: JobId, shell: Result<ShellView, Error>) -> u8 {
    match shell {
        Ok(ShellView { message: Some(message), .. }) => tell(&message),
        Ok(ShellView { exit_code: Some(code), .. }) => return u8::try_from(code).unwrap_or(1),
        Ok(ShellView { signal: Some(signal), .. }) => return u8::try_from(signal + 128).unwrap_or(1),
        Ok(_) | Err(_) => tell(&format!("job {id} has ended")),
    }
    HUNG_UP
}

/// One that hears nothing of it is hung up on a little later.
async fn leave(client: &Client, id: JobId, shell: &str) {
    let _ = tokio::time::timeout(LEAVE_WITHIN, client.leave_shell(id, shell)).await;
    tell(&format!("left the shell beside job {id}"));
}

fn another(client: &Client) -> Result<Client, Failure> {
    Client::at(&client.address()).map_err(of_service)
}
