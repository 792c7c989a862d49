//! The executor of this machine. It writes orders into files, starts a supervisor for each run, and lets a thread watch
//! what comes of them; dropping it ends none of the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Instant;

use cluster::{ClaimId, Run, Span};
use perf::Tuning;
use rustix::process::Signal;

use crate::assignment::{Assignment, FORMAT, ReportSecret, WorkerAssignment, new_token};
use crate::device_locks::DeviceLocks;
use crate::environment::{Part, Surroundings, environment};
use crate::lost::{end_if_lost, end_if_never_held, is_supervised};
use crate::news::{self, Listener};
use crate::notifier::Notifier;
use crate::origin::{claim_checkpoints, take_over};
use crate::ports::Ports;
use crate::private::{PRIVATE_FILE, umask_at_start};
use crate::progress::Progress;
use crate::roster::{FIRST_GANG, Member, Roster, Wish};
use crate::run_dir::{RunDir, SUPERVISOR_LOG, StopNote, make_checkpoint_dir, make_places, remove_ghosts};
use crate::watch::{Shared, Watch};
use crate::{
    Checkpoints, CpuLimit, Enforcement, Executor, ExecutorError, LaunchOrder, Machine, News, NotifyOrder, ResizeOrder,
    Sighting, Stage, WorkerPlace,
};

/// This machine, as an executor.
#[derive(Debug)]
pub struct Local {
    data_dir: PathBuf,
    checkpoints: Checkpoints,
    machine: Machine,
    enforcement: Enforcement,
    /// The words that start a supervisor; the run's directory follows them.
    supervisor: Vec<OsString>,
    service_environment: BTreeMap<String, String>,
    ports: Ports,
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
    /// Nobody if nobody hears what comes of it.
    notifier: Option<Notifier>,
    /// As long as this service lives, no other gives out the same GPUs.
    _locks: DeviceLocks,
}

/// Whether the machine's GPUs could be had for this data directory: they are taken, and let go at once.
pub fn probe_devices(machine: &Machine, data_dir: &Path) -> Result<(), ExecutorError> {
    DeviceLocks::take(&machine.uuids(), data_dir).map(drop)
}

impl Local {
    /// Takes up whatever runs in this data directory; the directory of checkpoints is there already. How processor time is
    /// limited is probed, unless `MOIRA_CPU_LIMIT` says it.
    pub fn open(
        data_dir: &Path,
        checkpoints: Checkpoints,
        machine: Machine,
        supervisor: Vec<OsString>,
        news: Sender<News>,
    ) -> Result<Local, ExecutorError> {
        Local::open_with(data_dir, checkpoints, machine, supervisor, news, CpuLimit::from_env()?)
    }

    pub fn open_with(
        data_dir: &Path,
        checkpoints: Checkpoints,
        machine: Machine,
        supervisor: Vec<OsString>,
        news: Sender<News>,
        limit: CpuLimit,
    ) -> Result<Local, ExecutorError> {
        let mut local = Local::unwatched(data_dir, checkpoints, machine, supervisor, limit)?;
        local.notifier = Some(Notifier::new(&local.supervisor, local.service_environment.clone(), news.clone()));
        let watch = Watch {
            data_dir: local.data_dir.clone(),
            listener: Listener::open(&local.data_dir)?,
            news,
            shared: local.shared.clone(),
            known: BTreeMap::new(),
        };
        let spawned = std::thread::Builder::new().name("watch".into()).spawn(|| watch.keep());
        local.watch = Some(spawned.map_err(ExecutorError::system("start the thread that watches runs"))?);
        Ok(local)
    }

    /// An executor that carries out orders and tells nothing.
    pub(crate) fn unwatched(
        data_dir: &Path,
        checkpoints: Checkpoints,
        machine: Machine,
        supervisor: Vec<OsString>,
        limit: CpuLimit,
    ) -> Result<Local, ExecutorError> {
        make_places(data_dir)?;
        let data_dir = fs::canonicalize(data_dir).map_err(ExecutorError::file("find", data_dir))?;
        let locks = DeviceLocks::take(&machine.uuids(), &data_dir)?;
        remove_ghosts(&data_dir)?;
        let enforcement = Enforcement::choose(limit)?;
        tracing::info!(?enforcement, "processor time of virtual devices is limited by this means");
        Ok(Local {
            data_dir,
            checkpoints,
            machine,
            enforcement,
            supervisor,
            service_environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            ports: Ports::new(),
            shared: Arc::new(Shared::default()),
            watch: None,
            notifier: None,
            _locks: locks,
        })
    }

    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    /// Where a worker's output may be, to be tried in this order: a run that is settled moves from the first place to
    /// the second, perhaps while somebody looks. Older output is in other files: see [`crate::log_pieces()`].
    pub fn log_paths(data_dir: &Path, run: Run, worker: u32) -> [PathBuf; 2] {
        [RunDir::of(data_dir, run).log(worker), RunDir::settled(data_dir, run).log(worker)]
    }

    /// What vouches for the secret by which a run reports over the network: its SHA-256, in hexadecimal. None of a run that
    /// is not there, or that an earlier version has launched.
    pub fn token_hash(data_dir: &Path, run: Run) -> Option<String> {
        RunDir::of(data_dir, run).assignment().ok().flatten()?.report_sha256
    }

    fn assign(&mut self, order: &LaunchOrder, secret: &ReportSecret) -> Result<Assignment, ExecutorError> {
        self.check(order)?;
        let token = new_token()?;
        let port = self.ports.draw().map_err(ExecutorError::system("find a free port"))?;
        let around = Surroundings {
            machine: &self.machine,
            data_dir: &self.data_dir,
            checkpoints: &self.checkpoints,
            token: &token,
            port,
            service: &self.service_environment,
        };
        let worker = |rank: usize| WorkerAssignment {
            role: order.workers[rank].role,
            cores: self.machine.cores_of(&order.workers[rank]),
            memory: order.workers[rank].memory,
            environment: environment(order, Part::at_launch(rank), around),
        };
        Ok(Assignment {
            format: FORMAT,
            run: order.run,
            command: order.program.command.clone(),
            workdir: order.program.workdir.clone(),
            account: order.program.account.clone(),
            limits: order.program.limits,
            umask: order.program.umask.unwrap_or_else(umask_at_start),
            notice: order.program.notice,
            start_within: order.start_within,
            enforcement: self.enforcement.clone(),
            workers: (0..order.workers.len()).map(worker).collect(),
            gpus: self.gpus_of(&order.workers),
            supervisor: self.supervisor.clone(),
            order: order.clone(),
            group: Some(new_token()?),
            report_sha256: Some(secret.sha256()),
            has_shells: true,
            token,
        })
    }

    /// What no launch can be made of.
    fn check(&self, order: &LaunchOrder) -> Result<(), ExecutorError> {
        let refuse = |reason: String| Err(ExecutorError::Order { run: order.run, reason });
        if order.program.command.is_empty() {
            return refuse("there is no command".into());
        }
        let texts = order.program.command.iter().chain(order.program.env.values()).chain(order.env.values());
        if texts.chain(order.program.env.keys()).chain(order.env.keys()).any(|text| text.contains('\0')) {
            return refuse("the command or its environment holds a zero byte".into());
        }
        let names = order.program.env.keys().chain(order.env.keys());
        if let Some(name) = names.into_iter().find(|name| name.is_empty() || name.contains('=')) {
            return refuse(format!("`{name}` is no name of a variable"));
        }
        self.check_places(&order.workers).or_else(refuse)
    }

    fn check_places(&self, workers: &[WorkerPlace]) -> Result<(), String> {
        if workers.is_empty() {
            return Err("it has no workers".into());
        }
        for place in workers {
            if place.node.0 as usize >= self.machine.node_count() {
                return Err(format!("this machine has no {}", place.node));
            }
            if let Some(device) = place.devices.iter().find(|&&device| !self.machine.has(place.node, device)) {
                return Err(format!("{} has no device {device}", place.node));
            }
        }
        Ok(())
    }

    fn gpus_of(&self, workers: &[WorkerPlace]) -> Vec<String> {
        let devices = workers.iter().flat_map(|it| it.devices.iter().map(|&device| (it.node, device)));
        let gpus: BTreeSet<&str> = devices.filter_map(|(node, device)| self.machine.uuid(node, device)).collect();
        gpus.into_iter().map(str::to_string).collect()
    }

    /// What the supervisor needs to carry out a resize; `last` is the wish before it.
    fn wish(
        &mut self,
        order: &ResizeOrder,
        launched: &Assignment,
        present: &Roster,
        last: Option<&Wish>,
    ) -> Result<Wish, ExecutorError> {
        self.check_places(&order.workers).map_err(|reason| ExecutorError::Resize { run: order.run, reason })?;
        let port = self.ports.draw().map_err(ExecutorError::system("find a free port"))?;
        let around = Surroundings {
            machine: &self.machine,
            data_dir: &self.data_dir,
            checkpoints: &self.checkpoints,
            token: &launched.token,
            port,
            service: &self.service_environment,
        };
        let gang = last.map_or(FIRST_GANG, |last| last.roster.gang) + 1;
        let mut next_member = last.map_or(launched.workers.len() as u32, |last| last.next_member);
        let seats = present.seats(&order.workers);
        let workers = seats.iter().map(|seat| order.workers[seat.place].clone()).collect();
        let whole = LaunchOrder { workers, tuning: order.tuning, ..launched.order.clone() };
        let mut members = Vec::new();
        for (rank, (seat, place)) in seats.iter().zip(&whole.workers).enumerate() {
            let (member, environment) = match seat.kept.map(|earlier| &present.members[earlier]) {
                Some(kept) => (kept.member, kept.assignment.environment.clone()),
                None => {
                    let part = Part { rank, member: next_member, gang };
                    next_member += 1;
                    (part.member, environment(&whole, part, around))
                }
            };
            let (role, cores, memory) = (place.role, self.machine.cores_of(place), place.memory);
            let assignment = WorkerAssignment { role, cores, memory, environment };
            members.push(Member { member, place: place.clone(), assignment });
        }
        let gpus = self.gpus_of(&whole.workers);
        let (until, within, tuning) = (order.until, order.within, order.tuning);
        Ok(Wish { until, within, roster: Roster { gang, members }, port, tuning, gpus, next_member })
    }

    /// Leaves the wish for the supervisor and returns the number of the new gang; nothing of an unknown run. An error means
    /// that the wish is certainly not there.
    fn write_wish(
        &mut self,
        order: &ResizeOrder,
        dir: &RunDir,
        last: Option<&Wish>,
    ) -> Result<Option<u32>, ExecutorError> {
        let run = order.run;
        let Some(launched) = dir.assignment()? else { return Ok(None) };
        if let Some(last) = last
            && dir.outcome()?.is_none_or(|outcome| outcome.gang != last.roster.gang)
        {
            return Err(ExecutorError::Resize { run, reason: "another resize is under way".into() });
        }
        let wish = self.wish(order, &launched, &dir.roster(&launched)?, last)?;
        if let Err(error) = dir.write_wish(&wish) {
            // The file may be in place all the same: only that it survives a power cut is not sure then.
            match dir.wish() {
                Ok(there) if there.as_ref() != Some(&wish) => return Err(error),
                Ok(_) | Err(_) => tracing::warn!(%run, %error, "a wish to resize may be lost with the machine"),
            }
        }
        Ok(Some(wish.roster.gang))
    }

    /// Makes the supervisor look at its notes; false if none holds the run now.
    fn wake(&self, run: Run, dir: &RunDir) -> Result<bool, ExecutorError> {
        match dir.supervisor()? {
            Some(note) if is_supervised(dir)? => {
                note.identity.signal(Signal::USR2).map_err(|source| ExecutorError::Wake { run, source })
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Makes the run's directory; with its last file there is a run.
    fn write_orders(&mut self, order: &LaunchOrder, dir: &RunDir) -> Result<(), ExecutorError> {
        let secret = ReportSecret::draw(order.run)?;
        let assignment = self.assign(order, &secret)?;
        let account = order.program.account.as_ref();
        let checkpoints = self.checkpoints.of(order.run.claim);
        if let Some(origin) = &order.origin {
            if let Some(earlier) = order.continues {
                take_over(&self.checkpoints.of(earlier), earlier, &checkpoints, origin)?;
            }
            claim_checkpoints(&checkpoints, origin)?;
        }
        make_checkpoint_dir(&checkpoints, account)?;
        dir.make(account)?;
        if let Some(origin) = &order.origin {
            dir.note_owner(origin)?;
        }
        dir.write_token(&secret, account)?;
        if let Some(tuning) = order.tuning {
            dir.write_tuning(tuning, account)?;
        }
        dir.write_assignment(&assignment)
    }

    /// Tells the supervisor itself to go, which ends the run: for when the wish to stop cannot be written down. False if
    /// there is none.
    fn terminate(&self, run: Run, dir: &RunDir) -> Result<bool, ExecutorError> {
        match dir.supervisor()? {
            Some(note) if is_supervised(dir)? => {
                note.identity.signal(Signal::TERM).map_err(|source| ExecutorError::Wake { run, source })
            }
            Some(_) | None => Ok(self.shared.terminate(dir)),
        }
    }

    fn start_supervisor(&self, run: Run, dir: &RunDir) -> Result<(), ExecutorError> {
        let path = dir.file(SUPERVISOR_LOG);
        let log = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(&path);
        let log = log.map_err(ExecutorError::file("open", &path))?;
        let errors = log.try_clone().map_err(ExecutorError::file("open", &path))?;
        let Some((program, arguments)) = self.supervisor.split_first() else {
            return Err(ExecutorError::Order { run, reason: "no supervisor is configured".into() });
        };
        let child = Command::new(program)
            .args(arguments)
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|source| ExecutorError::Supervisor { run, source })?;
        self.shared.adopt(dir.clone(), child);
        Ok(())
    }
}

impl Executor for Local {
    fn launch(&mut self, order: &LaunchOrder) -> Result<(), ExecutorError> {
        let run = order.run;
        let dir = RunDir::of(&self.data_dir, run);
        if RunDir::settled(&self.data_dir, run).exists() || dir.has_ended() || dir.is_held_or_was()? {
            return Ok(());
        }
        if dir.assignment()?.is_none() {
            self.write_orders(order, &dir).inspect_err(|_| dir.unmake())?;
        }
        match self.start_supervisor(run, &dir) {
            Err(error) if end_if_never_held(&dir, &error.to_string())? => Err(error),
            _ => Ok(()),
        }
    }

    fn stop(&mut self, run: Run, grace: Span) -> Result<(), ExecutorError> {
        let dir = RunDir::of(&self.data_dir, run);
        if !dir.has_assignment() || dir.has_ended() {
            return Ok(());
        }
        let grace = dir.stop_note()?.map_or(grace, |earlier| earlier.grace.min(grace));
        if let Err(error) = dir.write_stop(StopNote { grace }) {
            tracing::warn!(%run, %error, "a stop cannot be written down: its supervisor is told by a signal");
            return if self.terminate(run, &dir)? { Ok(()) } else { Err(error) };
        }
        if !dir.is_held_or_was()? {
            // It was never started, or is just starting. Either way it will find the note, and start no worker.
            return self.start_supervisor(run, &dir);
        }
        // If nobody is there to be woken, the watch will find that the run was lost.
        self.wake(run, &dir).map(drop)
    }

    fn retune(&mut self, run: Run, tuning: Tuning) -> Result<(), ExecutorError> {
        let dir = RunDir::of(&self.data_dir, run);
        match dir.assignment()? {
            Some(assignment) => dir.write_tuning(tuning, assignment.account.as_ref()),
            None => Ok(()),
        }
    }

    fn resize(&mut self, order: &ResizeOrder) -> Result<Option<News>, ExecutorError> {
        let run = order.run;
        let dir = RunDir::of(&self.data_dir, run);
        if dir.has_ended() {
            return Ok(None);
        }
        let gang = match dir.wish() {
            Ok(Some(known)) if known.until == order.until => {
                let gang = known.roster.gang;
                // What cannot be read now is told when it can be.
                let outcome = dir.outcome().ok().flatten().filter(|outcome| outcome.gang == gang);
                if let Some(outcome) = outcome {
                    return Ok(Some(outcome.news_of(run)));
                }
                gang
            }
            Ok(last) => match self.write_wish(order, &dir, last.as_ref())? {
                Some(gang) => gang,
                None => return Ok(None),
            },
            // The supervisor may be carrying out this very order: nobody may be given what it needs for that.
            Err(error) => {
                tracing::warn!(%run, %error, "cannot tell whether a resize was ordered before");
                return Ok(None);
            }
        };
        self.shared.wait_for(run, gang);
        if let Err(error) = self.wake(run, &dir) {
            tracing::warn!(%run, %error, "a supervisor will look at its notes a little later");
        }
        // It may be done already: the watch must look again to say so.
        news::tell(&self.data_dir, run, "awaited");
        Ok(None)
    }

    fn bookmark(&mut self, run: Run, upto: u64) -> Result<(), ExecutorError> {
        let dir = RunDir::of(&self.data_dir, run);
        if dir.exists() { dir.write_bookmark(upto) } else { Ok(()) }
    }

    fn survey(&mut self) -> Result<Vec<Sighting>, ExecutorError> {
        let sighting = |(run, dir): (Run, RunDir)| Sighting { run, stage: stage_of(run, &dir) };
        Ok(RunDir::all(&self.data_dir)?.into_iter().map(sighting).collect())
    }

    fn last_words(&mut self, run: Run) -> Result<Vec<String>, ExecutorError> {
        let dir = RunDir::of(&self.data_dir, run);
        let Some(assignment) = dir.assignment()? else { return Ok(Vec::new()) };
        let mut progress = Progress::resume(&dir.bookmark());
        match progress.next(&dir.progress_file(), assignment.owner(), Instant::now()) {
            Ok(read) => Ok(read.lines),
            Err(error) => {
                tracing::warn!(%run, %error, "the progress file of a run cannot be read");
                Ok(Vec::new())
            }
        }
    }

    fn settle(&mut self, run: Run) -> Result<(), ExecutorError> {
        let (dir, settled) = (RunDir::of(&self.data_dir, run), RunDir::settled(&self.data_dir, run));
        if !dir.exists() {
            return Ok(());
        }
        if dir.is_ghost() {
            return dir.remove();
        }
        if !dir.has_ended() {
            return Err(ExecutorError::NotEnded { run });
        }
        dir.tidy()?;
        // Not synced: a run that is back after a power cut has its end with it, and is settled again.
        disk::rename(dir.path(), settled.path()).map_err(ExecutorError::file("put away", dir.path()))?;
        // A request that was under way may have left there what somebody typed. It cannot any more.
        if let Err(error) = settled.remove_shells() {
            tracing::warn!(%run, %error, "what is left of its shells is removed with the run only");
        }
        Ok(())
    }

    fn notify(&mut self, order: NotifyOrder) {
        if let Some(notifier) = &self.notifier {
            notifier.deliver(order);
        }
    }
}

/// One bad directory concerns one run: what cannot be told of it now is told by the watch when it can be.
fn stage_of(run: Run, dir: &RunDir) -> Stage {
    let ending = end_if_lost(dir, &[]).and_then(|_| dir.ending()).unwrap_or_else(|error| {
        tracing::warn!(%run, %error, "cannot tell how a run is");
        None
    });
    match ending {
        Some(ending) => Stage::Ended(ending),
        None if dir.has_started() => Stage::Running,
        None => Stage::Starting,
    }
}

impl Drop for Local {
    /// The watch ends; the runs go on.
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        news::tell(&self.data_dir, Run { claim: ClaimId(u32::MAX), attempt: u32::MAX }, "closing");
        if let Some(watch) = self.watch.take() {
            // A watch that panicked has said so itself.
            let _ = watch.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::Gpu;

    #[test]
    fn a_second_executor_is_refused_the_gpus_of_the_first() {
        let uuid = format!("GPU-{}", new_token().unwrap());
        let gpu = Gpu { kind: "t4".into(), uuid: uuid.clone(), memory_gb: 16.0, is_instance: false };
        let open = || {
            let data = tempfile::tempdir().unwrap();
            let (place, machine) = (Checkpoints::in_data_dir(data.path()), Machine::of_gpus(vec![gpu.clone()]));
            (Local::unwatched(data.path(), place, machine, Vec::new(), CpuLimit::None), data)
        };
        let (first, _data) = open();
        let first = first.unwrap();
        let second = open().0.map(drop);
        drop(first);
        let third = open().0.map(drop);
        // The file of a lock stays where others find it.
        for place in crate::device_locks::PLACES {
            let files = fs::read_dir(place).into_iter().flatten().flatten();
            let own = files.filter(|file| file.file_name().to_string_lossy().contains(&uuid));
            own.for_each(|file| fs::remove_file(file.path()).unwrap());
        }
        let Err(ExecutorError::DeviceInUse { device, .. }) = second else { panic!("{second:?}") };
        assert_eq!(device, uuid);
        third.unwrap();
    }
}
