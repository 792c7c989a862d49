//! A full disk: what must be recorded is, and nobody spends the room for it on what can wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{JobId, JobRequest, Quantity, Role};
use cluster::{ClusterDraft, QueueDraft, Time};
use journal::JournalError;
use policies::PolicyConfig;
use server::access::Token;
use server::core::{Ask, Done, Reply, Submission};
use server::{Caller, Forgetting, Live, Retention, Store};
use sim::Setup;
use tokio::sync::oneshot;

use crate::harness::{Book, scene, service};

/// A store that says that its disk is full.
struct Short {
    store: Box<dyn Store>,
    is_full: Arc<AtomicBool>,
}

impl Store for Short {
    fn append(&mut self, at: Time, texts: &[String]) -> Result<u64, JournalError> {
        self.store.append(at, texts)
    }

    fn reopen(&mut self) -> Result<u64, JournalError> {
        self.store.reopen()
    }

    fn is_short(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    fn shortage(&mut self) -> Option<String> {
        self.is_short().then(|| "the disk is full".into())
    }
}

struct Bench {
    live: Live,
    book: Book,
    is_full: Arc<AtomicBool>,
    second: u64,
}

impl Bench {
    fn new() -> Bench {
        let (cluster, queues) = ClusterDraft::parse_short("1x2 t4").unwrap().build().unwrap();
        let (live, book, _) = service(&Setup::new(cluster, queues, Vec::new()), "fifo");
        let is_full = Arc::new(AtomicBool::new(false));
        let store = Box::new(Short { store: live.store, is_full: is_full.clone() });
        Bench { live: Live { store, ..live }, book, is_full, second: 0 }
    }

    /// Cancelling a job is what the service first notices a full disk by.
    fn fill(&mut self) {
        self.is_full.store(true, Ordering::SeqCst);
        let last = self.submit(None);
        self.done(Ask::Cancel(last));
        assert!(self.live.replica.read().degraded.is_some());
    }

    fn ask(&mut self, ask: Ask) -> Reply {
        self.second += 1;
        let (reply, mut answer) = oneshot::channel();
        let call = (Caller::new(1, "ada", Role::Admin), ask, reply);
        self.live.turn(Time::from_secs(self.second), vec![call], Vec::new()).unwrap();
        answer.try_recv().expect("it is answered")
    }

    #[track_caller]
    fn done(&mut self, ask: Ask) -> Done {
        self.ask(ask).unwrap()
    }

    /// The kind of the problem with which it is refused.
    #[track_caller]
    fn refused(&mut self, ask: Ask) -> (u16, String) {
        let problem = self.ask(ask).unwrap_err();
        (problem.status, problem.kind.rsplit(':').next().unwrap_or_default().to_string())
    }

    fn held(&self, key: Option<&str>) -> Ask {
        let scene = scene(&self.live, self.second);
        let request = JobRequest { hold: true, ..JobRequest::new(["train"]) };
        Ask::Submit(Box::new(Submission::of(request, &scene, None, key.map(Into::into)).unwrap()))
    }

    #[track_caller]
    fn submit(&mut self, key: Option<&str>) -> JobId {
        match self.done(self.held(key)) {
            Done::Numbered(id, _) => id,
            other => panic!("{other:?}"),
        }
    }

    fn recorded(&self) -> usize {
        self.book.lock().unwrap().len()
    }
}

fn token() -> Ask {
    Ask::MakeToken(Box::new(Token {
        id: 0,
        sha256: String::new(),
        uid: 1,
        user: "ada".into(),
        role: Role::User,
        label: None,
        made_unix_ms: 1,
        expires_unix_ms: u64::MAX,
        revoked_unix_ms: None,
    }))
}

#[test]
fn on_a_full_disk_what_can_wait_is_refused_and_what_ends_or_holds_a_job_is_not() {
    let mut bench = Bench::new();
    let job = bench.submit(None);
    bench.done(Ask::Release(job));
    bench.done(token());
    bench.fill();
    let before = bench.recorded();
    let full = (503, "disk-full".to_string());
    let fresh = bench.held(Some("fresh"));
    let wishes = [
        fresh,
        Ask::Release(job),
        Ask::Reprioritise(job, 7),
        token(),
        Ask::UsePolicy(PolicyConfig::named("fifo")),
        Ask::ChangeQueues(vec![QueueDraft::named("lab")]),
        Ask::OpenShell(job),
        Ask::Report(job, api::ProgressReport::default()),
    ];
    for ask in wishes {
        let what = format!("{ask:?}");
        assert_eq!(bench.refused(ask), full, "{what}");
    }
    assert_eq!(bench.recorded(), before, "nothing of that takes room");
    bench.done(Ask::Hold(job));
    let node = bench.live.core.engine.state().books().cluster.nodes().next().unwrap().1.name.to_string();
    bench.done(Ask::Drain(node.clone()));
    bench.done(Ask::Uncordon(node));
    bench.done(Ask::RevokeToken { id: 1, unix_ms: 5 });
    bench.done(Ask::Cancel(job));
    bench.is_full.store(false, Ordering::SeqCst);
    bench.submit(None);
}

#[test]
fn on_a_full_disk_a_key_that_is_known_is_answered_also_if_its_job_is_forgotten() {
    let mut bench = Bench::new();
    bench.live.forgetting = Forgetting::new(Retention { jobs_size: Quantity::new(0), ..Retention::default() });
    let forgotten = bench.submit(Some("forgotten"));
    bench.done(Ask::Cancel(forgotten));
    // The policy has to hear of its end, and what has ended is looked for now and then.
    bench.second += 60;
    let known = bench.submit(Some("known"));
    bench.second += 60;
    bench.submit(None);
    assert!(bench.live.replica.read().ledger.acceptance(cluster::ClaimId(forgotten.number)).is_none());
    bench.fill();
    assert_eq!(bench.done(bench.held(Some("known"))), Done::Numbered(known, false));
    let (status, kind) = bench.refused(bench.held(Some("forgotten")));
    assert_eq!((status, kind.as_str()), (409, "conflict"));
    assert_eq!(bench.refused(bench.held(Some("fresh"))).0, 503);
}

#[test]
fn a_token_that_is_revoked_again_takes_no_more_room() {
    let mut bench = Bench::new();
    bench.done(token());
    bench.done(Ask::RevokeToken { id: 1, unix_ms: 5 });
    let before = bench.recorded();
    let Done::Token(again) = bench.done(Ask::RevokeToken { id: 1, unix_ms: 9 }) else { panic!("it is still known") };
    assert_eq!((again.revoked_unix_ms, bench.recorded()), (Some(5), before));
}
