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

    /// Between rounds, starts what need not wait for the next one.
    pub(crate) fn start_at_once(&mut self, now: Time, events: &mut Vec<Event>) {
        let rules = Rules::new(self.state.safeguards(), self.policy.rhythm());
        let budgets = budgets(self.state.books());
        let knows = !self.policy.knows().is_empty();
        let snapshot = Snapshot {
            truths: knows.then_some(self.truths.as_slice()),
            ..seen(&self.state, now, self.acquainted, &budgets)
        };
        let policy = &mut self.policy;
        // A policy that panics is on record when it is asked in its round.
        let plan = catch_unwind(AssertUnwindSafe(|| starts(&snapshot, &policy.turns(&snapshot), rules)));
        let Some(plan) = plan.ok().filter(|plan| !plan.changes.is_empty()) else { return };
        let checked = if self.settings.whole_checks { check_everything } else { check };
        let faults = checked(&plan, &snapshot);
        let event = if faults.is_empty() {
            Event::StartedAtOnce(Box::new(plan))
        } else {
            self.acquainted = false;
            Event::PlanRefused { why: Trouble::Faulty(faults) }
        };
        self.record(now, event, events);
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
