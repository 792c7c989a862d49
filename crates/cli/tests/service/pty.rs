//! `moira run --pty`: a user at a real terminal, a job at the other end.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use crate::http;
use crate::processes;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, binary, eventually};

/// A command at a terminal, and the user before it.
pub(crate) struct Seat {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// All that was to be seen so far and was not looked for yet.
    seen: String,
    terminal: OwnedFd,
    modes: String,
}

impl Seat {
    pub(crate) fn take(service: &Service, arguments: &[&str]) -> Seat {
        let (keyboard, terminal) = a_terminal();
        resize(&keyboard, 30, 100);
        let modes = modes_of(&terminal);
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(binary())
            .args(arguments)
            .env("MOIRA_DATA_DIR", service.data_dir())
            .env("TERM", "vt100")
            .env_remove("MOIRA_SERVER")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let mut source = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Seat { child, keyboard, screen, seen: String::new(), terminal, modes }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is to be seen, behind what was looked for before.
    #[track_caller]
    pub(crate) fn shows(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            if let Some(place) = self.seen.find(text) {
                self.seen.drain(..place + text.len());
                return;
            }
            let Ok(piece) = self.screen.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) else {
                panic!("no {text:?} on the screen: {:?}", self.seen);
            };
            self.seen += &String::from_utf8_lossy(&piece);
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        resize(&self.keyboard, rows, columns);
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Its exit code; its terminal is as it was before.
    #[track_caller]
    pub(crate) fn end(self) -> Option<i32> {
        let child = RefCell::new(self.child);
        eventually("the command ends", || child.borrow_mut().try_wait().unwrap().is_some());
        let code = child.borrow_mut().wait().unwrap().code();
        assert_eq!(modes_of(&self.terminal), self.modes, "the modes of the terminal are restored");
        code
    }
}

/// The end of a user, and that of programs.
fn a_terminal() -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let keyboard = openpt(flags).unwrap();
    unlockpt(&keyboard).unwrap();
    let terminal = ioctl_tiocgptpeer(&keyboard, flags).unwrap();
    (File::from(keyboard), terminal)
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn modes_of(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).unwrap())
}

/// A shell that says nothing of its own: no prompt, no line editor.
const SHELL: [&str; 5] = ["run", "--pty", "--", "sh", "-i"];

fn at_a_shell(service: &Service) -> Seat {
    let mut seat = Seat::take(service, &SHELL);
    seat.press("PS1=; echo re''ady\r");
    seat.shows("ready");
    seat
}

#[test]
fn a_shell_has_a_terminal_of_the_size_and_kind_of_its_users() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    seat.press("test -t 0 && test -t 1 && test -t 2 && echo ter''minal $TERM; tty; stty size </dev/tty\r");
    seat.shows("terminal vt100");
    seat.shows("/dev/pts/");
    seat.shows("30 100");
    seat.press("sh -c 'trap \"stty size; exit\" WINCH; echo trap set; while :; do sleep 0.05; done'\r");
    seat.shows("trap set\r\n");
    seat.resize(40, 132);
    seat.shows("40 132");
    seat.press("exit 7\r");
    assert_eq!(seat.end(), Some(7));
    assert_eq!(service.show("0")["exit_code"], 7);
    let log = String::from_utf8(service.moira(&["logs", "0"]).stdout).unwrap();
    assert!(log.contains("terminal vt100\r\n"), "the session is on record: {log}");
}

#[test]
fn control_c_interrupts_the_program_and_not_the_session_and_control_d_ends_it() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    seat.press("trap 'echo sa''ved' INT; sh -c 'echo in front; exec sleep 1000'\r");
    seat.shows("in front\r\n");
    seat.press("\x03");
    seat.shows("saved");
    service.until("0", "running");
    seat.press("echo st''ill here\r");
    seat.shows("still here");
    seat.press("\x04");
    assert_eq!(seat.end(), Some(0));
}

#[test]
fn typing_goes_on_after_a_restart_of_the_service() {
    let mut service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    service.kill();
    seat.press("echo me''anwhile\r");
    service.rise();
    seat.shows("meanwhile");
    seat.press("exit\r");
    assert_eq!(seat.end(), Some(0));
}

#[test]
fn what_was_typed_is_overwritten_once_it_is_read_and_removed_at_the_end() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    seat.press("stty -echo; read secret; echo go''t it; stty echo\rhunter2\r");
    seat.shows("got it");
    let inputs = service.data_dir().join("input");
    let spool = || std::fs::read_dir(&inputs).unwrap().next().unwrap().unwrap().path().join("data");
    eventually("what was typed is overwritten", || std::fs::read(spool()).unwrap().iter().all(|&byte| byte == 0));
    seat.press("exit\r");
    assert_eq!(seat.end(), Some(0));
    eventually("the spool is removed", || std::fs::read_dir(&inputs).unwrap().count() == 0);
}

#[test]
fn a_user_who_leaves_cancels_the_job() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    assert!(seat.is_raw());
    seat.press("~.");
    seat.shows("left: job 0 is cancelled");
    assert_eq!(seat.end(), Some(129));
    service.until("0", "cancelled");
}

#[test]
fn a_signal_cancels_the_job_and_the_terminal_is_restored() {
    let service = Service::start(FOUR_DEVICES);
    for (id, signal, code) in [("0", Signal::TERM, 143), ("1", Signal::HUP, 129)] {
        let seat = at_a_shell(&service);
        let run = processes::of(service.data_dir());
        let run = run.iter().find(|it| it.command.contains(" run --pty") && !it.command.contains("setsid")).unwrap();
        processes::kill(run.pid, signal);
        assert_eq!(seat.end(), Some(code));
        service.until(id, "cancelled");
    }
}

#[test]
fn a_job_that_waits_is_cancelled_by_control_c() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = Seat::take(&service, &["run", "--pty", "--hold", "--", "sh"]);
    seat.shows("submitted job 0");
    assert!(!seat.is_raw(), "nothing is typed at a job that has no terminal yet");
    seat.press("\x03");
    assert_eq!(seat.end(), Some(130));
    service.until("0", "cancelled");
}

#[test]
fn a_job_at_whose_terminal_nobody_can_sit_is_cancelled() {
    let service = Service::start(FOUR_DEVICES);
    let ((keyboard, keys), (_screen, shown)) = (a_terminal(), a_terminal());
    // None of them is the terminal of its session: it hears of no hangup.
    let mut client = Command::new(binary())
        .args(["run", "--pty", "--hold", "--", "sleep", "600"])
        .env("MOIRA_DATA_DIR", service.data_dir())
        .env_remove("MOIRA_SERVER")
        .stdin(Stdio::from(keys))
        .stdout(Stdio::from(shown))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(client.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("submitted job 0"), "{line}");
    drop(keyboard);
    service.json(&["release", "-o", "json", "0"]);
    service.until("0", "cancelled");
    said.read_to_string(&mut line).unwrap();
    assert!(line.contains("the modes of the terminal"), "{line}");
    assert_eq!(client.wait().unwrap().code(), Some(1));
}

#[test]
fn a_session_whose_supervisor_is_killed_is_over_and_does_not_begin_anew() {
    let service = Service::start(FOUR_DEVICES);
    let mut seat = at_a_shell(&service);
    for supervisor in processes::supervisors(service.data_dir()) {
        processes::kill(supervisor.pid, Signal::KILL);
    }
    seat.shows("its supervisor was lost");
    assert_eq!(seat.end(), Some(1));
    assert_eq!((&service.show("0")["state"], &service.show("0")["attempts"]), (&json!("failed"), &json!(1)));
}

#[test]
fn a_terminal_is_refused_where_it_makes_no_sense() {
    let service = Service::start(FOUR_DEVICES);
    let output = service.moira(&["run", "--pty", "--", "sh"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--pty needs a terminal as standard input and output"), "{said}");
    let mut seat = Seat::take(&service, &["run", "--pty", "--array", "0-3", "--", "sh"]);
    seat.shows("array: a job with a terminal is one job");
    assert_eq!(seat.end(), Some(2));
    let id = service.submit(&["--", "sleep", "1000"]);
    let window = |job: &str, body: serde_json::Value| {
        let path = format!("/v1/jobs/{job}/window");
        http::post(&service.socket(), &path, &[], &body.to_string()).unwrap()
    };
    let answer = window(&id, json!({ "rows": 0, "columns": 80 }));
    assert_eq!((answer.status, &answer.body["field"]), (422, &json!("rows")));
    let answer = window(&id, json!({ "rows": "many", "columns": 80 }));
    assert_eq!((answer.status, &answer.body["field"]), (422, &json!("rows")), "{}", answer.body);
    assert_eq!(window(&id, json!({ "rows": 24, "columns": 80 })).status, 409);
    assert_eq!(window("77", json!({ "rows": 24, "columns": 80 })).status, 404);
}
