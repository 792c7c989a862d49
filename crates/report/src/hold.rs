//! What a run has at a moment: what it holds, and what it takes beyond that while its workers change in place.

use std::sync::Arc;

use cluster::{Gpus, Placement};
use plan::{Allotment, beyond};

#[derive(Debug, Clone)]
pub(crate) struct Hold {
    holds: Arc<Allotment>,
    /// What it is to hold when its workers have changed.
    to: Option<Arc<Allotment>>,
}

impl Hold {
    pub(crate) fn new(holds: &Arc<Allotment>) -> Hold {
        Hold { holds: holds.clone(), to: None }
    }

    pub(crate) fn gpus(&self) -> Gpus {
        self.placements().map(|placement| placement.gpus()).sum()
    }

    /// All it has.
    pub(crate) fn placements(&self) -> impl Iterator<Item = Placement> {
        std::iter::once(self.holds.placement.clone()).chain(self.extra())
    }

    /// Its workers begin to change. Returns what it has from now on beyond what it held.
    pub(crate) fn resize(&mut self, to: &Arc<Allotment>) -> Placement {
        self.to = Some(to.clone());
        self.extra().expect("the change has begun")
    }

    /// Its workers have changed. Returns what it no longer has.
    pub(crate) fn resized(&mut self) -> Placement {
        let to = self.to.take().expect("a change that is done has begun");
        let held = std::mem::replace(&mut self.holds, to);
        beyond(&held.placement, &self.holds.placement)
    }

    /// Its workers have not changed. Returns what it no longer has.
    pub(crate) fn not_resized(&mut self) -> Placement {
        let extra = self.extra().expect("a change that failed has begun");
        self.to = None;
        extra
    }

    fn extra(&self) -> Option<Placement> {
        self.to.as_ref().map(|to| beyond(&to.placement, &self.holds.placement))
    }
}
