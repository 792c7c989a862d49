//! The head: how far the journal had come, kept in a file of its own. A head that is behind is harmless; one that is
//! ahead of the journal proves that a tail was lost, which SQLite would not tell.
//!
//! Two slots of fixed size are written in turn, each with a checksum, so that one is whole whenever the machine stops.
//! They are numbered, because after a loss the newer one has the smaller `seq`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::chain::{Check, Link};
use crate::layout::PRIVATE_FILE;

/// A slot is written within one sector, so that a torn write can spoil only its own slot.
const SLOT: usize = 512;
const MAGIC: &[u8; 8] = b"moirahd1";
/// Magic, turn, seq, check; the checksum of these follows.
const BODY: usize = 8 + 8 + 8 + 32;

#[derive(Debug)]
pub(crate) struct Head {
    file: File,
    turn: u64,
}

impl Head {
    /// The head file, made if absent, and what it says. Nothing is known if neither slot is whole.
    pub(crate) fn open(path: &Path) -> io::Result<(Head, Option<Link>)> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path)?;
        let newest = newest(&file)?;
        let head = Head { file, turn: newest.map_or(0, |(turn, _)| turn) };
        Ok((head, newest.map(|(_, link)| link)))
    }

    /// Says that the journal has come to `link`. This is not forced to the disk.
    pub(crate) fn advance(&mut self, link: Link) -> io::Result<()> {
        let turn = self.turn + 1;
        self.file.write_all_at(&slot(turn, link), (turn % 2) * SLOT as u64)?;
        self.turn = turn;
        Ok(())
    }

    /// Says that the journal is at `link`, whatever was said before. Durable: an older claim must not come back.
    pub(crate) fn restart(&mut self, link: Link) -> io::Result<()> {
        self.advance(link)?;
        self.advance(link)?;
        self.file.sync_all()
    }
}

/// What the head file says, without touching it. `None` if it is absent or unreadable.
pub(crate) fn peek(path: &Path) -> io::Result<Option<Link>> {
    match File::open(path) {
        Ok(file) => Ok(newest(&file)?.map(|(_, link)| link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn newest(file: &File) -> io::Result<Option<(u64, Link)>> {
    let slots = [read(file, 0)?, read(file, SLOT as u64)?];
    Ok(slots.into_iter().flatten().max_by_key(|(turn, _)| *turn))
}

fn read(file: &File, place: u64) -> io::Result<Option<(u64, Link)>> {
    let mut bytes = [0; SLOT];
    match file.read_exact_at(&mut bytes, place) {
        Ok(()) => Ok(parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn slot(turn: u64, link: Link) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&turn.to_be_bytes());
    bytes[16..24].copy_from_slice(&link.seq.to_be_bytes());
    bytes[24..BODY].copy_from_slice(&link.check.0);
    let sum = Sha256::digest(&bytes[..BODY]);
    bytes[BODY..BODY + 32].copy_from_slice(&sum);
    bytes
}

fn parse(bytes: &[u8; SLOT]) -> Option<(u64, Link)> {
    let number = |from: usize| bytes[from..from + 8].try_into().map(u64::from_be_bytes).ok();
    let whole = bytes.starts_with(MAGIC) && Sha256::digest(&bytes[..BODY])[..] == bytes[BODY..BODY + 32];
    if !whole {
        return None;
    }
    let check = Check(bytes[24..BODY].try_into().ok()?);
    Some((number(8)?, Link { seq: number(16)?, check }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(seq: u64) -> Link {
        Link { seq, check: Link::START.then(seq, "x").check }
    }

    #[test]
    fn the_head_says_what_was_said_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let (mut head, said) = Head::open(&path).unwrap();
        assert_eq!(said, None);
        for seq in 1..=5 {
            head.advance(link(seq)).unwrap();
            assert_eq!(peek(&path).unwrap(), Some(link(seq)));
        }
        assert_eq!(Head::open(&path).unwrap().1, Some(link(5)));
    }

    #[test]
    fn a_torn_slot_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let (mut head, _) = Head::open(&path).unwrap();
        head.advance(link(1)).unwrap();
        head.advance(link(2)).unwrap();
        for byte in 0..BODY as u64 + 32 {
            let mut one = [0];
            head.file.read_exact_at(&mut one, byte).unwrap();
            head.file.write_all_at(&[one[0] ^ 4], byte).unwrap();
            assert_eq!(peek(&path).unwrap(), Some(link(1)), "byte {byte} of the newer slot flipped");
            head.file.write_all_at(&one, byte).unwrap();
        }
    }

    #[test]
    fn after_a_restart_neither_slot_remembers_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let (mut head, _) = Head::open(&path).unwrap();
        head.advance(link(9)).unwrap();
        head.advance(link(10)).unwrap();
        head.restart(link(4)).unwrap();
        for spoiled in [0, SLOT as u64] {
            let mut one = [0];
            head.file.read_exact_at(&mut one, spoiled).unwrap();
            head.file.write_all_at(&[!one[0]], spoiled).unwrap();
            assert_eq!(peek(&path).unwrap(), Some(link(4)));
            head.file.write_all_at(&one, spoiled).unwrap();
        }
    }
}
