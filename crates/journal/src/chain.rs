//! The chain: the checksum of an entry covers the entry and the checksum before it, so that one value vouches for a
//! whole history.

use std::fmt;

use sha2::{Digest, Sha256};

/// Vouches for an entry and for all before it: SHA-256(check before ‖ seq ‖ at ‖ text), numbers in big-endian order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Check(pub(crate) [u8; 32]);

/// A place in the chain: how far, and what vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) seq: u64,
    pub(crate) check: Check,
}

impl Link {
    /// Before the first entry of any journal.
    pub(crate) const START: Link = Link { seq: 0, check: Check([0; 32]) };

    /// The place after the next entry, if it is this one.
    #[must_use]
    pub(crate) fn then(self, at: u64, text: &str) -> Link {
        let seq = self.seq + 1;
        let digest = Sha256::new()
            .chain_update(self.check.0)
            .chain_update(seq.to_be_bytes())
            .chain_update(at.to_be_bytes())
            .chain_update(text.as_bytes());
        Link { seq, check: Check(digest.finalize().into()) }
    }

    /// What vouches for a snapshot that stands for everything up to here. The leading word keeps it apart from entries.
    pub(crate) fn seal(self, snapshot: &str) -> Check {
        let digest = Sha256::new()
            .chain_update(b"snapshot")
            .chain_update(self.check.0)
            .chain_update(self.seq.to_be_bytes())
            .chain_update(snapshot.as_bytes());
        Check(digest.finalize().into())
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Eight digits tell two checks apart for a reader.
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_depends_on_everything_before_it() {
        let one = Link::START.then(10, "a").then(20, "b");
        assert_eq!(one, Link::START.then(10, "a").then(20, "b"));
        assert_ne!(one, Link::START.then(11, "a").then(20, "b"));
        assert_ne!(one, Link::START.then(10, "A").then(20, "b"));
        assert_ne!(one, Link::START.then(10, "a").then(20, "b "));
        assert_ne!(one.check, Link::START.then(20, "b").check);
    }

    #[test]
    fn the_first_check_is_the_one_the_definition_gives() {
        // Python: hashlib.sha256(bytes(32) + (1).to_bytes(8) + (0).to_bytes(8)).hexdigest()[:8]
        assert_eq!(format!("{:?}", Link::START.then(0, "").check), "e8d9d279");
    }
}
