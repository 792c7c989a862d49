//! Nodes rented and given back: what that costs and what it takes, beside a cluster of fixed size.

use std::sync::Arc;

use cluster::{ClusterDraft, JobDraft, NodeDraft, Scaling, Span, Time, WorkerRange};
use engine::{Command, Event, Settings};
use perf::{Rates, ScalingLaw, Speed, TrueJob, Truth};
use plan::Availability;
use policies::PolicyConfig;
use sim::{Setup, simulate};
use world::{Circumstances, Cloud};

/// A job that with so many workers does so much of what as many alone would, until it has done its work.
fn job(at: u64, scaling: ScalingLaw, most: u32, hours_alone: u64) -> TrueJob {
    let draft = JobDraft { scaling: Scaling::Elastic(WorkerRange { min: 1, max: most }), ..JobDraft::rigid("a", 1) };
    let speed = Speed { rates: Rates::Anywhere(1.0), scaling, ..Speed::constant(1.0) };
    let (iterations, start_up) = (hours_alone * 3600, Span::from_secs(30));
    let truth = Truth { speed: speed.clone(), iterations, start_up, course: None, resize: None };
    TrueJob {
        submitted: Time::from_secs(at),
        spec: Arc::new(draft.build().unwrap()),
        speed: Arc::new(speed),
        truth: Arc::new(truth),
    }
}

#[derive(Debug)]
struct Outcome {
    node_hours: f64,
    mean_completion_h: f64,
    most_nodes: u32,
    ordered: u32,
}

/// Plays the jobs on so many nodes of four GPUs at first; with a cloud, up to 16 may be rented.
fn play(jobs: Vec<TrueJob>, nodes: u32, rents: bool) -> Outcome {
    let (cluster, queues) = ClusterDraft::parse_short(&format!("{nodes}x4 t4")).unwrap().build().unwrap();
    let node = NodeDraft { name: "rented".into(), kind: Some("t4".into()), gpus: 4, ..NodeDraft::default() };
    let cloud = rents.then(|| Cloud { node, delay: Span::from_minutes(2) });
    let max_nodes = if rents { "max_nodes=16" } else { "max_nodes=0" };
    let config = PolicyConfig::from_pairs("sia", &[max_nodes]).unwrap();
    let setup = Setup {
        circumstances: Circumstances { cloud, ..Circumstances::default() },
        settings: Settings { whole_checks: true, ..Settings::default() },
        ..Setup::new(cluster, queues, jobs)
    };
    let (mut open, mut since, mut node_ms, mut most, mut ordered) = (nodes, Time::ZERO, 0, nodes, 0);
    let mut lived = Vec::new();
    let mut submitted = Vec::new();
    let state = simulate(&setup, "sia", config.build().unwrap(), |at, event| {
        node_ms += u64::from(open) * at.since(since).as_millis();
        since = at;
        match event {
            Event::NodeJoined { .. } => open += 1,
            Event::Issued(Command::Release { .. }) => open -= 1,
            Event::Issued(Command::Provision { count }) => ordered += count,
            Event::ClaimSubmitted { .. } => submitted.push(at),
            Event::RunFinished { run } => lived.push(at.since(submitted[run.claim.0 as usize]).as_secs_f64() / 3600.0),
            Event::PlanRefused { why } => panic!("{why}"),
            _ => {}
        }
        most = most.max(open);
    })
    .unwrap();
    assert_eq!(lived.len(), setup.jobs.len(), "every job ends");
    let removed = (0..state.books().cluster.node_count() as u32)
        .filter(|&node| state.books().node_status(cluster::NodeId(node)).availability == Availability::Removed);
    assert_eq!(nodes + ordered - removed.count() as u32, open, "what was ordered came, what was given back is gone");
    Outcome {
        node_hours: node_ms as f64 / 3.6e6,
        mean_completion_h: lived.iter().sum::<f64>() / lived.len() as f64,
        most_nodes: most,
        ordered,
    }
}

#[test]
fn one_large_job_grows_its_cluster_and_costs_less_than_a_fixed_one() {
    // A fiftieth of every step cannot be spread: with 64 GPUs it is 28 times as fast as with one.
    let large = || vec![job(0, ScalingLaw::Serial(0.02), 64, 40)];
    let fixed = play(large(), 16, false);
    let rented = play(large(), 1, true);
    assert!(rented.most_nodes > 2 && rented.ordered > 1, "{rented:?}");
    assert!(rented.node_hours < 0.8 * fixed.node_hours, "{rented:?} beside {fixed:?}");
    assert!(rented.mean_completion_h < 2.0 * fixed.mean_completion_h, "{rented:?} beside {fixed:?}");
}

#[test]
fn a_mixed_day_pays_for_what_it_uses() {
    let mixed = || {
        let small = (0..12).map(|index| job(index * 900, ScalingLaw::Serial(0.1), 4, 1));
        small.chain([job(12 * 900, ScalingLaw::Serial(0.02), 32, 20)]).collect::<Vec<_>>()
    };
    let fixed = play(mixed(), 16, false);
    let rented = play(mixed(), 1, true);
    assert!(rented.node_hours < 0.7 * fixed.node_hours, "{rented:?} beside {fixed:?}");
    assert!(rented.mean_completion_h < 3.0 * fixed.mean_completion_h, "{rented:?} beside {fixed:?}");
}

#[test]
fn without_a_cloud_nothing_is_ordered() {
    let outcome = play(vec![job(0, ScalingLaw::Linear, 64, 4)], 2, false);
    assert_eq!((outcome.ordered, outcome.most_nodes), (0, 2));
}
