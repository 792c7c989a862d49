//! What another user of the machine, or a hostile job, can do with the service's files and processes: nothing.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;

use crate::faults::pass_over;
use crate::http;
use crate::processes;
use crate::pty::Seat;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, binary, eventually};

/// The user whose number is nobody's own.
const NOBODY: u32 = 65534;

#[test]
fn another_user_can_open_nothing_of_the_service_and_a_job_all_that_is_its_own() {
    if !is_root() {
        return pass_over("a second user takes root");
    }
    let shared = shared_folder();
    let mut service = Service::prepare(FOUR_DEVICES);
    service.start_after("umask 000");
    service.rise();
    let script = format!(
        "cd {} && echo x > by-job && echo '{{\"steps\": 3}}' >> $MOIRA_PROGRESS_FILE && echo x > $MOIRA_CHECKPOINT_DIR/x \
         && echo x > $MOIRA_GANG_DIR/x && ls $MOIRA_CHECKPOINT_DIR && sleep 60",
        shared.path().display()
    );
    let id = submit_as_nobody(&service, &script);
    service.until_it(&id, "heard", |job| job["progress"]["steps"] == 3);
    // What was sent to a job and what is typed and shown beside one lies on the disk.
    let request = json!({ "command": ["sh", "-c", "cat; sleep 60"], "workdir": "/", "stdin": true }).to_string();
    let answer = http::post(&service.socket(), "/v1/jobs", &[], &request).unwrap();
    let with_input = answer.body["id"].as_str().unwrap_or_else(|| panic!("{}", answer.body)).to_string();
    service.until(&with_input, "running");
    let octets = [("Content-Type", "application/octet-stream")];
    let sent =
        http::post(&service.socket(), &format!("/v1/jobs/{with_input}/input?offset=0"), &octets, "secret").unwrap();
    assert_eq!(sent.status, 200, "{}", sent.body);
    let mut seat = Seat::take(&service, &["shell", &with_input, "--", "sh", "-i"]);
    seat.press("PS1=; echo re''ady\r");
    seat.shows("ready");
    for name in ["input", "shells", "output.log"] {
        let is_named = |path: &PathBuf| path.components().any(|part| part.as_os_str() == name);
        assert!(below(service.data_dir()).iter().filter(|path| !path.ends_with("shells")).any(is_named), "{name}");
    }
    assert_eq!(openable_by_nobody(&service), Vec::<PathBuf>::new());
    seat.press("exit 5\r");
    assert_eq!(seat.end(), Some(5));
    service.json(&["cancel", "-o", "json", &with_input]);
    service.until(&with_input, "cancelled");
    let made = fs::metadata(shared.path().join("by-job")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (NOBODY, 0o664), "a job has the umask of its caller");

    // What a version before this one left open is closed at the next start.
    service.kill();
    open_all(service.data_dir());
    service.rise();
    assert_eq!(openable_by_nobody(&service), Vec::<PathBuf>::new());
    let modes = ["", "runs", "done", "checkpoints"].map(|name| mode(&service.data_dir().join(name)));
    assert_eq!(modes, [0o711; 4]);
    service.json(&["cancel", "-o", "json", &id]);
    service.until(&id, "cancelled");
}

#[test]
fn a_job_has_no_descriptor_and_no_variable_of_the_user_who_started_the_service() {
    if !is_root() {
        return pass_over("a second user takes root");
    }
    let mut service = Service::prepare(FOUR_DEVICES);
    service.set("TMPDIR", "/root/tmp");
    service.set("PATH", &format!("/root/bin:{}", std::env::var("PATH").unwrap()));
    service.start_after("exec 7</etc/shadow 9<>/dev/null");
    service.rise();
    let said = |id: &str| String::from_utf8(service.moira(&["logs", id]).stdout).unwrap();
    let id = submit_as_nobody(&service, "ls /proc/$$/fd | tr '\\n' ' '; echo; env");
    service.until(&id, "succeeded");
    let said = said(&id);
    assert_eq!(said.lines().next(), Some("0 1 2 "), "{said}");
    let roots: Vec<&str> = said.lines().filter(|line| line.contains("/root")).collect();
    assert_eq!(roots, Vec::<&str>::new());
    assert!(said.contains("\nHOME=/nonexistent\n") && said.contains("\nUSER=nobody\n"), "{said}");

    // Neither has a shell, nor who is told of a job.
    let folder = shared_folder();
    let list = |name: &str| {
        let place = folder.path().join(name).display().to_string();
        // A shell keeps its own output open beside the file.
        format!("(ls /proc/$$/fd > {place}.part); mv {place}.part {place}")
    };
    let told = list("told");
    let id = service.submit(&["--notify", &told, "--", "sleep", "600"]);
    service.until(&id, "running");
    assert_eq!(Seat::take(&service, &["shell", &id, "--", "sh", "-c", &list("shell")]).end(), Some(0));
    for name in ["shell", "told"] {
        eventually(name, || folder.path().join(name).exists());
        assert_eq!(fs::read_to_string(folder.path().join(name)).unwrap(), "0\n1\n2\n", "{name}");
    }
    service.json(&["cancel", "-o", "json", &id]);
    service.until(&id, "cancelled");
}

#[test]
fn a_directory_of_something_else_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(binary());
    let output = command.arg("serve").arg("--data-dir").arg(folder.path()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("thesis.tex"), "{said}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!((left, mode(folder.path())), (vec!["thesis.tex".into()], 0o755));
}

#[test]
fn a_job_that_misuses_its_progress_file_keeps_nobody_from_being_heard() {
    let service = Service::start(FOUR_DEVICES);
    let tricks = ["mkfifo $0", "ln -s /dev/zero $0", "truncate -s 1T $0"];
    for trick in tricks {
        let script = format!("rm $MOIRA_PROGRESS_FILE; exec sh -c '{trick}; sleep 600' $MOIRA_PROGRESS_FILE");
        service.until(&service.submit(&["--", "sh", "-c", &script]), "running");
    }
    let flood = "yes '{\"steps\": 1}' | head -n 200000 >> $MOIRA_PROGRESS_FILE";
    let last = "echo '{\"steps\": 7}' >> $MOIRA_PROGRESS_FILE";
    let honest = service.submit(&["--", "sh", "-c", &format!("{flood}; {last}; sleep 600")]);
    service.until_it(&honest, "heard", |job| job["progress"]["steps"] == 7);
    let count = |name: &str| {
        let line = metrics(&service).lines().find(|line| line.starts_with(name)).map(str::to_string);
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).unwrap_or_default()
    };
    eventually("what was dropped is counted", || {
        count("moira_dropped_reports_total") > 10_000 && count("moira_unread_progress_bytes_total") > 1 << 30
    });
    eventually("the log says so too", || {
        service.log().contains("reports were dropped") && service.log().contains("cannot be read")
    });
    // They end like any other.
    for job in service.get("/v1/jobs").body["jobs"].as_array().unwrap() {
        let id = job["id"].as_str().unwrap();
        service.json(&["cancel", "-o", "json", id]);
        service.until(id, "cancelled");
    }
}

#[test]
fn a_job_that_reports_too_often_over_http_is_told_so_and_keeps_nobody_else_from_reporting() {
    let service = Service::start(FOUR_DEVICES);
    let [loud, quiet] = [(); 2].map(|()| service.submit(&["--", "sleep", "600"]));
    service.until(&loud, "running");
    service.until(&quiet, "running");
    let report =
        |job: &str, body: &str| http::post(&service.socket(), &format!("/v1/jobs/{job}/progress"), &[], body).unwrap();
    // By several at once: each report is on the disk before its answer.
    let begun = Instant::now();
    let until_refused = || {
        loop {
            let answer = report(&loud, r#"{"steps": 7}"#);
            if answer.status != 200 {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "no report is refused");
        }
    };
    let refused = thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(until_refused)).collect();
        all.into_iter().map(|one| one.join().unwrap()).last().unwrap()
    });
    assert_eq!((refused.status, &refused.body["type"]), (429, &json!("urn:moira:problem:too-many-reports")));
    let quiets = report(&quiet, r#"{"steps": 8}"#);
    assert_eq!(quiets.status, 200, "{}", quiets.body);
    let dropped = metrics(&service).lines().any(|line| {
        line.strip_prefix("moira_dropped_reports_total{} ").is_some_and(|count| count.parse::<u64>().unwrap() > 0)
    });
    assert!(dropped, "{}", metrics(&service));
    assert!(service.log().contains("reports more than it may over HTTP"));
}

#[test]
fn a_service_whose_log_nobody_takes_goes_on_with_everything() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    // Whoever read the log has gone; or there never was one.
    let unread = format!("mkfifo {0} && exec 3<>{0} && exec 2>{0} && exec 3>&-", pipe.display());
    for words in [unread.as_str(), "exec 2>&-"] {
        let mut service = Service::prepare(FOUR_DEVICES);
        service.start_after(words);
        service.rise();
        service.until(&service.submit(&["--", "true"]), "succeeded");
        service.until(&service.submit(&["--", "false"]), "failed");
        let lost = service.submit(&["--", "sleep", "600"]);
        service.until(&lost, "running");
        // What happens to it is a warning in the log.
        for supervisor in processes::supervisors(service.data_dir()) {
            processes::kill(supervisor.pid, Signal::KILL);
        }
        service.until_it(&lost, "started again", |job| job["attempts"] == 2 && job["state"] == "running");
        service.json(&["cancel", "-o", "json", &lost]);
        service.until(&lost, "cancelled");
        assert_eq!(service.get("/readyz").body["status"], "ok", "{words}");
        assert!(!service.log().contains("panicked") && service.log().is_empty(), "{words}: {}", service.log());
    }
}

/// All numbers the service tells of itself, as text.
pub(crate) fn metrics(service: &Service) -> String {
    let mut stream = UnixStream::connect(service.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: moira\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// A directory in which everyone may write.
fn shared_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    folder
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
    command
}

/// Submits a script as another user of the machine and returns the job's number.
fn submit_as_nobody(service: &Service, script: &str) -> String {
    // That user may not reach the directory of the build.
    let folder = shared_folder();
    let copy = folder.path().join("moira");
    fs::copy(binary(), &copy).unwrap();
    let mut command = as_nobody(Path::new("/bin/sh"));
    command.args(["-c", "umask 002; exec \"$0\" \"$@\""]).arg(&copy);
    command.args(["submit", "-o", "json", "--", "sh", "-c", script]).env("PATH", "/usr/bin:/bin");
    command.env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER").env_remove("LD_LIBRARY_PATH");
    let submitted: serde_json::Value = serde_json::from_slice(&succeeded(command).stdout).unwrap();
    submitted["id"].as_str().expect("an id is a string").to_string()
}

/// All of the data directory that the other user can read or write; its own files and the socket are not counted.
fn openable_by_nobody(service: &Service) -> Vec<PathBuf> {
    let is_public = |path: &Path| path.ends_with("moira.sock");
    let mut files = below(service.data_dir());
    files.retain(|path| !is_public(path) && fs::symlink_metadata(path).is_ok_and(|data| data.uid() != NOBODY));
    assert!(files.iter().any(|path| path.ends_with("journal.db-wal")), "{files:?}");
    assert!(files.iter().any(|path| path.ends_with("supervisor.log")), "{files:?}");
    assert!(files.iter().any(|path| path.ends_with("logs/worker-0.log")), "{files:?}");
    assert!(files.iter().any(|path| path.ends_with("news.sock")), "{files:?}");
    let mut command = as_nobody(Path::new("/bin/sh"));
    let script = "for file in \"$@\"; do if [ -r \"$file\" ] || [ -w \"$file\" ]; then echo \"$file\"; fi; done";
    command.args(["-c", script, "sh"]).args(&files);
    let found = succeeded(command);
    String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Every file and directory below a directory, and the directory itself.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_path_buf()];
    let mut index = 0;
    while index < all.len() {
        if fs::symlink_metadata(&all[index]).is_ok_and(|data| data.is_dir()) {
            all.extend(fs::read_dir(&all[index]).unwrap().flatten().map(|entry| entry.path()));
        }
        index += 1;
    }
    all
}

/// As an earlier version left its files, and worse.
fn open_all(data_dir: &Path) {
    let is_job_own = |path: &Path| fs::metadata(path).is_ok_and(|data| data.uid() == NOBODY);
    let logs = |path: &Path| path.ancestors().any(|above| above.ends_with("logs"));
    for path in below(data_dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let was_open = name.starts_with("journal.db") || ["moira.toml", "supervisor.log"].contains(&&*name);
        let data = fs::symlink_metadata(&path).unwrap();
        let is_place = path == data_dir || ["runs", "done", "checkpoints"].contains(&&*name);
        if (was_open || is_place) && !is_job_own(&path) && !logs(&path) && !data.file_type().is_socket() {
            fs::set_permissions(&path, Permissions::from_mode(if data.is_dir() { 0o777 } else { 0o666 })).unwrap();
        }
    }
}

#[track_caller]
fn succeeded(mut command: Command) -> Output {
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
