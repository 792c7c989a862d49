//! Runs that go on with other workers: see `worker.py` for what those do.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::{Span, Time};
use executors::{Executor, LaunchOrder, News, Program, ResizeOrder, WorkerPlace};
use perf::Tuning;
use rustix::process::Pid;

use crate::bench::{Bench, KILLED, PATIENCE, RUN, TERMINATED, code, lives, order, place, program};

/// A run of `worker.py` on devices of one node, with a directory that its workers share.
pub(crate) struct Training {
    bench: Bench,
    shared: PathBuf,
    /// No two orders have the same.
    orders: u64,
}

impl Training {
    fn start(devices: &[u8], fault: &str) -> Training {
        Training::start_in(Bench::new(), devices, fault)
    }

    /// Under a supervisor of its own, which may lie in the data directory.
    pub(crate) fn start_by(supervisor: impl FnOnce(&Path) -> Vec<OsString>, devices: &[u8]) -> Training {
        let mut bench = Bench::new();
        let supervisor = supervisor(bench.data.path());
        bench.reopen_with(supervisor);
        Training::start_in(bench, devices, "")
    }

    fn start_in(mut bench: Bench, devices: &[u8], fault: &str) -> Training {
        let shared = bench.data.path().join("shared");
        fs::create_dir(&shared).unwrap();
        bench.start(&training(devices, fault, &shared));
        let training = Training { bench, shared, orders: 0 };
        (0..devices.len()).for_each(|member| drop(training.pid(member as u32)));
        training
    }

    /// Orders a resize and returns the order.
    fn order(&mut self, devices: &[u8], within: Span) -> ResizeOrder {
        self.orders += 1;
        let until = Time::from_secs(self.orders);
        let tuning = Some(Tuning { local: 8 * devices.len() as u32, accumulations: 0 });
        let order = ResizeOrder { run: RUN, workers: on(devices), tuning, until, within };
        assert_eq!(self.bench.local().resize(&order).unwrap(), None);
        order
    }

    /// What comes of a resize.
    pub(crate) fn tries(&mut self, devices: &[u8]) -> Result<(), String> {
        self.order(devices, PATIENT);
        self.outcome()
    }

    fn resize(&mut self, devices: &[u8]) {
        self.order(devices, PATIENT);
        assert_eq!(self.outcome(), Ok(()));
    }

    fn outcome(&mut self) -> Result<(), String> {
        self.bench.wait_for("what became of the resize", |news| match news {
            News::Resized { run: RUN } => Some(Ok(())),
            News::NotResized { run: RUN, why } => Some(Err(why)),
            News::Ended { ending, .. } => panic!("it ended: {ending:?}"),
            _ => None,
        })
    }

    /// The process of a member, which has come as far as its first line by then.
    fn pid(&self, member: u32) -> String {
        self.bench.appears(&self.shared.join(format!("pid.{member}")))
    }

    pub(crate) fn supervisor(&self) -> Pid {
        self.bench.supervisor()
    }

    fn say(&self, word: &str) {
        fs::write(self.shared.join(word), "").unwrap();
    }

    /// Lets it end, and returns the exit codes by rank.
    pub(crate) fn end(&mut self) -> Vec<Option<i32>> {
        self.say("end");
        self.bench.ending().exits.iter().map(|exit| exit.as_code()).collect()
    }

    fn signs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.bench.file("gang")).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|it| it.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn leaves_nothing(&self) {
        assert!(self.bench.processes().is_empty());
    }
}

const PATIENT: Span = Span::from_secs(60);

fn training(devices: &[u8], fault: &str, shared: &Path) -> LaunchOrder {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/local/worker.py");
    let env = [("SHARED", shared.to_str().unwrap()), ("FAULT", fault)];
    let program = Program {
        command: vec!["python3".into(), script.to_str().unwrap().into()],
        env: env.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        ..program("")
    };
    LaunchOrder { workers: on(devices), ..order(program, 0) }
}

/// One worker for each device: 0 and 1 of the first node, 2 and 3 are the devices of the second.
fn on(devices: &[u8]) -> Vec<WorkerPlace> {
    devices.iter().map(|device| place(u32::from(device / 2), 0, &[device % 2])).collect()
}

#[test]
fn a_run_grows_twice_and_shrinks_again_and_those_who_stay_are_the_same_processes() {
    let mut training = Training::start(&[2], "");
    let first = training.pid(0);
    training.resize(&[2, 3]);
    training.resize(&[0, 2, 3]);
    assert_eq!(training.pid(0), first);
    assert!(training.bench.log(2).starts_with("member 2 is 2 of 3 in gang 3 with batch 24\n"));
    let leavers = [training.pid(1), training.pid(2)];
    training.resize(&[2]);
    assert!(lives(&first) && leavers.iter().all(|pid| !lives(pid)));
    assert_eq!(training.signs(), ["done.4", "verdict.4"]);
    assert_eq!(training.end(), [Some(0)]);
    let expected = "member 0 is 0 of 2 in gang 2 with batch 16\nmember 0 is 0 of 3 in gang 3 with batch 24\n\
                    member 0 is 0 of 1 in gang 4 with batch 8\nmember 0 ends well\n";
    assert_eq!(training.bench.log(0), expected);
    assert_eq!(
        fs::read_to_string(training.bench.file("tuning.json")).unwrap(),
        "{\"local_batch\":8,\"accumulation\":0}"
    );
    training.leaves_nothing();
}

#[test]
fn if_the_first_leaves_the_next_takes_its_rank() {
    let mut training = Training::start(&[2, 3], "");
    training.resize(&[0, 3]);
    assert_eq!(training.end(), [Some(0), Some(0)]);
    assert!(training.bench.log(1).starts_with("member 1 is 0 of 2 in gang 2"));
    assert!(training.bench.log(2).starts_with("member 2 is 1 of 2 in gang 2"));
}

#[test]
fn workers_are_told_who_meets_where() {
    let mut training = Training::start(&[2], "nobody answers");
    training.order(&[2, 0, 3], PATIENT);
    while !training.bench.file("resize.json").exists() {
        sleep(Duration::from_millis(10));
    }
    let call = fs::read_to_string(training.bench.file("resize.json")).unwrap();
    let mut call: serde_json::Value = serde_json::from_str(&call).unwrap();
    let port = call["master_port"].take();
    let expected = r#"{"accumulation":0,"gang":2,"local_batch":24,"master_addr":"127.0.0.1","master_port":null,"members":
        [{"local_rank":0,"member":0},{"local_rank":0,"member":1},{"local_rank":1,"member":2}]}"#;
    assert_eq!(call, serde_json::from_str::<serde_json::Value>(expected).unwrap());
    assert!(port.as_u64().is_some_and(|port| port > 1023));
    training.bench.local().stop(RUN, Span::ZERO).unwrap();
    training.bench.ending();
}

#[test]
fn a_newcomer_that_dies_is_no_harm_to_those_who_train() {
    let mut training = Training::start(&[2], "newcomer dies");
    let first = training.pid(0);
    training.order(&[2, 3], PATIENT);
    assert_eq!(training.outcome().unwrap_err(), "worker 1 ended before it could join");
    assert!(lives(&first));
    training.order(&[2, 3], PATIENT);
    assert_eq!(training.outcome().unwrap_err(), "worker 2 ended before it could join");
    assert_eq!(training.end(), [Some(0)]);
    assert_eq!(training.bench.log(0), "member 0 ends well\n");
}

#[test]
fn a_resize_that_nobody_agrees_to_is_withdrawn_and_its_newcomers_go() {
    let mut training = Training::start(&[2], "newcomer hangs");
    training.order(&[2, 3], Span::from_secs(3));
    let newcomer = training.pid(1);
    assert_eq!(training.outcome().unwrap_err(), "the workers did not agree to it in time");
    assert!(!lives(&newcomer) && lives(&training.pid(0)));
    assert_eq!(training.signs(), ["verdict.2"]);
    assert_eq!(training.end(), [Some(0)]);
}

#[test]
fn a_stop_during_a_resize_stops_everybody() {
    let mut training = Training::start(&[2], "newcomer hangs");
    training.order(&[2, 3], PATIENT);
    let pids = [training.pid(0), training.pid(1)];
    training.bench.local().stop(RUN, Span::from_secs(5)).unwrap();
    let ending = training.bench.ending();
    assert_eq!((ending.told_to_stop, ending.exits), (true, vec![TERMINATED]));
    assert!(pids.iter().all(|pid| !lives(pid)));
    training.leaves_nothing();
}

#[test]
fn a_resize_outlives_the_service_and_its_outcome_is_told_to_whoever_asks_again() {
    let mut training = Training::start(&[2], "");
    training.say("wait");
    let order = training.order(&[2, 3], PATIENT);
    training.pid(1);
    training.bench.crash();
    fs::remove_file(training.shared.join("wait")).unwrap();
    training.bench.appears(&training.bench.file("logs/worker-1.log"));
    let done = training.bench.file("outcome.json");
    let until = Instant::now() + PATIENCE;
    while !done.exists() {
        assert!(Instant::now() < until, "nothing comes of it");
        sleep(Duration::from_millis(10));
    }
    for _ in 0..2 {
        training.bench.restart();
        assert_eq!(training.bench.local().resize(&order).unwrap(), Some(News::Resized { run: RUN }));
    }
    assert_eq!(training.end(), [Some(0), Some(0)]);
    assert!(!training.shared.join("pid.2").exists());
}

#[test]
fn the_outcome_of_an_earlier_resize_is_not_taken_for_that_of_the_next() {
    let mut training = Training::start(&[2], "newcomer dies");
    training.order(&[2, 3], PATIENT);
    training.outcome().unwrap_err();
    training.bench.restart();
    let quiet = Instant::now() + Duration::from_millis(1500);
    while let Ok(news) = training.bench.news.recv_timeout(quiet.saturating_duration_since(Instant::now())) {
        assert!(!matches!(news, News::NotResized { .. }), "nobody asked");
    }
    training.order(&[2, 0], PATIENT);
    assert_eq!(training.outcome().unwrap_err(), "worker 2 ended before it could join");
    training.end();
}

#[test]
fn an_order_said_twice_is_carried_out_once() {
    let mut training = Training::start(&[2], "");
    training.say("wait");
    let order = training.order(&[2, 3], PATIENT);
    training.bench.local().resize(&order).unwrap();
    fs::remove_file(training.shared.join("wait")).unwrap();
    assert_eq!(training.outcome(), Ok(()));
    assert_eq!(training.bench.local().resize(&order).unwrap(), Some(News::Resized { run: RUN }));
    assert_eq!(training.end(), [Some(0), Some(0)]);
    assert!(!training.shared.join("pid.2").exists());
}

#[test]
fn a_supervisor_that_cannot_be_woken_finds_the_wish_by_itself() {
    let mut training = Training::start(&[2, 3], "");
    let note = training.bench.file("supervisor.json");
    let told = fs::read(&note).unwrap();
    fs::write(&note, "{").unwrap();
    training.resize(&[2]);
    fs::write(&note, told).unwrap();
    assert_eq!(training.end(), [Some(0)]);
}

#[test]
fn what_was_certainly_not_ordered_is_an_error_and_what_may_have_been_is_not() {
    let mut training = Training::start(&[2], "");
    let order =
        ResizeOrder { run: RUN, workers: on(&[2, 3]), tuning: None, until: Time::from_secs(1), within: PATIENT };
    let assignment = training.bench.file("run.json");
    let told = fs::read(&assignment).unwrap();
    fs::write(&assignment, "{").unwrap();
    training.bench.local().resize(&order).unwrap_err();
    fs::write(&assignment, told).unwrap();
    fs::write(training.bench.file("wish.json"), "{").unwrap();
    assert_eq!(training.bench.local().resize(&order).unwrap(), None);
    assert_eq!(training.end(), [Some(0)]);
}

#[test]
fn another_resize_has_to_wait_for_the_one_that_is_under_way() {
    let mut training = Training::start(&[2], "newcomer hangs");
    let order = training.order(&[2, 3], PATIENT);
    let other = ResizeOrder { until: Time::from_secs(99), ..order };
    let error = training.bench.local().resize(&other).unwrap_err().to_string();
    assert_eq!(error, "cannot resize run 7/0: another resize is under way");
    training.bench.local().stop(RUN, Span::ZERO).unwrap();
    training.bench.ending();
}

#[test]
fn a_survivor_that_crashes_in_the_switch_fails_the_run() {
    let mut training = Training::start(&[2], "survivor crashes");
    training.order(&[2, 3], PATIENT);
    let ending = training.bench.ending();
    assert_eq!((ending.failed_first, ending.exits, ending.trouble), (Some(0), vec![code(7), TERMINATED], None));
    training.leaves_nothing();
}

#[test]
fn a_gang_that_agreed_but_does_not_go_on_fails_the_run() {
    let mut training = Training::start(&[2], "nobody switches");
    training.order(&[2, 3], Span::from_secs(3));
    let ending = training.bench.ending();
    assert_eq!(ending.trouble.as_deref(), Some("the workers did not go on as gang 2 in time after a resize"));
    assert_eq!((ending.hung, ending.exit_code(), ending.exits), (true, None, vec![TERMINATED, TERMINATED]));
    training.leaves_nothing();
}

#[test]
fn a_worker_that_fails_while_newcomers_get_ready_fails_the_run() {
    let mut training = Training::start(&[2, 3], "newcomer hangs");
    training.order(&[0, 2, 3], PATIENT);
    training.pid(2);
    let pid = rustix::process::Pid::from_raw(training.pid(1).trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let ending = training.bench.ending();
    assert_eq!((ending.failed_first, ending.exits), (Some(1), vec![TERMINATED, KILLED]));
    training.leaves_nothing();
}

#[test]
fn whoever_does_not_leave_is_killed_before_its_device_is_free() {
    let mut training = Training::start(&[2, 3], "leaver stays");
    let leaver = training.pid(1);
    training.resize(&[2]);
    assert!(!lives(&leaver));
    assert_eq!(training.end(), [Some(0)]);
}

#[test]
fn a_resize_of_an_unknown_run_and_of_one_that_has_ended_is_harmless() {
    let mut training = Training::start(&[2], "");
    training.end();
    training.order(&[2, 3], PATIENT);
    let unknown = ResizeOrder {
        run: cluster::Run { attempt: 5, ..RUN },
        workers: on(&[2]),
        tuning: None,
        until: Time::from_secs(1),
        within: PATIENT,
    };
    training.bench.local().resize(&unknown).unwrap();
    assert!(!training.bench.file("wish.json").exists());
}

#[test]
fn a_resize_to_devices_that_are_not_there_is_refused() {
    let mut training = Training::start(&[2], "");
    let workers = vec![place(1, 0, &[0]), place(1, 0, &[2])];
    let order = ResizeOrder { run: RUN, workers, tuning: None, until: Time::from_secs(1), within: PATIENT };
    let error = training.bench.local().resize(&order).unwrap_err().to_string();
    assert_eq!(error, "cannot resize run 7/0: node 1 has no device 2");
    assert_eq!(training.end(), [Some(0)]);
}

#[test]
fn a_run_whose_supervisor_is_killed_during_a_resize_leaves_nothing() {
    let mut training = Training::start(&[2], "newcomer hangs");
    training.order(&[2, 3], PATIENT);
    let pids = [training.pid(0), training.pid(1)];
    rustix::process::kill_process(training.bench.supervisor(), rustix::process::Signal::KILL).unwrap();
    let ending = training.bench.ending();
    assert_eq!((ending.trouble.as_deref(), ending.exits.len()), (Some("its supervisor was lost"), 1));
    let until = Instant::now() + PATIENCE;
    while pids.iter().any(|pid| lives(pid)) {
        assert!(Instant::now() < until, "someone is left");
        sleep(Duration::from_millis(10));
    }
}
