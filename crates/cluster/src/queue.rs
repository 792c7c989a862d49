//! The tree of queues through which tenants share a cluster.

use serde::{Deserialize, Serialize};

use crate::job::{Invalid, Name};
use crate::units::{Gpus, Weight};

/// A queue, as an index into its tree. Number 0 is the root, which is the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct QueueId(pub u16);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub name: Name,
    pub parent: Option<QueueId>,
    /// GPUs it gets whenever its jobs ask for them.
    pub guarantee: Gpus,
    /// GPUs it never exceeds.
    pub limit: Option<Gpus>,
    /// How it shares what is lent with its siblings.
    pub weight: Weight,
    /// Whether others may use what it leaves unused of its guarantee.
    pub lends: bool,
    /// Whether it may use more than its guarantee.
    pub borrows: bool,
    /// It takes no new jobs, since it was left out when queues were last written down. It keeps its number.
    #[serde(default, skip_serializing_if = "is_false")]
    pub closed: bool,
}

/// All queues of a cluster; parents come before their children. A queue keeps its number for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTree {
    queues: Vec<Queue>,
}

/// A queue as people write it down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueDraft {
    pub name: String,
    pub parent: Option<String>,
    #[serde(default)]
    pub guarantee: f64,
    pub limit: Option<f64>,
    #[serde(default = "one")]
    pub weight: f64,
    #[serde(default = "yes")]
    pub lends: bool,
    #[serde(default = "yes")]
    pub borrows: bool,
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !value
}

/// So many queues a cluster has had at most, closed ones included.
const MOST_QUEUES: usize = 10_000;

impl QueueId {
    pub const ROOT: QueueId = QueueId(0);
}

impl QueueDraft {
    pub fn named(name: &str) -> QueueDraft {
        let name = name.into();
        QueueDraft { name, parent: None, guarantee: 0.0, limit: None, weight: 1.0, lends: true, borrows: true }
    }
}

impl Queue {
    fn close(&mut self) {
        (self.guarantee, self.limit) = (Gpus::ZERO, None);
        (self.lends, self.borrows, self.closed) = (true, true, true);
    }
}

impl QueueTree {
    /// The root alone: everyone in one queue.
    pub fn single() -> QueueTree {
        let root = Queue {
            name: "root".into(),
            parent: None,
            guarantee: Gpus::ZERO,
            limit: None,
            weight: Weight::ONE,
            lends: true,
            borrows: true,
            closed: false,
        };
        QueueTree { queues: vec![root] }
    }

    /// The tree of the drafts below a root. A parent must stand before its children; guarantees of siblings must not
    /// promise more than their parent has, nor those at the top more than `capacity`.
    pub fn build(drafts: &[QueueDraft], capacity: Gpus) -> Result<QueueTree, Invalid> {
        let mut tree = QueueTree::single();
        for (index, draft) in drafts.iter().enumerate() {
            let within = |invalid: Invalid| invalid.within("queues", index);
            if draft.name.is_empty() || tree.named(&draft.name).is_some() {
                let found = format!("`{}`", draft.name);
                return Err(within(Invalid::new("queues.name", "a name of its own", found)));
            }
            let queue = tree.queue_from(draft).map_err(within)?;
            tree.queues.push(queue);
        }
        for (id, queue) in tree.iter() {
            let promised: Gpus = tree.children(id).map(|(_, child)| child.guarantee).sum();
            let has = if id == QueueId::ROOT { capacity } else { queue.guarantee };
            if promised > has {
                let expected = format!("guarantees below `{}` of at most {has} GPUs together", queue.name);
                return Err(Invalid::new("queues.guarantee", expected, promised));
            }
        }
        Ok(tree)
    }

    /// The tree that the drafts describe, with the numbers of this one. What is not among the drafts is closed: it has no
    /// guarantee and no limit any more, and its jobs go on with what is lent to it.
    pub fn revised(&self, drafts: &[QueueDraft], capacity: Gpus) -> Result<QueueTree, Invalid> {
        QueueTree::build(drafts, capacity)?;
        let mut tree = self.clone();
        tree.queues.iter_mut().skip(1).for_each(Queue::close);
        for (index, draft) in drafts.iter().enumerate() {
            let within = |invalid: Invalid| invalid.within("queues", index);
            let queue = tree.queue_from(draft).map_err(within)?;
            match tree.named(&draft.name) {
                // Parents come before their children.
                Some(id) if queue.parent > Some(id) => {
                    let expected =
                        format!("a queue that was made before `{}`, or another name for this one", draft.name);
                    let found = draft.parent.as_deref().unwrap_or_default();
                    return Err(within(Invalid::new("queues.parent", expected, found)));
                }
                Some(id) => tree.queues[usize::from(id.0)] = queue,
                None if tree.queues.len() < MOST_QUEUES => tree.queues.push(queue),
                None => {
                    let expected = format!("at most {MOST_QUEUES} queues, closed ones included");
                    return Err(within(Invalid::new("queues", expected, tree.queues.len() + 1)));
                }
            }
        }
        Ok(tree)
    }

    /// Whether every number means the same queue in the other tree.
    pub fn keeps_numbers_in(&self, other: &QueueTree) -> bool {
        let same = |(mine, theirs): (&Queue, &Queue)| mine.name == theirs.name;
        other.len() >= self.len() && self.queues.iter().zip(&other.queues).all(same)
    }

    fn queue_from(&self, draft: &QueueDraft) -> Result<Queue, Invalid> {
        let parent = match &draft.parent {
            None => QueueId::ROOT,
            Some(parent) => self
                .named(parent)
                .ok_or_else(|| Invalid::new("queues.parent", "a queue that stands before this one", parent))?,
        };
        let gpus = |field, gpus: f64| match gpus {
            gpus if (0.0..4e6).contains(&gpus) => Ok(Gpus::from_thousandths((gpus * 1000.0).round() as u32)),
            gpus => Err(Invalid::new(field, "a number of GPUs of at least 0", gpus)),
        };
        let guarantee = gpus("queues.guarantee", draft.guarantee)?;
        let limit = draft.limit.map(|limit| gpus("queues.limit", limit)).transpose()?;
        if let Some(limit) = limit.filter(|&limit| limit < guarantee) {
            return Err(Invalid::new("queues.limit", format!("at least the guarantee of {guarantee} GPUs"), limit));
        }
        let weight = Weight::from_f64(draft.weight)
            .ok_or_else(|| Invalid::new("queues.weight", "a number of at least 0.001", draft.weight))?;
        Ok(Queue {
            name: draft.name.as_str().into(),
            parent: Some(parent),
            guarantee,
            limit,
            weight,
            lends: draft.lends,
            borrows: draft.borrows,
            closed: false,
        })
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (QueueId, &Queue)> {
        self.queues.iter().enumerate().map(|(index, queue)| (QueueId(index as u16), queue))
    }

    pub fn get(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(usize::from(id.0))
    }

    pub fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[usize::from(id.0)]
    }

    pub fn named(&self, name: &str) -> Option<QueueId> {
        self.iter().find(|(_, queue)| &*queue.name == name).map(|(id, _)| id)
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Never: there is always the root.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn children(&self, parent: QueueId) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.iter().filter(move |(_, queue)| queue.parent == Some(parent))
    }

    /// The queue itself and everything above it, the root last.
    pub fn ancestry(&self, id: QueueId) -> impl Iterator<Item = QueueId> {
        std::iter::successors(Some(id), |&id| self.queue(id).parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_comes_before_its_parent_is_refused() {
        let child = QueueDraft { parent: Some("lab".into()), ..QueueDraft::named("vision") };
        let error = QueueTree::build(&[child, QueueDraft::named("lab")], Gpus::whole(8)).unwrap_err();
        assert_eq!(error.to_string(), "queues[0].parent: expected a queue that stands before this one, found lab");
    }

    #[test]
    fn guarantees_cannot_promise_more_than_there_is() {
        let half = |name: &str| QueueDraft { guarantee: 5.0, ..QueueDraft::named(name) };
        let error = QueueTree::build(&[half("a"), half("b")], Gpus::whole(8)).unwrap_err();
        let expected = "queues.guarantee: expected guarantees below `root` of at most 8 GPUs together, found 10";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_queue_keeps_its_number_whatever_is_added_and_left_out() {
        let before = QueueTree::build(&[QueueDraft::named("a"), QueueDraft::named("b")], Gpus::whole(8)).unwrap();
        let b = QueueDraft { guarantee: 2.0, ..QueueDraft::named("b") };
        let after = before.revised(&[QueueDraft::named("c"), b], Gpus::whole(8)).unwrap();
        let all: Vec<_> = after.iter().map(|(id, queue)| (id.0, &*queue.name, queue.closed)).collect();
        assert_eq!(all, [(0, "root", false), (1, "a", true), (2, "b", false), (3, "c", false)]);
        assert!(before.keeps_numbers_in(&after) && !after.keeps_numbers_in(&before));
        let again = after.revised(&[QueueDraft::named("a")], Gpus::whole(8)).unwrap();
        assert_eq!(again.named("a"), Some(QueueId(1)));
        assert!(!again.queue(QueueId(1)).closed && again.queue(QueueId(3)).closed);
    }

    #[test]
    fn what_a_closed_queue_was_guaranteed_may_be_promised_to_others() {
        let all = |name: &str| QueueDraft { guarantee: 8.0, ..QueueDraft::named(name) };
        let before = QueueTree::build(&[all("a")], Gpus::whole(8)).unwrap();
        let after = before.revised(&[all("b")], Gpus::whole(8)).unwrap();
        assert_eq!(after.queue(QueueId(1)).guarantee, Gpus::ZERO);
        assert_eq!(after.queue(QueueId(2)).guarantee, Gpus::whole(8));
    }

    #[test]
    fn a_queue_may_move_below_one_that_was_there_before_it_and_below_no_other() {
        let below = |name: &str, parent: &str| QueueDraft { parent: Some(parent.into()), ..QueueDraft::named(name) };
        let tree = QueueTree::build(&[QueueDraft::named("a"), QueueDraft::named("b")], Gpus::whole(8)).unwrap();
        let moved = tree.revised(&[QueueDraft::named("a"), below("b", "a")], Gpus::whole(8)).unwrap();
        assert_eq!(moved.queue(QueueId(2)).parent, Some(QueueId(1)));
        let error = tree.revised(&[QueueDraft::named("b"), below("a", "b")], Gpus::whole(8)).unwrap_err();
        let expected =
            "queues[1].parent: expected a queue that was made before `a`, or another name for this one, found b";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn ancestry_ends_at_the_root() {
        let child = QueueDraft { parent: Some("lab".into()), ..QueueDraft::named("vision") };
        let tree = QueueTree::build(&[QueueDraft::named("lab"), child], Gpus::whole(8)).unwrap();
        let names: Vec<_> = tree.ancestry(tree.named("vision").unwrap()).map(|id| &*tree.queue(id).name).collect();
        assert_eq!(names, ["vision", "lab", "root"]);
    }
}
