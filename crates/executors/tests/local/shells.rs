//! Shells beside a run, and what is left of them.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use executors::{CpuLimit, LaunchOrder, MOST_SHELLS, Shell, ShellEnd, ShellError, ShellOrder, Window, WorkerPlace};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, PATIENCE, RUN, TERMINATED, gang, lives, place};

fn open(bench: &Bench, script: &str) -> Shell {
    try_to_open(bench, script).unwrap()
}

fn try_to_open(bench: &Bench, script: &str) -> Result<Shell, ShellError> {
    let command = vec!["sh".into(), "-c".into(), script.into()];
    let order = ShellOrder { command, window: Window { rows: 24, columns: 80 }, term: None };
    let name = Shell::open(bench.data.path(), RUN, &order)?;
    Ok(Shell::find(bench.data.path(), RUN, &name).unwrap())
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what} does not come");
        sleep(Duration::from_millis(20));
    }
}

fn end(shell: &Shell) -> ShellEnd {
    until("the end of a shell", || shell.end())
}

fn pid_in(bench: &Bench, name: &str) -> String {
    bench.appears(&bench.data.path().join(name)).trim().to_string()
}

/// Tells its number, has the terminal and does not hear of a hangup.
fn stubborn(bench: &Bench, name: &str, how: &str) -> String {
    let file = bench.data.path().join(name);
    // The first is there before its parent goes.
    format!("trap '' HUP; {how} sh -c 'echo $$ > {0}; exec sleep 600' & until [ -s {0} ]; do :; done", file.display())
}

/// In how many sessions the run is looked for if its supervisor is lost.
fn noted_leaders(bench: &Bench) -> usize {
    fs::read_to_string(bench.file("workers.json")).unwrap_or_default().matches("pid").count()
}

/// What threads of the supervisor look after terminals.
fn threads(bench: &Bench) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", bench.supervisor().as_raw_nonzero())).unwrap();
    let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_string()).filter(|name| name == "input" || name == "log").collect()
}

#[test]
fn whoever_is_left_of_a_shell_and_has_its_terminal_is_ended_and_no_thread_stays() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    // A thread has its name a moment after it was started.
    let before = until("the thread of its log", || Some(threads(&bench)).filter(|names| !names.is_empty()));
    let shell = open(&bench, &stubborn(&bench, "pid", ""));
    assert_eq!(end(&shell).exit.code, Some(0));
    let left = pid_in(&bench, "pid");
    until("the end of what is left", || (!lives(&left)).then_some(()));
    until("the end of its threads", || (threads(&bench) == before).then_some(()));
    assert_eq!(end(&open(&bench, "exit 3")).exit.code, Some(3));
}

#[test]
fn whoever_hides_in_the_session_of_a_shell_is_found_when_supervisor_and_service_are_killed() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    // Neither its environment nor a terminal tells whose it is.
    let hides = |name| stubborn(&bench, name, "env -i 0<&- >/dev/null 2>&1");
    let is_open = open(&bench, &format!("{}; exec sleep 600", hides("beside")));
    let has_ended = open(&bench, &hides("behind"));
    let hidden = ["beside", "behind"].map(|name| pid_in(&bench, name));
    assert_eq!(end(&has_ended).exit.code, Some(0));
    until("that the sessions of all are noted", || (noted_leaders(&bench) == 3).then_some(()));
    assert!(is_open.end().is_none() && hidden.iter().all(|pid| lives(pid)));
    let supervisor = bench.supervisor();
    bench.crash();
    kill_process(supervisor, Signal::KILL).unwrap();
    bench.restart();
    assert_eq!(bench.ending().trouble.as_deref(), Some("its supervisor was lost"));
    assert!(!hidden.iter().any(|pid| lives(pid)), "{hidden:?}");
}

#[test]
fn the_session_of_a_shell_of_which_nothing_is_left_is_not_looked_for() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    let shell = open(&bench, "read line");
    until("that it is noted", || (noted_leaders(&bench) == 2).then_some(()));
    shell.hang_up().unwrap();
    until("that it is not any more", || (noted_leaders(&bench) == 1).then_some(()));
}

#[test]
fn a_shell_keeps_its_place_as_long_as_somebody_has_its_terminal() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    let mut pids = Vec::new();
    for number in 0..MOST_SHELLS {
        let name = format!("pid-{number}");
        assert_eq!(end(&open(&bench, &stubborn(&bench, &name, "setsid"))).trouble, None);
        pids.push(pid_in(&bench, &name));
    }
    let trouble = end(&open(&bench, "true")).trouble.unwrap();
    assert!(trouble.contains("too many"), "{trouble}");
    assert!(pids.iter().all(|pid| lives(pid)), "a session of its own is let be");
    let first = Pid::from_raw(pids[0].parse().unwrap()).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    until("a place", || end(&open(&bench, "true")).trouble.is_none().then_some(()));
}

#[test]
fn of_shells_that_have_ended_few_are_kept_and_nothing_that_was_typed() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    let mut last = None;
    for _ in 0..8 {
        let shell = open(&bench, "read line; exit 5");
        shell.input().take(0, b"secret\n", false).unwrap();
        assert_eq!(end(&shell).exit.code, Some(5));
        last = Some(shell);
    }
    let kept = || fs::read_dir(bench.file("shells")).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    until("few", || (kept().len() <= 4).then_some(()));
    until("no input", || (!kept().iter().any(|dir| dir.join("data").exists())).then_some(()));
    assert_eq!(last.unwrap().end().unwrap().exit.code, Some(5), "those that ended last");
}

#[test]
fn a_wish_to_stop_that_cannot_be_read_is_a_wish_to_stop() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 600", 1));
    fs::create_dir(bench.file("stop.json")).unwrap();
    let ending = bench.ending();
    assert_eq!((ending.told_to_stop, ending.exits), (true, vec![TERMINATED]));
}

#[test]
fn a_shell_shares_the_processor_time_of_the_worker_beside_it() {
    let mut bench = Bench::with(CpuLimit::Duty);
    // So little that it takes more on any machine.
    let little = WorkerPlace { share_thousandths: 100, ..place(0, 0, &[0]) };
    let spins = LaunchOrder { workers: vec![little], ..gang("while :; do :; done", 1) };
    bench.start(&spins);
    let file = bench.data.path().join("pid");
    let _shell = open(&bench, &format!("echo $$ > {}; exec sleep 600", file.display()));
    let pid = pid_in(&bench, "pid");
    // For its own start it may be stopped once or twice; after that it does nothing itself.
    let is_stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    for _ in 0..6 {
        until("that it is stopped with the worker", || is_stopped().then_some(()));
        until("that it goes on with the worker", || (!is_stopped()).then_some(()));
    }
}
