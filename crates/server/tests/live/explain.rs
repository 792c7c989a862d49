//! Advice that works: names people know, and nothing that would be refused.

use api::{Explanation, JobId, JobRequest};
use cluster::{ClaimId, ClusterDraft, QueueDraft, Run, Time};
use executors::{Ending, Exit, News};
use server::core::{Ask, Submission};
use server::{Caller, Live, explain};
use sim::Setup;
use tokio::sync::oneshot;

use crate::harness::{scene, service};

/// A service with two devices and a queue that may have one of them.
struct Bench {
    live: Live,
    second: u64,
}

impl Bench {
    fn new() -> Bench {
        let lab = QueueDraft { limit: Some(1.0), ..QueueDraft::named("lab") };
        let draft = ClusterDraft { queues: vec![lab], ..ClusterDraft::parse_short("1x2 t4").unwrap() };
        let (cluster, queues) = draft.build().unwrap();
        let (live, ..) = service(&Setup::new(cluster, queues, Vec::new()), "fifo");
        Bench { live, second: 0 }
    }

    fn submit(&mut self, change: impl FnOnce(&mut JobRequest)) {
        let mut request = JobRequest::new(["train"]);
        change(&mut request);
        let scene = scene(&self.live, self.second);
        let submission = Submission::of(request, &scene, None, None).unwrap();
        let (reply, _) = oneshot::channel();
        let ask = Ask::Submit(Box::new(submission));
        self.second += 1;
        let call = (Caller::new(1, "ada", api::Role::User), ask, reply);
        self.live.turn(Time::from_secs(self.second), vec![call], Vec::new()).unwrap();
    }

    fn ends(&mut self, claim: u32, code: i32) {
        let run = Run { claim: ClaimId(claim), attempt: 1 };
        let exits = vec![Exit { code: Some(code), signal: None }];
        let ending = Ending { started: true, exits, failed_first: Some(0), ..Ending::default() };
        self.second += 1;
        self.live.turn(Time::from_secs(self.second), Vec::new(), vec![News::Ended { run, ending }]).unwrap();
    }

    fn explained(&self, number: u32, ceiling: Option<i32>) -> Explanation {
        explain(&self.live.replica.read(), JobId::job(number), Time::from_secs(self.second), ceiling).unwrap()
    }

    /// The priority that it is advised to give to the job.
    fn advised(&self, number: u32, ceiling: Option<i32>) -> Option<String> {
        let steps = self.explained(number, ceiling).next_steps;
        let prefix = format!("let it go before others: moira priority {number} ");
        steps.iter().find_map(|step| step.strip_prefix(&prefix)).map(Into::into)
    }
}

#[test]
fn a_priority_is_advised_where_it_is_allowed_and_changes_something() {
    let mut bench = Bench::new();
    let both = |job: &mut JobRequest| job.workers = serde_json::from_str("2").unwrap();
    bench.submit(both);
    bench.submit(both);
    assert_eq!(bench.advised(1, None), None, "it is the first already");
    bench.submit(both);
    assert_eq!(bench.advised(2, None).as_deref(), Some("1"));
    bench.submit(|job| {
        both(job);
        job.priority = 7;
    });
    assert_eq!(bench.advised(2, None).as_deref(), Some("8"));
    assert_eq!(bench.advised(2, Some(8)).as_deref(), Some("8"));
    assert_eq!(bench.advised(2, Some(7)), None, "above the ceiling of whoever asks");
    assert_eq!(bench.advised(3, None), None);
    bench.submit(|job| {
        both(job);
        job.priority = 1000;
    });
    assert_eq!(bench.advised(2, None), None, "there is no higher one");
}

#[test]
fn queues_have_names_in_the_history_too() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        bench.submit(|job| job.queue = Some("lab".into()));
    }
    let history = bench.explained(1, None).history;
    assert!(history.iter().any(|line| line.text.contains("queue lab uses 1 of 1 GPUs")), "{history:#?}");
}

#[test]
fn an_array_is_explained_by_the_task_that_failed() {
    let mut bench = Bench::new();
    bench.submit(|job| job.array = Some(serde_json::from_str("\"0-2\"").unwrap()));
    let waiting = bench.explained(0, None);
    assert!(waiting.history[0].text.starts_with("task 0_0: "), "{waiting:#?}");
    bench.ends(0, 0);
    bench.ends(1, 3);
    let explained = bench.explained(0, None);
    assert_eq!(explained.message.as_deref(), Some("task 0_1 failed: exit 3"));
    assert!(explained.history.iter().any(|line| line.text == "task 0_1: failed: its program failed, exit code 3"));
    assert!(explained.next_steps.iter().any(|step| step.contains("moira logs 0_1")), "{explained:#?}");
}
