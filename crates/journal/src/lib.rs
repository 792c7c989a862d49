//! The embedded store of facts: one SQLite file that only grows, durable, each entry chained to the one before. It does
//! not know what the facts mean: an entry is a number, a time and a text.
//!
//! SQLite opens a shortened log without a word, and now and then a shortened file with wrong contents. So every entry
//! carries a checksum of itself and of all before it (`chain`), and a small file beside the journal says how far it
//! had come (`head`). What is opened is what was written, or it is said what is not.
//!
//! Files, for a journal at `DIR/journal.db`:
//!
//! | file | what it is |
//! |---|---|
//! | `journal.db`, `-wal`, `-shm` | the entries that no snapshot stands for yet, and SQLite's log of them |
//! | `journal.db.head` | how far the journal had come, written after every append |
//! | `journal.db.lock` | held by the process that writes, which is named in it |
//! | `archive/FIRST-LAST.jsonl.gz` | the entries that the snapshot stands for, until they are let go |

mod archive;
mod chain;
mod compaction;
mod error;
mod examine;
mod export;
mod head;
mod identity;
mod inspect;
mod layout;
mod lock;
mod queries;
mod reader;
mod retention;
mod salvage;
mod store;
mod verify;

pub use archive::{has_archives, read_stray_archives};
pub use compaction::{Compaction, Preparation};
pub use error::JournalError;
pub use export::{Exported, export, snapshot};
pub use identity::{Identity, NotAnIdentity};
pub use layout::is_journal;
pub use lock::is_in_use;
pub use reader::Reader;
pub use retention::{StoredArchive, release_archives, stored_archives};
pub use salvage::{Salvaged, backup, salvage};
pub use store::{Inspected, Journal};
pub use verify::{ArchiveState, ArchiveVerified, Verified, verify};

/// One fact as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Counted from 1 without gaps.
    pub seq: u64,
    /// Milliseconds, by the clock of whoever appended it.
    pub at: u64,
    pub text: String,
}

/// What stands for all entries up to and including `upto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub upto: u64,
    pub text: String,
}

/// Entries that were acknowledged once and are no longer there, first and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub from: u64,
    pub to: u64,
}

/// What was found when a journal was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The number of the last entry, 0 if there is none.
    pub last: u64,
    /// The tail that is missing, said once; [`verify`](verify()) goes on telling it. Only a journal that was opened
    /// despite its loss has one.
    pub lost: Option<Lost>,
    /// What the owner had marked when the head was last written, none if there was no such head.
    pub mark: Option<u64>,
    /// Whether there was no journal before.
    pub created: bool,
    /// The head file was absent or unreadable, so a missing tail could not have been noticed.
    pub head_missing: bool,
}
