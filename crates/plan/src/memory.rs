//! What a policy must not forget. Handed over with a plan, journaled when it changes, shown in every snapshot.

use std::collections::BTreeMap;

use cluster::ClaimId;
use serde::{Deserialize, Serialize};

/// Whole numbers about each claim, so that a replay agrees to the last bit. Forgotten when the claim ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    claims: BTreeMap<ClaimId, Vec<i64>>,
}

impl Memory {
    pub fn of(&self, claim: ClaimId) -> Option<&[i64]> {
        self.claims.get(&claim).map(Vec::as_slice)
    }

    /// Replaces what is known about a claim; an empty list forgets it.
    pub fn remember(&mut self, claim: ClaimId, numbers: Vec<i64>) {
        if numbers.is_empty() {
            self.claims.remove(&claim);
        } else {
            self.claims.insert(claim, numbers);
        }
    }

    pub fn forget(&mut self, claim: ClaimId) {
        self.claims.remove(&claim);
    }
}
