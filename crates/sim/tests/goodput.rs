//! Jobs that are tuned while they run: what they teach about themselves, what policies make of it, what really happens.

use std::sync::Arc;

use cluster::{BatchRange, ClusterDraft, GpuKind, JobDraft, Recovery, Scaling, Shape, Span, Time, WorkerRange};
use engine::{Command, Event, Record, Settings, State};
use perf::{
    Adaptation, BatchRule, Course, GradientNoise, KindLimits, Rates, ScalingLaw, Speed, StepRow, StepTables, StepTimes,
    TrueJob, Truth, Tuning,
};
use policies::PolicyConfig;
use sim::{Setup, simulate};

const KIND: GpuKind = GpuKind(0);

/// A step of 32 examples on one worker takes `alone`, on two of a node `pair`; twice the batch takes twice the time.
fn steps(alone: f64, pair: f64) -> StepTimes {
    let rows = |step_secs: f64| {
        [32, 64].map(|local| StepRow { local, step_secs: step_secs * f64::from(local) / 32.0, sync_secs: 0.0 }).to_vec()
    };
    StepTimes::Measured(StepTables {
        places: vec![(vec![1], rows(alone)), (vec![2], rows(pair))],
        sizes: vec![((1, 1), rows(alone)), ((1, 2), rows(pair))],
        points: Vec::new(),
    })
}

fn course(steps: StepTimes) -> Course {
    let noise = |var: f64| vec![GradientNoise { sqr: 1.0, var }; 4];
    Course {
        initial: 32,
        steps: vec![(KIND, steps)],
        epochs: vec![500.0, 1000.0, 1500.0, 2000.0],
        noise: vec![(32, noise(1.0)), (64, noise(1.0)), (128, noise(1.0))],
        slowdown: 1.0,
        iterations: Vec::new(),
    }
}

fn job(at: u64, course: Course, rule: BatchRule) -> TrueJob {
    let limits = KindLimits {
        kind: KIND,
        local_min: 16,
        local_max: 64,
        shapes: Vec::new(),
        alone: Some(32.0),
        stages: 1,
        workers_max: None,
    };
    let adaptation = Adaptation { initial: 32, max: 128, rule, kinds: vec![limits], restart: Span::from_secs(10) };
    let draft = JobDraft {
        scaling: Scaling::Adaptive(WorkerRange { min: 1, max: 2 }, BatchRange { initial: 32, max: 128 }),
        recovery: Recovery { restart_cost: Span::from_secs(10), retries: 3, ..Recovery::default() },
        ..JobDraft::rigid("a", 1)
    };
    let speed = Speed {
        rates: Rates::ByKind(vec![(KIND, 1.0)]),
        scaling: ScalingLaw::Linear,
        adaptation: Some(Arc::new(adaptation)),
        ..Speed::constant(1.0)
    };
    let truth = Truth {
        speed: speed.clone(),
        iterations: 2000,
        start_up: Span::from_secs(10),
        course: Some(Arc::new(course)),
        resize: None,
    };
    TrueJob {
        submitted: Time::from_secs(at),
        spec: Arc::new(draft.build().unwrap()),
        speed: Arc::new(speed),
        truth: Arc::new(truth),
    }
}

/// Every fact of a run under Sia on one node of two GPUs.
fn history(jobs: Vec<TrueJob>) -> Vec<Record> {
    let (cluster, queues) = ClusterDraft::parse_short("1x2").unwrap().build().unwrap();
    let mut setup = Setup::new(cluster, queues, jobs);
    setup.settings = Settings { whole_checks: true, ..Settings::default() };
    let policy = PolicyConfig::named("sia").build().unwrap();
    let mut records = Vec::new();
    let state = simulate(&setup, "sia", policy, |at, event| records.push(Record { at, event: event.clone() })).unwrap();
    assert_eq!(State::replay(&records), state, "a replay fits nothing and gives the same state");
    records
}

fn launches(records: &[Record]) -> Vec<(u64, u32, Tuning)> {
    let launch = |record: &Record| match &record.event {
        Event::Issued(Command::Launch { allotment, tuning, .. }) => {
            Some((record.at.as_millis() / 1000, allotment.placement.tasks_of(0), tuning.unwrap()))
        }
        _ => None,
    };
    records.iter().filter_map(launch).collect()
}

#[test]
fn what_a_job_never_visited_is_a_guess_and_the_truth_may_be_another() {
    // Two workers are really five times as slow as one; nobody can know before it was tried.
    let slow = course(steps(1.0, 5.0));
    let tuned = BatchRule::Tuned { asked: None };
    let records = history(vec![job(0, slow.clone(), tuned)]);
    let sizes: Vec<u32> = launches(&records).iter().map(|(_, workers, _)| *workers).collect();
    assert_eq!(sizes[..3], [1, 2, 1], "one worker, then the guess, then back: {sizes:?}");
    // An oracle would not have tried: it knows that two workers are slower whatever their batch.
    let adaptation = job(0, slow.clone(), tuned).speed.adaptation.clone().unwrap();
    let best = |workers| slow.best_rate(&adaptation, Shape { kind: Some(KIND), workers, nodes: 1 }, 0.0).unwrap();
    assert!(best(2) < best(1), "{} and {}", best(2), best(1));
    let guessed = records.iter().find_map(|record| match &record.event {
        Event::Refitted { step, .. } => Some(*step),
        _ => None,
    });
    let guess = guessed.expect("it was fitted after its first steps").step_secs(1, 2, 32.0);
    assert!(guess < 1.1, "after one worker alone, exchange looks free: {guess} s, and really it is 5 s");
}

#[test]
fn a_job_that_scales_is_given_both_gpus_and_keeps_them() {
    let records = history(vec![job(0, course(steps(1.0, 1.05)), BatchRule::Tuned { asked: None })]);
    let sizes: Vec<u32> = launches(&records).iter().map(|(_, workers, _)| *workers).collect();
    assert_eq!(sizes, [1, 2]);
}

#[test]
fn the_batch_changes_without_a_restart_once_a_model_is_there() {
    let records = history(vec![job(0, course(steps(1.0, 1.05)), BatchRule::Tuned { asked: None })]);
    let first = launches(&records)[0].2;
    assert_eq!(first.total(1), 32, "the designed batch while nothing is known");
    let retuned = records.iter().any(|record| matches!(record.event, Event::Issued(Command::Retune { .. })));
    let relaunched = launches(&records).iter().any(|(_, _, tuning)| tuning.total(2) > 32);
    assert!(retuned || relaunched, "noise as large as the signal makes a larger batch worth while");
}

#[test]
fn a_fixed_batch_stays() {
    let records = history(vec![job(0, course(steps(1.0, 1.05)), BatchRule::Fixed(64))]);
    for (_, workers, tuning) in launches(&records) {
        assert_eq!(tuning.total(workers), 64);
    }
    assert!(!records.iter().any(|record| matches!(record.event, Event::Issued(Command::Retune { .. }))));
}

#[test]
fn progress_is_reported_and_epochs_end_where_they_were_measured_to() {
    let records = history(vec![job(0, course(steps(1.0, 1.05)), BatchRule::Fixed(32))]);
    let epochs: Vec<(u32, u64)> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::RunProgressed { report, .. } => Some((report.epoch, report.done)),
            _ => None,
        })
        .collect();
    assert!(epochs.is_sorted(), "progress never goes back");
    for (epoch, end) in [(1, 500), (2, 1000), (3, 1500)] {
        assert_eq!(epochs.iter().find(|(found, _)| *found == epoch).map(|(_, done)| *done), Some(end));
    }
}
