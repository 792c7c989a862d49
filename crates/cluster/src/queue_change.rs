//! What differs between two trees of queues, in words.

use std::fmt;

use crate::job::Name;
use crate::queue::{Queue, QueueId, QueueTree};
use crate::units::Gpus;

/// What becomes of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueChange {
    pub queue: QueueId,
    pub name: Name,
    pub kind: QueueChangeKind,
    /// What it gets, or what changes of it, in words.
    pub details: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChangeKind {
    Added,
    Changed,
    /// It takes no new jobs any more.
    Closed,
    /// It takes jobs again.
    Reopened,
}

impl QueueTree {
    /// What becomes of each queue if the other tree takes the place of this one, which keeps its numbers in it.
    pub fn changes_to(&self, other: &QueueTree) -> Vec<QueueChange> {
        let change = |(id, after): (QueueId, &Queue)| {
            let before = self.get(id);
            let kind = match before {
                None => QueueChangeKind::Added,
                Some(before) if before == after => return None,
                Some(before) if before.closed && !after.closed => QueueChangeKind::Reopened,
                Some(before) if after.closed && !before.closed => QueueChangeKind::Closed,
                Some(_) => QueueChangeKind::Changed,
            };
            let details = match (kind, before) {
                (QueueChangeKind::Changed, Some(before)) => differences(&facts(self, before), &facts(other, after)),
                (QueueChangeKind::Closed, _) => Vec::new(),
                _ => facts(other, after).into_iter().map(|(what, value)| format!("{what} {value}")).collect(),
            };
            Some(QueueChange { queue: id, name: after.name.clone(), kind, details })
        };
        other.iter().filter_map(change).collect()
    }
}

type Facts = [(&'static str, String); 6];

fn facts(tree: &QueueTree, queue: &Queue) -> Facts {
    let gpus = |gpus: Option<Gpus>| gpus.map_or("none".to_string(), |gpus| gpus.to_string());
    let answer = |yes: bool| if yes { "yes" } else { "no" }.to_string();
    [
        ("parent", queue.parent.map_or("none".to_string(), |parent| tree.queue(parent).name.to_string())),
        ("guarantee", queue.guarantee.to_string()),
        ("limit", gpus(queue.limit)),
        ("weight", queue.weight.as_f64().to_string()),
        ("lends", answer(queue.lends)),
        ("borrows", answer(queue.borrows)),
    ]
}

fn differences(before: &Facts, after: &Facts) -> Vec<String> {
    let both = before.iter().zip(after).filter(|(before, after)| before != after);
    both.map(|((what, before), (_, after))| format!("{what} from {before} to {after}")).collect()
}

impl QueueChangeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            QueueChangeKind::Added => "added",
            QueueChangeKind::Changed => "changed",
            QueueChangeKind::Closed => "closed",
            QueueChangeKind::Reopened => "reopened",
        }
    }
}

impl fmt::Display for QueueChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} {}", self.name, self.kind.as_str())?;
        if self.details.is_empty() { Ok(()) } else { write!(f, ": {}", self.details.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::QueueDraft;

    #[test]
    fn every_difference_is_named_and_nothing_else() {
        let build = |drafts: &[QueueDraft]| QueueTree::build(drafts, Gpus::whole(8)).unwrap();
        let before = build(&[QueueDraft::named("a"), QueueDraft::named("b"), QueueDraft::named("c")]);
        let b = QueueDraft { guarantee: 2.0, limit: Some(4.0), lends: false, ..QueueDraft::named("b") };
        let d = QueueDraft { parent: Some("b".into()), weight: 2.5, ..QueueDraft::named("d") };
        let after = before.revised(&[QueueDraft::named("a"), b, d], Gpus::whole(8)).unwrap();
        let told = |from: &QueueTree, to: &QueueTree| -> Vec<String> {
            from.changes_to(to).iter().map(ToString::to_string).collect()
        };
        let expected = [
            "queue b changed: guarantee from 0 to 2, limit from none to 4, lends from yes to no",
            "queue c closed",
            "queue d added: parent b, guarantee 0, limit none, weight 2.5, lends yes, borrows yes",
        ];
        assert_eq!(told(&before, &after), expected);
        assert_eq!(told(&after, &after), [] as [String; 0]);
        let again = after.revised(&[QueueDraft::named("c")], Gpus::whole(8)).unwrap();
        assert!(told(&after, &again).iter().any(|line| line.starts_with("queue c reopened: ")));
    }
}
