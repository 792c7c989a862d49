//! Who comes first. Claims are filed by rank and looked up, never sorted: what a decision costs depends on what changed
//! and on how many different things are asked for, not on how many wait.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::iter::Peekable;

use cluster::{ClaimId, Grain, Span, Time};
use plan::{Changed, Claim, ClassId, Note, Snapshot, Table, Turns};

use crate::blocks::draft::Draft;

/// A rule that ranks claims. The rank must follow from the snapshot alone, so that a policy that was restarted ranks
/// like one that was not.
pub(crate) trait Order {
    type Key: Copy + Ord + Debug;

    fn rank(&self, snapshot: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<Self::Key>;

    /// Whether a claim that runs must not be stopped yet, however it ranks. To be used by policies that compare in
    /// rounds: they ask again by themselves.
    fn spares(&self, _snapshot: &Snapshot<'_>, _claim: &Claim) -> bool {
        false
    }
}

/// Whether a claim has run for less time since its last launch than a restart takes it. Where rounds are shorter than
/// restarts, jobs that take turns would else never come to their first step.
pub(crate) fn is_settling(snapshot: &Snapshot<'_>, claim: &Claim) -> bool {
    let restart = claim.learned.restart().unwrap_or(claim.spec.recovery.restart_cost);
    claim.progress.last_launch.is_some_and(|launch| snapshot.now < launch + restart + restart)
}

/// Whether a claim is ranked as one that has devices or as one that wants some. Who runs goes first among equals:
/// nobody is moved for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    Running,
    Waiting,
}

/// Where a claim stands (least first; ties go by id), and how long that is known to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank<K> {
    pub(crate) key: K,
    /// When it changes though nothing happens to the claim.
    pub(crate) changes_at: Option<Time>,
    /// It may change from one decision to the next, and is looked at in every one.
    pub(crate) moves: bool,
}

/// All claims that may hold devices, in line.
#[derive(Debug)]
pub(crate) struct Line<K> {
    waiting: BTreeMap<ClassId, BTreeSet<(K, ClaimId)>>,
    /// The first of every class.
    heads: BTreeSet<(K, ClaimId)>,
    running: BTreeSet<(K, ClaimId)>,
    entries: Table<Entry<K>>,
    due: BTreeSet<(Time, ClaimId)>,
    moving: BTreeSet<ClaimId>,
    /// How many waiting claims could do with something other than whole free GPUs.
    modest: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    rank: Rank<K>,
    standing: Standing,
    class: ClassId,
    modest: bool,
}

/// A walk along the line from the front. Classes that are ruled out are not met again.
#[derive(Debug)]
pub(crate) struct Walk<'l, K> {
    line: &'l Line<K>,
    heads: Peekable<std::collections::btree_set::Iter<'l, (K, ClaimId)>>,
    later: BTreeSet<(K, ClaimId)>,
    ruled_out: BTreeMap<ClassId, Note>,
    met: Option<(ClassId, K, ClaimId)>,
    modest: bool,
    intricate: bool,
}

impl<K> Rank<K> {
    /// A rank that holds until something happens to the claim.
    pub(crate) fn fixed(key: K) -> Rank<K> {
        Rank { key, changes_at: None, moves: false }
    }

    pub(crate) fn moving_if(moves: bool, key: K) -> Rank<K> {
        Rank { key, changes_at: None, moves }
    }
}

impl<K: Copy + Ord + Debug> Line<K> {
    pub(crate) fn new() -> Line<K> {
        Line {
            waiting: BTreeMap::new(),
            heads: BTreeSet::new(),
            running: BTreeSet::new(),
            entries: Table::default(),
            due: BTreeSet::new(),
            moving: BTreeSet::new(),
            modest: 0,
        }
    }

    /// Files everyone whose rank may have changed since the last decision. Returns those it looked at.
    pub(crate) fn update<O: Order<Key = K>>(&mut self, snapshot: &Snapshot<'_>, order: &O) -> Vec<ClaimId> {
        if let Changed::Everything = snapshot.changed {
            *self = Line::new();
        }
        let mut looked_at: Vec<ClaimId> = snapshot.changed_claims().map(|claim| claim.id).collect();
        looked_at.extend(&self.moving);
        let now = (snapshot.now, ClaimId(u32::MAX));
        looked_at.extend(self.due.range(..=now).map(|(_, id)| id));
        looked_at.sort_unstable();
        looked_at.dedup();
        for &id in &looked_at {
            self.file(snapshot, snapshot.claim(id), order);
        }
        looked_at
    }

    /// Files everyone anew.
    pub(crate) fn rebuild<O: Order<Key = K>>(&mut self, snapshot: &Snapshot<'_>, order: &O) -> Vec<ClaimId> {
        self.update(&Snapshot { changed: Changed::Everything, ..*snapshot }, order)
    }

    fn file<O: Order<Key = K>>(&mut self, snapshot: &Snapshot<'_>, claim: &Claim, order: &O) {
        let standing = match claim {
            claim if claim.target.is_some() => Some(Standing::Running),
            claim if claim.is_waiting() => Some(Standing::Waiting),
            _ => None,
        };
        let new = standing.map(|standing| {
            let rank = order.rank(snapshot, claim, standing);
            Entry { rank, standing, class: claim.class, modest: is_modest(claim) }
        });
        let old = match new {
            Some(new) => self.entries.insert(claim.id, new),
            None => self.entries.remove(claim.id),
        };
        let same = |old: Entry<K>, new: Entry<K>| old.rank == new.rank && old.standing == new.standing;
        if old.zip(new).is_some_and(|(old, new)| same(old, new)) {
            return;
        }
        if let Some(old) = old {
            self.remove(claim.id, old);
        }
        if let Some(new) = new {
            self.insert(claim.id, new);
        }
    }

    fn insert(&mut self, id: ClaimId, entry: Entry<K>) {
        let key = (entry.rank.key, id);
        match entry.standing {
            Standing::Running => {
                self.running.insert(key);
            }
            Standing::Waiting => {
                self.modest += usize::from(entry.modest);
                self.change_class(entry.class, |members| members.insert(key));
            }
        }
        if let Some(time) = entry.rank.changes_at {
            self.due.insert((time, id));
        }
        if entry.rank.moves {
            self.moving.insert(id);
        }
    }

    fn remove(&mut self, id: ClaimId, entry: Entry<K>) {
        let key = (entry.rank.key, id);
        match entry.standing {
            Standing::Running => {
                self.running.remove(&key);
            }
            Standing::Waiting => {
                self.modest -= usize::from(entry.modest);
                self.change_class(entry.class, |members| members.remove(&key));
            }
        }
        if let Some(time) = entry.rank.changes_at {
            self.due.remove(&(time, id));
        }
        self.moving.remove(&id);
    }

    /// Changes who waits of a class and keeps the list of heads in step.
    fn change_class(&mut self, class: ClassId, change: impl FnOnce(&mut BTreeSet<(K, ClaimId)>) -> bool) {
        let members = self.waiting.entry(class).or_default();
        let before = members.first().copied();
        change(members);
        let after = members.first().copied();
        if after.is_none() {
            self.waiting.remove(&class);
        }
        if before != after {
            before.map(|head| self.heads.remove(&head));
            after.map(|head| self.heads.insert(head));
        }
    }

    /// Claims that wait, the best first.
    pub(crate) fn turns(&self, strict: bool) -> Turns {
        let mut waiting: Vec<(K, ClaimId)> = self.waiting.values().flatten().copied().collect();
        waiting.sort_unstable();
        Turns { order: waiting.into_iter().map(|(_, id)| id).collect(), strict }
    }

    /// Claims with devices, the worst first.
    pub(crate) fn running_from_worst(&self) -> impl Iterator<Item = (K, ClaimId)> {
        self.running.iter().rev().copied()
    }

    pub(crate) fn running_from_best(&self) -> impl Iterator<Item = (K, ClaimId)> {
        self.running.iter().copied()
    }

    pub(crate) fn worst_running(&self) -> Option<(K, ClaimId)> {
        self.running.last().copied()
    }

    /// When a rank next changes by itself.
    pub(crate) fn next_change(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    fn class(&self, id: ClaimId) -> ClassId {
        self.entries.get(id).expect("whoever is met on a walk is in line").class
    }

    fn after(&self, class: ClassId, key: K, id: ClaimId) -> Option<(K, ClaimId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.waiting.get(&class)?.range((Excluded((key, id)), Unbounded)).next().copied()
    }
}

impl<'l, K: Copy + Ord + Debug> Walk<'l, K> {
    pub(crate) fn new(line: &'l Line<K>) -> Walk<'l, K> {
        let heads = line.heads.iter().peekable();
        Walk {
            line,
            heads,
            later: BTreeSet::new(),
            ruled_out: BTreeMap::new(),
            met: None,
            modest: line.modest > 0,
            intricate: false,
        }
    }

    /// The next who waits, in order of rank.
    pub(crate) fn next(&mut self) -> Option<(K, ClaimId)> {
        if let Some((class, key, id)) = self.met.take()
            && !self.ruled_out.contains_key(&class)
        {
            self.later.extend(self.line.after(class, key, id));
        }
        loop {
            let head = self.heads.peek().map(|head| **head);
            let (key, id) = match (head, self.later.first().copied()) {
                (Some(head), Some(later)) if later < head => self.later.pop_first()?,
                (Some(_), _) => self.heads.next().copied()?,
                (None, _) => self.later.pop_first()?,
            };
            let class = self.line.class(id);
            if self.ruled_out.contains_key(&class) {
                continue;
            }
            let waits = self.line.entries.get(id).is_some_and(|entry| entry.standing == Standing::Waiting);
            self.met = waits.then_some((class, key, id));
            return Some((key, id));
        }
    }

    /// Someone who ran and was made to wait is met again at the new rank.
    pub(crate) fn join(&mut self, key: K, id: ClaimId) {
        self.later.insert((key, id));
        self.modest |= self.line.entries.get(id).is_some_and(|entry| entry.modest);
    }

    /// Whether someone waits who could do with something other than whole free GPUs: cores alone, or a part of a GPU.
    pub(crate) fn has_modest(&self) -> bool {
        self.modest
    }

    /// Neither this claim nor those like it behind it can be helped; `note` says why.
    pub(crate) fn rule_out(&mut self, draft: &mut Draft<'_>, id: ClaimId, note: Note) {
        self.ruled_out.insert(self.line.class(id), note);
        self.intricate |= draft.snapshot.claim(id).spec.roles.len() > 1;
        draft.note_waiting(id, note);
    }

    /// Whether someone was ruled out whose several roles make it hard to find a place.
    pub(crate) fn is_intricate(&self) -> bool {
        self.intricate
    }

    /// Whether everyone met so far was helped.
    pub(crate) fn nobody_ruled_out(&self) -> bool {
        self.ruled_out.is_empty()
    }

    /// Tells those who are new in line and were not met why they wait: as the first of their class, or for `otherwise`.
    pub(crate) fn explain_rest(&self, draft: &mut Draft<'_>, otherwise: impl Fn(&Draft<'_>, &Claim) -> Note) {
        for claim in draft.snapshot.changed_claims() {
            if !claim.is_waiting() || draft.holds(claim.id).is_some() || draft.has_note(claim.id) {
                continue;
            }
            let as_class = self.ruled_out.get(&self.line.class(claim.id)).copied();
            let note = as_class.unwrap_or_else(|| otherwise(draft, claim));
            draft.note_waiting(claim.id, note);
        }
    }
}

/// Whether the claim could be placed though no GPU is wholly free.
fn is_modest(claim: &Claim) -> bool {
    let takes_whole = |grain| grain == Grain::Whole;
    !claim.spec.roles.iter().any(|role| role.slice.is_some_and(|slice| takes_whole(slice.grain)))
}

/// The first multiple of a round after now.
pub(crate) fn next_round(now: Time, round: Span) -> Time {
    (now + Span::from_millis(1)).round_up(round)
}

/// A quantity divided by the claim's weight, to the nearest whole number below.
pub(crate) fn per_weight(quantity: u64, claim: &Claim) -> u64 {
    let weighed = u128::from(quantity) * 1000 / u128::from(claim.spec.weight.as_thousandths());
    u64::try_from(weighed).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    struct ByArrival;

    impl Order for ByArrival {
        type Key = Time;

        fn rank(&self, _: &Snapshot<'_>, claim: &Claim, _: Standing) -> Rank<Time> {
            Rank::fixed(claim.submitted)
        }
    }

    fn walk_names(scenario: &Scenario, ruled_out: &[&str]) -> Vec<u32> {
        let snapshot = scenario.snapshot(None);
        let mut line = Line::new();
        line.update(&snapshot, &ByArrival);
        let mut draft = Draft::new(&snapshot);
        let mut walk = Walk::new(&line);
        let mut met = Vec::new();
        while let Some((_, id)) = walk.next() {
            met.push(id.0);
            if ruled_out.iter().any(|name| scenario.id(name) == id) {
                walk.rule_out(&mut draft, id, Note::pending());
            }
        }
        met
    }

    fn mixed() -> Scenario {
        Scenario::new("1x4")
            .job("a 1 gpu submitted 10s")
            .job("b 2 gpus submitted 20s")
            .job("c 1 gpu submitted 30s")
            .job("d 2 gpus submitted 5s")
            .job("e 1 gpu submitted 15s")
    }

    #[test]
    fn a_walk_meets_everyone_in_order_of_rank() {
        assert_eq!(walk_names(&mixed(), &[]), [3, 0, 4, 1, 2]);
    }

    #[test]
    fn those_like_one_who_was_ruled_out_are_not_met() {
        assert_eq!(walk_names(&mixed(), &["a"]), [3, 0, 1]);
    }

    #[test]
    fn jobs_that_run_on_different_kinds_are_not_alike() {
        let scenario = Scenario::new("1x1 t4, 1x1 a100").job("a speed t4=1").job("b speed a100=1").job("c speed t4=2");
        assert_eq!(walk_names(&scenario, &["a"]), [0, 1]);
    }
}
