//! Runs that keep their workers from the first to the last.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::{Bytes, Run, Span};
use executors::{
    Account, CpuLimit, Ending, Enforcement, Executor, Exit, Input, LaunchOrder, Limits, Local, News, Program, Sighting,
    Stage, TimeLimit,
};
use perf::Tuning;
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::bench::{Bench, KILLED, PATIENCE, RUN, TERMINATED, code, gang, lives, order, place, program};

#[test]
fn a_run_that_ends_well() {
    let mut bench = Bench::new();
    let ending = bench.run(&gang("echo hello; echo trouble >&2", 1));
    assert_eq!((ending.started, ending.told_to_stop, ending.exit_code()), (true, false, Some(0)));
    assert_eq!(bench.log(0), "hello\ntrouble\n");
}

#[test]
fn a_code_and_a_signal_are_recorded() {
    let ending = Bench::new().run(&gang("exit 3", 1));
    assert_eq!((ending.exits.clone(), ending.exit_code()), (vec![code(3)], Some(3)));
    let ending = Bench::new().run(&gang("kill -SEGV $$", 1));
    assert_eq!((ending.exits[0].signal, ending.exit_code()), (Some(11), Some(139)));
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let mut pyton = program("");
    pyton.command = vec!["pyton".into(), "train.py".into()];
    let ending = Bench::new().run(&order(pyton, 2));
    assert!(!ending.started);
    assert_eq!(ending.exit_code(), Some(127));
    assert_eq!(
        ending.trouble.unwrap().replace("worker 1", "worker 0"),
        "cannot start worker 0: no such program: `pyton`"
    );
}

#[test]
fn a_command_that_cannot_be_run_is_named() {
    let mut text = program("");
    text.command = vec!["/etc/passwd".into()];
    let ending = Bench::new().run(&order(text, 1));
    assert_eq!(ending.exit_code(), Some(126));
    assert_eq!(ending.trouble.as_deref(), Some("cannot start worker 0: `/etc/passwd`: Permission denied"));
}

#[test]
fn a_working_directory_that_is_not_there_is_named() {
    let lost = Program { workdir: "/not/there".into(), ..program("true") };
    let ending = Bench::new().run(&order(lost, 1));
    assert_eq!(
        ending.trouble.as_deref(),
        Some("cannot start worker 0: cannot enter `/not/there`: No such file or directory")
    );
}

#[test]
fn a_gang_fails_as_a_whole_with_the_code_of_the_first() {
    let mut bench = Bench::new();
    let ending = bench.run(&gang("[ $RANK = 1 ] && exit 5; exec sleep 60", 3));
    assert_eq!(ending.exits, [TERMINATED, code(5), TERMINATED]);
    assert_eq!((ending.exit_code(), ending.trouble), (Some(5), None));
    assert!(bench.processes().is_empty());
}

#[test]
fn other_roles_are_stopped_when_the_workers_are_done() {
    let mut order = gang("[ $ROLE_NAME = worker ] || exec sleep 60", 2);
    order.workers.push(place(1, 1, &[]));
    let ending = Bench::new().run(&order);
    assert_eq!(ending.exits, [code(0), code(0), TERMINATED]);
    assert_eq!(ending.exit_code(), Some(0));
}

#[test]
fn whoever_leaves_the_session_and_cleans_its_environment_is_found() {
    let mut bench = Bench::new();
    let pid = bench.data.path().join("pid");
    let script =
        format!("setsid env -i sh -c 'echo $$ > {0}; exec sleep 60' & until [ -s {0} ]; do :; done", pid.display());
    let ending = bench.run(&gang(&script, 1));
    assert_eq!(ending.exit_code(), Some(0));
    assert!(!lives(&fs::read_to_string(pid).unwrap()));
}

fn limited(script: &str, seconds: u64) -> LaunchOrder {
    let limit = TimeLimit { remaining: Span::from_secs(seconds), grace: Span::from_secs(10) };
    LaunchOrder { limit: Some(limit), ..gang(script, 2) }
}

#[test]
fn a_run_is_stopped_at_its_limit_by_its_supervisor_alone() {
    let mut bench = Bench::new();
    bench.start(&limited("trap 'exit 9' TERM; while :; do sleep 0.05; done", 2));
    bench.crash();
    let until = Instant::now() + PATIENCE;
    while !bench.file("exit.json").exists() {
        assert!(Instant::now() < until, "it goes on beyond its limit");
        sleep(Duration::from_millis(20));
    }
    bench.restart();
    let ending = bench.ending();
    assert_eq!((ending.limit_reached, ending.told_to_stop, ending.exit_code()), (true, true, Some(9)));
    assert!(ending.ran >= Some(Span::from_secs(2)), "{:?}", ending.ran);
}

#[test]
fn a_run_that_ends_before_its_limit_has_not_reached_it() {
    let ending = Bench::new().run(&limited("exit 3", 60));
    assert_eq!((ending.limit_reached, ending.told_to_stop, ending.exit_code()), (false, false, Some(3)));
    assert!(ending.ran < Some(Span::from_secs(60)), "{:?}", ending.ran);
}

/// A run that was lost with its machine, or with its supervisor alone, after this last sign of life. The end that is told
/// when the service is back.
fn lost(with_machine: bool, sign: &str) -> Ending {
    let mut bench = Bench::new();
    bench.start(&limited("exec sleep 60", 60));
    bench.crash();
    kill_process(bench.supervisor(), Signal::KILL).unwrap();
    fs::write(bench.file("usage.json"), sign).unwrap();
    if with_machine {
        bench
            .processes()
            .into_iter()
            .filter_map(Pid::from_raw)
            .for_each(|pid| kill_process(pid, Signal::KILL).unwrap());
        let note = fs::read_to_string(bench.file("supervisor.json")).unwrap();
        let mut note: serde_json::Value = serde_json::from_str(&note).unwrap();
        note["boot"] = "an earlier one".into();
        fs::write(bench.file("supervisor.json"), note.to_string()).unwrap();
    }
    bench.restart();
    bench.ending()
}

const THREE_MINUTES: &str =
    r#"{"cpu_seconds":1.0,"memory_bytes":1,"gpu_percent":null,"gpu_memory_bytes":null,"ran":180000}"#;
const NO_TIME: &str = r#"{"cpu_seconds":1.0,"memory_bytes":1,"gpu_percent":null,"gpu_memory_bytes":null}"#;

#[test]
fn a_run_that_was_lost_with_its_machine_lasted_up_to_its_last_sign_of_life() {
    let ending = lost(true, THREE_MINUTES);
    assert_eq!((ending.ran, ending.limit_reached), (Some(Span::from_minutes(3)), true), "its limit was a minute");
    assert_eq!(ending.usage.cpu_seconds, 1.0);
}

#[test]
fn a_run_whose_supervisor_alone_was_lost_went_on_until_it_was_found() {
    let ending = lost(false, THREE_MINUTES);
    assert_eq!((ending.ran, ending.limit_reached), (None, false));
}

#[test]
fn the_last_sign_of_life_of_an_older_supervisor_says_no_time() {
    assert_eq!(lost(true, NO_TIME).ran, None);
}

#[test]
fn a_run_that_catches_sigterm_says_how_it_ends() {
    let mut bench = Bench::new();
    let ready = bench.data.path().join("ready");
    let script = format!("trap 'exit 143' TERM; echo > {}; while :; do sleep 0.05; done", ready.display());
    bench.start(&gang(&script, 1));
    bench.appears(&ready);
    bench.local().stop(RUN, Span::from_secs(10)).unwrap();
    let ending = bench.ending();
    assert_eq!((ending.told_to_stop, ending.exits, ending.failed_first), (true, vec![code(143)], Some(0)));
}

/// Saves for a while when it is told to stop, and cannot if its helper dies meanwhile: as a training does that has
/// others load its data.
const SAVES: &str = r#"
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
helper = os.fork()
if helper == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(60)
    os._exit(0)
def lost(*_):
    raise RuntimeError("a helper was killed")
signal.signal(signal.SIGCHLD, lost)
with open("ready", "w") as file:
    file.write("\n")
while not told:
    time.sleep(0.01)
time.sleep(0.3)
with open("saved", "w") as file:
    file.write("\n")
sys.exit(143)
"#;

/// Stops a run of a script, `PROGRAM` in it being one that saves. How it ended, and which files there are then.
fn stopped(script: &str) -> (Exit, bool, bool) {
    let mut bench = Bench::new();
    let workdir = bench.data.path().join("work");
    fs::create_dir(&workdir).unwrap();
    fs::write(workdir.join("saves.py"), SAVES).unwrap();
    let script = script.replace("PROGRAM", "python3 saves.py");
    bench.start(&order(Program { workdir: workdir.clone(), ..program(&script) }, 1));
    bench.appears(&workdir.join("ready"));
    bench.local().stop(RUN, PATIENT).unwrap();
    let ending = bench.ending();
    assert!(bench.processes().is_empty());
    (ending.exits[0], workdir.join("saved").exists(), workdir.join("went-on").exists())
}

/// Longer than any test waits.
const PATIENT: Span = Span::from_secs(60);

#[test]
fn a_program_that_saves_is_told_and_its_helpers_are_not() {
    assert_eq!(stopped("exec PROGRAM"), (code(143), true, false));
}

#[test]
fn a_shell_ends_after_the_program_it_waits_for_and_does_not_go_on() {
    assert_eq!(stopped("PROGRAM; echo > went-on"), (TERMINATED, true, false));
    assert_eq!(stopped("sh -c 'PROGRAM; echo > went-on'; echo > went-on"), (TERMINATED, true, false));
}

#[test]
fn a_shell_with_a_handler_of_its_own_is_told_beside_the_command_it_waits_for() {
    assert_eq!(stopped("trap 'exit 9' TERM; PROGRAM"), (code(9), true, false));
    assert_eq!(stopped("trap 'exit 9' TERM; setsid -w sh -c 'PROGRAM; echo > went-on'"), (code(9), true, false));
    assert_eq!(stopped("trap 'exit 9' TERM; echo > ready; sleep 600"), (code(9), false, false));
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut bench = Bench::new();
    let ready = bench.data.path().join("ready");
    bench.start(&gang(&format!("trap '' TERM; echo > {}; while :; do sleep 1; done", ready.display()), 1));
    bench.appears(&ready);
    let asked = Instant::now();
    bench.local().stop(RUN, Span::from_secs(1)).unwrap();
    assert_eq!(bench.ending().exits, [KILLED]);
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&asked.elapsed()));
}

#[test]
fn a_second_stop_with_a_shorter_grace_shortens() {
    let mut bench = Bench::new();
    let ready = bench.data.path().join("ready");
    bench.start(&gang(&format!("trap '' TERM; echo > {}; while :; do sleep 1; done", ready.display()), 1));
    bench.appears(&ready);
    let asked = Instant::now();
    bench.local().stop(RUN, Span::from_secs(60)).unwrap();
    bench.local().stop(RUN, Span::ZERO).unwrap();
    assert_eq!(bench.ending().exits, [KILLED]);
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[test]
fn notice_comes_first_and_only_to_those_who_listen() {
    let mut bench = Bench::new();
    let said = bench.data.path().join("said");
    let script = "[ $RANK = 1 ] && exec sleep 60
        trap 'echo notice >> SAID' USR1; trap 'echo term >> SAID; exit 143' TERM
        echo ready >> SAID; while :; do sleep 0.05; done";
    let patient =
        Program { notice: Span::from_millis(700), ..program(&script.replace("SAID", said.to_str().unwrap())) };
    bench.start(&order(patient, 2));
    bench.appears(&said);
    let asked = Instant::now();
    bench.local().stop(RUN, Span::from_secs(10)).unwrap();
    let ending = bench.ending();
    assert_eq!(ending.exits, [code(143), TERMINATED]);
    assert!(asked.elapsed() >= Duration::from_millis(700));
    assert_eq!(fs::read_to_string(said).unwrap(), "ready\nnotice\nterm\n");
}

#[test]
fn a_stop_right_after_the_launch_is_not_lost() {
    let mut bench = Bench::new();
    bench.local().launch(&gang("exec sleep 60", 1)).unwrap();
    bench.local().stop(RUN, Span::from_secs(5)).unwrap();
    let ending = bench.ending();
    assert!(ending.told_to_stop);
    assert!(ending.exits == [TERMINATED] || ending.exits == [Exit::default()], "{ending:?}");
}

#[test]
fn an_order_whose_service_crashed_before_the_supervisor_can_be_stopped() {
    let mut bench = Bench::new();
    bench.run(&gang("true", 1));
    bench.crash();
    for file in ["supervisor.json", "lock", "exit.json", "started"] {
        fs::remove_file(bench.file(file)).unwrap();
    }
    bench.restart();
    assert_eq!(bench.local().survey().unwrap(), [Sighting { run: RUN, stage: Stage::Starting }]);
    bench.local().stop(RUN, Span::from_secs(5)).unwrap();
    let ending = bench.ending();
    assert_eq!((ending.started, ending.told_to_stop, ending.exits), (false, true, vec![Exit::default()]));
}

#[test]
fn stopping_and_settling_an_unknown_run_is_harmless() {
    let mut bench = Bench::new();
    bench.local().stop(RUN, Span::ZERO).unwrap();
    bench.local().settle(RUN).unwrap();
    bench.local().retune(RUN, Tuning { local: 1, accumulations: 0 }).unwrap();
    assert!(bench.local().survey().unwrap().is_empty());
}

#[test]
fn a_run_whose_supervisor_is_killed_ends_and_leaves_nothing() {
    let mut bench = Bench::new();
    let pids = bench.data.path().join("pids");
    let script = format!("(setsid sh -c 'echo $$ >> {}; exec sleep 60' &) ; exec sleep 60", pids.display());
    bench.start(&gang(&script, 2));
    while bench.appears(&pids).lines().count() < 2 {}
    kill_process(bench.supervisor(), Signal::KILL).unwrap();
    let ending = bench.ending();
    assert_eq!((ending.started, ending.trouble.as_deref()), (true, Some("its supervisor was lost")));
    assert!(!ending.limit_reached);
    assert_eq!(ending.exit_code(), None);
    assert!(bench.processes().is_empty());
    assert!(fs::read_to_string(pids).unwrap().lines().all(|pid| !lives(pid)));
}

#[test]
fn whoever_hides_is_found_without_control_groups_when_the_supervisor_is_killed() {
    let mut bench = Bench::new();
    let pid = bench.data.path().join("pid");
    let script = "setsid env -i sh -c 'echo $$ > PID; exec sleep 60' &
        while :; do echo '{}' >> $MOIRA_PROGRESS_FILE; sleep 0.1; done";
    bench.start(&gang(&script.replace("PID", pid.to_str().unwrap()), 1));
    let hidden = bench.appears(&pid);
    // Progress is told after a look at the run's processes: the third time that look was after the child hid.
    bench.news.try_iter().for_each(drop);
    for _ in 0..3 {
        bench.wait_for("progress", |news| matches!(news, News::Progress { .. }).then_some(()));
    }
    kill_process(bench.supervisor(), Signal::KILL).unwrap();
    assert_eq!(bench.ending().trouble.as_deref(), Some("its supervisor was lost"));
    assert!(!lives(&hidden));
}

#[test]
fn a_stopped_supervisor_does_not_keep_a_run_from_ending() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 60", 1));
    kill_process(bench.supervisor(), Signal::STOP).unwrap();
    bench.local().stop(RUN, Span::from_secs(5)).unwrap();
    let ending = bench.ending();
    assert_eq!((ending.told_to_stop, ending.exits), (true, vec![TERMINATED]));
}

#[test]
fn a_supervisor_that_is_stopped_again_and_again_is_killed_if_its_run_is_to_end() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 60", 1));
    let supervisor = bench.supervisor();
    kill_process(supervisor, Signal::STOP).unwrap();
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = over.clone();
    let hostile = std::thread::spawn(move || {
        while !done.load(std::sync::atomic::Ordering::Relaxed) && kill_process(supervisor, Signal::STOP).is_ok() {}
    });
    bench.local().stop(RUN, Span::ZERO).unwrap();
    assert!(bench.ending().told_to_stop);
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    hostile.join().unwrap();
    assert!(bench.processes().is_empty());
}

#[test]
fn a_launch_that_was_cut_short_leaves_no_directory() {
    let mut bench = Bench::new();
    let dir = bench.data.path().join("runs/7.0");
    let half = |dir: &Path| fs::create_dir_all(dir.join("logs")).unwrap();
    half(&dir);
    bench.local().settle(RUN).unwrap();
    assert!(!dir.exists(), "when the run is settled");
    bench.crash();
    half(&dir);
    bench.restart();
    assert!(!dir.exists(), "when the service starts");
}

#[test]
fn what_a_job_puts_in_place_of_its_progress_file_holds_nothing_up() {
    let tricks = [
        "mkfifo $MOIRA_PROGRESS_FILE",
        "ln -s /etc/shadow $MOIRA_PROGRESS_FILE",
        "ln -s /dev/zero $MOIRA_PROGRESS_FILE",
        "mkdir $MOIRA_PROGRESS_FILE",
        "truncate -s 1T $MOIRA_PROGRESS_FILE",
    ];
    for trick in tricks {
        let mut bench = Bench::new();
        let ending = bench.run(&gang(&format!("rm $MOIRA_PROGRESS_FILE; {trick} && sleep 1.5; exit 3"), 1));
        assert_eq!(ending.exit_code(), Some(3), "{trick}");
        assert!(bench.local().last_words(RUN).unwrap().is_empty(), "{trick}");
    }
}

#[test]
fn of_200_000_reports_the_last_is_heard_and_the_others_are_counted() {
    let mut bench = Bench::new();
    bench.local().launch(&gang("seq 200000 >> $MOIRA_PROGRESS_FILE", 1)).unwrap();
    let (mut heard, mut dropped) = (Vec::new(), 0);
    bench.wait_for("the end", |news| match news {
        News::Progress { lines, .. } => {
            heard.extend(lines);
            None
        }
        News::Dropped { reports, .. } => {
            dropped += reports;
            None
        }
        News::Ended { .. } => Some(()),
        _ => None,
    });
    assert_eq!(heard.last().map(String::as_str), Some("200000"));
    // The last MiB holds about 150,000 of them.
    assert!(dropped > 100_000 && heard.len() < 1_000, "{dropped} dropped, {} heard", heard.len());
}

#[test]
fn the_mark_of_a_run_is_not_in_the_name_of_its_control_group() {
    let mut bench = Bench::with(CpuLimit::Auto);
    if *bench.local().enforcement() == Enforcement::Duty {
        return say("there are no control groups");
    }
    bench.run(&gang("echo $MOIRA_RUN_TOKEN; cat /proc/self/cgroup", 1));
    let said = bench.log(0);
    let token = said.lines().next().unwrap();
    assert_eq!((token.len(), said.matches(token).count()), (32, 1), "{said}");
    assert!(said.contains("/moira-7.0-"), "also a worker without limits has a group: {said}");
}

#[test]
fn a_process_of_another_user_does_not_keep_a_run_from_ending() {
    if !geteuid().is_root() {
        return;
    }
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 60", 1));
    let run: serde_json::Value = serde_json::from_slice(&fs::read(bench.file("run.json")).unwrap()).unwrap();
    let mut stranger = Command::new("sleep");
    stranger.arg("60").env("MOIRA_RUN_TOKEN", run["token"].as_str().unwrap()).current_dir("/");
    let mut stranger = std::os::unix::process::CommandExt::uid(&mut stranger, 65534).spawn().unwrap();
    bench.local().stop(RUN, Span::ZERO).unwrap();
    bench.ending();
    assert!(stranger.try_wait().unwrap().is_none(), "it is none of the run's processes");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_run_outlives_the_service_and_is_found_again() {
    let mut bench = Bench::new();
    let go = bench.data.path().join("go");
    bench.start(&gang(&format!("until [ -e {} ]; do sleep 0.05; done; exit 4", go.display()), 2));
    bench.restart();
    assert_eq!(bench.local().survey().unwrap(), [Sighting { run: RUN, stage: Stage::Running }]);
    fs::write(go, "").unwrap();
    assert_eq!(bench.ending().exit_code(), Some(4));
}

#[test]
fn an_end_without_a_service_is_told_to_the_next_until_it_is_settled() {
    let mut bench = Bench::new();
    bench.start(&gang("sleep 0.3; exit 4", 1));
    bench.crash();
    sleep(Duration::from_secs(1));
    bench.restart();
    assert_eq!(bench.ending().exit_code(), Some(4));
    bench.restart();
    let ending = bench.ending();
    assert_eq!(bench.local().survey().unwrap(), [Sighting { run: RUN, stage: Stage::Ended(ending) }]);
    bench.local().settle(RUN).unwrap();
    assert!(bench.local().survey().unwrap().is_empty());
}

#[test]
fn a_run_that_is_launched_twice_runs_once() {
    let mut bench = Bench::new();
    let lines = bench.data.path().join("lines");
    let order = gang(&format!("echo >> {}; sleep 0.5", lines.display()), 1);
    bench.local().launch(&order).unwrap();
    bench.local().launch(&order).unwrap();
    bench.ending();
    bench.local().launch(&order).unwrap();
    bench.local().settle(RUN).unwrap();
    bench.local().launch(&order).unwrap();
    sleep(Duration::from_millis(500));
    assert_eq!(fs::read_to_string(lines).unwrap(), "\n");
    assert!(bench.local().survey().unwrap().is_empty());
}

#[test]
fn a_run_that_goes_on_cannot_be_settled() {
    let mut bench = Bench::new();
    bench.start(&gang("exec sleep 60", 1));
    assert_eq!(bench.local().settle(RUN).unwrap_err().to_string(), "cannot settle run 7/0: it has not ended");
    bench.local().stop(RUN, Span::ZERO).unwrap();
    bench.ending();
}

#[test]
fn every_worker_has_the_environment_of_its_rank_and_nothing_of_the_service() {
    let mut bench = Bench::new();
    let mut env = order(Program { env: [("MINE".into(), "a b".into())].into(), ..program("") }, 0);
    Arc::make_mut(&mut env.program).command = vec!["env".into()];
    env.workers = vec![place(0, 0, &[1]), place(1, 0, &[0])];
    env.tuning = Some(Tuning { local: 32, accumulations: 1 });
    assert_eq!(bench.run(&env).exit_code(), Some(0));
    let of = |worker: u32| -> BTreeMap<String, String> {
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
        bench.log(worker).lines().filter_map(pair).collect()
    };
    let (first, second) = (of(0), of(1));
    let shown = |names: &[&str], of: &BTreeMap<String, String>| {
        names.iter().map(|&name| of.get(name).map_or("-", String::as_str)).collect::<Vec<_>>().join(" ")
    };
    let ranks = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MOIRA_NODE_RANK"];
    assert_eq!((shown(&ranks, &first), shown(&ranks, &second)), ("0 0 0 2 1 0".into(), "1 0 1 2 1 1".into()));
    let own = ["MOIRA_DEVICES", "OMP_NUM_THREADS", "MOIRA_LOCAL_BATCH", "MOIRA_ACCUMULATION", "MINE"];
    assert_eq!((shown(&own, &first), shown(&own, &second)), ("slow:1 1 32 1 a b".into(), "fast:0 2 32 1 a b".into()));
    assert_eq!(first["MASTER_PORT"], second["MASTER_PORT"]);
    assert!(!first.contains_key("CARGO_MANIFEST_DIR") && std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(Path::new(&first["MOIRA_CHECKPOINT_DIR"]).is_dir());
}

#[test]
fn progress_and_a_new_tuning_go_to_and_fro() {
    let mut bench = Bench::new();
    let script = "echo '{\"step\":1}' >> $MOIRA_PROGRESS_FILE
        until grep -q 64 $MOIRA_TUNING_FILE; do sleep 0.05; done
        cat $MOIRA_TUNING_FILE >> $MOIRA_PROGRESS_FILE; echo >> $MOIRA_PROGRESS_FILE";
    let mut order = gang(script, 1);
    order.tuning = Some(Tuning { local: 32, accumulations: 0 });
    bench.local().launch(&order).unwrap();
    let next = |bench: &mut Bench| {
        bench.wait_for("progress", |news| match news {
            News::Progress { lines, .. } => Some(lines),
            _ => None,
        })
    };
    assert_eq!(next(&mut bench), ["{\"step\":1}"]);
    bench.restart();
    assert_eq!(next(&mut bench), ["{\"step\":1}"], "nobody said that it is on record");
    let upto = bench.wait_for("how far", |news| match news {
        News::Told { upto, .. } => Some(upto),
        _ => None,
    });
    bench.local().bookmark(RUN, upto).unwrap();
    assert!(bench.local().last_words(RUN).unwrap().is_empty());
    bench.restart();
    bench.local().retune(RUN, Tuning { local: 64, accumulations: 1 }).unwrap();
    assert_eq!(next(&mut bench), ["{\"local_batch\":64,\"accumulation\":1}"]);
}

#[test]
fn use_of_processor_and_memory_is_measured() {
    let mut bench = Bench::new();
    let ending = bench.run(&gang("timeout 0.5 sh -c 'while :; do :; done'; exit 0", 2));
    assert!(ending.usage.cpu_seconds > 0.1 && ending.usage.cpu_seconds < 2.0, "{:?}", ending.usage);
    assert!(ending.usage.memory_bytes > 100_000, "{:?}", ending.usage);
    assert_eq!(ending.usage.gpu_percent, None);
}

#[test]
fn a_log_is_rotated() {
    let mut bench = Bench::new();
    let ending = bench.run(&gang("head -c 25000000 /dev/zero; echo; echo the end", 1));
    assert_eq!(ending.exit_code(), Some(0));
    let logs = fs::read_dir(bench.file("logs")).unwrap().flatten();
    let sizes: Vec<u64> = logs.map(|log| log.metadata().unwrap().len()).collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<u64>()), (3, 25_000_009));
    assert!(sizes.iter().all(|&size| size < 11 << 20));
    assert!(bench.log(0).ends_with("the end\n"));
}

#[test]
fn a_log_directory_that_disappears_does_not_disturb_the_job() {
    let mut bench = Bench::new();
    let go = bench.data.path().join("go");
    bench.start(&gang(&format!("echo before; until [ -e {} ]; do sleep 0.05; done; echo after", go.display()), 1));
    bench.appears(&bench.file("logs/worker-0.log"));
    fs::remove_dir_all(bench.file("logs")).unwrap();
    fs::write(go, "").unwrap();
    assert_eq!(bench.ending().exit_code(), Some(0));
    assert_eq!(bench.log(0), "after\n");
}

/// A run whose log fills the disk, told to.
fn fill_the_disk(bench: &mut Bench, before: impl FnOnce(&Bench)) {
    let go = bench.data.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done; head -c 3000000 /dev/zero; exit 6", go.display());
    bench.start(&gang(&script, 1));
    before(bench);
    fs::write(go, "").unwrap();
}

#[test]
fn the_end_of_a_run_is_told_on_a_full_disk() {
    let data = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(data.path()) else { return say("no file system can be mounted") };
    let mut bench = Bench::at(data, CpuLimit::None);
    fill_the_disk(&mut bench, |_| ());
    assert_eq!(bench.ending().exit_code(), Some(6));
}

#[test]
fn a_full_disk_without_room_set_aside_delays_the_end_but_does_not_lose_it() {
    let data = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(data.path()) else { return say("no file system can be mounted") };
    let mut bench = Bench::at(data, CpuLimit::None);
    fill_the_disk(&mut bench, |bench| {
        (0..4).for_each(|number| fs::remove_file(bench.file(&format!("spare.{number}"))).unwrap());
    });
    sleep(Duration::from_millis(1500));
    assert!(!bench.file("exit.json").exists() && bench.processes().is_empty());
    fs::remove_file(bench.file("logs/worker-0.log")).unwrap();
    assert_eq!(bench.ending().exit_code(), Some(6));
}

#[test]
fn supervisors_do_not_stay_in_the_process_table() {
    let mut bench = Bench::new();
    bench.run(&gang("true", 1));
    let process = PathBuf::from(format!("/proc/{}", bench.supervisor().as_raw_nonzero()));
    let until = Instant::now() + PATIENCE;
    while process.exists() {
        assert!(Instant::now() < until, "the supervisor was not waited for");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_gang_that_is_not_up_in_time_is_given_up() {
    let mut bench = Bench::new();
    let pid = bench.data.path().join("pid");
    // The second worker never gets as far as the command.
    let script = "case \"$*\" in *'--worker 1') echo $$ > PID; exec sleep 60;; esac; exec \"$0\" \"$@\"";
    let script = script.replace("PID", pid.to_str().unwrap());
    let supervisor = ["sh", "-c", &script, env!("CARGO_BIN_EXE_supervise-for-tests")];
    bench.reopen_with(supervisor.map(Into::into).to_vec());
    let ending = bench.run(&LaunchOrder { start_within: Span::from_secs(1), ..gang("exec sleep 60", 2) });
    assert_eq!((ending.started, ending.trouble.as_deref()), (false, Some("not all workers were up in time")));
    assert_eq!((ending.exits, ending.failed_first), (vec![KILLED, KILLED], None));
    assert!(bench.processes().is_empty() && !lives(&fs::read_to_string(pid).unwrap()));
}

#[test]
fn a_job_of_another_user_runs_as_that_user() {
    if !geteuid().is_root() {
        return;
    }
    let mut bench = Bench::new();
    let script = "id -u; id -g; echo $HOME; echo kept > $MOIRA_CHECKPOINT_DIR/x && echo 1 >> $MOIRA_PROGRESS_FILE";
    let ending = bench.run(&order(Program { account: Some(nobody()), ..program(script) }, 1));
    assert_eq!((ending.exit_code(), bench.log(0)), (Some(0), "65534\n65534\n/nonexistent\n".into()));
}

#[test]
fn a_user_who_may_have_no_more_processes_cannot_fork() {
    if !geteuid().is_root() {
        return;
    }
    let limits = Limits { processes: Some(0), ..Limits::default() };
    let mut bench = Bench::new();
    // A user of this test's own: with processes of other tests it could not even become the command.
    let alone = Account { uid: 64_321, gid: 64_321, name: "alone".into(), ..nobody() };
    let ending = bench.run(&order(Program { account: Some(alone), limits, ..program("/bin/true; exit 0") }, 1));
    assert_eq!((ending.started, ending.exit_code()), (true, Some(2)));
    assert!(bench.log(0).contains("fork"), "{}", bench.log(0));
}

#[test]
fn a_run_whose_supervisor_cannot_be_started_is_over_and_can_be_settled() {
    let mut bench = Bench::new();
    bench.reopen_with(vec!["/no/such/supervisor".into()]);
    let refused = bench.local().launch(&gang("true", 1)).unwrap_err();
    assert_eq!(refused.to_string(), "cannot start the supervisor of run 7/0");
    let [Sighting { stage: Stage::Ended(ending), .. }] = &bench.local().survey().unwrap()[..] else {
        panic!("nobody may start it later")
    };
    assert!(!ending.started && ending.exit_code().is_none());
    bench.local().settle(RUN).unwrap();
}

#[test]
fn a_supervisor_that_cannot_fork_says_so_and_leaves_no_worker() {
    let hierarchy = Path::new("/sys/fs/cgroup/pids");
    let group = hierarchy.join(format!("moira-test-{}", std::process::id()));
    if fs::create_dir(&group).is_err() {
        return say("no group of the pids controller can be made");
    }
    // Room for the supervisor, a worker, and two threads for logs.
    fs::write(group.join("pids.max"), "4").unwrap();
    let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.display());
    let mut bench = Bench::new();
    let supervisor = ["sh", "-c", &script, env!("CARGO_BIN_EXE_supervise-for-tests")];
    bench.reopen_with(supervisor.map(Into::into).to_vec());
    let ending = bench.run(&gang("exec sleep 60", 2));
    assert_eq!(ending.trouble.as_deref(), Some("cannot start worker 1: cannot fork: Resource temporarily unavailable"));
    assert!(!ending.started && bench.processes().is_empty());
    sleep(Duration::from_millis(200));
    fs::remove_dir(group).unwrap();
}

#[test]
fn limits_are_those_of_the_program() {
    let limits = Limits { open_files: Some(64), core_file: Some(0), address_space: Some(1 << 30), processes: None };
    let mut bench = Bench::new();
    bench.run(&order(Program { limits, ..program("ulimit -n; ulimit -c; ulimit -v") }, 1));
    assert_eq!(bench.log(0), "64\n0\n1048576\n");
}

#[test]
fn an_order_for_devices_that_are_not_there_is_refused() {
    let mut order = gang("true", 1);
    order.workers = vec![place(1, 0, &[2])];
    let error = Bench::new().local().launch(&order).unwrap_err().to_string();
    assert_eq!(error, "cannot launch run 7/0: node 1 has no device 2");
}

#[test]
fn a_virtual_device_is_as_fast_as_it_says_by_control_groups() {
    match Enforcement::choose(CpuLimit::Cgroup) {
        Ok(_) => assert_thirty_percent(CpuLimit::Cgroup),
        Err(error) => say(&error.to_string()),
    }
}

#[test]
fn a_virtual_device_is_as_fast_as_it_says_by_duty_cycling() {
    assert_thirty_percent(CpuLimit::Duty);
}

/// Of two workers, one has a device of 30 % of a core, and the other one of two cores. Where the machine is busy both get
/// little, so bounds are wide, and it is tried again until the machine has some time left for the fast one.
fn assert_thirty_percent(limit: CpuLimit) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut measured = Vec::new();
    while measured.len() < 20 {
        let (slow, fast) = processor_seconds_of_slow_and_fast(limit);
        assert!(slow < 0.9, "{slow} s of 2 s by {limit:?}");
        if slow > 0.15 && fast > slow * 1.2 {
            return;
        }
        measured.push((slow, fast));
    }
    panic!("seconds of 2 s by {limit:?}: {measured:?}");
}

fn processor_seconds_of_slow_and_fast(limit: CpuLimit) -> (f64, f64) {
    let mut bench = Bench::with(limit);
    let mut order = gang("timeout 2 sh -c 'while :; do :; done'; cat /proc/$$/stat", 0);
    order.workers = vec![place(0, 0, &[0]), place(1, 0, &[0])];
    assert_eq!(bench.run(&order).exit_code(), Some(0));
    // User and system time of children, in ticks of 10 ms.
    let seconds = |worker: u32| {
        let stat = bench.log(worker);
        let ticks = stat.split(' ').skip(15).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
        ticks.sum::<f64>() / 100.0
    };
    (seconds(0), seconds(1))
}

#[test]
fn a_worker_that_takes_more_memory_than_it_has_is_killed() {
    match Enforcement::choose(CpuLimit::Cgroup) {
        Ok(Enforcement::CgroupV1 { memory: Some(_), .. } | Enforcement::CgroupV2 { limits_memory: true, .. }) => {}
        _ => return say("memory cannot be limited"),
    }
    let mut bench = Bench::with(CpuLimit::Cgroup);
    let mut order = gang("exec tail /dev/zero", 1);
    order.workers[0].memory = Bytes::mib(64);
    let ending = bench.run(&order);
    assert_eq!((ending.exits, ending.out_of_memory), (vec![KILLED], Some(Bytes::mib(64))), "and it is said why");
}

#[test]
fn the_first_worker_reads_what_is_sent_and_another_run_reads_it_again() {
    let mut bench = Bench::new();
    let input = Input::of(bench.data.path(), "a");
    let reading = Program { input: Some("a".into()), ..program("cat; echo end of $RANK") };
    input.take(0, b"before its start\n", false).unwrap();
    bench.start(&order(reading.clone(), 2));
    input.take(17, b"while it runs\n", true).unwrap();
    assert_eq!(bench.ending().exit_code(), Some(0));
    let all = "before its start\nwhile it runs\nend of 0\n";
    assert_eq!((bench.log(0).as_str(), bench.log(1).as_str()), (all, "end of 1\n"));
    let again = Run { attempt: 1, ..RUN };
    bench.local().launch(&LaunchOrder { run: again, ..order(reading, 1) }).unwrap();
    bench.wait_for("its end", |news| matches!(news, News::Ended { run, .. } if run == again).then_some(()));
    let log = fs::read_to_string(&Local::log_paths(bench.data.path(), again, 0)[0]).unwrap();
    assert_eq!(log, all);
}

#[test]
fn a_worker_that_never_reads_its_input_ends_like_any_other() {
    let mut bench = Bench::new();
    let input = Input::of(bench.data.path(), "a");
    // More than a pipe holds, and it never ends.
    input.take(0, &[b'x'; 1 << 20], false).unwrap();
    let ending = bench.run(&order(Program { input: Some("a".into()), ..program("exit 3") }, 1));
    assert_eq!(ending.exit_code(), Some(3));
}

/// A file system of one megabyte.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<SmallDisk> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at).status();
        mount.is_ok_and(|status| status.success()).then(|| SmallDisk(at.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

fn nobody() -> Account {
    Account { uid: 65534, gid: 65534, name: "nobody".into(), home: "/nonexistent".into() }
}

/// Why a test has nothing to test on this machine.
fn say(reason: &str) {
    let _ = writeln!(std::io::stderr(), "not tested here: {reason}");
}
