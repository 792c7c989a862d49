//! A run that can change its workers is not stopped to make room: it is told to, and what it lets go of is given away
//! once it has.

use api::{BatchRequest, JobId, JobRequest, JobView, ProgressReport, WorkersRequest};
use cluster::{ClaimId, ClusterDraft, Run, Span, Time};
use executors::{News, Sighting, Stage, WorkerPlace};
use plan::Safeguards;
use server::core::{Ask, Done, Submission};
use server::{Caller, Clock, Inbox, Live, explain, views};
use sim::Setup;
use tokio::sync::oneshot;

use crate::harness::{Scripted, Told, ToldList, scene, service};

const FIRST: Run = Run { claim: ClaimId(0), attempt: 1 };
const SECOND: Run = Run { claim: ClaimId(1), attempt: 1 };

/// A service with two devices, moved by hand from second to second.
struct Bench {
    live: Live,
    told: ToldList,
    second: u64,
}

impl Bench {
    fn new() -> Bench {
        let (cluster, queues) = ClusterDraft::parse_short("1x2 t4").unwrap().build().unwrap();
        let mut setup = Setup::new(cluster, queues, Vec::new());
        setup.settings.resize_within = Some(Span::from_secs(60));
        setup.settings.safeguards = Safeguards::ALL;
        let (live, _, told) = service(&setup, server::DEFAULT_POLICY);
        Bench { live, told, second: 0 }
    }

    /// One in which a job that can use both devices has them, having grown in place.
    fn grown() -> Bench {
        let mut bench = Bench::new();
        bench.submit(elastic());
        bench.hear(News::Started { run: FIRST });
        bench.says_often(FIRST, REPORT);
        bench.wait_until_told("to grow", |told| resized(told) == Some((FIRST, 2)));
        bench.hear(News::Resized { run: FIRST });
        assert_eq!(bench.job(0).workers.have, 2);
        bench
    }

    fn now(&self) -> Time {
        Time::from_secs(self.second)
    }

    fn submit(&mut self, request: JobRequest) {
        let scene = scene(&self.live, self.second);
        let submission = Submission::of(request, &scene, None, None).unwrap();
        let caller = Caller::new(1, "ada", api::Role::User);
        let (reply, _) = oneshot::channel();
        self.second += 1;
        self.live.turn(self.now(), vec![(caller, Ask::Submit(Box::new(submission)), reply)], Vec::new()).unwrap();
    }

    fn hear(&mut self, news: News) {
        self.second += 1;
        self.live.turn(self.now(), Vec::new(), vec![news]).unwrap();
    }

    /// The supervisor of a run is lost. Returns the run that follows it.
    fn lose(&mut self, run: Run) -> Run {
        let ending = executors::Ending {
            started: true,
            exits: vec![executors::Exit::default()],
            trouble: Some("lost".into()),
            ..executors::Ending::default()
        };
        self.hear(News::Ended { run, ending });
        let next = Run { attempt: run.attempt + 1, ..run };
        self.wait_until_told("to launch it again", |told| launched(told).is_some_and(|(run, _)| run == next));
        self.hear(News::Started { run: next });
        next
    }

    fn says(&mut self, run: Run, line: &str) {
        self.hear(News::Progress { run, lines: vec![line.replace('\n', " ")] });
    }

    /// So often that it counts.
    fn says_often(&mut self, run: Run, line: &str) {
        for _ in 0..5 {
            self.says(run, line);
        }
    }

    /// Lets seconds pass until the executor has been told this.
    fn wait_until_told(&mut self, what: &str, wanted: impl Fn(&Told) -> bool) {
        for _ in 0..100 {
            let told = std::mem::take(&mut *self.told.lock().unwrap());
            assert!(!told.iter().any(|told| matches!(told, Told::Stop(..))), "nobody need be stopped: {told:?}");
            if told.iter().any(&wanted) {
                return;
            }
            self.second += 1;
            self.live.turn(self.now(), Vec::new(), Vec::new()).unwrap();
        }
        let jobs = [0, 1].map(|number| explain(&self.live.replica.read(), JobId::job(number), self.now(), None));
        panic!("the executor was never told {what}: {jobs:#?}");
    }

    /// The service comes back and finds the first job running, and this of the resize that it ordered before.
    fn restart(mut self, outcome: Option<News>) {
        let seen = vec![Sighting { run: FIRST, stage: Stage::Running }];
        self.live.executor = Box::new(Scripted { told: self.told.clone(), seen, outcome });
        // So late that nothing that was to be heard of by a deadline is in time.
        let clock = Clock::after(self.now() + Span::from_minutes(24 * 60));
        let (inbox, messages) = Inbox::new();
        inbox.leave();
        self.live.run(&messages, clock).unwrap();
    }

    fn job(&self, number: u32) -> JobView {
        views::job(&self.live.replica.read(), JobId::job(number), self.now(), false).unwrap()
    }

    fn history(&self, number: u32) -> String {
        let explained = explain(&self.live.replica.read(), JobId::job(number), self.now(), None).unwrap();
        explained.history.iter().map(|line| format!("{}\n", line.text)).collect()
    }

    fn metrics(&self) -> String {
        self.live.replica.measures.text(&self.live.replica.read()).unwrap()
    }
}

const REPORT: &str = r#"{"resizable": true, "steps": 100, "step_seconds": 0.1, "compute_seconds": 0.09,
    "local_batch": 64, "noise": {"sqr": 1.0, "var": 1000.0}}"#;

/// Changing its workers costs next to nothing, and two of them are hardly faster than one.
const CHEAP: &str = r#"{"steps": 200, "step_seconds": 0.17, "compute_seconds": 0.09, "local_batch": 64,
    "restart": {"kind": "resize", "phases": {"process_group": 0.1}}}"#;

fn elastic() -> JobRequest {
    JobRequest {
        workers: WorkersRequest { min: 1, max: 2, preferred: None },
        batch: Some(BatchRequest { initial: 64, max: 128, per_gpu: Some([64, 64]) }),
        ..JobRequest::new(["train"])
    }
}

fn resized(told: &Told) -> Option<(Run, usize)> {
    match told {
        Told::Resize(run, workers, _) => Some((*run, workers.len())),
        _ => None,
    }
}

fn launched(told: &Told) -> Option<(Run, &[WorkerPlace])> {
    match told {
        Told::Launch(run, workers, _) => Some((*run, workers)),
        _ => None,
    }
}

#[test]
fn what_a_run_lets_go_of_in_place_is_given_to_the_next() {
    let mut bench = Bench::grown();
    bench.says_often(FIRST, CHEAP);
    bench.submit(elastic());
    bench.wait_until_told("to shrink", |told| resized(told) == Some((FIRST, 1)));
    let node = &views::nodes(&bench.live.replica.read(), |_| true)[0];
    assert_eq!((node.free, bench.job(1).state), (0.0, api::JobState::Pending), "it is not free before it is let go");
    bench.hear(News::Resized { run: FIRST });
    bench.wait_until_told("to launch the other", |told| launched(told).is_some_and(|(run, _)| run == SECOND));
    assert_eq!((bench.job(0).workers.have, bench.job(0).resizes, bench.job(0).attempts), (1, 2, 1));
    assert!(bench.metrics().contains("moira_resizes_total{result=\"done\"} 2\n"));
    assert!(bench.history(0).ends_with("told to go on with 1 worker\ngoes on with them, without a restart\n"));
}

#[test]
fn who_gave_devices_up_and_who_got_them_are_told_the_rule() {
    let mut bench = Bench::grown();
    bench.submit(elastic());
    bench.wait_until_told("to shrink", |told| resized(told) == Some((FIRST, 1)));
    let given_up = "it gave up devices beyond its minimum, so that job 1 can run (rule minimum-first)";
    assert!(bench.history(0).contains(given_up), "{}", bench.history(0));
    let got = "it has its minimum, which comes before what others have beyond theirs (rule minimum-first)";
    let explained = explain(&bench.live.replica.read(), JobId::job(1), bench.now(), None).unwrap();
    assert_eq!(explained.message.as_deref(), Some(got), "{explained:#?}");
}

#[test]
fn both_what_it_has_and_what_it_is_to_have_count_while_it_grows() {
    let mut bench = Bench::new();
    bench.submit(elastic());
    bench.hear(News::Started { run: FIRST });
    bench.says_often(FIRST, REPORT);
    bench.wait_until_told("to grow", |told| resized(told) == Some((FIRST, 2)));
    let shown = bench.live.replica.read();
    let (node, queue) = (&views::nodes(&shown, |_| true)[0], &views::queues(&shown)[0]);
    assert_eq!((node.free, queue.gpus, bench.job(0).workers.have), (0.0, 2.0, 1));
    drop(shown);
    assert!(
        bench.metrics().contains("moira_allocated_gpus{queue=\"root\",gpu_type=\"t4\"} 2.0\n"),
        "{}",
        bench.metrics()
    );
}

#[test]
fn a_resize_that_comes_to_nothing_is_told_with_its_reason() {
    let mut bench = Bench::new();
    bench.submit(elastic());
    bench.hear(News::Started { run: FIRST });
    bench.says_often(FIRST, REPORT);
    bench.wait_until_told("to grow", |told| resized(told) == Some((FIRST, 2)));
    bench.hear(News::NotResized { run: FIRST, why: "worker 1 ended before it could join".into() });
    assert!(bench.history(0).contains("\ngoes on as it was: worker 1 ended before it could join\n"));
    assert_eq!((bench.job(0).resizes, bench.job(0).workers.have), (0, 1));
    assert!(bench.metrics().contains("moira_resizes_total{result=\"withdrawn\"} 1\n"));
    // Of a resize nobody waits for any more nothing is put on record.
    bench.hear(News::NotResized { run: FIRST, why: "again".into() });
    assert!(!bench.history(0).contains("again"));
}

#[test]
fn how_often_a_job_was_resized_is_counted_for_each_hour_it_ran() {
    let mut bench = Bench::grown();
    assert!(bench.metrics().contains("moira_resizes_per_hour_count 0\n"), "{}", bench.metrics());
    let launched = bench.live.core.engine.state().books().claim(FIRST.claim).progress.last_launch.unwrap();
    let never = "moira_most_resizes_per_hour{} 0.0\n";
    assert!(!bench.metrics().contains(never), "it was resized, and still runs:\n{}", bench.metrics());
    bench.second = launched.as_millis() / 1000 + 1800 - 1;
    let ended = executors::Exit { code: Some(0), signal: None };
    let ending = executors::Ending { started: true, exits: vec![ended; 2], ..executors::Ending::default() };
    bench.hear(News::Ended { run: FIRST, ending });
    let metrics = bench.metrics();
    for line in ["moira_resizes_per_hour_count 1\n", "moira_resizes_per_hour_sum 2.0\n", never] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn what_interruptions_cost_is_learnt_shown_and_counted() {
    let mut bench = Bench::grown();
    let price = |bench: &Bench| {
        let claim = bench.live.core.engine.state().books().claim(FIRST.claim).clone();
        (claim.restart_price(), claim.learned.resize(), claim.resize_price())
    };
    assert_ne!(price(&bench).0, Span::from_secs(8), "what was declared");
    let next = bench.lose(FIRST);
    bench.says(next, r#"{"restart": {"kind": "restart", "phases": {"notice": 9, "stop": 2.5, "import": 5.5}}}"#);
    bench.says(next, r#"{"resizable": true}"#);
    assert_eq!(price(&bench), (Span::from_secs(8), None, Span::from_secs(5)), "a resize is thought to cost less");
    for _ in 0..2 {
        bench.says(next, r#"{"restart": {"kind": "resize", "phases": {"process_group": 0.5, "first_step": 0.25}}}"#);
    }
    assert_eq!(price(&bench), (Span::from_secs(8), Some(Span::from_millis(750)), Span::from_millis(750)));
    let (restart, resize) = (bench.job(0).restart.unwrap(), bench.job(0).resize.unwrap());
    assert_eq!((restart.seconds, restart.phases.import, resize.seconds), (8.0, Some(5.5), 0.75));
    let metrics = bench.metrics();
    for line in [
        "moira_interruption_seconds_sum{kind=\"restart\",phase=\"notice\"} 9.0\n",
        "moira_interruption_seconds_count{kind=\"restart\",phase=\"import\"} 1\n",
        "moira_interruption_seconds_sum{kind=\"resize\",phase=\"first_step\"} 0.25\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    bench.says(next, r#"{"restart": {"kind": "resize", "phases": {"process_group": 1e6}}}"#);
    let most = Span::from_millis((3 * 750 + 2 * 60_000) / 4);
    assert_eq!(price(&bench).1, Some(most), "a quarter of the longest that a resize may take");
}

#[test]
fn after_a_restart_of_the_service_a_resize_that_is_under_way_is_ordered_again() {
    let mut bench = Bench::grown();
    bench.says_often(FIRST, CHEAP);
    bench.submit(elastic());
    bench.wait_until_told("to shrink", |told| resized(told) == Some((FIRST, 1)));
    let told = bench.told.clone();
    bench.restart(None);
    assert_eq!(resized(&told.lock().unwrap()[0]), Some((FIRST, 1)));
}

#[test]
fn a_run_that_was_resized_while_the_service_was_away_is_not_stopped_on_its_return() {
    let mut bench = Bench::grown();
    bench.says_often(FIRST, CHEAP);
    bench.submit(elastic());
    bench.wait_until_told("to shrink", |told| resized(told) == Some((FIRST, 1)));
    bench.second += 3600;
    let (told, replica) = (bench.told.clone(), bench.live.replica.clone());
    bench.restart(Some(News::Resized { run: FIRST }));
    assert!(!told.lock().unwrap().iter().any(|told| matches!(told, Told::Stop(..))), "{told:?}");
    assert_eq!(replica.read().state.books().claim(FIRST.claim).progress.resizes, 2);
}

#[test]
fn of_the_batch_nothing_is_said_while_the_workers_change() {
    let mut bench = Bench::new();
    bench.submit(elastic());
    bench.hear(News::Started { run: FIRST });
    let local_batch = |bench: &mut Bench| {
        let caller = Caller::new(1, "ada", api::Role::User);
        let report = ProgressReport { loss: Some(0.5), ..ProgressReport::default() };
        let (reply, mut answer) = oneshot::channel();
        bench.second += 1;
        let call = (caller, Ask::Report(JobId::job(0), report), reply);
        bench.live.turn(bench.now(), vec![call], Vec::new()).unwrap();
        let Ok(Done::Tuned(tuned)) = answer.try_recv().unwrap() else { panic!("a report is answered with a tuning") };
        (tuned.batch_size, tuned.local_batch)
    };
    assert_eq!(local_batch(&mut bench), (Some(64), Some(64)));
    bench.says_often(FIRST, REPORT);
    bench.wait_until_told("to grow", |told| resized(told) == Some((FIRST, 2)));
    assert_eq!(local_batch(&mut bench), (None, None));
    bench.hear(News::Resized { run: FIRST });
    assert_eq!(local_batch(&mut bench), (Some(128), Some(64)));
}

#[test]
fn what_an_earlier_run_could_do_is_not_taken_for_granted() {
    let mut bench = Bench::grown();
    let resizable = |bench: &Bench| bench.live.core.engine.state().books().claim(FIRST.claim).resizable;
    assert!(resizable(&bench));
    bench.says(FIRST, r#"{"loss": 0.5}"#);
    assert!(resizable(&bench), "it need be said once only");
    let next = bench.lose(FIRST);
    bench.says(next, r#"{"loss": 0.5}"#);
    assert!(!resizable(&bench));
}

/// A lone job on one worker or two.
#[derive(Debug, Clone, Copy)]
struct LoneJob {
    /// How long an exchange between two takes it. A pass takes 10 ms and 90 ms for each 64 examples.
    exchange: f64,
    /// Its batch is 64, and grows up to this.
    most: u32,
    /// Every report is off by up to this share, and all of them together drift by as much, to and fro in ten minutes.
    noise: f64,
    /// One report in so many books an evaluation as an exchange that took five times as long.
    outlier_each: u64,
}

/// How often a lone job changes its workers in an hour of reports, one each second.
fn resizes_in_an_hour(job: LoneJob, seed: u64) -> u32 {
    let mut bench = Bench::new();
    let batch = Some(BatchRequest { initial: 64, max: job.most, per_gpu: None });
    bench.submit(JobRequest { batch, ..elastic() });
    bench.hear(News::Started { run: FIRST });
    let mut dice = Dice(seed);
    let mut resized_for = 0.0;
    while bench.second < 3600 {
        let workers = bench.job(0).workers.have;
        let tuning = bench.live.core.engine.state().books().claim(FIRST.claim).tuning.unwrap();
        let compute = 0.01 + 0.09 * f64::from(tuning.local) / 64.0;
        let drift = job.noise * (bench.second as f64 / 600.0 * std::f64::consts::TAU).sin();
        let off = 1.0 + drift + job.noise * (2.0 * dice.share() - 1.0);
        let is_outlier = dice.next().is_multiple_of(job.outlier_each);
        let exchange = if workers == 1 { 0.0 } else { job.exchange } * if is_outlier { 5.0 } else { 1.0 };
        let passes = f64::from(tuning.accumulations + 1);
        let (compute, step) = (compute * off, (passes * compute + exchange) * off);
        let price = if resized_for > 0.0 {
            format!(r#", "restart": {{"kind": "resize", "phases": {{"process_group": {resized_for}}}}}"#)
        } else {
            String::new()
        };
        resized_for = 0.0;
        bench.says(
            FIRST,
            &format!(
                r#"{{"resizable": true, "steps": {}, "step_seconds": {step}, "compute_seconds": {compute},
                "workers": {workers}, "local_batch": {}, "accumulation": {},
                "noise": {{"sqr": 1.0, "var": 300.0}}{price}}}"#,
                bench.second, tuning.local, tuning.accumulations
            ),
        );
        let told = std::mem::take(&mut *bench.told.lock().unwrap());
        if told.iter().any(|told| resized(told).is_some()) {
            bench.hear(News::Resized { run: FIRST });
            resized_for = 0.25 + 0.1 * dice.share();
        }
    }
    bench.job(0).resizes
}

/// Numbers that look random (Knuth's linear congruential generator).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 31) as f64
    }
}

#[test]
fn a_lone_job_resizes_at_most_twice_however_its_reports_are_off() {
    // Two workers are faster, as fast as one, and slower.
    for exchange in [0.015, 0.035, 0.039, 0.042, 0.045, 0.048, 0.055, 0.095] {
        for (most, seed) in [(64, 1000), (64, 1001), (64, 1002), (64, 1003), (512, 1004), (512, 1005)] {
            let job = LoneJob { exchange, most, noise: 0.08, outlier_each: 15 };
            let resizes = resizes_in_an_hour(job, seed);
            assert!(resizes <= 2, "{job:?}, seed {seed}: {resizes} resizes in an hour");
        }
    }
}
