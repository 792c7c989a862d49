//! Asking the policy: snapshot, plan, check. Whatever the policy does, nothing half-done comes of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cluster::Time;
use plan::{Budgets, Changed, Plan, Snapshot, check, check_everything};

use crate::Engine;
use crate::event::{Event, Trouble};
use crate::safeguards::{Rules, amend, starts};
use crate::state::State;
use crate::tenants::budgets;

impl Engine {
    pub(crate) fn decide(&mut self, now: Time, events: &mut Vec<Event>) {
        self.owed = None;
        let event = match self.ask(now) {
            Ok(plan) => {
                self.acquainted = true;
                Event::Planned(Box::new(plan))
            }
            Err(why) => {
                self.acquainted = false;
                Event::PlanRefused { why }
            }
        };
        self.record(now, event, events);
    }

    fn ask(&mut self, now: Time) -> Result<Plan, Trouble> {
        let budgets = budgets(self.state.books());
        let knows = !self.policy.knows().is_empty();
        let snapshot = Snapshot {
            truths: knows.then_some(self.truths.as_slice()),
            ..seen(&self.state, now, self.acquainted, &budgets)
        };
        let policy = &mut self.policy;
        let plan = catch_unwind(AssertUnwindSafe(|| policy.plan(&snapshot))).map_err(panicked)?;
        let checked = if self.settings.whole_checks { check_everything } else { check };
        let sound = |plan: Plan| {
            let faults = checked(&plan, &snapshot);
            if faults.is_empty() { Ok(plan) } else { Err(Trouble::Faulty(faults)) }
        };
        let plan = sound(plan)?;
        let rules = Rules::new(self.state.safeguards(), self.policy.rhythm());
        if rules.safeguards.is_none() {
            return Ok(plan);
        }
        // A fault in a rule is no worse than one in a policy: nothing changes, and it is on record.
        sound(catch_unwind(AssertUnwindSafe(|| amend(&snapshot, plan, rules))).map_err(panicked)?)
    }

    /// Between rounds, starts what need not wait for the next one. A fault is on record once: after it nothing starts so
    /// until the policy was asked in its round, which it still is.
    pub(crate) fn start_at_once(&mut self, now: Time, events: &mut Vec<Event>) {
        if self.owed.is_some() {
            return;
        }
        let event = match self.ask_for_starts(now) {
            Ok(plan) if plan.changes.is_empty() => return,
            Ok(plan) => Event::StartedAtOnce(Box::new(plan)),
            Err(why) => {
                self.acquainted = false;
                self.owed = self.state.plan_due();
                Event::PlanRefused { why }
            }
        };
        self.record(now, event, events);
    }

    fn ask_for_starts(&mut self, now: Time) -> Result<Plan, Trouble> {
        let rules = Rules::new(self.state.safeguards(), self.policy.rhythm());
        let budgets = budgets(self.state.books());
        let knows = !self.policy.knows().is_empty();
        let snapshot = Snapshot {
            truths: knows.then_some(self.truths.as_slice()),
            ..seen(&self.state, now, self.acquainted, &budgets)
        };
        let policy = &mut self.policy;
        let plan = catch_unwind(AssertUnwindSafe(|| starts(&snapshot, || policy.turns(&snapshot), rules)));
        let plan = plan.map_err(panicked)?;
        let checked = if self.settings.whole_checks { check_everything } else { check };
        let faults = if plan.changes.is_empty() { Vec::new() } else { checked(&plan, &snapshot) };
        if faults.is_empty() { Ok(plan) } else { Err(Trouble::Faulty(faults)) }
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Trouble {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Trouble::Panicked(text.unwrap_or_else(|| "without a message".into()))
}

/// The present as it is shown to a policy, without the truth; to one that has seen the last plan, with what changed since.
fn seen<'a>(state: &'a State, now: Time, acquainted: bool, budgets: &'a Budgets) -> Snapshot<'a> {
    let changed = if acquainted { Changed::Only(state.changed()) } else { Changed::Everything };
    Snapshot { now, books: state.books(), changed, budgets, truths: None }
}

#[cfg(test)]
mod tests {
    use cluster::{ClusterDraft, JobDraft, Span};
    use perf::Speed;
    use plan::{Policy, Rhythm, Safeguards, Turns};

    use super::*;
    use crate::bench::whole;
    use crate::{Input, Request, Settings};

    /// Asked who goes first it fails; in its rounds it gives whoever waits the devices of the node.
    struct Speechless;

    impl Policy for Speechless {
        fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
            let waiting = snapshot.eligible().filter(|claim| claim.is_waiting()).take(1);
            Plan { changes: waiting.map(|claim| (claim.id, Some(whole(0, 0b11)))).collect(), ..Plan::default() }
        }

        fn turns(&mut self, _: &Snapshot<'_>) -> Turns {
            panic!("lost my tongue")
        }

        fn rhythm(&self) -> Rhythm {
            Rhythm::EveryRound(Span::from_secs(60))
        }
    }

    #[test]
    fn jobs_that_are_held_are_no_reason_to_look_who_could_start() {
        let (cluster, queues) = ClusterDraft::parse_short("1x2").unwrap().build().unwrap();
        let (mut engine, _) = Engine::new(cluster, queues, "speechless", Box::new(Speechless), Settings::default());
        let submit = |held| {
            let spec = std::sync::Arc::new(JobDraft::rigid("job", 2).build().unwrap());
            Input::Request(Request::Submit { spec, speed: std::sync::Arc::new(Speed::constant(1.0)), held })
        };
        let mut handle = |secs, inputs| {
            let events = engine.handle(Time::from_secs(secs), inputs).events;
            engine.only_holds(&events)
        };
        handle(60, Vec::new());
        assert!(handle(61, vec![submit(true), submit(true)]));
        assert!(!handle(62, vec![submit(true), submit(false)]));
        assert!(!handle(63, vec![Input::Request(Request::Release(cluster::ClaimId(0)))]));
        assert!(!handle(64, Vec::new()), "time that passes may be a reason");
        let hold = Input::Request(Request::Hold(cluster::ClaimId(0)));
        assert!(!handle(65, vec![submit(true), hold]), "those behind one that was there may start");
    }

    #[test]
    fn a_fault_between_rounds_is_on_record_once_and_costs_no_round() {
        let (cluster, queues) = ClusterDraft::parse_short("1x2").unwrap().build().unwrap();
        let settings = Settings { safeguards: Safeguards::ALL, ..Settings::default() };
        let (mut engine, _) = Engine::new(cluster, queues, "speechless", Box::new(Speechless), settings);
        let submit = |engine: &mut Engine, secs| {
            let spec = std::sync::Arc::new(JobDraft::rigid("job", 2).build().unwrap());
            let speed = std::sync::Arc::new(Speed::constant(1.0));
            let request = Request::Submit { spec, speed, held: false };
            engine.handle(Time::from_secs(secs), vec![Input::Request(request)]).events
        };
        let refused = |events: &[Event]| events.iter().any(|event| matches!(event, Event::PlanRefused { .. }));
        engine.handle(Time::from_secs(60), Vec::new());
        let events = submit(&mut engine, 61);
        let why = Trouble::Panicked("lost my tongue".into());
        assert_eq!(events.last(), Some(&Event::PlanRefused { why }));
        assert_eq!(engine.next_wakeup(), Some(Time::from_secs(120)), "the round is not lost");
        assert!(!refused(&submit(&mut engine, 62)), "once a round is enough");
        let planned = engine.handle(Time::from_secs(120), Vec::new()).events;
        assert!(planned.iter().any(|event| matches!(event, Event::Planned(_))), "{planned:?}");
        assert!(!refused(&submit(&mut engine, 121)), "nothing is free, and nobody is asked");
    }
}
