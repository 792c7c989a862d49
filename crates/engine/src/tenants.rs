//! The tenant stage: before a policy is asked, each queue gets its budget for this round.
//!
//! A queue gets its guarantee as far as it asks for it. What is left, and what queues that lend leave unused, is shared
//! among queues that borrow and ask for more, in proportion to their weights, up to their limits. Budgets are found level
//! by level from the root down.

use cluster::{Gpus, QueueId};
use plan::{Books, Budgets};

/// The budgets of all queues; none when there is only the root.
pub fn budgets(books: &Books) -> Budgets {
    if books.queues.len() == 1 {
        return Budgets::none();
    }
    let mut budgets = vec![Gpus::ZERO; books.queues.len()];
    budgets[0] = books.capacity();
    for (id, _) in books.queues.iter() {
        share(books, id, budgets[usize::from(id.0)], &mut budgets);
    }
    Budgets { of: budgets }
}

/// What every queue is promised, cut in proportion where nodes that are away leave less than all were promised. The root
/// is promised the whole cluster.
pub fn guarantees(books: &Books) -> Vec<Gpus> {
    let mut promised = vec![Gpus::ZERO; books.queues.len()];
    promised[0] = books.capacity();
    for (id, _) in books.queues.iter() {
        let has = promised[usize::from(id.0)];
        let children: Vec<Child> = books.queues.children(id).map(|(id, _)| Child::new(books, id)).collect();
        let together: u64 = children.iter().map(|child| child.guarantee).sum();
        for child in children {
            let own = u32::try_from(child.promised(has, together)).unwrap_or(u32::MAX);
            promised[usize::from(child.id.0)] = Gpus::from_thousandths(own);
        }
    }
    promised
}

/// Shares what a queue has among its children; its own jobs compete for what is left of it through the policy.
fn share(books: &Books, parent: QueueId, has: Gpus, budgets: &mut [Gpus]) {
    let children: Vec<Child> = books.queues.children(parent).map(|(id, _)| Child::new(books, id)).collect();
    let promised: u64 = children.iter().map(|child| child.guarantee).sum();
    let mut budget: Vec<u64> = children.iter().map(|child| child.promised(has, promised).min(child.demand)).collect();
    let kept: u64 = children.iter().map(|child| child.kept(has, promised)).sum();
    let mut spare = u64::from(has.as_thousandths()).saturating_sub(kept);
    loop {
        let wants: Vec<u64> =
            children.iter().zip(&budget).map(|(child, has)| child.most().saturating_sub(*has)).collect();
        let hungry: Vec<usize> = (0..children.len()).filter(|&index| wants[index] > 0).collect();
        if hungry.is_empty() || spare == 0 {
            break;
        }
        let weights: u64 = hungry.iter().map(|&index| children[index].weight).sum();
        let round = spare;
        for &index in &hungry {
            let gift = (round * children[index].weight / weights).min(wants[index]);
            budget[index] += gift;
            spare -= gift;
        }
        if spare == round {
            // Less is left than can be divided: the first takes it.
            budget[hungry[0]] += spare.min(wants[hungry[0]]);
            break;
        }
    }
    for (child, budget) in children.iter().zip(budget) {
        budgets[usize::from(child.id.0)] = Gpus::from_thousandths(u32::try_from(budget).unwrap_or(u32::MAX));
    }
}

/// One queue among its siblings, in thousandths of a GPU.
struct Child {
    id: QueueId,
    guarantee: u64,
    limit: u64,
    demand: u64,
    weight: u64,
    lends: bool,
    borrows: bool,
}

impl Child {
    fn new(books: &Books, id: QueueId) -> Child {
        let queue = books.queues.queue(id);
        let thousandths = |gpus: Gpus| u64::from(gpus.as_thousandths());
        Child {
            id,
            guarantee: thousandths(queue.guarantee),
            limit: queue.limit.map_or(u64::MAX, thousandths),
            demand: thousandths(books.demand(id)),
            weight: u64::from(queue.weight.as_thousandths()),
            lends: queue.lends,
            borrows: queue.borrows,
        }
    }

    /// The guarantee, cut in proportion where nodes that are away leave less than all were promised.
    fn promised(&self, has: Gpus, promised: u64) -> u64 {
        let has = u64::from(has.as_thousandths());
        if promised > has { self.guarantee * has / promised } else { self.guarantee }
    }

    /// What nobody else can have: the guarantee if it is not lent, else only what is asked for of it.
    fn kept(&self, has: Gpus, promised: u64) -> u64 {
        let own = self.promised(has, promised);
        if self.lends { own.min(self.demand) } else { own }
    }

    fn most(&self) -> u64 {
        let allowed = if self.borrows { self.limit } else { self.guarantee };
        allowed.min(self.demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterDraft, JobDraft, QueueDraft, Time};
    use perf::Speed;
    use std::sync::Arc;

    /// Budgets of queues on ten GPUs, given each queue's demand.
    fn check(queues: &[QueueDraft], demand: &[(&str, u32)], expected: &[f64]) {
        let draft = ClusterDraft { queues: queues.to_vec(), ..ClusterDraft::parse_short("1x10").unwrap() };
        let (cluster, tree) = draft.build().unwrap();
        let mut books = Books::new(cluster, tree);
        for (queue, gpus) in demand {
            let queue = books.queues.named(queue).unwrap();
            let spec = JobDraft { queue, ..JobDraft::rigid("job", *gpus) }.build().unwrap();
            books.submit(Time::ZERO, Arc::new(spec), Arc::new(Speed::constant(1.0)));
        }
        let found: Vec<f64> = budgets(&books).of[1..].iter().map(|gpus| gpus.as_f64()).collect();
        assert_eq!(found, expected);
    }

    fn queue(name: &str, guarantee: f64) -> QueueDraft {
        QueueDraft { guarantee, ..QueueDraft::named(name) }
    }

    #[test]
    fn an_idle_lender_lends_and_gets_it_back_when_it_asks() {
        let queues = [queue("a", 6.0), queue("b", 4.0)];
        check(&queues, &[("b", 10)], &[0.0, 10.0]);
        check(&queues, &[("b", 10), ("a", 5)], &[5.0, 5.0]);
        check(&queues, &[("b", 10), ("a", 10)], &[6.0, 4.0]);
    }

    #[test]
    fn a_queue_that_does_not_lend_keeps_its_guarantee_idle() {
        let queues = [QueueDraft { lends: false, ..queue("a", 6.0) }, queue("b", 4.0)];
        check(&queues, &[("b", 10)], &[0.0, 4.0]);
    }

    #[test]
    fn a_queue_that_does_not_borrow_stays_within_its_guarantee() {
        let queues = [queue("a", 6.0), QueueDraft { borrows: false, ..queue("b", 4.0) }];
        check(&queues, &[("b", 10)], &[0.0, 4.0]);
    }

    #[test]
    fn what_is_left_is_shared_by_weight_up_to_the_limit() {
        let queues = [QueueDraft { weight: 3.0, ..queue("a", 0.0) }, queue("b", 0.0)];
        check(&queues, &[("a", 10), ("b", 10)], &[7.5, 2.5]);
        let queues = [QueueDraft { weight: 3.0, limit: Some(5.0), ..queue("a", 0.0) }, queue("b", 0.0)];
        check(&queues, &[("a", 10), ("b", 10)], &[5.0, 5.0]);
    }

    #[test]
    fn children_share_what_their_parent_gets() {
        let below = |name: &str, parent: &str| QueueDraft { parent: Some(parent.into()), ..queue(name, 0.0) };
        let queues = [queue("lab", 4.0), queue("firm", 6.0), below("x", "lab"), below("y", "lab")];
        check(&queues, &[("x", 10), ("y", 10), ("firm", 10)], &[4.0, 6.0, 2.0, 2.0]);
    }
}
