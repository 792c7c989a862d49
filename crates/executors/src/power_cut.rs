//! The life of a run, cut off after every single step that reaches the disk: whatever is left, the next service finds out
//! what to make of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cluster::{Bytes, ClaimId, NodeId, Run, Span, Time};
use disk::As;
use disk::cut::{Remains, remains};
use disk::tape::{self, Step};
use perf::Tuning;

use crate::origin::{note_beside, owner_of};
use crate::process::{Identity, boot_id};
use crate::roster::Outcome;
use crate::run_dir::{RunDir, SupervisorNote, write_durably};
use crate::{
    AcceleratorDraft, Checkpoints, CpuLimit, Ending, Executor, Exit, Input, InputError, KnownJob, LaunchOrder, Limits,
    Local, Machine, Origin, Program, ResizeOrder, Sighting, Stage, Usage, WorkerPlace, set_aside_foreign,
};

const RUN: Run = Run { claim: ClaimId(7), attempt: 1 };
const GRACE: Span = Span::from_secs(3);

/// What was done by a step: from then on it must be found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Opened,
    Launched,
    Held,
    Started,
    Resized,
    Stopped,
    Ended,
    Settled,
}

/// An executor whose supervisors do nothing as long as there is a directory: the test does what they would do.
fn executor(data_dir: &Path) -> Local {
    let machine = Machine::of(&[AcceleratorDraft::of("t4", 4)]).unwrap();
    let idle = ["sh", "-c", "while [ -e $0 ]; do sleep 0.1; done"].map(Into::into).to_vec();
    Local::unwatched(data_dir, checkpoints(data_dir), machine, idle, CpuLimit::None).unwrap()
}

fn checkpoints(data_dir: &Path) -> Checkpoints {
    let checkpoints = Checkpoints::in_data_dir(data_dir);
    checkpoints.take("", &[]).unwrap();
    checkpoints
}

fn place(device: u8) -> WorkerPlace {
    let (node, devices) = (NodeId(0), vec![device]);
    WorkerPlace { node, role: 0, devices, share_thousandths: 1000, millicores: 0, memory: Bytes::ZERO }
}

fn order() -> LaunchOrder {
    let program = Program {
        command: vec!["true".into()],
        workdir: "/".into(),
        env: BTreeMap::new(),
        umask: None,
        account: None,
        limits: Limits::default(),
        notice: Span::ZERO,
        job_name: "job".into(),
        queue: "default".into(),
        input: None,
        terminal: None,
    };
    LaunchOrder {
        run: RUN,
        program: Arc::new(program),
        workers: vec![place(0)],
        env: BTreeMap::new(),
        start_within: Span::from_secs(600),
        restarts: 0,
        tuning: Some(Tuning { local: 8, accumulations: 1 }),
        origin: Some(origin()),
        limit: None,
        continues: None,
    }
}

fn origin() -> Origin {
    Origin { data_dir: "here".into(), job: RUN.claim, submitted: Time::from_secs(5) }
}

fn ending() -> Ending {
    let exits = vec![Exit { code: Some(0), signal: None }; 2];
    Ending { started: true, told_to_stop: true, exits, ..Ending::default() }
}

/// The whole life, with the number of steps after which each part of it was done.
fn life(data_dir: &Path) -> (Vec<(usize, Done)>, Vec<Step>) {
    let dir = RunDir::of(data_dir, RUN);
    tape::record(|| {
        let mut done = Vec::new();
        let mut now = |what| done.push((tape::position(), what));
        let mut local = executor(data_dir);
        now(Done::Opened);
        local.launch(&order()).unwrap();
        now(Done::Launched);
        // From here on in the place of the supervisor.
        let token = dir.assignment().unwrap().unwrap().token;
        let _lock = dir.try_lock().unwrap().unwrap();
        // It is sent signals, and may die of them.
        let mut stand_in = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(stand_in.id() as i32).unwrap();
        dir.mark_held().unwrap();
        dir.write_supervisor(&SupervisorNote { identity, boot: boot_id(), token }).unwrap();
        now(Done::Held);
        dir.write_workers(&[identity]).unwrap();
        dir.mark_started().unwrap();
        dir.write_usage(&Usage::default(), Span::from_secs(1)).unwrap();
        now(Done::Started);
        local.bookmark(RUN, 100).unwrap();
        local.retune(RUN, Tuning { local: 16, accumulations: 1 }).unwrap();
        let (until, within) = (Time::from_secs(100), Span::from_secs(60));
        let workers = vec![place(0), place(1)];
        local.resize(&ResizeOrder { run: RUN, workers, tuning: None, until, within }).unwrap();
        let wish = dir.wish().unwrap().unwrap();
        dir.write_call(&wish, None).unwrap();
        dir.write_roster(&wish.roster).unwrap();
        dir.write_outcome(&Outcome { gang: wish.roster.gang, withdrawn: None }).unwrap();
        now(Done::Resized);
        local.stop(RUN, GRACE).unwrap();
        now(Done::Stopped);
        dir.write_ending(&ending()).unwrap();
        now(Done::Ended);
        local.settle(RUN).unwrap();
        now(Done::Settled);
        stand_in.kill().and_then(|()| stand_in.wait()).unwrap();
        done
    })
}

#[test]
fn after_a_cut_at_every_step_the_run_is_found_as_it_was_or_as_lost() {
    let root = tempfile::tempdir().unwrap();
    // What the executor calls it.
    let data_dir = fs::canonicalize(root.path()).unwrap();
    let (done, steps) = life(&data_dir);
    assert!(steps.len() > 40, "it was recorded: {} steps", steps.len());
    let mut cases = 0;
    for cut in 0..=steps.len() {
        for left in remains(&data_dir, &steps[..cut]) {
            check(cut, latest(&done, cut), left.replacing(&boot_id(), "another boot"));
            cases += 1;
        }
    }
    assert!(cases > 5 * steps.len(), "{cases}");
}

/// What the first test promises is owed to each sync of a run: without it some cut breaks the promise.
#[test]
fn without_any_one_of_the_syncs_of_a_run_some_cut_leaves_it_otherwise_than_it_was() {
    let root = tempfile::tempdir().unwrap();
    let data_dir = fs::canonicalize(root.path()).unwrap();
    let (done, steps) = life(&data_dir);
    let at = |what| done.iter().find(|(_, it)| *it == what).unwrap().0;
    let is_sync = |&number: &usize| matches!(steps[number], Step::Sync(_) | Step::SyncDir(_));
    let of_run = (at(Done::Opened)..at(Done::Started)).chain(at(Done::Resized)..at(Done::Settled));
    let syncs: Vec<usize> = of_run.filter(is_sync).collect();
    let name = |&number: &usize| {
        let (Step::Sync(path) | Step::SyncDir(path)) = &steps[number] else { unreachable!("it is a sync") };
        let path = path.strip_prefix(&data_dir).unwrap().display().to_string();
        // The writer's number is in the name of a file that is not in its place yet.
        path.split(".json.").next().unwrap().to_string()
    };
    let run = "runs/7.1";
    let of = |name: &str| format!("{run}/{name}");
    // Two of these are of the stop; the other six are what a run that ends by itself costs.
    let expected = ["runs".into(), of("run"), run.into(), of("lock"), of("stop"), run.into(), of("exit"), run.into()];
    assert_eq!(syncs.iter().map(name).collect::<Vec<String>>(), expected);
    for without in syncs {
        let mut left = steps.clone();
        left.remove(without);
        let done: Vec<_> = done.iter().map(|&(at, what)| (at - usize::from(at > without), what)).collect();
        let breaks = |cut: usize| {
            let latest = latest(&done, cut);
            let broken = |left: Remains| {
                let left = left.replacing(&boot_id(), "another boot");
                let found = catch_unwind(AssertUnwindSafe(|| check(cut, latest, left)));
                // It is what was promised that does not hold, and nothing else.
                found.is_err_and(|panic| {
                    panic.downcast_ref::<String>().is_some_and(|told| told.contains("cut after step"))
                })
            };
            remains(&data_dir, &left[..cut]).into_iter().any(broken)
        };
        assert!((without..=left.len()).any(breaks), "nothing is lost without step {without}: {:?}", steps[without]);
    }
}

/// What was done by then.
fn latest(done: &[(usize, Done)], cut: usize) -> Option<Done> {
    done.iter().filter(|(at, _)| *at <= cut).map(|(_, what)| *what).max()
}

/// The machine has started again with this on its disk.
fn check(cut: usize, done: Option<Done>, left: Remains) {
    let case = format!("cut after step {cut} (last done: {done:?}), {}", left.how);
    let root = tempfile::tempdir().unwrap();
    left.lay_out(root.path()).unwrap();
    check_belongings(&case, done, root.path());
    let mut local = executor(root.path());
    let seen = local.survey().unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(seen.len() <= 1 && seen.iter().all(|seen| seen.run == RUN), "{case}: {seen:?}");
    let stage = seen.into_iter().next().map(|seen| seen.stage);
    match &stage {
        // It was not launched, or is settled.
        None => assert!(done < Some(Done::Launched) || done >= Some(Done::Ended), "{case}"),
        // It can be launched again, since no supervisor ever had it.
        Some(Stage::Starting) => assert!(done < Some(Done::Held), "{case}"),
        Some(Stage::Running) => panic!("{case}: its supervisor went with the machine"),
        Some(Stage::Ended(found)) if *found == ending() => assert!(done >= Some(Done::Stopped), "{case}"),
        Some(Stage::Ended(found)) => {
            assert_eq!(found.trouble.as_deref(), Some("its supervisor was lost"), "{case}");
            assert!(done < Some(Done::Ended), "{case}: {found:?}");
            assert!(done < Some(Done::Stopped) || found.told_to_stop, "{case}: {found:?}");
        }
    }
    // An order that is given again begins nothing that has been: it only finishes a launch that was cut off.
    local.launch(&order()).unwrap_or_else(|error| panic!("{case}: {error}"));
    let dir = RunDir::of(&fs::canonicalize(root.path()).unwrap(), RUN);
    match stage {
        Some(Stage::Ended(_)) => {
            local.last_words(RUN).unwrap_or_else(|error| panic!("{case}: {error}"));
            local.settle(RUN).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(local.survey().unwrap().is_empty(), "{case}");
        }
        None if done >= Some(Done::Ended) => assert!(!dir.exists(), "{case}: it was settled"),
        None | Some(_) => {
            let assignment = dir.assignment().unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(assignment.map(|it| it.order), Some(order()), "{case}");
            local.stop(RUN, Span::ZERO).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}

/// What was launched is known for its job's own at the start: neither the run nor what it has saved is moved aside.
fn check_belongings(case: &str, done: Option<Done>, data_dir: &Path) {
    let checkpoints = checkpoints(data_dir);
    let saved = checkpoints.of(RUN.claim).join("state");
    if done >= Some(Done::Launched) {
        fs::create_dir_all(&saved).unwrap();
    }
    if !data_dir.join("runs").exists() {
        return;
    }
    let known = |job| (job == RUN.claim).then(|| KnownJob { origin: origin(), launches: 1 });
    let moved = set_aside_foreign(data_dir, &checkpoints, "here", false, known);
    let moved = moved.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(moved, Vec::<PathBuf>::new(), "{case}");
    assert!(done < Some(Done::Launched) || saved.exists(), "{case}");
}

#[test]
fn after_a_cut_at_every_step_a_job_that_is_run_again_has_what_the_earlier_one_saved() {
    const EARLIER: ClaimId = ClaimId(3);
    let origin_of = |job| Origin { job, ..origin() };
    let order = LaunchOrder { continues: Some(EARLIER), ..order() };
    let root = tempfile::tempdir().unwrap();
    let data_dir = fs::canonicalize(root.path()).unwrap();
    let (saved, steps) = tape::record(|| {
        let mut local = executor(&data_dir);
        let earlier = checkpoints(&data_dir).of(EARLIER);
        write_durably(&note_beside(&earlier), &origin_of(EARLIER)).unwrap();
        disk::make_dir(&earlier, 0o700, true).unwrap();
        disk::replace(&earlier.join("state"), b"41", As::PRIVATE).unwrap();
        let saved = tape::position();
        local.launch(&order).unwrap();
        saved
    });
    let mut cases = 0;
    for cut in saved..=steps.len() {
        for left in remains(&data_dir, &steps[..cut]) {
            cases += 1;
            let case = format!("cut after step {cut}, {}", left.how);
            let root = tempfile::tempdir().unwrap();
            left.lay_out(root.path()).unwrap();
            let checkpoints = checkpoints(root.path());
            let known = |job| Some(KnownJob { origin: origin_of(job), launches: 1 });
            let moved = set_aside_foreign(root.path(), &checkpoints, "here", false, known);
            assert_eq!(moved.unwrap_or_else(|error| panic!("{case}: {error}")), Vec::<PathBuf>::new(), "{case}");
            let mut local = executor(root.path());
            // Given again, the order does what is still to be done.
            for _ in 0..2 {
                local.launch(&order).unwrap_or_else(|error| panic!("{case}: {error}"));
                let state = fs::read_to_string(checkpoints.of(RUN.claim).join("state"));
                assert_eq!(state.ok().as_deref(), Some("41"), "{case}");
            }
            assert!(!checkpoints.of(EARLIER).exists(), "{case}");
            assert_eq!(owner_of(&checkpoints.of(RUN.claim)), Some(origin()), "{case}");
            local.stop(RUN, Span::ZERO).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
    assert!(cases > steps.len() - saved, "{cases}");
}

#[test]
fn after_a_cut_at_every_step_no_job_has_the_checkpoints_of_another_and_these_are_not_lost() {
    let theirs = Origin { data_dir: "elsewhere".into(), ..origin() };
    let known = |job| (job == RUN.claim).then(|| KnownJob { origin: origin(), launches: 1 });
    let root = tempfile::tempdir().unwrap();
    let data_dir = fs::canonicalize(root.path()).unwrap();
    let (found, steps) = tape::record(|| {
        let mut local = executor(&data_dir);
        let place = checkpoints(&data_dir);
        let dir = place.of(RUN.claim);
        write_durably(&note_beside(&dir), &theirs).unwrap();
        disk::make_dir(&dir, 0o700, true).unwrap();
        disk::replace(&dir.join("state"), b"theirs", As::PRIVATE).unwrap();
        let found = tape::position();
        set_aside_foreign(&data_dir, &place, "here", false, known).unwrap();
        local.launch(&order()).unwrap();
        found
    });
    let mut cases = 0;
    for cut in found..=steps.len() {
        for left in remains(&data_dir, &steps[..cut]) {
            cases += 1;
            let case = format!("cut after step {cut}, {}", left.how);
            let root = tempfile::tempdir().unwrap();
            left.lay_out(root.path()).unwrap();
            let place = checkpoints(root.path());
            set_aside_foreign(root.path(), &place, "here", false, known).unwrap();
            let mut local = executor(root.path());
            local.launch(&order()).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(!place.of(RUN.claim).join("state").exists(), "{case}");
            let dirs = fs::read_dir(place.dir()).unwrap().flatten();
            let kept = dirs.filter(|dir| fs::read(dir.path().join("state")).is_ok_and(|state| state == b"theirs"));
            assert_eq!(kept.count(), 1, "{case}");
            local.stop(RUN, Span::ZERO).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
    assert!(cases > steps.len() - found, "{cases}");
}

#[test]
fn after_a_cut_at_every_step_input_whose_end_was_answered_is_whole_and_other_input_is_sent_anew() {
    let root = tempfile::tempdir().unwrap();
    let ((begun, answered), steps) = tape::record(|| {
        let input = Input::of(root.path(), "a");
        assert_eq!(input.take(0, b"one ", false).unwrap(), 4);
        let begun = tape::position();
        assert_eq!(input.take(4, b"two", true).unwrap(), 7);
        (begun, tape::position())
    });
    for cut in 0..=steps.len() {
        for left in remains(root.path(), &steps[..cut]) {
            let left = left.replacing(&boot_id(), "another boot");
            let case = format!("cut after step {cut}, {}", left.how);
            let root = tempfile::tempdir().unwrap();
            left.lay_out(root.path()).unwrap();
            let (input, folder) = (Input::of(root.path(), "a"), root.path().join("input/a"));
            let ended = folder.join("end").exists();
            assert!(ended || cut < answered, "{case}");
            assert!(cut < begun || folder.join("boot").exists(), "{case}: what was answered left a trace");
            // Nobody is fed what may be torn, or waits for what went with the machine.
            let fed = input.feed(root.path().join("pipe")).map_err(|error| error.to_string());
            let lost =
                "its standard input is not complete: it was not sent to its end before the machine was restarted";
            let expected = if folder.join("boot").exists() && !ended { Err(lost.to_string()) } else { Ok(()) };
            assert_eq!(fed, expected, "{case}");
            // The client heard no answer to its last piece, or to the one before.
            let input = Input::of(root.path(), "a");
            match input.take(4, b"two", true) {
                Ok(length) => assert_eq!((length, ended), (7, true), "{case}"),
                Err(InputError::Gap { length, .. }) => {
                    assert_eq!((length, ended), (0, false), "{case}");
                    assert_eq!(input.take(0, b"one two", true).unwrap(), 7, "{case}");
                }
                Err(error) => panic!("{case}: {error}"),
            }
            assert_eq!(fs::read_to_string(folder.join("data")).unwrap(), "one two", "{case}");
        }
    }
}

#[test]
fn input_that_fails_at_any_step_is_taken_when_it_is_sent_again() {
    let pieces: [(u64, &[u8], bool); 2] = [(0, b"one ", false), (4, b"two", true)];
    let send = |input: &Input| pieces.map(|(offset, bytes, ends)| input.take(offset, bytes, ends).is_ok());
    let steps = {
        let root = tempfile::tempdir().unwrap();
        tape::record(|| send(&Input::of(root.path(), "a"))).1.len()
    };
    for failing in 0..steps {
        for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other] {
            let root = tempfile::tempdir().unwrap();
            let input = Input::of(root.path(), "a");
            let done = tape::fail(failing, kind, || send(&input));
            assert_ne!(done, [true, true], "step {failing}: {kind:?}");
            let (done, synced) = tape::record(|| send(&input));
            assert_eq!(done, [true, true], "step {failing}: {kind:?}");
            let end = Step::SyncDir(root.path().join("input/a"));
            assert_eq!(synced.last(), Some(&end), "step {failing}: the end is durable when it is answered");
            assert_eq!(fs::read_to_string(root.path().join("input/a/data")).unwrap(), "one two");
        }
    }
}

#[test]
fn a_launch_that_fails_at_any_step_leaves_nothing_and_succeeds_later() {
    let steps = {
        let root = tempfile::tempdir().unwrap();
        let mut local = executor(root.path());
        tape::record(|| local.launch(&order()).unwrap()).1.len()
    };
    assert!(steps > 10, "{steps}");
    for failing in 0..steps {
        for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other] {
            let root = tempfile::tempdir().unwrap();
            let mut local = executor(root.path());
            let launched = tape::fail(failing, kind, || local.launch(&order()));
            let dir = RunDir::of(root.path(), RUN);
            assert!(launched.is_err(), "step {failing}: {kind:?}");
            assert!(!dir.exists(), "step {failing}: {kind:?}");
            local.launch(&order()).unwrap();
            assert_eq!(local.survey().unwrap(), [Sighting { run: RUN, stage: Stage::Starting }], "step {failing}");
        }
    }
}

#[test]
fn a_damaged_directory_ends_one_run_and_leaves_the_others_alone() {
    for name in ["run.json", "supervisor.json", "wish.json", "gang.json", "outcome.json"] {
        for torn in ["", "{", "\0\0\0\0"] {
            let root = tempfile::tempdir().unwrap();
            let mut local = executor(root.path());
            let other = Run { claim: ClaimId(8), attempt: 1 };
            local.launch(&order()).unwrap();
            local.launch(&LaunchOrder { run: other, ..order() }).unwrap();
            let dir = RunDir::of(root.path(), RUN);
            fs::write(dir.file(name), torn).unwrap();
            let seen = local.survey().unwrap();
            assert_eq!(seen.iter().map(|seen| seen.run).collect::<Vec<_>>(), [RUN, other]);
            assert_eq!(seen[1].stage, Stage::Starting);
            let Stage::Ended(ending) = &seen[0].stage else { panic!("{name} {torn:?}: {:?}", seen[0].stage) };
            let trouble = ending.trouble.as_deref().unwrap_or_default();
            assert!(trouble.starts_with("its files are damaged: ") && trouble.ends_with(name), "{trouble}");
            assert_eq!((ending.exit_code(), ending.started), (None, false));
            local.launch(&order()).unwrap();
            local.settle(RUN).unwrap();
            assert!(root.path().join("done/7.1").join(name).exists(), "its directory is put aside");
        }
    }
}
