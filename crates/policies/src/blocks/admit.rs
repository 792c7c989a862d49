//! Whether a queue may hold more. Budgets come from the tenant stage and hold for this round; limits hold always.

use std::collections::BTreeMap;
use std::fmt::Debug;

use cluster::{Gpus, QueueId};
use plan::{Claim, Note, Obstacle, Reason, Snapshot};

use crate::blocks::draft::Draft;
use crate::blocks::order::Line;

/// What every queue, and those below it, would hold after the plan in the making.
#[derive(Debug, Clone)]
pub(crate) struct Usage<'a> {
    snapshot: Snapshot<'a>,
    used: Vec<Gpus>,
}

impl<'a> Usage<'a> {
    pub(crate) fn new(snapshot: &Snapshot<'a>) -> Usage<'a> {
        let used = snapshot.books.queues.iter().map(|(queue, _)| snapshot.books.used(queue)).collect();
        Usage { snapshot: *snapshot, used }
    }

    /// Whether the claim may hold so many GPUs more; if not, which queue stands in the way.
    ///
    /// A queue that holds nothing may always hold one claim, whatever its budget: a gang larger than a share that
    /// happens to be small would else never run. A limit has no such exception.
    pub(crate) fn admits(&self, claim: &Claim, gpus: Gpus) -> Result<(), Obstacle> {
        if gpus.is_zero() {
            return Ok(());
        }
        for queue in self.snapshot.books.queues.ancestry(claim.spec.queue) {
            let used = self.used[usize::from(queue.0)];
            let budget = self.snapshot.budgets.of(queue).filter(|_| !used.is_zero());
            let limit = self.snapshot.books.queues.queue(queue).limit;
            let most = [budget, limit].into_iter().flatten().min();
            if let Some(most) = most.filter(|&most| used.saturating_add(gpus) > most) {
                return Err(Obstacle::Quota { queue, used, budget: most });
            }
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, claim: &Claim, gpus: Gpus) {
        for queue in self.snapshot.books.queues.ancestry(claim.spec.queue) {
            self.used[usize::from(queue.0)] += gpus;
        }
    }

    pub(crate) fn remove(&mut self, claim: &Claim, gpus: Gpus) {
        for queue in self.snapshot.books.queues.ancestry(claim.spec.queue) {
            self.used[usize::from(queue.0)] -= gpus;
        }
    }

    fn excess(&self, queue: QueueId) -> Option<Obstacle> {
        let used = self.used[usize::from(queue.0)];
        let budget = self.snapshot.budgets.of(queue).filter(|&budget| used > budget)?;
        Some(Obstacle::Quota { queue, used, budget })
    }

    /// The queue above the claim that is over its budget and would not be left empty without it.
    fn over_budget(&self, claim: &Claim, gpus: Gpus) -> Option<Obstacle> {
        let mut above = self.snapshot.books.queues.ancestry(claim.spec.queue);
        above.find_map(|queue| self.excess(queue).filter(|_| self.used[usize::from(queue.0)] > gpus))
    }

    fn is_anyone_over_budget(&self) -> bool {
        self.snapshot.books.queues.iter().any(|(queue, _)| self.excess(queue).is_some())
    }
}

/// The budgets of queues as rows of an integer program, in whole GPUs. Queues above others are looked after when places
/// are given.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    pub(crate) rows: Vec<u32>,
    of: BTreeMap<QueueId, u32>,
}

impl Quotas {
    pub(crate) fn of(snapshot: &Snapshot<'_>) -> Quotas {
        // A queue may always hold its smallest claim, whatever its budget; only its limit has no exception.
        let mut smallest: BTreeMap<QueueId, Gpus> = BTreeMap::new();
        for claim in snapshot.eligible() {
            let least = smallest.entry(claim.spec.queue).or_insert(Gpus::MAX);
            *least = (*least).min(claim.spec.min_gpus());
        }
        let mut quotas = Quotas::default();
        for (queue, definition) in snapshot.books.queues.iter() {
            let budget = snapshot.budgets.of(queue).zip(smallest.get(&queue)).map(|(budget, least)| budget.max(*least));
            if let Some(most) = [budget, definition.limit].into_iter().flatten().min() {
                quotas.of.insert(queue, quotas.rows.len() as u32);
                quotas.rows.push(most.as_thousandths().div_ceil(1000));
            }
        }
        quotas
    }

    pub(crate) fn row_of(&self, queue: QueueId) -> Option<u32> {
        self.of.get(&queue).copied()
    }
}

/// Takes devices from claims whose queues hold more than their budgets, the worst ranked first: a lender wants back
/// what it lent. One claim of a queue may always stay, by the exception in [`Usage::admits`]. Returns those who must
/// wait again.
pub(crate) fn over_budget<'a, K: Copy + Ord + Debug>(draft: &mut Draft<'a>, line: &Line<K>) -> Vec<&'a Claim> {
    if !draft.usage().is_anyone_over_budget() {
        return Vec::new();
    }
    let mut released = Vec::new();
    for (_, id) in line.running_from_worst() {
        let claim = draft.snapshot.claim(id);
        if claim.must_go_on() {
            continue;
        }
        let held = draft.holds(id).expect("who is filed as running has devices").placement.gpus();
        if let Some(obstacle) = draft.usage().over_budget(claim, held) {
            let allotment = draft.release(claim);
            draft.note(id, Note::waiting(Reason::Preempted, obstacle));
            released.push((claim, allotment));
        }
    }
    draft.keep_where_possible(released)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::QueueDraft;
    use plan::text::Scenario;

    fn two_queues() -> [QueueDraft; 2] {
        [QueueDraft { limit: Some(6.0), ..QueueDraft::named("red") }, QueueDraft::named("blue")]
    }

    fn admits(scenario: &Scenario, job: &str) -> bool {
        let snapshot = scenario.snapshot(None);
        let claim = snapshot.claim(scenario.id(job));
        Usage::new(&snapshot).admits(claim, claim.spec.asked_gpus()).is_ok()
    }

    #[test]
    fn a_queue_within_its_budget_may_hold_more_up_to_it() {
        let scenario = Scenario::with_queues("2x4", &two_queues())
            .budgets(&[8, 4, 4])
            .job("held 2 gpus queue red runs n0:0-1")
            .job("two 2 gpus queue red")
            .job("three 3 gpus queue red");
        assert!(admits(&scenario, "two"));
        assert!(!admits(&scenario, "three"));
    }

    #[test]
    fn a_queue_that_holds_nothing_may_hold_one_gang_above_its_budget() {
        let queues = two_queues();
        let scenario = Scenario::with_queues("2x4", &queues)
            .budgets(&[8, 4, 4])
            .job("six 6 gpus queue red")
            .job("seven 7 gpus queue red");
        assert!(admits(&scenario, "six"));
        assert!(!admits(&scenario, "seven"), "the limit is 6");
    }

    #[test]
    fn a_limit_holds_without_budgets() {
        let scenario = Scenario::with_queues("2x4", &two_queues())
            .job("held 4 gpus queue red runs n0:0-3")
            .job("red 3 gpus queue red")
            .job("blue 3 gpus queue blue");
        assert!(!admits(&scenario, "red"));
        assert!(admits(&scenario, "blue"));
    }
}
