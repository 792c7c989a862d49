//! Whole histories of published worked examples, small enough to follow by hand.

use std::sync::Arc;

use cluster::{ClusterDraft, JobDraft, Recovery, Span, Time};
use perf::{TrueJob, Truth};
use plan::Phase;
use policies::PolicyConfig;
use sim::{Setup, simulate};

/// When each job ends, in minutes, if jobs of so many GPUs and minutes are all there from the beginning.
fn ends(cluster: &str, jobs: &[(u32, u64)], policy: &str, parameters: &[&str]) -> Vec<u64> {
    let jobs: Vec<(u64, u32, u64)> = jobs.iter().map(|&(gpus, minutes)| (0, gpus, minutes)).collect();
    ends_of(cluster, &jobs, policy, parameters)
}

/// The same of jobs that come at a minute.
fn ends_of(cluster: &str, jobs: &[(u64, u32, u64)], policy: &str, parameters: &[&str]) -> Vec<u64> {
    let (cluster, queues) = ClusterDraft::parse_short(cluster).unwrap().build().unwrap();
    let job = |&(at, gpus, minutes): &(u64, u32, u64)| {
        let truth = Truth::lasting(Span::from_minutes(minutes));
        let speed = Arc::new(truth.speed.clone());
        let spec = Arc::new(JobDraft::rigid("job", gpus).build().unwrap());
        TrueJob { submitted: Time::from_secs(60 * at), spec, speed, truth: Arc::new(truth) }
    };
    let setup = Setup::new(cluster, queues, jobs.iter().map(job).collect());
    let config = PolicyConfig::from_pairs(policy, parameters).unwrap();
    let state = simulate(&setup, policy, config.build().unwrap(), |_, _| {}).unwrap();
    let end = |phase: &Phase| if let Phase::Ended { at, .. } = phase { at.as_millis() / 60_000 } else { u64::MAX };
    state.books().claims().iter().map(|claim| end(&claim.phase)).collect()
}

/// Three jobs on two GPUs, as the Tiresias authors show them when they speak of the second dimension (jobs and the
/// averages of 9.3 for shortest remaining service, 11.7 for least attained service and 10.0 for the Gittins index recalled
/// from their talk at NSDI 2019, not checked against the paper).
const THREE: [(u32, u64); 3] = [(2, 2), (1, 8), (2, 6)];

#[test]
fn shortest_remaining_service_first_on_the_three_jobs_of_the_tiresias_talk() {
    let ends = ends("1x2", &THREE, "srsf", &[]);
    assert_eq!(ends, [2, 10, 16]);
    assert_eq!(ends.iter().sum::<u64>() * 10 / 3, 93, "9.3 on average");
}

#[test]
fn shortest_remaining_time_first_does_not_see_how_wide_a_job_is() {
    assert_eq!(ends("1x2", &THREE, "srtf", &[]), [2, 16, 8]);
}

#[test]
fn least_attained_service_in_turns_of_a_minute_on_the_three_jobs_of_the_tiresias_talk() {
    // Turns by least GPU time, the first come of equals: 1 2 3 2, then all have had two GPU minutes; 1 ends at minute 5.
    // The other two take turns until the second ends at minute 14 and the third at 16.
    let ends = ends("1x2", &THREE, "las", &["round=1m", "ties=arrival"]);
    assert_eq!(ends, [5, 14, 16]);
    assert_eq!((ends.iter().sum::<u64>() as f64 / 3.0 * 10.0).round(), 117.0, "11.7 on average");
}

#[test]
fn discretised_least_attained_service_on_the_same_jobs() {
    // The first queue ends at 4 GPU minutes. The first job reaches it as it ends, after 2 minutes. The second sinks
    // after 4 minutes of its own, at minute 6; the third, still in the first queue, stops it and sinks after 2 minutes,
    // at minute 8. In the second queue who runs goes on: the third ends at minute 12, the second at minute 16.
    assert_eq!(ends("1x2", &THREE, "tiresias", &["thresholds=240"]), [2, 16, 12]);
}

#[test]
fn the_gittins_index_on_the_three_jobs_of_the_tiresias_talk() {
    // What the policy knows is that jobs take 4, 8 or 12 GPU minutes: three such have ended before. The first queue ends
    // at 4, as does the chance a job is given. So the first job ends at minute 2; the second sinks at minute 6, the third
    // at minute 8, both then with the same index, and who runs goes on.
    let before = THREE.map(|(gpus, minutes)| (0, gpus, minutes));
    let jobs: Vec<_> = before.into_iter().chain(THREE.map(|(gpus, minutes)| (100, gpus, minutes))).collect();
    let ends = ends_of("1x2", &jobs, "gittins", &["thresholds=240", "delta=240"]);
    let ends: Vec<u64> = ends[3..].iter().map(|end| end - 100).collect();
    assert_eq!(ends, [2, 16, 12]);
    assert_eq!(ends.iter().sum::<u64>(), 30, "10.0 on average");
}

#[test]
fn first_come_first_served_leaves_a_gap_that_backfilling_fills() {
    // Two GPUs for 4 minutes, three for 2, one for 3: four GPUs in all. The third fits beside the first.
    let jobs = [(2, 4), (3, 2), (1, 3)];
    assert_eq!(ends("1x4", &jobs, "fifo", &[]), [4, 6, 7]);
    assert_eq!(ends("1x4", &jobs, "fifo", &["backfill=easy", "estimates=oracle"]), [4, 6, 3]);
    assert_eq!(ends("1x4", &jobs, "fifo", &["backfill=conservative", "estimates=oracle"]), [4, 6, 3]);
}

#[test]
fn jobs_that_take_longer_to_restart_than_a_round_still_end() {
    // Two jobs of ten minutes on one GPU, compared every minute; a restart takes five. Stopped every minute, neither
    // would ever come to its first step.
    let (cluster, queues) = ClusterDraft::parse_short("1x1").unwrap().build().unwrap();
    let recovery = Recovery { restart_cost: Span::from_minutes(5), retries: 3, ..Recovery::default() };
    let job = |name: &str| {
        let truth = Truth { start_up: Span::from_minutes(5), ..Truth::lasting(Span::from_minutes(10)) };
        let spec = JobDraft { recovery, ..JobDraft::rigid(name, 1) }.build().unwrap();
        let speed = Arc::new(truth.speed.clone());
        TrueJob { submitted: Time::ZERO, spec: Arc::new(spec), speed, truth: Arc::new(truth) }
    };
    let setup = Setup::new(cluster, queues, vec![job("a"), job("b")]);
    let composed = ["order=attained", "preempt=true", "round=1m"];
    for (name, pairs) in [("las", &["round=1m"][..]), ("gittins", &[]), ("composed", &composed)] {
        let policy = PolicyConfig::from_pairs(name, pairs).unwrap().build().unwrap();
        let state = simulate(&setup, name, policy, |_, _| {}).unwrap();
        assert_eq!(state.books().claims().live_count(), 0, "{name}");
        assert!(state.now() < Time::from_secs(3600 * 2), "{name} takes until {}", state.now());
    }
}
