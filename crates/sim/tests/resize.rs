//! Jobs that change their workers in place, in a simulated world: they pause and go on, and lose nothing.

use std::sync::Arc;

use cluster::{ClaimId, ClusterDraft, JobDraft, Recovery, Run, Scaling, Span, Time, WorkerRange};
use engine::{Command, Event, Record, Settings, State};
use perf::{Interruption, Rates, ScalingLaw, Speed, TrueJob, Truth};
use plan::Outcome;
use policies::PolicyConfig;
use sim::{Setup, simulate};
use world::{Circumstances, Occurrence, Script};

const PAUSE: Span = Span::from_secs(2);

/// One iteration per second and worker; a restart takes a minute.
fn job(at: u64, workers: WorkerRange, iterations: u64) -> TrueJob {
    let speed = Speed { rates: Rates::Anywhere(1.0), scaling: ScalingLaw::Linear, ..Speed::constant(1.0) };
    let recovery = Recovery { restart_cost: Span::from_secs(60), ..Recovery::default() };
    let draft = JobDraft { scaling: Scaling::Elastic(workers), recovery, ..JobDraft::rigid("job", 1) };
    let resize = Some(PAUSE);
    let truth = Truth { speed: speed.clone(), iterations, start_up: Span::ZERO, course: None, resize };
    TrueJob {
        submitted: Time::from_secs(at),
        spec: Arc::new(draft.build().unwrap()),
        speed: Arc::new(speed),
        truth: Arc::new(truth),
    }
}

/// Alone a job of up to four workers, then a second one that needs two of four GPUs for a while.
fn two_jobs() -> Setup {
    let (cluster, queues) = ClusterDraft::parse_short("1x4").unwrap().build().unwrap();
    let jobs = vec![job(0, WorkerRange { min: 1, max: 4 }, 4000), job(300, WorkerRange { min: 2, max: 2 }, 400)];
    let resize_within = Some(Span::from_secs(30));
    let report_every = Span::from_secs(10);
    Setup {
        circumstances: Circumstances { report_every, resize_within, ..Circumstances::default() },
        settings: Settings { whole_checks: true, resize_within, ..Settings::default() },
        ..Setup::new(cluster, queues, jobs)
    }
}

fn play(setup: &Setup) -> (State, Vec<Record>) {
    let mut records = Vec::new();
    let policy = PolicyConfig::from_text("sia:lambda=9").unwrap();
    let observe = |at, event: &Event| records.push(Record { at, event: event.clone() });
    let state = simulate(setup, "sia", policy.build().unwrap(), observe).unwrap();
    (state, records)
}

/// What was ordered of the first job and what came of it, with the time.
fn orders(records: &[Record]) -> Vec<(u64, &'static str)> {
    let first = |run: &Run| run.claim == ClaimId(0);
    let word = |event: &Event| match event {
        Event::Issued(Command::Launch { run, .. }) if first(run) => Some("launch"),
        Event::Issued(Command::Resize { run, .. }) if first(run) => Some("resize"),
        Event::Issued(Command::Stop { run, .. }) if first(run) => Some("stop"),
        Event::RunResized { run } if first(run) => Some("resized"),
        Event::RunNotResized { run } if first(run) => Some("not resized"),
        _ => None,
    };
    records.iter().filter_map(|record| Some((record.at.as_millis() / 1000, word(&record.event)?))).collect()
}

fn end(state: &State, claim: u32) -> Time {
    match state.books().claim(ClaimId(claim)).phase {
        plan::Phase::Ended { at, outcome: Outcome::Finished } => at,
        ref phase => panic!("job {claim}: {phase:?}"),
    }
}

#[test]
fn a_job_makes_room_and_takes_it_back_without_a_restart_and_loses_only_the_pauses() {
    let (state, records) = play(&two_jobs());
    let found = orders(&records);
    let [(began, _), (shrinks, _), (shrunk, _), (grows, _), (grown, _)] = found[..] else { panic!("{found:?}") };
    let words: Vec<&str> = found.iter().map(|(_, word)| *word).collect();
    assert_eq!(words, ["launch", "resize", "resized", "resize", "resized"]);
    assert_eq!((shrunk - shrinks, grown - grows), (2, 2));
    let (with_four, with_two) = ((shrinks - began) * 4, (grows - shrunk) * 2);
    let expected = grown + (4000 - with_four - with_two) / 4;
    assert!(end(&state, 0).as_millis().abs_diff(1000 * expected) <= 1000, "{} and not {expected} s", end(&state, 0));
    let claim = state.books().claim(ClaimId(0));
    assert_eq!((claim.progress.launches, claim.progress.preemptions, claim.progress.resizes), (1, 0, 2));
    assert_eq!(claim.learned.resize(), Some(PAUSE), "it measured what it cost and said so");
}

#[test]
fn the_second_job_starts_when_the_first_has_made_room() {
    let (_, records) = play(&two_jobs());
    let at = |wanted: &dyn Fn(&Event) -> bool| records.iter().find(|record| wanted(&record.event)).unwrap().at;
    let shrunk = at(&|event| matches!(event, Event::RunResized { .. }));
    let launched =
        |event: &Event| matches!(event, Event::Issued(Command::Launch { run, .. }) if run.claim == ClaimId(1));
    assert_eq!(at(&launched), shrunk);
}

#[test]
fn in_a_world_that_refuses_the_job_is_stopped_and_measures_its_restart() {
    let mut setup = two_jobs();
    setup.circumstances.resize_within = None;
    let (state, records) = play(&setup);
    let words: Vec<&str> = orders(&records).into_iter().map(|(_, word)| word).collect();
    assert_eq!(words[..5], ["launch", "resize", "not resized", "stop", "launch"]);
    let restart = |record: &Record| match &record.event {
        Event::RunProgressed { report, .. } => report.interruption,
        _ => None,
    };
    assert_eq!(records.iter().find_map(restart), Some(Interruption::Restart(Span::from_secs(60))));
    assert_eq!(state.books().claim(ClaimId(0)).progress.resizes, 0);
    end(&state, 0);
}

#[test]
fn a_pause_longer_than_there_is_time_for_is_refused() {
    let mut setup = two_jobs();
    setup.settings.resize_within = Some(Span::from_secs(1));
    let words: Vec<&str> = orders(&play(&setup).1).into_iter().map(|(_, word)| word).collect();
    assert_eq!(words[..4], ["launch", "resize", "not resized", "stop"]);
}

#[test]
fn a_job_cancelled_while_it_pauses_frees_all_it_had() {
    let setup = two_jobs();
    let (_, records) = play(&setup);
    let (shrinks, _) = orders(&records)[1];
    let script = Script::default().then(Time::from_secs(shrinks + 1), Occurrence::Cancel(0));
    let (state, records) =
        play(&Setup { circumstances: Circumstances { script, ..setup.circumstances.clone() }, ..setup });
    let words: Vec<&str> = orders(&records).into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, ["launch", "resize", "stop"]);
    assert_eq!(end(&state, 1), Time::from_secs(shrinks + 1 + 200), "the second starts at once");
}
