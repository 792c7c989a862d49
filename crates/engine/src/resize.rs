//! Who may change its workers in place instead of being stopped, and when.
//!
//! A run that grows waits until what it lacks is free, and goes on meanwhile. Runs that wait must not wait for each
//! other: the changes are played through in thought, as a banker would who must be sure that everybody can be served in
//! some order. Who could never be served that way is stopped, as everybody is who cannot change in place.

use std::collections::BTreeMap;

use cluster::{ClaimId, Cluster, Placement};
use plan::{Claim, Phase, Room, beyond, can_resize};

use crate::Settings;
use crate::state::Core;

/// How a run that is to have other workers gets them without a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// All it lacks is free.
    Resize,
    /// It goes on as it is; others will let go of what it lacks, or a change that is under way comes first.
    Wait,
}

/// What every run that can change its workers in place is to do, and what the changes that begin now leave free.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    ways: BTreeMap<ClaimId, Way>,
    /// Nothing if no change begins now.
    room: Option<Room>,
}

/// A run that is to have other workers: what it will hold when the change that is under way is done, and what after it.
#[derive(Debug, Clone, Copy)]
struct Change<'a> {
    claim: &'a Claim,
    from: &'a Placement,
    to: &'a Placement,
}

impl Outlook {
    pub(crate) fn of(core: &Core, settings: Settings) -> Outlook {
        let mut outlook = Outlook::default();
        if settings.resize_within.is_none() {
            return outlook;
        }
        let waiting = outlook.begin(core, changes(core));
        outlook.let_wait(core, waiting);
        outlook
    }

    pub(crate) fn way(&self, claim: ClaimId) -> Option<Way> {
        self.ways.get(&claim).copied()
    }

    /// What is free once the changes that begin now have begun.
    pub(crate) fn room<'a>(&'a self, core: &'a Core) -> &'a Room {
        self.room.as_ref().unwrap_or(&core.held)
    }

    /// Begins the changes for which all is free. Returns the others.
    fn begin<'a>(&mut self, core: &Core, changes: Vec<Change<'a>>) -> Vec<Change<'a>> {
        let mut waiting = Vec::new();
        for change in changes {
            let extra = beyond(change.to, change.from);
            if change.claim.resizing.is_some() || !self.room(core).fits(&core.books.cluster, &extra) {
                waiting.push(change);
                continue;
            }
            self.room.get_or_insert_with(|| core.held.clone()).take(&extra);
            self.ways.insert(change.claim.id, Way::Resize);
        }
        waiting
    }

    /// Plays through what will become free. Whoever can then change waits; the youngest of those who never could is
    /// stopped, which may help the others.
    fn let_wait(&mut self, core: &Core, mut waiting: Vec<Change<'_>>) {
        if waiting.is_empty() {
            return;
        }
        let mut room = self.room_to_come(core, &waiting);
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|change| {
                let served = change.play(&core.books.cluster, &mut room);
                if served {
                    self.ways.insert(change.claim.id, Way::Wait);
                }
                !served
            });
            if waiting.len() == before
                && let Some(stopped) = waiting.pop()
            {
                room.give(stopped.from);
            }
        }
    }

    /// What will be free when those who stop have stopped, and the changes that have begun are done.
    fn room_to_come(&self, core: &Core, waiting: &[Change<'_>]) -> Room {
        let mut room = self.room(core).clone();
        for claim in core.books.claims().live().filter(|claim| claim.holds().is_some()) {
            let in_place =
                self.ways.contains_key(&claim.id) || waiting.iter().any(|change| change.claim.id == claim.id);
            let stops =
                matches!(claim.phase, Phase::Stopping { .. }) || core.unsettled.contains(&claim.id) && !in_place;
            if stops {
                claim.occupies().for_each(|placement| room.give(&placement));
            } else if let Some((from, to)) = self.under_way(claim) {
                room.give(&beyond(from, to));
            }
        }
        room
    }

    /// The change of the claim that has begun already, or begins now.
    fn under_way<'a>(&self, claim: &'a Claim) -> Option<(&'a Placement, &'a Placement)> {
        let begins = claim.target.as_ref().filter(|_| self.way(claim.id) == Some(Way::Resize));
        let to = claim.resizes_to().or(begins)?;
        Some((&claim.holds()?.placement, &to.placement))
    }
}

/// The runs that can get what is meant for them without a restart, in order of submission.
fn changes(core: &Core) -> Vec<Change<'_>> {
    let unsettled = core.unsettled.iter().map(|&id| core.books.claim(id));
    unsettled.filter_map(|claim| change(&core.books.cluster, claim)).collect()
}

fn change<'a>(cluster: &Cluster, claim: &'a Claim) -> Option<Change<'a>> {
    let Phase::Running { holds, .. } = &claim.phase else { return None };
    let from = &claim.resizes_to().unwrap_or(holds).placement;
    let to = &claim.target.as_ref().filter(|_| claim.resizable)?.placement;
    can_resize(cluster, from, to).then_some(Change { claim, from, to })
}

impl Change<'_> {
    /// Carries the change out in thought, if there is room for it.
    fn play(&self, cluster: &Cluster, room: &mut Room) -> bool {
        let extra = beyond(self.to, self.from);
        let fits = room.fits(cluster, &extra);
        if fits {
            room.take(&extra);
            room.give(&beyond(self.from, self.to));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use cluster::{GpuTime, JobDraft, Scaling, Slot, Span, Time, WorkerRange};
    use perf::{Interruption, StepReport};
    use plan::{Allotment, FailureCause, Outcome, Plan, Snapshot};

    use super::*;
    use crate::bench::{Bench, issued, run, whole};
    use crate::{Command, Event, Input, Request};

    /// What each job is to have: devices of a node.
    type Wishes = Arc<Mutex<Vec<(u32, u64)>>>;

    /// Jobs of one to four workers that are given what the test says.
    struct Told {
        bench: Bench,
        wishes: Wishes,
    }

    impl Told {
        /// The jobs hold this, run, and say that they can be resized.
        fn running(cluster: &str, held: &[(u32, u64)]) -> Told {
            let wishes = Wishes::default();
            let bench = Bench::resizing(cluster, policy(wishes.clone()));
            Told { bench, wishes }.begin(held)
        }

        fn begin(mut self, held: &[(u32, u64)]) -> Told {
            self.wishes.lock().unwrap().extend(held);
            for claim in 0..held.len() as u32 {
                self.bench.submit(0, job());
                self.bench.report(0, Event::RunStarted { run: run(claim, 1) });
                self.say_resizable(0, claim);
            }
            self
        }

        fn say_resizable(&mut self, secs: u64, claim: u32) {
            let run = self.bench.claim(claim).run();
            let report = StepReport { resizable: true, ..StepReport::default() };
            self.bench.report(secs, Event::RunProgressed { run, report });
        }

        /// The policy changes its mind. Returns what is ordered.
        fn wish(&mut self, secs: u64, wishes: &[(u32, u64)]) -> Vec<String> {
            *self.wishes.lock().unwrap() = wishes.to_vec();
            self.handle(secs, Input::Request(Request::Reprioritise(ClaimId(0), 0)))
        }

        fn report(&mut self, secs: u64, event: Event) -> Vec<String> {
            self.handle(secs, Input::Report(event))
        }

        fn handle(&mut self, secs: u64, input: Input) -> Vec<String> {
            issued(&self.bench.handle(secs, vec![input])).into_iter().map(order).collect()
        }

        fn holds(&self, claim: u32) -> String {
            self.bench.claim(claim).occupies().map(|placement| place(&placement)).collect::<Vec<_>>().join(" + ")
        }
    }

    fn policy(wishes: Wishes) -> impl FnMut(&Snapshot<'_>) -> Plan {
        move |snapshot| {
            let wishes = wishes.lock().unwrap();
            let changes = snapshot.eligible().filter_map(|claim| {
                let wish = wishes.get(claim.id.0 as usize).filter(|(_, devices)| *devices != 0);
                let target = wish.map(|&(node, devices)| with_cores(claim, &whole(node, devices)));
                (claim.target != target).then_some((claim.id, target))
            });
            Plan { changes: changes.collect(), ..Plan::default() }
        }
    }

    fn with_cores(claim: &Claim, allotment: &Allotment) -> Arc<Allotment> {
        let cores = |slot: &Slot| Slot { millicores: claim.spec.roles[0].millicores * slot.tasks, ..*slot };
        let placement = Placement::new(allotment.placement.slots().iter().map(cores).collect());
        Arc::new(Allotment { placement, ..*allotment })
    }

    fn job() -> JobDraft {
        JobDraft { scaling: Scaling::Elastic(WorkerRange { min: 1, max: 4 }), ..JobDraft::rigid("job", 1) }
    }

    fn place(placement: &Placement) -> String {
        let slots = placement.slots().iter().map(|slot| format!("{}:{}", slot.node.0, slot.slices.devices));
        slots.collect::<Vec<_>>().join(" ")
    }

    fn order(command: &Command) -> String {
        match command {
            Command::Launch { run, allotment, .. } => {
                format!("launch {} on {}", run.claim, place(&allotment.placement))
            }
            Command::Resize { run, allotment, .. } => {
                format!("resize {} to {}", run.claim, place(&allotment.placement))
            }
            Command::Stop { run, .. } => format!("stop {}", run.claim),
            other => panic!("{other:?}"),
        }
    }

    fn resized(claim: u32) -> Event {
        Event::RunResized { run: run(claim, 1) }
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn a_run_grows_once_what_it_lacks_is_free_and_never_stops() {
        let mut told = Told::running("1x4", &[(0, 0b0011), (0, 0b1100)]);
        assert_eq!(told.wish(10, &[(0, 0b0111), (0, 0)]), ["stop 1"]);
        assert_eq!(told.bench.report(15, Event::RunStarted { run: run(0, 1) }), [], "it goes on as it is");
        assert_eq!(told.report(20, Event::RunStopped { run: run(1, 1), done: 5 }), ["resize 0 to 0:0-2"]);
        assert_eq!(told.holds(0), "0:0-1 + 0:2");
        assert_eq!(told.report(30, resized(0)), NOTHING);
        assert_eq!(told.holds(0), "0:0-2");
        let progress = &told.bench.claim(0).progress;
        assert_eq!((progress.resizes, progress.launches, progress.preemptions), (1, 1, 0));
        assert_eq!(progress.attained(Time::from_secs(40)), GpuTime::from_gpu_secs(2 * 20 + 3 * 20));
        assert!(told.bench.claim(0).resizable, "it may again");
    }

    #[test]
    fn a_run_that_shrinks_keeps_everything_until_it_has_said_so() {
        let mut told = Told::running("1x4", &[(0, 0b1111)]);
        told.bench.submit(10, job());
        assert_eq!(told.wish(10, &[(0, 0b0011), (0, 0b1100)]), ["resize 0 to 0:0-1"]);
        assert_eq!((told.holds(0).as_str(), told.holds(1).as_str()), ("0:0-3 + ", ""));
        assert_eq!(told.report(15, resized(0)), ["launch 1 on 0:2-3"]);
        assert_eq!(told.bench.claim(0).attained(Time::from_secs(25)), GpuTime::from_gpu_secs(4 * 15 + 2 * 10));
    }

    #[test]
    fn one_run_grows_by_what_another_leaves_and_neither_stops() {
        let mut told = Told::running("1x4", &[(0, 0b0001), (0, 0b1110)]);
        assert_eq!(told.wish(10, &[(0, 0b0111), (0, 0b1000)]), ["resize 1 to 0:3"]);
        assert_eq!(told.report(12, resized(1)), ["resize 0 to 0:0-2"]);
    }

    #[test]
    fn of_runs_that_wait_for_each_other_the_youngest_is_stopped() {
        let mut told = Told::running("1x4", &[(0, 0b0011), (0, 0b1100)]);
        assert_eq!(told.wish(10, &[(0, 0b0110), (0, 0b1001)]), ["stop 1"]);
        assert_eq!(told.report(12, Event::RunStopped { run: run(1, 1), done: 5 }), ["resize 0 to 0:1-2"]);
        assert_eq!(told.report(13, resized(0)), ["launch 1 on 0:0,3"]);
    }

    #[test]
    fn a_run_that_did_not_resize_is_stopped_and_not_asked_again() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        assert_eq!(told.wish(10, &[(0, 0b1111)]), ["resize 0 to 0:0-3"]);
        assert_eq!(told.report(70, Event::RunNotResized { run: run(0, 1) }), ["stop 0"]);
        assert_eq!((told.holds(0).as_str(), told.bench.claim(0).progress.resizes), ("0:0", 0));
        assert_eq!(told.report(80, Event::RunStopped { run: run(0, 1), done: 5 }), ["launch 0 on 0:0-3"]);
        told.report(81, Event::RunStarted { run: run(0, 2) });
        assert!(!told.bench.claim(0).resizable, "the next run has not said anything yet");
        told.say_resizable(82, 0);
        assert_eq!(told.wish(90, &[(0, 0b0001)]), ["resize 0 to 0:0"]);
    }

    #[test]
    fn what_a_run_that_once_refused_says_later_does_not_count() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        told.wish(10, &[(0, 0b1111)]);
        assert_eq!(told.wish(20, &[(0, 0b0001)]), NOTHING, "first comes the answer");
        assert_eq!(told.report(30, Event::RunNotResized { run: run(0, 1) }), NOTHING, "where it is meant to be");
        told.say_resizable(40, 0);
        assert_eq!(told.wish(50, &[(0, 0b1111)]), ["stop 0"]);
    }

    #[test]
    fn the_newest_target_counts() {
        let mut told = Told::running("1x4", &[(0, 0b0001), (0, 0b1000)]);
        told.wish(10, &[(0, 0b0111), (0, 0b1000)]);
        assert_eq!(told.wish(11, &[(0, 0b0011), (0, 0b1100)]), NOTHING, "one change after the other");
        assert_eq!(told.holds(0), "0:0 + 0:1-2");
        assert_eq!(told.report(12, resized(0)), ["resize 0 to 0:0-1"]);
        assert_eq!(told.report(13, resized(0)), ["resize 1 to 0:2-3"]);
    }

    #[test]
    fn a_run_that_must_go_is_stopped_in_the_middle_of_a_resize_and_frees_everything() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        told.wish(10, &[(0, 0b0111)]);
        assert_eq!(told.handle(11, Input::Request(Request::Hold(ClaimId(0)))), ["stop 0"]);
        assert_eq!(told.bench.report(12, resized(0)), [], "too late");
        assert_eq!(told.holds(0), "0:0 + 0:1-2");
        assert_eq!(told.bench.claim(0).attained(Time::from_secs(12)), GpuTime::from_gpu_secs(10 + 2 * 3));
        told.report(13, Event::RunStopped { run: run(0, 1), done: 5 });
        assert_eq!((told.holds(0).as_str(), told.bench.claim(0).progress.preemptions), ("", 0));
    }

    #[test]
    fn a_job_cancelled_while_it_resizes_ends() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        told.wish(10, &[(0, 0b0111)]);
        assert_eq!(told.handle(11, Input::Request(Request::Cancel(ClaimId(0)))), ["stop 0"]);
        told.report(13, Event::RunStopped { run: run(0, 1), done: 5 });
        assert_eq!(told.bench.phase(0), &Phase::Ended { at: Time::from_secs(13), outcome: Outcome::Cancelled });
    }

    #[test]
    fn a_run_that_ends_while_it_resizes_frees_everything() {
        let ends = [
            Event::RunFinished { run: run(0, 1) },
            Event::RunFailed { run: run(0, 1), why: FailureCause::NodeLost, done: 3 },
        ];
        for end in ends {
            let mut told = Told::running("1x4", &[(0, 0b0001)]);
            told.bench.submit(5, job());
            told.wish(10, &[(0, 0b0111), (0, 0)]);
            *told.wishes.lock().unwrap() = vec![(0, 0), (0, 0b1111)];
            assert_eq!(told.report(11, end), ["launch 1 on 0:0-3"]);
        }
    }

    #[test]
    fn stale_and_doubled_answers_are_dropped() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        assert_eq!(told.bench.report(5, resized(0)), [], "nobody told it to");
        assert_eq!(told.bench.report(5, Event::RunNotResized { run: run(0, 1) }), []);
        told.wish(10, &[(0, 0b0011)]);
        assert_eq!(told.bench.report(11, Event::RunResized { run: run(0, 2) }), [], "of another attempt");
        told.report(12, resized(0));
        assert_eq!(told.bench.report(12, resized(0)), [], "a second time");
        assert_eq!(told.bench.report(12, Event::RunNotResized { run: run(0, 1) }), []);
        assert_eq!(told.holds(0), "0:0-1");
    }

    #[test]
    fn a_run_that_never_answers_is_stopped_and_keeps_everything_until_then() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        told.wish(10, &[(0, 0b0011)]);
        assert_eq!(told.bench.engine.next_wakeup(), Some(Time::from_secs(10 + 60 + 60 + 30)), "to agree and to switch");
        let events = told.bench.handle(160, Vec::new());
        assert_eq!(issued(&events).into_iter().map(order).collect::<Vec<_>>(), ["stop 0"]);
        assert_eq!((told.holds(0).as_str(), told.bench.engine.next_wakeup()), ("0:0 + 0:1", None));
        assert_eq!(told.report(170, Event::RunStopped { run: run(0, 1), done: 5 }), ["launch 0 on 0:0-1"]);
    }

    #[test]
    fn a_run_that_failed_of_a_resize_is_not_resized_in_its_next_run() {
        let mut told = Told::running("1x4", &[(0, 0b0001)]);
        let fails = |told: &mut Told, attempt: u32, why| {
            let failed = Event::RunFailed { run: run(0, attempt), why, done: 0 };
            told.report(20 * u64::from(attempt), failed);
            told.report(20 * u64::from(attempt), Event::RunStarted { run: run(0, attempt + 1) });
            told.say_resizable(20 * u64::from(attempt), 0);
            told.bench.claim(0).resizable
        };
        assert_eq!(told.wish(10, &[(0, 0b0011)]), ["resize 0 to 0:0-1"]);
        assert!(!fails(&mut told, 1, FailureCause::Crash));
        assert!(fails(&mut told, 2, FailureCause::Crash), "only in the next one");
        assert_eq!(told.wish(50, &[(0, 0b0001)]), ["resize 0 to 0:0"]);
        assert!(fails(&mut told, 3, FailureCause::Mishap), "nothing the job did");
    }

    #[test]
    fn who_waits_to_grow_onto_a_node_that_is_cordoned_goes_on_as_it_is() {
        let mut told = Told::running("1x4", &[(0, 0b0001), (0, 0b0110)]);
        assert_eq!(told.wish(10, &[(0, 0b0011), (0, 0b0000)]), ["stop 1"]);
        told.wishes.lock().unwrap()[0] = (0, 0b0001);
        assert_eq!(told.handle(11, Input::Request(Request::Cordon(cluster::NodeId(0)))), NOTHING);
        assert_eq!(told.report(12, Event::RunStopped { run: run(1, 1), done: 5 }), NOTHING);
        let claim = told.bench.claim(0);
        assert_eq!(claim.target.as_ref(), claim.holds(), "those on it stay");
    }

    #[test]
    fn who_has_nothing_in_common_with_its_new_place_is_stopped() {
        let mut told = Told::running("1x4 t4, 2x4 a100", &[(1, 0b0011)]);
        assert_eq!(told.wish(10, &[(1, 0b0110)]), ["resize 0 to 1:1-2"]);
        told.report(11, resized(0));
        assert_eq!(told.wish(12, &[(2, 0b0110)]), ["stop 0"], "no worker stays");
        let mut told = Told::running("1x4 t4, 2x4 a100", &[(1, 0b0011)]);
        assert_eq!(told.wish(10, &[(0, 0b0011)]), ["stop 0"], "another kind of GPU");
    }

    #[test]
    fn who_will_never_have_room_for_both_its_old_and_its_new_workers_is_stopped() {
        for (cores, expected) in [(21, "resize 0 to 0:1-2"), (22, "stop 0")] {
            let wishes = Wishes::default();
            let mut bench = Bench::resizing("1x4", policy(wishes.clone()));
            wishes.lock().unwrap().push((0, 0b0011));
            let mut draft = job();
            draft.roles[0].millicores = 1000 * cores;
            bench.submit(0, draft);
            bench.report(0, Event::RunStarted { run: run(0, 1) });
            let mut told = Told { bench, wishes };
            told.say_resizable(0, 0);
            assert_eq!(told.wish(10, &[(0, 0b0110)]), [expected], "three workers of {cores} cores on a node of 64");
        }
    }

    #[test]
    fn in_a_world_that_cannot_nobody_is_told_to() {
        let wishes = Wishes::default();
        let bench = Bench::new("1x4", policy(wishes.clone()));
        let mut told = Told { bench, wishes }.begin(&[(0, 0b0011)]);
        assert_eq!(told.wish(10, &[(0, 0b0111)]), ["stop 0"]);
    }

    #[test]
    fn what_a_run_measured_of_its_interruptions_is_remembered_over_its_next_launch() {
        let mut told = Told::running("1x4", &[(0, 0b0011)]);
        let interruption = Some(Interruption::Resize(Span::from_secs(2)));
        let report = StepReport { resizable: true, interruption, ..StepReport::default() };
        told.report(5, Event::RunProgressed { run: run(0, 1), report });
        assert_eq!(told.bench.claim(0).resize_price(), Span::from_secs(2));
        told.report(6, Event::RunFailed { run: run(0, 1), why: FailureCause::Mishap, done: 0 });
        let claim = told.bench.claim(0);
        assert_eq!(claim.learned.resize(), Some(Span::from_secs(2)));
        assert_eq!(claim.resize_price(), claim.restart_price(), "until the next run says that it can");
    }
}
