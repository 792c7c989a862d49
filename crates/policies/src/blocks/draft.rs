//! A plan in the making: what would be free, who would hold what, and why. Starts from everyone keeping what they have;
//! nothing is copied before something changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, Gpus, NodeId, Time};
use plan::{Allotment, Claim, Note, Obstacle, Plan, Reason, Room, Snapshot};

use crate::blocks::admit::Usage;
use crate::blocks::grant;
use crate::blocks::place::{self, Style};

#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    room: Option<Room>,
    usage: Usage<'a>,
    changes: BTreeMap<ClaimId, Option<Arc<Allotment>>>,
    notes: BTreeMap<ClaimId, Note>,
    memory: Vec<(ClaimId, Vec<i64>)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(snapshot: &Snapshot<'a>) -> Draft<'a> {
        Draft {
            snapshot: *snapshot,
            room: None,
            usage: Usage::new(snapshot),
            changes: BTreeMap::new(),
            notes: BTreeMap::new(),
            memory: Vec::new(),
        }
    }

    /// What is free as the draft stands.
    pub(crate) fn room(&self) -> &Room {
        self.room.as_ref().unwrap_or(self.snapshot.room())
    }

    fn room_mut(&mut self) -> &mut Room {
        self.room.get_or_insert_with(|| self.snapshot.room().clone())
    }

    pub(crate) fn usage(&self) -> &Usage<'a> {
        &self.usage
    }

    /// What the claim holds as the draft stands.
    pub(crate) fn holds(&self, id: ClaimId) -> Option<&Arc<Allotment>> {
        match self.changes.get(&id) {
            Some(change) => change.as_ref(),
            None => self.snapshot.claim(id).target.as_ref(),
        }
    }

    /// Those that hold something on a node as the draft stands, in order.
    pub(crate) fn on_node(&self, node: NodeId) -> Vec<ClaimId> {
        let touches = |allotment: &Arc<Allotment>| allotment.placement.nodes().any(|other| other == node);
        let stay = self.snapshot.books.claims_on(node).iter().filter(|id| !self.changes.contains_key(id));
        let come = self.changes.iter().filter(|(_, change)| change.as_ref().is_some_and(touches)).map(|(id, _)| id);
        let mut all: Vec<ClaimId> = stay.chain(come).copied().collect();
        all.sort_unstable();
        all
    }

    /// Those that the draft gives other devices than they had.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (&'a Claim, &Arc<Allotment>)> {
        self.changes.iter().filter_map(|(&id, change)| Some((self.snapshot.claim(id), change.as_ref()?)))
    }

    /// A place for so many workers that quota and room allow: where the claim was, if that was in another version of
    /// this draft, or the best place there is. If there is none, the note says why.
    pub(crate) fn find(&self, claim: &Claim, workers: u32, style: Style) -> Result<Arc<Allotment>, Note> {
        let needed = claim.spec.gpus(workers);
        self.usage.admits(claim, needed).map_err(|quota| Note::waiting(Reason::WaitingForQuota, quota))?;
        if let Some(had) = claim.target.as_ref().filter(|had| had.placement.tasks_of(0) == workers)
            && self.room().fits(self.snapshot.cluster(), &had.placement)
        {
            return Ok(had.clone());
        }
        match place::fit(self.room(), &self.snapshot, claim, workers, style) {
            Some(placement) => Ok(grant::allotment(claim, workers, placement)),
            None => Err(self.too_little(claim, needed)),
        }
    }

    /// The note for a claim that finds no place.
    pub(crate) fn too_little(&self, claim: &Claim, needed: Gpus) -> Note {
        let kinds = self.snapshot.cluster().kinds().map(|(kind, _)| kind).filter(|&kind| claim.spec.allows_kind(kind));
        let free = Gpus::whole(kinds.map(|kind| self.room().free_of(kind)).max().unwrap_or(0));
        let obstacle = match free < needed {
            true => Obstacle::Capacity { needed, free },
            false => Obstacle::Fragmentation { needed, free },
        };
        Note::waiting(Reason::WaitingForResources, obstacle)
    }

    /// From now on the claim, which holds nothing, holds this.
    pub(crate) fn give(&mut self, claim: &Claim, allotment: Arc<Allotment>) {
        assert!(self.holds(claim.id).is_none(), "job {} already has devices", claim.id);
        self.room_mut().take(&allotment.placement);
        self.usage.add(claim, allotment.placement.gpus());
        if claim.target.as_ref() == Some(&allotment) {
            self.changes.remove(&claim.id);
            self.notes.remove(&claim.id);
        } else {
            self.changes.insert(claim.id, Some(allotment));
        }
    }

    /// The same, for a claim that starts by it.
    pub(crate) fn admit(&mut self, claim: &Claim, allotment: Arc<Allotment>, reason: Reason) {
        let shape = allotment.placement.shape(self.snapshot.cluster());
        self.give(claim, allotment);
        if self.changes.contains_key(&claim.id) {
            self.note(claim.id, Note { reason, ..Note::admitted(shape) });
        }
    }

    /// From now on the claim holds nothing.
    pub(crate) fn release(&mut self, claim: &Claim) -> Arc<Allotment> {
        let allotment = self.holds(claim.id).expect("only who has devices can give them back").clone();
        self.room_mut().give(&allotment.placement);
        self.usage.remove(claim, allotment.placement.gpus());
        match claim.target {
            Some(_) => self.changes.insert(claim.id, None),
            None => self.changes.remove(&claim.id),
        };
        allotment
    }

    /// Gives back what was taken, to the last in the list first, where room and quota still allow it. Returns the others.
    pub(crate) fn keep_where_possible(&mut self, released: Vec<(&'a Claim, Arc<Allotment>)>) -> Vec<&'a Claim> {
        let mut lost = Vec::new();
        for (claim, allotment) in released.into_iter().rev() {
            let admitted = self.usage.admits(claim, allotment.placement.gpus()).is_ok();
            if admitted && self.room().fits(self.snapshot.cluster(), &allotment.placement) {
                self.give(claim, allotment);
            } else {
                lost.push(claim);
            }
        }
        lost
    }

    pub(crate) fn has_note(&self, id: ClaimId) -> bool {
        self.notes.contains_key(&id)
    }

    pub(crate) fn note(&mut self, id: ClaimId, note: Note) {
        self.notes.insert(id, note);
    }

    /// Why a claim goes on waiting. What happened to it (preempted, displaced, failed) says more than that others are
    /// before it, so the one is not replaced by the other.
    pub(crate) fn note_waiting(&mut self, id: ClaimId, note: Note) {
        let known = self.snapshot.claim(id).note.reason;
        let telling = matches!(known, Reason::Preempted | Reason::Displaced | Reason::Backoff);
        let plain = matches!(note.reason, Reason::WaitingForResources | Reason::Priority);
        if !(telling && plain) {
            self.notes.entry(id).or_insert(note);
        }
    }

    pub(crate) fn remember(&mut self, id: ClaimId, numbers: Vec<i64>) {
        self.memory.push((id, numbers));
    }

    pub(crate) fn plan(self, wake_at: Option<Time>) -> Plan {
        let news = |(id, note): &(ClaimId, Note)| self.snapshot.claim(*id).note.reason != note.reason;
        Plan {
            changes: self.changes.into_iter().collect(),
            wake_at,
            notes: self.notes.into_iter().filter(news).collect(),
            memory: self.memory,
            nodes: None,
        }
    }
}
