//! Who is connected, and how much each peer may have open at once. It counts and chooses; it reads and writes no socket.
//!
//! A connection that waits for its client (between requests, within a head, within a body) costs the client nothing to
//! keep open and nothing to lose. So where a peer has too many, its oldest such connection gives way to its newest, and
//! a crowd of slow connections never keeps the same peer's ordinary requests out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{Duration, Problem, Quantity};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// How long clients may take, and how many of them there may be: the table `[http]` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// From the first byte of a request, or from the connection, to the end of its headers.
    pub head_timeout: Duration,
    /// A body may pause for so long; all of it may take ten times as long.
    pub body_timeout: Duration,
    /// How long a connection is kept open between requests.
    pub idle_timeout: Duration,
    /// A client may take nothing of its answer for so long. What is merely quiet is not late.
    pub write_timeout: Duration,
    /// At most so many connections in all; fewer where the process may open few files.
    pub connections: usize,
    /// Of those, so many are for root and the service's own user alone.
    pub reserved: usize,
    /// At most so many connections of one user, those of all their tokens and runs together.
    pub connections_per_peer: usize,
    /// At most so many requests of one peer at once, among them those that wait or stream: of a user on the socket, or of
    /// one token over TCP.
    pub requests_per_peer: usize,
    /// At most so many connections over TCP of which it is not known yet whose they are, all together.
    pub unauthenticated: usize,
    /// At most so much of the bodies of one user's requests is in memory; those who are not known yet are one user.
    pub bodies_per_peer: Quantity,
    /// At most so much of all bodies together.
    pub bodies: Quantity,
}

/// So much of each body is not counted: what is usual is never refused because of what others send.
pub(crate) const SMALL_BODY: usize = 16 << 10;

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            connections: 4096,
            reserved: 64,
            connections_per_peer: 1024,
            requests_per_peer: 512,
            unauthenticated: 64,
            bodies_per_peer: Quantity::new(32 << 20),
            bodies: Quantity::new(256 << 20),
        }
    }
}

impl HttpConfig {
    /// What is wrong with it, by the name of the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        let timeouts = [
            ("head_timeout", self.head_timeout),
            ("body_timeout", self.body_timeout),
            ("idle_timeout", self.idle_timeout),
            ("write_timeout", self.write_timeout),
        ];
        if let Some((name, _)) = timeouts.iter().find(|(_, length)| length.span().is_zero()) {
            return Err(format!("http.{name}: expected a length of time above zero, like \"10s\""));
        }
        let counts = [
            ("connections_per_peer", self.connections_per_peer),
            ("requests_per_peer", self.requests_per_peer),
            ("unauthenticated", self.unauthenticated),
            ("reserved", self.reserved),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("http.{name}: expected at least 1, found 0"));
        }
        if self.connections <= self.reserved {
            let (all, reserved) = (self.connections, self.reserved);
            return Err(format!("http.connections: expected more than the {reserved} that are reserved, found {all}"));
        }
        Ok(())
    }

    /// The same for a process that may open so many files. Half of them are left to the journal, to logs and to runs.
    pub(crate) fn within(mut self, files: u64) -> HttpConfig {
        let most = usize::try_from(files / 2).unwrap_or(usize::MAX).max(2);
        self.connections = self.connections.min(most);
        self.reserved = self.reserved.min(self.connections / 2);
        self
    }
}

/// Whom a connection counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerKey {
    /// The user at the other end of the socket, by the kernel's word.
    User(u32),
    /// Over TCP, until a request has shown a token.
    Unauthenticated,
    /// Over TCP, by the token's public name.
    Token { uid: u32, name: String },
}

impl PeerKey {
    /// Whose share it uses; none if that is not known yet. However many tokens a user has, the share is the same.
    fn user(&self) -> Option<u32> {
        match self {
            PeerKey::User(uid) | PeerKey::Token { uid, .. } => Some(*uid),
            PeerKey::Unauthenticated => None,
        }
    }
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No request is under way, or its head is not complete.
    Head,
    /// The rest of a body is awaited.
    Body,
    /// A request is being answered; waiting for a job and streaming are answers.
    Answer,
}

/// All connections of the service.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    limits: HttpConfig,
    open: BTreeMap<u64, Entry>,
    next: u64,
    /// Counts changes of stages: the older a stage, the smaller its number.
    moves: u64,
    displaced: u64,
    /// How much of whose bodies is in memory; only users that have some are in it.
    bodies: BTreeMap<Option<u32>, u64>,
}

#[derive(Debug)]
struct Entry {
    key: PeerKey,
    /// How much of the body of its request is counted.
    body: u64,
    stage: Stage,
    since: u64,
    signal: Arc<Signal>,
}

/// What a connection's own task needs to know without asking for the table.
#[derive(Debug, Default)]
struct Signal {
    close: Notify,
    /// How many requests have begun.
    begun: AtomicU64,
    /// How many of them have been answered.
    ended: AtomicU64,
}

/// The right to be connected. It ends when the last copy is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<Admitted>);

#[derive(Debug)]
struct Admitted {
    id: u64,
    signal: Arc<Signal>,
    all: Connections,
}

/// A request from its head to the end of its answer.
#[derive(Debug)]
pub(crate) struct InFlight(Admission);

impl Connections {
    pub(crate) fn new(limits: HttpConfig) -> Connections {
        let table = Table { limits, open: BTreeMap::new(), next: 0, moves: 0, displaced: 0, bodies: BTreeMap::new() };
        Connections(Arc::new(Mutex::new(table)))
    }

    /// Lets one more connection in. `reserved` is for those who may use the reserved share. Nothing if there is no room
    /// and nobody who could make some.
    pub(crate) fn admit(&self, key: PeerKey, reserved: bool) -> Option<Admission> {
        let mut table = self.table();
        let all = table.limits.connections - if reserved { 0 } else { table.limits.reserved };
        table.make_room_for(&key, None)?;
        if table.open.len() >= all {
            table.make_room_among_all(key.user())?;
        }
        let signal = Arc::new(Signal::default());
        let (id, since) = (table.next, table.tick());
        table.next += 1;
        table.open.insert(id, Entry { key, body: 0, stage: Stage::Head, since, signal: signal.clone() });
        Some(Admission(Arc::new(Admitted { id, signal, all: self.clone() })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections had to give way so far.
    pub(crate) fn displaced(&self) -> u64 {
        self.table().displaced
    }
}

impl Entry {
    /// Whether it is the client's turn.
    fn waits(&self) -> bool {
        self.stage != Stage::Answer
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.moves += 1;
        self.moves
    }

    /// Sees to it that a user may have one more connection. `but` is the connection it is for, if it exists already.
    fn make_room_for(&mut self, key: &PeerKey, but: Option<u64>) -> Option<()> {
        let user = key.user();
        let most = user.map_or(self.limits.unauthenticated, |_| self.limits.connections_per_peer);
        let is_theirs = |entry: &Entry| entry.key.user() == user;
        let others = self.open.iter().filter(|(id, entry)| Some(**id) != but && is_theirs(entry)).count();
        if others < most { Some(()) } else { self.displace(but, |entry| is_theirs(entry) && entry.waits()) }
    }

    /// Sees to it that a peer may have one more request under way.
    fn make_room_for_request(&mut self, key: &PeerKey, but: u64) -> Option<()> {
        let is_theirs = |entry: &Entry| entry.key == *key;
        let under_way = self.open.values().filter(|entry| is_theirs(entry) && entry.stage != Stage::Head).count();
        if under_way < self.limits.requests_per_peer {
            return Some(());
        }
        self.displace(Some(but), |entry| is_theirs(entry) && entry.stage == Stage::Body)
    }

    /// Sees to it that there is room for one more connection of a user. Users with more connections than that give way
    /// first; those with fewer keep theirs.
    fn make_room_among_all(&mut self, user: Option<u32>) -> Option<()> {
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for entry in self.open.values() {
            *counts.entry(entry.key.user()).or_default() += 1;
        }
        let theirs = counts.get(&user).copied().unwrap_or(0) + 1;
        let mut others: Vec<_> =
            counts.into_iter().filter(|(other, count)| *other == user || *count >= theirs).collect();
        // Of those with as many, root is the last to give way.
        others.sort_by_key(|&(other, count)| std::cmp::Reverse((count, other)));
        others.iter().find_map(|(other, _)| self.displace(None, |entry| entry.key.user() == *other && entry.waits()))
    }

    fn enter(&mut self, id: u64, stage: Stage) {
        let since = self.tick();
        if let Some(entry) = self.open.get_mut(&id) {
            (entry.stage, entry.since) = (stage, since);
        }
    }

    /// Counts so many more bytes of a body for the peer that sends it, or says why they are too many.
    fn hold(&mut self, id: u64, bytes: u64) -> Result<(), Problem> {
        let all: u64 = self.bodies.values().sum();
        // One that had to give way is about to end.
        let Some(entry) = self.open.get_mut(&id) else { return Ok(()) };
        let user = entry.key.user();
        let theirs = self.bodies.get(&user).copied().unwrap_or(0);
        if theirs + bytes > self.limits.bodies_per_peer.bytes().get() {
            let detail = "your requests have too much in their bodies, all together: try again when some have ended";
            return Err(Problem::new(429, "too-many-bytes", detail));
        }
        if all + bytes > self.limits.bodies.bytes().get() {
            let detail = "the requests under way have too much in their bodies, all together: try again in a moment";
            return Err(Problem::new(503, "busy", detail));
        }
        entry.body += bytes;
        self.bodies.insert(user, theirs + bytes);
        Ok(())
    }

    /// The body of a connection's request is no longer in memory.
    fn let_go(&mut self, id: u64) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        let bytes = std::mem::take(&mut entry.body);
        let user = entry.key.user();
        if let Some(theirs) = self.bodies.get_mut(&user) {
            *theirs -= bytes;
            if *theirs == 0 {
                self.bodies.remove(&user);
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        self.let_go(id);
        self.open.remove(&id)
    }

    /// Closes the connection that fits and has been in its stage for longest; nothing if there is none.
    fn displace(&mut self, but: Option<u64>, fits: impl Fn(&Entry) -> bool) -> Option<()> {
        let fitting = self.open.iter().filter(|(id, entry)| fits(entry) && Some(**id) != but);
        let oldest = fitting.min_by_key(|(_, entry)| entry.since).map(|(id, _)| *id)?;
        let entry = self.remove(oldest)?;
        entry.signal.close.notify_one();
        self.displaced += 1;
        Some(())
    }
}

impl Admission {
    /// Counts the connection for another peer from now on: over TCP, for the token that its request has shown.
    pub(crate) fn count_for(&self, key: PeerKey) -> Result<(), Problem> {
        let mut table = self.0.all.table();
        let Some(entry) = table.open.get(&self.0.id) else { return Ok(()) };
        if entry.key == key {
            return Ok(());
        }
        table.make_room_for(&key, Some(self.0.id)).ok_or_else(too_many)?;
        table.make_room_for_request(&key, self.0.id).ok_or_else(too_many)?;
        table.let_go(self.0.id);
        if let Some(entry) = table.open.get_mut(&self.0.id) {
            entry.key = key;
        }
        Ok(())
    }

    /// The head of a request is complete. Refused if its peer has too many under way.
    pub(crate) fn begin(&self) -> Result<InFlight, Problem> {
        self.0.signal.begun.fetch_add(1, Ordering::Relaxed);
        // One that is refused is answered too: it ends with its answer.
        let request = InFlight(self.clone());
        let mut table = self.0.all.table();
        let Some(key) = table.open.get(&self.0.id).map(|entry| entry.key.clone()) else { return Ok(request) };
        let admitted = table.make_room_for_request(&key, self.0.id);
        if admitted.is_some() {
            table.enter(self.0.id, Stage::Answer);
        }
        drop(table);
        admitted.map(|()| request).ok_or_else(too_many)
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.0.all.table().enter(self.0.id, stage);
    }

    /// Counts so many more bytes of the request's body as being in memory, until it is answered.
    pub(crate) fn hold(&self, bytes: u64) -> Result<(), Problem> {
        if bytes == 0 { Ok(()) } else { self.0.all.table().hold(self.0.id, bytes) }
    }

    /// Until it has to give way.
    pub(crate) async fn displaced(&self) {
        self.0.signal.close.notified().await;
    }

    /// How many requests have begun on it.
    pub(crate) fn begun(&self) -> u64 {
        self.0.signal.begun.load(Ordering::Relaxed)
    }

    /// Whether no request is under way.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.begun() == self.0.signal.ended.load(Ordering::Relaxed)
    }
}

fn too_many() -> Problem {
    Problem::new(429, "too-many-requests", "too many of your requests are under way: try again when some have ended")
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.all.table().remove(self.id);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Admitted { id, signal, all } = &*self.0.0;
        signal.ended.fetch_add(1, Ordering::Relaxed);
        let mut table = all.table();
        table.enter(*id, Stage::Head);
        table.let_go(*id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: PeerKey = PeerKey::User(1001);
    const BOB: PeerKey = PeerKey::User(1002);
    const ROOT: PeerKey = PeerKey::User(0);

    /// Six connections, two of them reserved; three of a peer, two requests of a peer, one that nobody knows yet.
    fn few() -> Connections {
        Connections::new(HttpConfig {
            connections: 6,
            reserved: 2,
            connections_per_peer: 3,
            requests_per_peer: 2,
            unauthenticated: 1,
            ..HttpConfig::default()
        })
    }

    fn is_displaced(admission: &Admission) -> bool {
        !admission.0.all.table().open.contains_key(&admission.0.id)
    }

    #[test]
    fn the_oldest_connection_that_waits_for_its_client_gives_way_to_the_same_peers_newest() {
        let all = few();
        let first = all.admit(ADA, false).unwrap();
        let second = all.admit(ADA, false).unwrap();
        let third = all.admit(ADA, false).unwrap();
        let other = all.admit(BOB, false).unwrap();
        let request = first.begin().unwrap();
        let fourth = all.admit(ADA, false).unwrap();
        let displaced = [&first, &second, &third, &fourth, &other].map(is_displaced);
        assert_eq!(displaced, [false, true, false, false, false], "the first is being answered");
        drop(request);
    }

    #[test]
    fn a_peer_all_of_whose_connections_are_being_answered_gets_no_more() {
        let all = Connections::new(HttpConfig { connections_per_peer: 2, ..HttpConfig::default() });
        let open = [all.admit(ADA, false).unwrap(), all.admit(ADA, false).unwrap()];
        let requests = open.each_ref().map(|admission| admission.begin().unwrap());
        assert!(all.admit(ADA, false).is_none());
        assert!(all.admit(BOB, false).is_some(), "others do");
        drop(requests);
        assert!(all.admit(ADA, false).is_some());
    }

    #[test]
    fn requests_of_a_peer_are_limited_and_half_sent_bodies_give_way() {
        let all = few();
        let open = [(); 3].map(|()| all.admit(ADA, false).unwrap());
        let first = open[0].begin().unwrap();
        let second = open[1].begin().unwrap();
        assert_eq!(open[2].begin().unwrap_err().status, 429);
        let other = all.admit(BOB, false).unwrap();
        assert!(other.begin().is_ok(), "others do not wait for it");
        open[0].enter(Stage::Body);
        let third = open[2].begin().unwrap();
        assert_eq!(open.each_ref().map(is_displaced), [true, false, false]);
        drop((first, second, third));
    }

    fn of_token(uid: u32, name: &str) -> PeerKey {
        PeerKey::Token { uid, name: name.into() }
    }

    #[test]
    fn all_tokens_and_runs_of_a_user_share_what_one_user_may_have() {
        let all = Connections::new(HttpConfig {
            unauthenticated: 9,
            connections_per_peer: 3,
            bodies_per_peer: Quantity::new(10),
            ..HttpConfig::default()
        });
        let open = [(); 5].map(|()| all.admit(PeerKey::Unauthenticated, false).unwrap());
        let requests = open.each_ref().map(|admission| admission.begin().unwrap());
        for (admission, name) in open.iter().zip(["1", "2", "run 7/1"]) {
            admission.count_for(of_token(1001, name)).unwrap();
        }
        assert_eq!(open[3].count_for(of_token(1001, "3")).unwrap_err().status, 429);
        assert!(all.admit(ADA, false).is_none(), "over the socket too");
        assert!(open[3].count_for(of_token(1002, "3")).is_ok(), "others have their own");
        assert!(open[0].hold(6).is_ok());
        assert_eq!(open[1].hold(6).unwrap_err().status, 429);
        assert!(open[3].hold(6).is_ok());
        drop(requests);
    }

    #[test]
    fn where_the_fullest_cannot_give_way_the_next_one_does_but_never_one_with_fewer() {
        let all = Connections::new(HttpConfig { connections: 6, reserved: 1, ..HttpConfig::default() });
        let busy = [(); 3].map(|()| all.admit(ADA, false).unwrap());
        let requests = busy.each_ref().map(|admission| admission.begin().unwrap());
        let idle = [(); 2].map(|()| all.admit(BOB, false).unwrap());
        let eve = PeerKey::User(1003);
        let first = all.admit(eve.clone(), false).unwrap();
        assert_eq!(idle.each_ref().map(is_displaced), [true, false]);
        let request = first.begin().unwrap();
        assert!(all.admit(eve, false).is_none(), "the other one has fewer than she would have");
        drop((request, requests));
    }

    #[test]
    fn what_bodies_take_is_limited_for_a_peer_and_in_all_until_their_requests_are_answered() {
        let limits =
            HttpConfig { bodies_per_peer: Quantity::new(10), bodies: Quantity::new(15), ..HttpConfig::default() };
        let all = Connections::new(limits);
        let [first, second, other] = [ADA, ADA, BOB].map(|key| all.admit(key, false).unwrap());
        let requests = [&first, &second, &other].map(|admission| admission.begin().unwrap());
        assert!(first.hold(4).is_ok() && second.hold(6).is_ok());
        assert_eq!(first.hold(1).unwrap_err().status, 429);
        assert!(other.hold(5).is_ok());
        assert_eq!(other.hold(1).unwrap_err().status, 503);
        let [of_first, of_second, of_other] = requests;
        drop(of_first);
        assert!(second.hold(1).is_ok(), "what was answered does not count");
        drop((of_second, of_other));
        drop((first, second, other));
        assert!(all.table().bodies.is_empty(), "nothing is held for those who left");
    }

    #[test]
    fn an_administrator_gets_in_when_others_have_taken_all_that_is_theirs() {
        let all = few();
        let users: Vec<Admission> =
            (0..4).map(|number| all.admit(PeerKey::User(2000 + number), false).unwrap()).collect();
        let requests: Vec<InFlight> = users.iter().map(|user| user.begin().unwrap()).collect();
        assert!(all.admit(BOB, false).is_none());
        let root = all.admit(ROOT, true).unwrap();
        assert!(root.begin().is_ok());
        drop(requests);
        let bob = all.admit(BOB, false).unwrap();
        assert!(!is_displaced(&root) && !is_displaced(&bob), "one of the users' idle connections gave way");
        assert_eq!(all.displaced(), 1);
    }

    #[test]
    fn when_all_is_full_the_peer_with_the_most_connections_makes_room() {
        let all = few();
        let ada = [(); 3].map(|()| all.admit(ADA, false).unwrap());
        let bob = all.admit(BOB, false).unwrap();
        let carol = all.admit(PeerKey::User(1003), false).unwrap();
        assert_eq!(ada.each_ref().map(is_displaced), [true, false, false]);
        assert!(!is_displaced(&bob) && !is_displaced(&carol));
    }

    #[test]
    fn a_connection_over_tcp_counts_for_its_token_once_it_is_known() {
        let all = few();
        let first = all.admit(PeerKey::Unauthenticated, false).unwrap();
        let request = first.begin().unwrap();
        assert!(all.admit(PeerKey::Unauthenticated, false).is_none(), "the pool of the unknown is full");
        first.count_for(of_token(1001, "laptop")).unwrap();
        let second = all.admit(PeerKey::Unauthenticated, false).unwrap();
        let another = second.begin().unwrap();
        second.count_for(of_token(1001, "laptop")).unwrap();
        let third = all.admit(PeerKey::Unauthenticated, false).unwrap();
        let refused = third.begin().unwrap();
        assert_eq!(third.count_for(of_token(1001, "laptop")).unwrap_err().status, 429);
        drop((request, another, refused));
        assert!(third.count_for(of_token(1001, "laptop")).is_ok());
    }

    #[test]
    fn a_connection_that_ends_makes_room() {
        let all = few();
        let open = [(); 3].map(|()| all.admit(ADA, false).unwrap());
        drop(open);
        assert!(all.table().open.is_empty());
    }

    #[test]
    fn limits_that_cannot_be_meant_are_refused_by_name() {
        let wrong = |change: fn(&mut HttpConfig)| {
            let mut config = HttpConfig::default();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(HttpConfig::default().check().is_ok());
        assert!(wrong(|config| config.head_timeout = Duration::from_secs(0)).starts_with("http.head_timeout: "));
        assert!(wrong(|config| config.requests_per_peer = 0).starts_with("http.requests_per_peer: "));
        assert!(wrong(|config| config.connections = 64).starts_with("http.connections: "));
    }

    #[test]
    fn a_process_that_may_open_few_files_has_fewer_connections() {
        let config = HttpConfig::default().within(100);
        assert_eq!((config.connections, config.reserved), (50, 25));
        assert_eq!(HttpConfig::default().within(1 << 20), HttpConfig::default());
    }
}
