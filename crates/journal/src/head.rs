//! The head: how far the journal had come, kept in a file of its own. A head that is behind is harmless; one that is
//! ahead of the journal proves that a tail was lost, which SQLite would not tell.
//!
//! Two slots of fixed size are written in turn, each with a checksum, so that one is whole whenever the machine stops.
//! They are numbered, because after a loss the newer one has the smaller `seq`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Identity;
use crate::chain::{Check, Link};
use crate::layout::{PRIVATE_FILE, directory};

/// A slot is written within one sector, so that a torn write can spoil only its own slot.
const SLOT: usize = 512;
const MAGIC: &[u8; 8] = b"moirahd2";
/// Magic, turn, seq, check, identity, mark; the checksum of these follows.
const BODY: usize = 8 + 8 + 8 + 32 + 16 + 8;
/// Before journals had an identity, a slot ended with the check.
const FIRST_MAGIC: &[u8; 8] = b"moirahd1";
const FIRST_BODY: usize = 8 + 8 + 8 + 32;

/// What a head file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// How far the journal had come.
    pub(crate) link: Link,
    /// Which journal it is about, unless it was written before journals had an identity.
    pub(crate) identity: Option<Identity>,
    /// What the owner of the journal wants to know if its tail is lost: see [`crate::Journal::set_mark`].
    pub(crate) mark: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Head {
    path: PathBuf,
    file: File,
    turn: u64,
    pub(crate) identity: Identity,
    pub(crate) mark: u64,
}

impl Head {
    /// The head file, made if absent, of the journal with this identity.
    pub(crate) fn open(path: &Path, identity: Identity) -> io::Result<Head> {
        let is_new = !path.exists();
        let file = disk::open_in_place(path, PRIVATE_FILE)?;
        if is_new {
            // A journal whose head is gone is taken for one that has lost its end.
            disk::sync_dir(directory(path))?;
        }
        let newest = newest(&file)?;
        let mark = newest.and_then(|(_, said)| said.mark).unwrap_or(0);
        Ok(Head { path: path.to_path_buf(), file, turn: newest.map_or(0, |(turn, _)| turn), identity, mark })
    }

    /// Says that the journal has come to `link`. This is not forced to the disk.
    pub(crate) fn advance(&mut self, link: Link) -> io::Result<()> {
        let turn = self.turn + 1;
        let slot = slot(turn, link, self.identity, self.mark);
        disk::write_at(&self.file, &self.path, &slot, (turn % 2) * SLOT as u64)?;
        self.turn = turn;
        Ok(())
    }

    /// Says that the journal is at `link`, whatever was said before. Durable: an older claim must not come back.
    pub(crate) fn restart(&mut self, link: Link) -> io::Result<()> {
        self.advance(link)?;
        self.advance(link)?;
        disk::sync(&self.file, &self.path)
    }
}

/// What the head file says, without touching it. `None` if it is absent or neither slot is whole.
pub(crate) fn peek(path: &Path) -> io::Result<Option<Said>> {
    match File::open(path) {
        Ok(file) => Ok(newest(&file)?.map(|(_, said)| said)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn newest(file: &File) -> io::Result<Option<(u64, Said)>> {
    let slots = [read(file, 0)?, read(file, SLOT as u64)?];
    Ok(slots.into_iter().flatten().max_by_key(|(turn, _)| *turn))
}

fn read(file: &File, place: u64) -> io::Result<Option<(u64, Said)>> {
    let mut bytes = [0; SLOT];
    match file.read_exact_at(&mut bytes, place) {
        Ok(()) => Ok(parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn slot(turn: u64, link: Link, identity: Identity, mark: u64) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&turn.to_be_bytes());
    bytes[16..24].copy_from_slice(&link.seq.to_be_bytes());
    bytes[24..56].copy_from_slice(&link.check.0);
    bytes[56..72].copy_from_slice(&identity.0);
    bytes[72..BODY].copy_from_slice(&mark.to_be_bytes());
    let sum = Sha256::digest(&bytes[..BODY]);
    bytes[BODY..BODY + 32].copy_from_slice(&sum);
    bytes
}

fn parse(bytes: &[u8; SLOT]) -> Option<(u64, Said)> {
    let number = |from: usize| bytes[from..from + 8].try_into().map(u64::from_be_bytes).ok();
    let is_whole = |body: usize| Sha256::digest(&bytes[..body])[..] == bytes[body..body + 32];
    let check = Check(bytes[24..56].try_into().ok()?);
    let link = Link { seq: number(16)?, check };
    let said = match &bytes[..8] {
        magic if magic == MAGIC && is_whole(BODY) => {
            let identity = Identity(bytes[56..72].try_into().ok()?);
            Said { link, identity: Some(identity), mark: Some(number(72)?) }
        }
        magic if magic == FIRST_MAGIC && is_whole(FIRST_BODY) => Said { link, identity: None, mark: None },
        _ => return None,
    };
    Some((number(8)?, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(seq: u64) -> Link {
        Link { seq, check: Link::START.then(seq, "x").check }
    }

    const OWN: Identity = Identity([7; 16]);

    fn link_in(path: &Path) -> Option<Link> {
        peek(path).unwrap().map(|said| said.link)
    }

    #[test]
    fn the_head_says_what_was_said_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        assert_eq!(peek(&path).unwrap(), None);
        let mut head = Head::open(&path, OWN).unwrap();
        assert_eq!(peek(&path).unwrap(), None);
        for seq in 1..=5 {
            head.advance(link(seq)).unwrap();
            assert_eq!(link_in(&path), Some(link(seq)));
        }
        head.mark = 9;
        head.advance(link(6)).unwrap();
        let said = Said { link: link(6), identity: Some(OWN), mark: Some(9) };
        assert_eq!(peek(&path).unwrap(), Some(said));
        assert_eq!(Head::open(&path, OWN).unwrap().mark, 9);
    }

    #[test]
    fn a_head_of_the_first_format_is_read_and_its_file_goes_on_in_the_present_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let mut old = slot(1, link(4), OWN, 0);
        old[..8].copy_from_slice(FIRST_MAGIC);
        let sum = Sha256::digest(&old[..FIRST_BODY]);
        old[FIRST_BODY..FIRST_BODY + 32].copy_from_slice(&sum);
        std::fs::write(&path, [[0; SLOT], old].concat()).unwrap();
        assert_eq!(peek(&path).unwrap(), Some(Said { link: link(4), identity: None, mark: None }));
        Head::open(&path, OWN).unwrap().advance(link(5)).unwrap();
        assert_eq!(peek(&path).unwrap(), Some(Said { link: link(5), identity: Some(OWN), mark: Some(0) }));
    }

    #[test]
    fn a_torn_slot_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let mut head = Head::open(&path, OWN).unwrap();
        head.advance(link(1)).unwrap();
        head.advance(link(2)).unwrap();
        for byte in 0..BODY as u64 + 32 {
            let mut one = [0];
            head.file.read_exact_at(&mut one, byte).unwrap();
            head.file.write_all_at(&[one[0] ^ 4], byte).unwrap();
            assert_eq!(link_in(&path), Some(link(1)), "byte {byte} of the newer slot flipped");
            head.file.write_all_at(&one, byte).unwrap();
        }
    }

    #[test]
    fn after_a_restart_neither_slot_remembers_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("head");
        let mut head = Head::open(&path, OWN).unwrap();
        head.advance(link(9)).unwrap();
        head.advance(link(10)).unwrap();
        head.restart(link(4)).unwrap();
        for spoiled in [0, SLOT as u64] {
            let mut one = [0];
            head.file.read_exact_at(&mut one, spoiled).unwrap();
            head.file.write_all_at(&[!one[0]], spoiled).unwrap();
            assert_eq!(link_in(&path), Some(link(4)));
            head.file.write_all_at(&one, spoiled).unwrap();
        }
    }
}
