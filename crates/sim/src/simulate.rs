//! One workload, one policy, one history.

use cluster::{Cluster, Invalid, QueueTree, Span, Time};
use engine::{Engine, Event, Settings, State};
use perf::TrueJob;
use plan::Policy;
use world::{Circumstances, World};

/// A history that has not ended so long after the last submission never will: what still waits can never run.
pub const HORIZON: Span = Span::from_hours(24 * 3653);

/// Everything but the policy.
#[derive(Debug, Clone)]
pub struct Setup {
    pub cluster: Cluster,
    pub queues: QueueTree,
    /// In order of submission.
    pub jobs: Vec<TrueJob>,
    pub circumstances: Circumstances,
    pub settings: Settings,
}

impl Setup {
    pub fn new(cluster: Cluster, queues: QueueTree, jobs: Vec<TrueJob>) -> Setup {
        Setup { cluster, queues, jobs, circumstances: Circumstances::default(), settings: Settings::default() }
    }
}

/// Plays the workload to its end. Every fact is shown to `observe` in order: together they are the journal.
pub fn simulate(
    setup: &Setup,
    policy_name: &str,
    policy: Box<dyn Policy>,
    mut observe: impl FnMut(Time, &Event),
) -> Result<State, Invalid> {
    let mut world = World::new(setup.cluster.clone(), setup.jobs.clone(), &setup.circumstances)?;
    let oracle = !policy.knows().is_empty();
    let (mut engine, beginning) =
        Engine::new(setup.cluster.clone(), setup.queues.clone(), policy_name, policy, setup.settings);
    if oracle {
        engine.reveal(world.truths());
    }
    beginning.iter().for_each(|event| observe(Time::ZERO, event));
    let last_submission = setup.jobs.last().map_or(Time::ZERO, |job| job.submitted);
    while let Some((now, batch)) = world.next(engine.next_wakeup()) {
        if now > last_submission + HORIZON {
            break;
        }
        let answer = engine.handle(now, batch);
        for event in &answer.events {
            observe(now, event);
        }
        for event in &answer.events {
            if let Event::Issued(command) = event {
                world.carry_out(now, command);
            }
        }
        if world.all_submitted() && engine.state().books().claims().live_count() == 0 {
            break;
        }
    }
    Ok(engine.into_state())
}
