//! What a power cut leaves of recorded steps. At the least only synced bytes and names survive; beyond that a file system
//! may have written any of the rest, in any order. For tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use crate::tape::Step;

/// What a directory may hold after a power cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains {
    /// Which of all possibilities this is, for messages.
    pub how: String,
    nodes: Vec<Node>,
    names: Names,
}

/// By directory and name, what has this name. The first node is the directory all is in.
type Names = BTreeMap<(usize, OsString), usize>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory,
    File {
        written: Vec<u8>,
        synced: Option<Vec<u8>>,
        /// What was written in place since it was synced.
        patches: Vec<(usize, Vec<u8>)>,
    },
}

/// A change of names that is not durable yet.
#[derive(Debug, Clone)]
struct Change {
    removed: Option<(usize, OsString)>,
    added: Option<((usize, OsString), usize)>,
}

#[derive(Debug, Default)]
struct Disk {
    nodes: Vec<Node>,
    /// As processes see them.
    names: Names,
    /// As they are on the disk for certain.
    durable: Names,
    pending: Vec<Change>,
}

/// What is left of bytes that were not synced.
type Tear = fn(&[u8]) -> Vec<u8>;

/// How bytes that were not synced may look.
const CONTENTS: [(&str, Tear); 4] = [
    ("is written", |bytes| bytes.to_vec()),
    ("is empty", |_| Vec::new()),
    ("is written by half", |bytes| bytes[..bytes.len() / 2].to_vec()),
    ("is full of zeros", |bytes| vec![0; bytes.len()]),
];

/// All that may be left below `root`, which was empty before the steps, of a cut after the last of these.
pub fn remains(root: &Path, steps: &[Step]) -> Vec<Remains> {
    let mut disk = Disk { nodes: vec![Node::Directory], ..Disk::default() };
    for step in steps {
        disk.take(root, step);
    }
    let mut found = vec![disk.remains("only what was synced is left".into(), &disk.durable, None)];
    for (how, content) in CONTENTS {
        found.push(disk.remains(
            format!("all names are left, and what was not synced {how}"),
            &disk.names,
            Some(content),
        ));
    }
    for (number, change) in disk.pending.iter().enumerate() {
        let mut names = disk.durable.clone();
        change.apply(&mut names);
        let how = format!("of {} changes of names only number {number} is left", disk.pending.len());
        found.push(disk.remains(how, &names, None));
    }
    found
}

impl Remains {
    /// Makes it so in an empty directory.
    pub fn lay_out(&self, root: &Path) -> io::Result<()> {
        self.lay_out_below(0, root)
    }

    fn lay_out_below(&self, node: usize, path: &Path) -> io::Result<()> {
        for ((_, name), &child) in self.names.iter().filter(|((parent, _), _)| *parent == node) {
            let path = path.join(name);
            match &self.nodes[child] {
                Node::Directory => {
                    fs::create_dir(&path)?;
                    self.lay_out_below(child, &path)?;
                }
                Node::File { written, .. } => fs::write(&path, written)?,
            }
        }
        Ok(())
    }

    /// Replaces bytes in all files, such as what a restart of the machine changes.
    pub fn replacing(mut self, old: &str, new: &str) -> Remains {
        for node in &mut self.nodes {
            if let Node::File { written, .. } = node
                && let Ok(text) = std::str::from_utf8(written)
            {
                *written = text.replace(old, new).into_bytes();
            }
        }
        self
    }
}

impl Disk {
    fn take(&mut self, root: &Path, step: &Step) {
        match step {
            Step::MakeDir(path) => self.add(root, path, Node::Directory),
            Step::Create(path) => {
                self.add(root, path, Node::File { written: Vec::new(), synced: None, patches: Vec::new() });
            }
            Step::Write(path, bytes) => {
                if let Some(Node::File { written, .. }) = self.node_mut(root, path) {
                    written.clone_from(bytes);
                }
            }
            Step::WriteAt(path, place, bytes) => {
                if let Some(Node::File { written, patches, .. }) = self.node_mut(root, path) {
                    let place = usize::try_from(*place).unwrap_or(usize::MAX);
                    patch(written, place, bytes);
                    patches.push((place, bytes.clone()));
                }
            }
            Step::Sync(path) => {
                if let Some(Node::File { written, synced, patches }) = self.node_mut(root, path) {
                    *synced = Some(written.clone());
                    patches.clear();
                }
            }
            Step::SyncDir(path) => {
                if let Some(dir) = self.find(root, path) {
                    self.settle(dir);
                }
            }
            Step::Rename(from, to) => {
                let (Some(removed), Some(added)) = (self.place(root, from), self.place(root, to)) else { return };
                if let Some(&node) = self.names.get(&removed) {
                    self.change(Change { removed: Some(removed), added: Some((added, node)) });
                }
            }
            Step::Remove(path) => {
                if let Some(removed) = self.place(root, path) {
                    self.change(Change { removed: Some(removed), added: None });
                }
            }
        }
    }

    fn add(&mut self, root: &Path, path: &Path, node: Node) {
        if let Some(place) = self.place(root, path) {
            self.nodes.push(node);
            self.change(Change { removed: None, added: Some((place, self.nodes.len() - 1)) });
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    /// Whatever happened to names in the directory is durable; a move also at its other end.
    fn settle(&mut self, dir: usize) {
        let (settled, pending) = std::mem::take(&mut self.pending).into_iter().partition(|change| change.is_in(dir));
        self.pending = pending;
        let settled: Vec<Change> = settled;
        settled.iter().for_each(|change| change.apply(&mut self.durable));
    }

    fn node_mut(&mut self, root: &Path, path: &Path) -> Option<&mut Node> {
        let node = self.find(root, path)?;
        self.nodes.get_mut(node)
    }

    fn find(&self, root: &Path, path: &Path) -> Option<usize> {
        if path == root {
            return Some(0);
        }
        self.names.get(&self.place(root, path)?).copied()
    }

    /// The directory and the name that a path below the root means.
    fn place(&self, root: &Path, path: &Path) -> Option<(usize, OsString)> {
        let below = path.strip_prefix(root).ok()?;
        let mut dir = 0;
        for part in below.parent()? {
            dir = *self.names.get(&(dir, part.to_os_string()))?;
        }
        Some((dir, below.file_name()?.to_os_string()))
    }

    /// With nothing that was not synced, or with the latest of it torn.
    fn remains(&self, how: String, names: &Names, unsynced: Option<Tear>) -> Remains {
        let left = |node: &Node| match node {
            Node::File { written, synced, patches } if synced.as_ref() != Some(written) => {
                let written = match (synced, unsynced) {
                    // What is written in place leaves the rest of the file alone.
                    (Some(synced), tear) if !patches.is_empty() => patched(synced, patches, tear),
                    (_, Some(tear)) => tear(written),
                    (_, None) => Vec::new(),
                };
                Node::File { written, synced: None, patches: Vec::new() }
            }
            node => node.clone(),
        };
        Remains { how, nodes: self.nodes.iter().map(left).collect(), names: names.clone() }
    }
}

fn patch(bytes: &mut Vec<u8>, place: usize, with: &[u8]) {
    bytes.resize(bytes.len().max(place + with.len()), 0);
    bytes[place..place + with.len()].copy_from_slice(with);
}

fn patched(synced: &[u8], patches: &[(usize, Vec<u8>)], tear: Option<Tear>) -> Vec<u8> {
    let mut bytes = synced.to_vec();
    if let (Some(tear), Some(((place, last), earlier))) = (tear, patches.split_last()) {
        earlier.iter().for_each(|(place, with)| patch(&mut bytes, *place, with));
        patch(&mut bytes, *place, &tear(last));
    }
    bytes
}

impl Change {
    fn apply(&self, names: &mut Names) {
        // A name that came only with another change that is lost is not there to be removed.
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((place, node)) = &self.added {
            names.insert(place.clone(), *node);
        }
    }

    fn is_in(&self, dir: usize) -> bool {
        let places = self.removed.iter().chain(self.added.iter().map(|(place, _)| place));
        places.into_iter().any(|(parent, _)| *parent == dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{As, make_dir, replace, tape};

    /// What may be in the file `dir/note` after a cut after each step of writing it over an older one; `-` is no file.
    fn contents(how: As) -> Vec<Vec<String>> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("dir/note");
        let (begun, steps) = tape::record(|| {
            make_dir(&root.path().join("dir"), 0o700, true).unwrap();
            replace(&path, b"old", As::PRIVATE).unwrap();
            let begun = tape::position();
            replace(&path, b"newer!", how).unwrap();
            begun
        });
        let content = |remains: &Remains| {
            let copy = tempfile::tempdir().unwrap();
            remains.lay_out(copy.path()).unwrap();
            fs::read_to_string(copy.path().join("dir/note")).unwrap_or("-".into()).replace('\0', "0")
        };
        let after = |cut: usize| {
            let mut contents: Vec<String> = remains(root.path(), &steps[..cut]).iter().map(content).collect();
            contents.sort();
            contents.dedup();
            contents
        };
        (begun..=steps.len()).map(after).collect()
    }

    #[test]
    fn a_durable_file_is_the_old_one_or_the_new_one_after_every_cut() {
        let contents = contents(As::PRIVATE);
        let (last, before) = contents.split_last().unwrap();
        assert_eq!(last, &["newer!"], "once it returned it is the new one");
        assert_eq!(before.last().unwrap(), &["newer!", "old"]);
        assert!(before.iter().flatten().all(|content| content == "old" || content == "newer!"), "{contents:?}");
    }

    #[test]
    fn a_loose_file_may_be_torn_in_every_way() {
        let contents = contents(As::PRIVATE.loose());
        assert_eq!(contents.last().unwrap(), &["", "000000", "new", "newer!", "old"]);
    }

    #[test]
    fn what_is_written_in_place_spoils_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("slots");
        let (_, steps) = tape::record(|| {
            let file = crate::open_in_place(&path, 0o600).unwrap();
            crate::write_at(&file, &path, b"aabb", 0).unwrap();
            crate::sync(&file, &path).unwrap();
            crate::sync_dir(root.path()).unwrap();
            crate::write_at(&file, &path, b"cc", 0).unwrap();
            crate::write_at(&file, &path, b"dd", 2).unwrap();
        });
        let content = |remains: &Remains| {
            let copy = tempfile::tempdir().unwrap();
            remains.lay_out(copy.path()).unwrap();
            fs::read_to_string(copy.path().join("slots")).unwrap().replace('\0', "0")
        };
        let contents: Vec<String> = remains(root.path(), &steps).iter().map(content).collect();
        assert_eq!(contents, ["aabb", "ccdd", "ccbb", "ccdb", "cc00"]);
    }

    #[test]
    fn a_directory_whose_name_was_not_synced_is_lost_with_all_in_it() {
        let root = tempfile::tempdir().unwrap();
        let (_, steps) = tape::record(|| {
            make_dir(&root.path().join("dir"), 0o700, false).unwrap();
            replace(&root.path().join("dir/note"), b"text", As::PRIVATE).unwrap();
        });
        let copy = tempfile::tempdir().unwrap();
        remains(root.path(), &steps)[0].lay_out(copy.path()).unwrap();
        assert_eq!(fs::read_dir(copy.path()).unwrap().count(), 0);
    }
}
