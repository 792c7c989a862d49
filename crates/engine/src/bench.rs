//! An engine on a bench, for tests: whatever happens, a replay gives the same state and no device is lost.

use std::sync::Arc;

use cluster::{
    Bytes, ClaimId, ClusterDraft, Devices, Grain, JobDraft, NodeId, Placement, Run, SliceSet, Slot, Span, Time,
};
use perf::Speed;
use plan::{Allotment, Claim, Phase, Plan, Policy, Snapshot};

use crate::{Command, Engine, Event, Input, Record, Request, Settings, State};

/// A policy that does what the closure says.
struct Told<F>(F);

impl<F: FnMut(&Snapshot<'_>) -> Plan + Send> Policy for Told<F> {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        (self.0)(snapshot)
    }
}

pub(crate) struct Bench {
    pub(crate) engine: Engine,
    journal: Vec<Record>,
}

impl Bench {
    pub(crate) fn new(cluster: &str, policy: impl FnMut(&Snapshot<'_>) -> Plan + Send + 'static) -> Bench {
        Bench::with(cluster, Settings::default(), policy)
    }

    /// Runs have a minute to change their workers in place.
    pub(crate) fn resizing(cluster: &str, policy: impl FnMut(&Snapshot<'_>) -> Plan + Send + 'static) -> Bench {
        Bench::with(cluster, Settings { resize_within: Some(Span::from_minutes(1)), ..Settings::default() }, policy)
    }

    fn with(cluster: &str, settings: Settings, policy: impl FnMut(&Snapshot<'_>) -> Plan + Send + 'static) -> Bench {
        let (cluster, queues) = ClusterDraft::parse_short(cluster).unwrap().build().unwrap();
        let settings = Settings { whole_checks: true, ..settings };
        let (engine, beginning) = Engine::new(cluster, queues, "told", Box::new(Told(policy)), settings);
        let journal = beginning.into_iter().map(|event| Record { at: Time::ZERO, event }).collect();
        Bench { engine, journal }
    }

    pub(crate) fn handle(&mut self, secs: u64, inputs: Vec<Input>) -> Vec<Event> {
        let at = Time::from_secs(secs);
        let answer = self.engine.handle(at, inputs);
        self.journal.extend(answer.events.iter().map(|event| Record { at, event: event.clone() }));
        assert_eq!(State::replay(&self.journal), *self.engine.state(), "a replay gives the same state");
        self.engine.state().assert_nothing_is_lost();
        answer.events
    }

    pub(crate) fn submit(&mut self, secs: u64, draft: JobDraft) -> Vec<Event> {
        let spec = Arc::new(draft.build().unwrap());
        let speed = Arc::new(Speed::constant(1.0));
        self.handle(secs, vec![Input::Request(Request::Submit { spec, speed, held: false })])
    }

    pub(crate) fn report(&mut self, secs: u64, event: Event) -> Vec<Event> {
        self.handle(secs, vec![Input::Report(event)])
    }

    pub(crate) fn claim(&self, claim: u32) -> &Claim {
        self.engine.state().books().claim(ClaimId(claim))
    }

    pub(crate) fn phase(&self, claim: u32) -> &Phase {
        &self.claim(claim).phase
    }
}

pub(crate) fn whole(node: u32, devices: u64) -> Arc<Allotment> {
    let slices = SliceSet { devices: Devices(devices), grain: Grain::Whole };
    let tasks = slices.devices.count();
    let slot = Slot { node: NodeId(node), role: 0, tasks, slices, millicores: 0, memory: Bytes::ZERO };
    Arc::new(Allotment { placement: Placement::new(vec![slot]), batch: None })
}

pub(crate) fn run(claim: u32, attempt: u32) -> Run {
    Run { claim: ClaimId(claim), attempt }
}

pub(crate) fn issued(events: &[Event]) -> Vec<&Command> {
    events.iter().filter_map(|event| if let Event::Issued(command) = event { Some(command) } else { None }).collect()
}
