//! What each claim is given, and what that uses.

use super::reduce::{NOBODY, NOTHING, Reduced};

#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// By claim an index into `Reduced::items`, or [`NOTHING`].
    pub items: Vec<u32>,
    /// Units by kind.
    pub used: Vec<i64>,
    /// Units by tenant.
    pub held: Vec<i64>,
    pub worth: i64,
}

impl Selection {
    pub(super) fn nothing(reduced: &Reduced) -> Self {
        Self {
            items: vec![NOTHING; reduced.claims.len()],
            used: vec![0; reduced.capacities.len()],
            held: vec![0; reduced.quotas.len()],
            worth: 0,
        }
    }

    pub(super) fn give(&mut self, reduced: &Reduced, claim: usize, item: u32) {
        let tenant = reduced.claims[claim].tenant;
        let mut count = |item: u32, sign: i64| {
            let Some(item) = reduced.item(item) else { return };
            let units = sign * i64::from(item.units);
            self.used[item.kind as usize] += units;
            self.worth += sign * item.worth;
            if tenant != NOBODY {
                self.held[tenant as usize] += units;
            }
        };
        count(self.items[claim], -1);
        count(item, 1);
        self.items[claim] = item;
    }

    /// Whether the claim could have this item instead of what it has, everything else unchanged.
    pub(super) fn fits(&self, reduced: &Reduced, claim: usize, item: u32) -> bool {
        let Some(new) = reduced.item(item) else { return true };
        let old = reduced.item(self.items[claim]);
        let old_units = old.map_or(0, |old| i64::from(old.units));
        let given_up = old.filter(|old| old.kind == new.kind).map_or(0, |old| i64::from(old.units));
        let kind = new.kind as usize;
        let within_kind = self.used[kind] - given_up + i64::from(new.units) <= i64::from(reduced.capacities[kind]);
        let tenant = reduced.claims[claim].tenant as usize;
        within_kind
            && (tenant == NOBODY as usize
                || self.held[tenant] - old_units + i64::from(new.units) <= i64::from(reduced.quotas[tenant]))
    }

    pub(super) fn kind_slack(&self, reduced: &Reduced, kind: usize) -> i64 {
        i64::from(reduced.capacities[kind]) - self.used[kind]
    }

    pub(super) fn quota_slack(&self, reduced: &Reduced, tenant: usize) -> i64 {
        i64::from(reduced.quotas[tenant]) - self.held[tenant]
    }

    pub(super) fn is_feasible(&self, reduced: &Reduced) -> bool {
        (0..self.used.len()).all(|kind| self.kind_slack(reduced, kind) >= 0)
            && (0..self.held.len()).all(|tenant| self.quota_slack(reduced, tenant) >= 0)
    }
}
