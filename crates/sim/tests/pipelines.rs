//! Jobs whose model is cut into stages run in whole pipelines, under every policy that runs them, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{Bytes, Devices, Grain, Placement, SliceSet, Slot};
use engine::{Command, Event, Settings};
use plan::{Allotment, Outcome, Phase, Plan, Policy, Snapshot};
use policies::PolicyConfig;
use sim::{Experiment, Setup, simulate};

const SEED: u64 = 5;

/// GPT jobs, drawn for one cluster and to be run on one that may be another.
fn setup(jobs: u32, drawn_for: &str, on: &str) -> Setup {
    let load = |cluster: &str| trace::load_cluster(cluster).unwrap();
    let (cluster, queues, _) = load(drawn_for);
    let workload = format!("training:jobs={jobs},gpt=1");
    let workload = trace::load_workload(&workload, &cluster, &queues, SEED).unwrap();
    let (cluster, queues, _) = load(on);
    let settings = Settings { whole_checks: true, ..Settings::default() };
    Setup { settings, ..Setup::new(cluster, queues, workload.jobs) }
}

/// The kinds and sizes in which jobs were launched, and what became of them.
fn shapes(setup: &Setup, policy: &str, parameters: &[&str]) -> (BTreeSet<(String, u32)>, Vec<Option<Outcome>>) {
    let built = PolicyConfig::from_pairs(policy, parameters).unwrap().build().unwrap();
    let mut shapes = BTreeSet::new();
    let state = simulate(setup, policy, built, |_, event| match event {
        Event::Issued(Command::Launch { allotment, .. }) => {
            let shape = allotment.placement.shape(&setup.cluster);
            let kind = setup.cluster.kind(shape.kind.unwrap()).name.to_string();
            shapes.insert((kind, shape.workers));
        }
        Event::PlanRefused { why } => panic!("{policy}: {why}"),
        _ => {}
    });
    let outcome = |phase: &Phase| match phase {
        Phase::Ended { outcome, .. } => Some(*outcome),
        _ => None,
    };
    let outcomes = state.unwrap().books().claims().iter().map(|claim| outcome(&claim.phase)).collect();
    (shapes, outcomes)
}

const BOTH: &str = "2x8 a100, 3x8 rtx2080ti";

#[test]
fn a_pipeline_of_two_stages_on_a100_and_of_eight_on_rtx_runs_in_multiples_of_these() {
    let policies: [(&str, &[&str]); 4] = [
        ("sia", &[]),
        ("fifo", &[]),
        ("tiresias", &[]),
        ("composed", &["order=attained", "preempt=true", "grant=grow"]),
    ];
    for (policy, parameters) in policies {
        let (shapes, outcomes) = shapes(&setup(12, BOTH, BOTH), policy, parameters);
        assert_eq!(outcomes, [Some(Outcome::Finished); 12], "{policy}, seed {SEED}");
        for (kind, workers) in &shapes {
            let stages = if kind == "a100" { 2 } else { 8 };
            assert!(workers.is_multiple_of(stages), "{policy}, seed {SEED}: {workers} workers on {kind}");
        }
        assert!(shapes.iter().any(|(kind, _)| kind == "a100"), "{policy}, seed {SEED}: {shapes:?}");
    }
}

#[test]
fn a_pipeline_alone_grows_by_doubling_its_replicas() {
    let (shapes, _) = shapes(&setup(1, BOTH, "2x8 a100"), "sia", &[]);
    let sizes: Vec<u32> = shapes.iter().map(|(_, workers)| *workers).collect();
    assert_eq!(sizes, [2, 4, 8, 16], "from one replica to eight");
}

#[test]
fn where_no_pipeline_fits_the_job_is_refused_as_impossible() {
    for cluster in ["1x4 rtx2080ti", "1x7 rtx2080ti"] {
        let setup = setup(1, "1x8 rtx2080ti", cluster);
        let mut refusals = Vec::new();
        simulate(&setup, "sia", PolicyConfig::named("sia").build().unwrap(), |_, event| {
            if let Event::ClaimRefused { why, .. } = event {
                refusals.push(why.to_string());
            }
        })
        .unwrap();
        let fit = setup.cluster.gpus();
        assert_eq!(refusals, [format!("needs 8 tasks of role worker, and {fit} would fit into the empty cluster")]);
    }
    let (_, outcomes) = shapes(&setup(1, "1x8 rtx2080ti", "1x8 rtx2080ti"), "sia", &[]);
    assert_eq!(outcomes, [Some(Outcome::Finished)]);
}

#[test]
fn a_report_has_a_fair_time_for_every_pipeline() {
    let (cluster, queues, cluster_name) = trace::load_cluster(BOTH).unwrap();
    let experiment = Experiment {
        cluster_name,
        cluster,
        queues,
        policies: vec![PolicyConfig::named("fifo")],
        workload: "training:jobs=20,gpt=1,load=4".into(),
        seeds: vec![SEED],
        circumstances: Default::default(),
        safeguards: plan::Safeguards::NONE,
    };
    // Many at once: the share of each is less than a pipeline on one kind or even on both.
    let run = &experiment.run(&|| {}).unwrap().runs[0];
    assert_eq!(run.finished, 20, "seed {SEED}");
    let worst = run.finish_time_ratio.worst.unwrap();
    assert!(worst.is_finite() && worst > 0.0, "seed {SEED}: {worst}");
}

/// Gives the first job four GPUs of the first node of a kind.
struct Careless(&'static str);

impl Policy for Careless {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let Some(claim) = snapshot.eligible().find(|claim| claim.target.is_none()) else { return Plan::default() };
        let kind = snapshot.cluster().kind_named(self.0);
        let (node, _) = snapshot.cluster().nodes().find(|(_, node)| node.kind == kind).unwrap();
        let slices = SliceSet { devices: Devices::first(4), grain: Grain::Whole };
        let slot = Slot { node, role: 0, tasks: 4, slices, millicores: 0, memory: Bytes::ZERO };
        let allotment = Allotment { placement: Placement::new(vec![slot]), batch: None };
        Plan { changes: vec![(claim.id, Some(Arc::new(allotment)))], ..Plan::default() }
    }
}

#[test]
fn half_a_pipeline_does_not_pass_the_check() {
    let troubles = |kind: &'static str| {
        let mut troubles = BTreeSet::new();
        let setup = setup(1, BOTH, BOTH);
        simulate(&setup, "careless", Box::new(Careless(kind)), |_, event| {
            if let Event::PlanRefused { why } = event {
                troubles.insert(why.to_string());
            }
        })
        .unwrap();
        troubles.into_iter().collect::<Vec<_>>().join("; ")
    };
    assert_eq!(troubles("a100"), "", "four workers are two pipelines there");
    let found = troubles("rtx2080ti");
    assert!(found.contains("a kind of GPU it may not have there"), "half a pipeline passed: {found}");
}
