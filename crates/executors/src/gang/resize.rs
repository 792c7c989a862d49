//! A run that goes on with other workers: newcomers start beside those who train, all agree on a step after which they
//! switch, and whoever is not needed leaves. Until they have agreed everything can be taken back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Gang, SIBLING_GRACE, Worker, duration, group_of, signal, warn_if_failed};
use crate::assignment::Assignment;
use crate::environment::MEMBER_VARIABLE;
use crate::kill::Kin;
use crate::news;
use crate::roster::{Outcome, Wish};
use crate::signs::{self, Verdict};

/// How often signs are looked for while a resize is under way.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long those have who are not needed any more.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Which file a wish was read from: it is replaced whole by the next one.
pub(super) type WishStamp = (u64, i64, i64);

/// A resize that is under way.
pub(super) struct Resize {
    wish: Wish,
    stage: Stage,
}

enum Stage {
    /// Newcomers get ready; nothing is decided.
    Gathering { until: Instant },
    /// The old gang has given way to the new one.
    Switching { until: Instant },
    /// It is decided who stays; the others go.
    Parting { kill_at: Instant, withdrawn: Option<String> },
}

impl Gang<'_> {
    /// Takes the next step of a resize, or begins the one that is wished for.
    pub(super) fn step_resize(&mut self, now: Instant) {
        if self.winding.is_some() {
            return self.call_off();
        }
        if !self.ending.started {
            return;
        }
        match self.resize.as_ref().map(|resize| &resize.stage) {
            None => self.hear_wish(now),
            Some(Stage::Gathering { until }) => self.gather(*until, now),
            Some(Stage::Switching { until }) => self.switch(*until, now),
            Some(Stage::Parting { kill_at, .. }) => self.part(*kill_at, now),
        }
    }

    /// Takes the resize back, unless the workers have agreed on it. Those who train do not notice.
    pub(super) fn withdraw(&mut self, why: String, now: Instant) {
        let Some(Resize { wish, stage: Stage::Gathering { .. } }) = &self.resize else { return };
        match signs::withdraw(self.dir, wish.roster.gang, self.assignment.account.as_ref()) {
            Ok(Verdict::Withdrawn) => {
                tracing::info!(why, "a resize is withdrawn");
                self.enter(Stage::Parting { kill_at: now, withdrawn: Some(why) });
            }
            Ok(Verdict::Go) => self.go(now),
            // Nothing is decided: the next look tries again.
            Err(error) => tracing::warn!(%error, "cannot withdraw a resize"),
        }
    }

    /// The run ends: whoever has not switched yet need not any more.
    fn call_off(&mut self) {
        let Some(Resize { wish, stage }) = self.resize.take() else { return };
        if let Stage::Gathering { .. } = stage {
            match signs::withdraw(self.dir, wish.roster.gang, self.assignment.account.as_ref()) {
                Ok(Verdict::Go) => self.roster = wish.roster,
                Ok(Verdict::Withdrawn) => {}
                Err(error) => tracing::warn!(%error, "cannot withdraw a resize"),
            }
        }
    }

    fn hear_wish(&mut self, now: Instant) {
        let Ok(file) = fs::metadata(self.dir.wish_file()) else { return };
        let stamp = (file.ino(), file.mtime(), file.mtime_nsec());
        if self.wish == Some(stamp) {
            return;
        }
        match self.dir.wish() {
            Ok(Some(wish)) if wish.roster.gang > self.roster.gang => self.begin(wish, now),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot read the wish to resize"),
        }
        self.wish = Some(stamp);
    }

    fn begin(&mut self, wish: Wish, now: Instant) {
        tracing::info!(gang = wish.roster.gang, workers = wish.roster.members.len(), "a resize begins");
        let until = now + duration(wish.within);
        self.resize = Some(Resize { wish: wish.clone(), stage: Stage::Gathering { until } });
        let ended = self.workers.iter().find(|worker| worker.has_ended && wish.roster.has(worker.member));
        if let Some(worker) = ended {
            return self.withdraw(format!("worker {} has ended", worker.member), now);
        }
        for member in wish.roster.members.iter().filter(|it| !self.roster.has(it.member)).cloned().collect::<Vec<_>>() {
            match self.start_worker(&member) {
                Ok(worker) => self.workers.push(worker),
                Err(failure) => return self.could_not_start(member.member, &failure),
            }
        }
        self.note_workers();
        if let Err(error) = self.dir.write_call(&wish, self.assignment.account.as_ref()) {
            self.withdraw(error.to_string(), now);
        }
    }

    fn gather(&mut self, until: Instant, now: Instant) {
        let Some(Resize { wish, .. }) = &self.resize else { return };
        match signs::verdict(self.dir, wish.roster.gang) {
            Some(Verdict::Go) => return self.go(now),
            Some(Verdict::Withdrawn) => return self.withdraw("its workers declined".into(), now),
            None => {}
        }
        let fallen = self.workers.iter().find(|it| it.has_ended && !self.roster.has(it.member));
        if let Some(worker) = fallen {
            self.withdraw(format!("worker {} ended before it could join", worker.member), now);
        } else if now >= until {
            self.withdraw("the workers did not agree to it in time".into(), now);
        }
    }

    /// From here on the new gang is the run.
    fn go(&mut self, now: Instant) {
        let Some(Resize { wish, .. }) = &self.resize else { return };
        self.roster = wish.roster.clone();
        if let Some(tuning) = wish.tuning {
            warn_if_failed(self.dir.write_tuning(tuning, self.assignment.account.as_ref()));
        }
        self.enter(Stage::Switching { until: now + duration(self.within()) });
        for worker in &mut self.workers {
            if let Some(member) = self.roster.find(worker.member) {
                limit_again(worker, self.assignment, &member.assignment);
            }
        }
    }

    fn switch(&mut self, until: Instant, now: Instant) {
        if signs::is_done(self.dir, self.roster.gang) {
            self.enter(Stage::Parting { kill_at: now + LEAVE_WITHIN, withdrawn: None });
            self.part(now + LEAVE_WITHIN, now);
        } else if now >= until {
            self.ending.hung = true;
            self.ending.trouble =
                Some(format!("the workers did not go on as gang {} in time after a resize", self.roster.gang));
            self.wind(now, now + SIBLING_GRACE);
        }
    }

    /// Sees to it that nothing is left of those who go: their devices are given to others.
    fn part(&mut self, kill_at: Instant, now: Instant) {
        let mut all_gone = true;
        for worker in self.workers.iter().filter(|worker| !self.roster.has(worker.member)) {
            all_gone &= worker.has_ended;
            if worker.has_ended || now >= kill_at {
                all_gone &= kill(worker, self.assignment);
            }
        }
        if all_gone {
            self.conclude();
        }
    }

    fn conclude(&mut self) {
        let Some(Resize { wish, stage: Stage::Parting { withdrawn, .. } }) = &self.resize else { return };
        let outcome = Outcome { gang: wish.roster.gang, withdrawn: withdrawn.clone() };
        if outcome.withdrawn.is_none() {
            self.sampler.turn_to(&wish.gpus);
            // What is on record must be what is so before anyone is told: a full disk will not be full for ever.
            if let Err(error) = self.dir.write_roster(&self.roster) {
                return tracing::warn!(%error, "cannot write down who is in the gang; trying again");
            }
        }
        if let Err(error) = self.dir.write_outcome(&outcome) {
            return tracing::warn!(%error, "cannot write down what became of a resize; trying again");
        }
        for worker in self.workers.extract_if(.., |worker| !self.roster.has(worker.member)) {
            worker.group.remove();
        }
        self.note_workers();
        if outcome.withdrawn.is_none() {
            signs::clear_before(self.dir, outcome.gang);
        }
        self.resize = None;
        news::tell(self.dir.data_dir(), self.assignment.run, "resized");
    }

    fn enter(&mut self, stage: Stage) {
        if let Some(resize) = &mut self.resize {
            resize.stage = stage;
        }
    }

    fn within(&self) -> cluster::Span {
        self.resize.as_ref().map_or(cluster::Span::ZERO, |resize| resize.wish.within)
    }
}

/// A worker that stays may have other limits now.
fn limit_again(worker: &mut Worker, assignment: &Assignment, now: &crate::assignment::WorkerAssignment) {
    worker.group = group_of(assignment, worker.member, now);
    if let Err(error) = worker.group.make() {
        tracing::warn!(worker = worker.member, %error, "a worker goes on with its old limits");
    }
    if let (Some(allowance), Some(cores)) = (&mut worker.allowance, now.cores) {
        allowance.set_cores(cores);
    }
}

/// Kills whatever is left of a worker; true if that is nothing.
fn kill(worker: &Worker, assignment: &Assignment) -> bool {
    if !worker.has_ended {
        signal(worker.identity.pid, Signal::KILL);
    }
    let marks = [assignment.mark(), format!("{MEMBER_VARIABLE}={}", worker.member)];
    let groups = std::slice::from_ref(&worker.group);
    let leaders = [worker.identity];
    let kin = Kin { supervisor: None, owner: assignment.owner(), marks: &marks, leaders: &leaders, seen: &[], groups };
    let living = kin.living();
    for process in &living {
        if let Err(error) = process.signal(Signal::KILL) {
            tracing::warn!(pid = process.pid, %error, "cannot kill a process that was left behind");
        }
    }
    living.is_empty()
}
