//! `moira audit`: who did what, from the journal and its archives. It needs no service, and may be read by those who may
//! read the journal: the service's own user and root.

use std::io::{self, Write};

use anyhow::anyhow;
use clap::Args;
use cluster::Time;
use serde::Serialize;
use serde_json::Value;
use server::{Caller, Deed, Fact, Timeline};

use super::journal::beginning;
use super::serve::DataDir;
use super::service::{self, Shape};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    data_dir: DataDir,
    /// Only what this user did
    #[arg(long, value_name = "USER")]
    by: Option<String>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

/// One line of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    seq: u64,
    at: String,
    user: String,
    uid: u32,
    role: &'static str,
    /// The token it came with; none over the socket.
    token: Option<u32>,
    what: String,
}

impl Audit {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let path = server::journal_path(&self.data_dir.path()?);
        if !path.exists() {
            return Err(Failure::new(anyhow!("there is no journal at {}", path.display())));
        }
        let (timeline, upto) = server::recorded_timeline(&path).map_err(Failure::new)?;
        let mut lines = Lines { timeline, clocks_known_upto: upto, partial: Vec::new(), found: Vec::new() };
        let exported = journal::export(&path, &mut lines).map_err(Failure::new)?;
        if let Some(begins) = beginning(exported.released) {
            service::tell(&begins);
        }
        let mut lines = lines.by_wall_clock();
        lines.retain(|line| self.by.as_ref().is_none_or(|by| *by == line.user));
        match self.output {
            Shape::Json => lines.iter().try_for_each(service::json),
            Shape::Name => lines.iter().try_for_each(|line| render::line(&line.seq.to_string())),
            Shape::Table => render::table(&["ENTRY", "AT", "USER", "ROLE", "BY", "WHAT"], lines.into_iter().map(row)),
        }
    }
}

fn row(line: Line) -> Vec<String> {
    let by = line.token.map_or("socket".into(), |token| format!("token {token}"));
    vec![line.seq.to_string(), line.at, line.user, line.role.into(), by, line.what]
}

/// Picks out of the export what somebody did.
#[derive(Debug)]
struct Lines {
    /// Entries carry the time of the engine; people go by the wall clock as it was then.
    timeline: Timeline,
    clocks_known_upto: u64,
    partial: Vec<u8>,
    found: Vec<(Time, Line)>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let text = std::mem::take(&mut self.partial);
                let deed = self.deed_in(&text)?;
                self.found.extend(deed);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// That the clock was set may stand behind what was done at the same moment.
    fn by_wall_clock(self) -> Vec<Line> {
        let at = |time| api::rfc3339(self.timeline.wall_ms(time));
        self.found.into_iter().map(|(time, line)| Line { at: at(time), ..line }).collect()
    }

    fn deed_in(&mut self, text: &[u8]) -> io::Result<Option<(Time, Line)>> {
        let entry: Value = serde_json::from_slice(text)?;
        let is_told_of = |name: &str| entry["fact"].get(name).is_some();
        // Most entries are the core's own, and are not read any further.
        if !["Numbered", "Did", "TokenMade", "TokenRevoked", "Clock"].into_iter().any(is_told_of) {
            return Ok(None);
        }
        let (seq, at) = (entry["seq"].as_u64().unwrap_or(0), Time::from_millis(entry["at"].as_u64().unwrap_or(0)));
        let fact: Fact = serde_json::from_value(entry["fact"].clone())?;
        if let Fact::Clock(found) = &fact
            && seq > self.clocks_known_upto
        {
            self.timeline.apply(at, found);
        }
        let line = |(by, what): (&Caller, String)| Line {
            seq,
            at: String::new(),
            user: by.name.clone(),
            uid: by.uid,
            role: by.role.as_str(),
            token: by.token,
            what,
        };
        Ok(described(&fact).map(|described| (at, line(described))))
    }
}

fn described(fact: &Fact) -> Option<(&Caller, String)> {
    match fact {
        Fact::Numbered(acceptance) => {
            let name = &acceptance.program.job_name;
            Some((&acceptance.owner, format!("submitted job {} ({name})", acceptance.first)))
        }
        Fact::Did { by, deed } => Some((by, words(deed))),
        Fact::TokenMade { by, token } => {
            Some((by, format!("made token {} for {} as {}", token.id, token.user, token.role)))
        }
        Fact::TokenRevoked { by, id, .. } => Some((by, format!("revoked token {id}"))),
        _ => None,
    }
}

fn words(deed: &Deed) -> String {
    match deed {
        Deed::Cancel(id) => format!("cancelled job {id}"),
        Deed::Kill(id) => format!("killed job {id}"),
        Deed::Hold(id) => format!("held job {id}"),
        Deed::Release(id) => format!("released job {id}"),
        Deed::Reprioritise(id, priority) => format!("set the priority of job {id} to {priority}"),
        Deed::Cordon(node) => format!("cordoned node {node}"),
        Deed::Drain(node) => format!("drained node {node}"),
        Deed::Uncordon(node) => format!("uncordoned node {node}"),
        Deed::UsePolicy(policy) => format!("set the policy {policy}"),
        Deed::ChangeQueues(changes) => format!("changed the queues: {}", changes.join("; ")),
        Deed::OpenShell(id) => format!("asked for a shell in job {id}"),
        Deed::AcceptLoss(what) => format!("accepted a loss: {what}"),
        Deed::AcceptCopy => "accepted that this is a copy of another data directory".into(),
        Deed::ForgetJobs(claims) => format!("forgot {claims} jobs and tasks that had ended"),
    }
}
