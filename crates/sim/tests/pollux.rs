//! The fast search of Pollux beside the genetic one as published, on moments recorded from a history.

use std::sync::Arc;

use cluster::{BatchRange, ClusterDraft, GpuKind, JobDraft, Recovery, Scaling, Span, Time, WorkerRange};
use perf::{
    Adaptation, BatchRule, Course, GradientNoise, KindLimits, Line, Rates, ScalingLaw, Speed, StepTime, StepTimes,
    TrueJob, Truth,
};
use sim::Setup;
use sim::pollux::compare_searches;

const KIND: GpuKind = GpuKind(0);

/// Jobs from those that hardly exchange anything to those that hardly gain by a second GPU.
fn job(index: u32) -> TrueJob {
    let slow = 0.02 * f64::from(index % 5);
    let step = StepTime {
        compute: Line { fixed: 0.02, slope: 0.002 },
        within_node: Line { fixed: 0.01 + slow, slope: 0.002 },
        between_nodes: Line { fixed: 0.02 + 2.0 * slow, slope: 0.004 },
        overlap: 1.5,
    };
    let length = f64::from(2000 + 1500 * (index % 7));
    let noise = vec![GradientNoise { sqr: 1.0, var: f64::from(1 + index % 4) }; 2];
    let course = Course {
        initial: 32,
        steps: vec![(KIND, StepTimes::Fitted(step))],
        epochs: vec![length / 3.0, length],
        noise: vec![(32, noise)],
        iterations: Vec::new(),
        slowdown: 1.0,
    };
    let limits = KindLimits {
        kind: KIND,
        local_min: 8,
        local_max: 64,
        shapes: Vec::new(),
        alone: Some(300.0),
        stages: 1,
        workers_max: None,
    };
    let (rule, restart) = (BatchRule::Tuned { asked: None }, Span::from_secs(30));
    let adaptation = Adaptation { initial: 32, max: 1024, rule, kinds: vec![limits], restart };
    let draft = JobDraft {
        scaling: Scaling::Adaptive(WorkerRange { min: 1, max: 16 }, BatchRange { initial: 32, max: 1024 }),
        recovery: Recovery { restart_cost: restart, retries: 3, ..Recovery::default() },
        ..JobDraft::rigid("job", 1)
    };
    let speed = Speed {
        rates: Rates::ByKind(vec![(KIND, 1.0)]),
        scaling: ScalingLaw::Linear,
        adaptation: Some(Arc::new(adaptation)),
        ..Speed::constant(1.0)
    };
    let truth = Truth {
        speed: speed.clone(),
        iterations: length as u64,
        start_up: restart,
        course: Some(Arc::new(course)),
        resize: None,
    };
    TrueJob {
        submitted: Time::from_secs(u64::from(index) * 45),
        spec: Arc::new(draft.build().unwrap()),
        speed: Arc::new(speed),
        truth: Arc::new(truth),
    }
}

#[test]
fn the_fast_search_is_never_below_the_plain_one_on_recorded_moments() {
    let (cluster, queues) = ClusterDraft::parse_short("4x4 t4").unwrap().build().unwrap();
    let setup = Setup::new(cluster, queues, (0..16).map(job).collect());
    let seeds: Vec<u64> = (1..=20).collect();
    let moments = compare_searches(&setup, 5, &seeds).unwrap();
    assert!(moments.iter().filter(|moment| moment.jobs >= 5).count() >= 3, "a crowded history: {moments:?}");
    for moment in &moments {
        for (seed, plain) in seeds.iter().zip(&moment.plain) {
            assert!(moment.fast >= plain - 1e-9, "seed {seed}, {} jobs: {} below {plain}", moment.jobs, moment.fast);
        }
    }
}
