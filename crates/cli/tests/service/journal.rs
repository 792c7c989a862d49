//! What a service finds when it starts: a data directory of an earlier version, one that lost something, one that was
//! restored, one that holds what belongs to another.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http;
use crate::processes::{self, Process};
use crate::service::{FOUR_DEVICES, Service, binary, eventually, say};

/// A data directory as commit 4f0c295 left it when it was killed, recorded below `/srv/moira` in one boot of one machine.
/// Jobs 0 to 6 are compacted into a snapshot, the others are entries after it.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/data-dir-4f0c295.tar.gz");
const RECORDED_AT: &str = "/srv/moira";

/// Every job in it: number, name, state, exit code.
const JOBS: [(&str, &str, &str, Option<i32>); 12] = [
    ("0", "finished", "succeeded", Some(0)),
    ("1", "failed", "failed", Some(5)),
    ("2", "array", "succeeded", Some(0)),
    ("6", "reported", "succeeded", Some(0)),
    ("7", "waits-for-saved", "succeeded", Some(0)),
    ("8", "running", "running", None),
    ("9", "gang", "running", None),
    ("10", "held", "held", None),
    ("11", "wide-array", "pending", None),
    ("13", "after", "pending", None),
    ("14", "big", "cancelled", None),
    ("15", "keyed", "held", None),
];

#[test]
fn a_directory_of_the_version_before_starts_with_every_job_as_it_was_and_its_runs_are_adopted() {
    let mut service = recorded();
    let (running, gang) = (OldSupervisor::of(&service, "8.1"), OldSupervisor::of(&service, "9.1"));
    service.rise();
    for (id, name, state, exit_code) in JOBS {
        let job = service.show(id);
        let found = (job["name"].as_str(), job["state"].as_str(), job["exit_code"].as_i64());
        assert_eq!(found, (Some(name), Some(state), exit_code.map(i64::from)), "job {id}");
    }
    assert_eq!(service.show("6")["progress"]["steps"], json!(120), "{}", service.show("6"));
    assert!(running.lives() && gang.lives(), "what runs is left to its supervisors");
    assert_eq!(service.show("8")["attempts"], 1);

    let keyed = json!({ "name": "keyed", "command": ["true"], "hold": true }).to_string();
    let again = http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", "once")], &keyed).unwrap();
    assert_eq!((again.status, &again.body["id"]), (200, &json!("15")), "{}", again.body);
    assert_eq!(service.submit(&["--hold", "--", "true"]), "16", "numbers go on");

    gang.ends(&[0, 0]);
    service.until("9", "succeeded");
    assert!(service.moira(&["cancel", "8"]).status.success());
    eventually("the old supervisor finds the wish to stop", || running.file("stop.json").exists());
    running.ends(&[143]);
    service.until("8", "cancelled");
    service.until("11_5", "running");
    service.kill();
    service.rise();
    assert_eq!(service.show("9")["state"], "succeeded");
    service.until("11_5", "running");
}

#[test]
fn a_run_of_the_version_before_whose_supervisor_was_killed_is_lost_and_waits_to_start_again() {
    let mut service = recorded();
    let gang = OldSupervisor::of(&service, "9.1");
    let running = OldSupervisor::of(&service, "8.1");
    running.kill();
    service.rise();
    let lost = |job: &Value| job["message"].as_str().is_some_and(|it| it.contains("its supervisor was lost"));
    service.until_it("8", "lost and waiting", |job| job["state"] == "pending" && lost(job));
    assert_eq!(service.show("9")["attempts"], 1);
    assert!(gang.lives());
}

#[test]
fn the_real_version_before_is_taken_over_with_its_running_jobs() {
    let Some(old) = old_binary() else { return };
    let mut service = Service::prepare(FOUR_DEVICES);
    service.use_program(&old);
    service.rise();
    let finished = service.submit(&["--", "true"]);
    service.until(&finished, "succeeded");
    let (running, ending) =
        (service.submit(&["--", "sleep", "1000"]), service.submit(&["--", "sh", "-c", "sleep 4; exit 5"]));
    service.until(&running, "running");
    service.until(&ending, "running");
    service.kill();

    service.use_program(binary());
    service.rise();
    assert_eq!(service.show(&finished)["state"], "succeeded");
    assert_eq!(service.until(&ending, "failed")["exit_code"], 5, "the old supervisor's file is read");
    let job = service.show(&running);
    assert_eq!((&job["state"], &job["attempts"]), (&json!("running"), &json!(1)), "it is adopted");
    assert!(service.moira(&["cancel", &running]).status.success());
    service.until(&running, "cancelled");
    service.kill();
    service.use_program(&old);
    service.spawn();
    assert_eq!(service.end().code(), Some(1), "the old version leaves a newer journal alone");
    assert!(service.log().contains("use a newer one"), "{}", service.log());
}

#[test]
fn a_supervisor_of_the_version_before_understands_what_this_one_writes() {
    let Some(old) = old_binary() else { return };
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sh", "-c", "exit 7"]);
    service.until(&id, "failed");
    let run = service.data_dir().join("runs/50.1");
    fs::create_dir_all(run.join("logs")).unwrap();
    fs::create_dir(run.join("gang")).unwrap();
    fs::write(run.join("progress.jsonl"), "").unwrap();
    let written = fs::read_to_string(service.data_dir().join("done/0.1/run.json")).unwrap();
    let mut order: Value = serde_json::from_str(&written).unwrap();
    // A supervisor and its workers are of one version: the words that start them belong to the binary.
    let words = [old.as_os_str().as_bytes(), b"supervise"];
    order["supervisor"] = words.iter().map(|word| json!({ "Unix": word })).collect();
    fs::write(run.join("run.json"), order.to_string()).unwrap();
    let supervised = Command::new(old).arg("supervise").arg(&run).status().unwrap();
    assert!(supervised.success());
    let ending: Value = serde_json::from_str(&fs::read_to_string(run.join("exit.json")).unwrap()).unwrap();
    assert_eq!(ending["exits"][0]["code"], 7, "{ending}");
}

/// The binary of commit 4f0c295, which `cargo xtask nightly` builds.
fn old_binary() -> Option<PathBuf> {
    let old = std::env::var_os("MOIRA_OLD_BINARY").map(PathBuf::from);
    if old.is_none() {
        say("passed over: MOIRA_OLD_BINARY is not set");
    }
    old
}

#[test]
fn without_its_journal_the_service_asks_and_then_gives_no_number_twice() {
    let mut service = Service::start(FOUR_DEVICES);
    for _ in 0..3 {
        service.submit(&["--hold", "--", "true"]);
    }
    let running = service.submit(&["--", "sleep", "1000"]);
    service.until(&running, "running");
    service.kill();
    for name in ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.head"] {
        fs::remove_file(service.data_dir().join(name)).ok();
    }
    refuses(&mut service, "there is no journal, but there are directories of jobs up to 3");
    assert!(!service.data_dir().join("journal.db").exists(), "nothing is begun without a word");
    assert_eq!(processes::supervisors(service.data_dir()).len(), 1, "nothing is ended without a word");

    service.with("--accept-loss");
    service.rise();
    assert_eq!(service.submit(&["--", "true"]), "4");
    service.until("4", "succeeded");
    assert!(service.data_dir().join("runs/3.1.lost-1").exists());
    assert!(processes::supervisors(service.data_dir()).is_empty(), "what nobody knows is ended");
    let (code, said) = service.failure(&["show", "3"]);
    assert!(code != 0 && said.contains("number 3 was passed over"), "{said}");
    service.kill();
    service.rise();
    assert_eq!(service.submit(&["--hold", "--", "true"]), "5");
    let audit = service.audit();
    assert_eq!(audit.matches("accepted a loss: there is no journal, but there are").count(), 1, "{audit}");
}

#[test]
fn a_backup_is_made_while_the_service_runs_and_restored_beside_newer_runs() {
    let mut service = Service::start(FOUR_DEVICES);
    let (held, finished) = (service.submit(&["--hold", "--", "true"]), service.submit(&["--", "true"]));
    service.until(&finished, "succeeded");
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let made = service.moira(&["journal", "backup", &backup.display().to_string()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (code, said) = service.failure(&["journal", "backup", &backup.display().to_string()]);
    assert!(code != 0 && said.contains("is not empty"), "{said}");

    assert!(service.moira(&["release", &held]).status.success());
    service.until(&held, "succeeded");
    let running = service.submit(&["--", "sleep", "1000"]);
    service.until(&running, "running");
    service.kill();
    restore(&backup, service.data_dir());
    refuses(&mut service, "there are directories of jobs up to 2, but the journal ends before job 2");

    service.with("--accept-loss");
    service.rise();
    assert_eq!(service.show(&held)["state"], "held", "as it was when the copy was made");
    assert_eq!(service.show(&finished)["state"], "succeeded");
    assert!(processes::supervisors(service.data_dir()).is_empty(), "what nobody knows is ended");
    assert!(service.data_dir().join("runs/2.1.lost-1").exists());
    assert_eq!(service.submit(&["--", "true"]), "3");
    assert!(service.moira(&["release", &held]).status.success());
    service.until(&held, "succeeded");
    let verified = service.moira(&["journal", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[test]
fn runs_and_checkpoints_of_another_data_directory_are_moved_aside() {
    let other = Service::start(FOUR_DEVICES);
    let script = "echo secret > $MOIRA_CHECKPOINT_DIR/state; sleep 1000";
    let theirs = other.submit(&["--", "sh", "-c", script]);
    other.until(&theirs, "running");
    eventually("it has saved its state", || other.data_dir().join("checkpoints/0/state").exists());

    let mut service = Service::start(FOUR_DEVICES);
    let ours = service.submit(&["--hold", "--", "sh", "-c", "cat $MOIRA_CHECKPOINT_DIR/state"]);
    assert_eq!(ours, theirs);
    service.kill();
    for name in ["runs/0.1", "checkpoints/0", "checkpoints/0.json"] {
        let to = service.data_dir().join(name);
        let copied = Command::new("cp").arg("-a").arg(other.data_dir().join(name)).arg(to).status().unwrap();
        assert!(copied.success(), "{name}");
    }
    service.rise();
    assert!(service.data_dir().join("runs/0.1.foreign-1").exists());
    assert!(service.data_dir().join("checkpoints/0.foreign-1/state").exists());
    assert!(service.moira(&["release", &ours]).status.success());
    assert_eq!(service.until(&ours, "failed")["exit_code"], 1, "there is nothing of others to be read");
    assert_eq!(other.show(&theirs)["state"], "running", "theirs is left alone");
    assert_eq!(processes::supervisors(other.data_dir()).len(), 1);
}

#[test]
fn a_journal_is_whole_only_if_nothing_is_missing_from_it_or_foreign_to_it() {
    let mut service = recorded();
    let _played = (OldSupervisor::of(&service, "8.1"), OldSupervisor::of(&service, "9.1"));
    service.rise();
    processes::kill(service.pid(), Signal::TERM);
    assert!(service.end().success());
    let verified = service.moira(&["journal", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let path = |name: &str| service.data_dir().join(name);
    let not_whole = |what: &str| {
        let (code, said) = service.failure(&["journal", "verify"]);
        assert!(code != 0 && said.contains(what), "{what}: {said}");
    };

    let archive = fs::read_dir(path("archive")).unwrap().next().unwrap().unwrap().path();
    let packed = fs::read(&archive).unwrap();
    fs::write(&archive, &packed[..packed.len() / 2]).unwrap();
    not_whole("is damaged");
    fs::remove_file(&archive).unwrap();
    not_whole("is missing");
    fs::write(&archive, packed).unwrap();

    let head = fs::read(path("journal.db.head")).unwrap();
    fs::remove_file(path("journal.db.head")).unwrap();
    not_whole("the file that says how far the journal had come is missing");
    fs::write(path("journal.db.head"), head).unwrap();

    let other = Service::start(FOUR_DEVICES);
    fs::copy(other.data_dir().join("journal.db.head"), path("journal.db.head")).unwrap();
    not_whole("belongs to another data directory");
}

#[test]
fn a_journal_that_goes_on_growing_is_compacted_all_the_same() {
    let mut service = Service::start(&format!("{FOUR_DEVICES}[retention]\njournal_entries = 100\n"));
    for _ in 0..150 {
        submit_held(&service);
    }
    let entries = || {
        let verified = service.moira(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        let said = String::from_utf8_lossy(&verified.stdout).into_owned();
        let count = said.split(": ").nth(1).and_then(|said| said.split(' ').next()).map(str::parse::<u64>);
        count.expect("it says how many").expect("as a number")
    };
    // While it is written down a few more may come.
    eventually("a snapshot stands for most entries", || {
        submit_held(&service);
        entries() <= 120
    });
    let jobs = || service.get("/v1/jobs?limit=1000").body["jobs"].as_array().unwrap().len();
    let before = jobs();
    service.kill();
    service.rise();
    assert_eq!(service.get("/v1/jobs?limit=1000").body["jobs"].as_array().unwrap().len(), before);
}

#[test]
fn what_has_ended_is_forgotten_and_the_service_says_so() {
    let limits = "[retention]\njobs = 2\nruns = 2\n";
    let mut service = Service::start(&format!("{FOUR_DEVICES}{limits}"));
    let body = json!({ "command": ["true"] }).to_string();
    let keyed = http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", "once")], &body).unwrap();
    assert_eq!((keyed.status, &keyed.body["id"]), (201, &json!("0")), "{}", keyed.body);
    let needed = service.submit(&["--", "true"]);
    let array = service.submit(&["--array", "0-1", "--", "true"]);
    let live = service.submit(&["--hold", "--after", &needed, "--", "true"]);
    for id in ["0", &needed, &array] {
        service.until(id, "succeeded");
    }
    let (sixth, seventh) = (service.submit(&["--", "true"]), service.submit(&["--", "true"]));
    service.until(&seventh, "succeeded");
    service.until(&sixth, "succeeded");
    eventually("the oldest are forgotten", || {
        // Something has to happen for the service to look.
        service.moira(&["priority", &live, "1"]);
        service.get("/v1/jobs/0").status == 404 && service.get(&format!("/v1/jobs/{array}")).status == 404
    });
    let (code, said) = service.failure(&["show", "0"]);
    assert!(code != 0 && said.contains("job 0 is forgotten"), "{said}");
    let (_, said) = service.failure(&["show", "99"]);
    assert!(said.contains("there is no job 99"), "{said}");
    assert_eq!(service.show(&needed)["state"], "succeeded", "another one runs after it");
    let again = http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", "once")], &body).unwrap();
    assert_eq!(again.status, 409, "{}", again.body);
    assert!(again.body.to_string().contains("job 0 was submitted under the idempotency key"), "{}", again.body);
    let settled = || fs::read_dir(service.data_dir().join("done")).unwrap().count();
    eventually("the oldest runs are removed", || settled() == 2);
    assert!(service.data_dir().join("checkpoints/0").exists(), "checkpoints stay");

    service.kill();
    service.rise();
    assert_eq!(service.get("/v1/jobs/0").status, 404);
    assert_eq!(service.submit(&["--hold", "--", "true"]), "7", "no number is given out twice");
    assert!(service.moira(&["release", &live]).status.success());
    service.until(&live, "succeeded");
}

#[test]
fn archives_that_are_not_to_be_kept_go_and_the_record_says_where_it_begins() {
    let limits = "[retention]\njournal_entries = 30\narchives = 1\n";
    let mut service = Service::start(&format!("{FOUR_DEVICES}{limits}"));
    let folder = service.data_dir().join("archive");
    let archives = || {
        let listed = fs::read_dir(&folder).ok();
        let names = listed.into_iter().flatten().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".gz")).collect();
        names.sort();
        names
    };
    eventually("there are three archives", || {
        submit_held(&service);
        archives().len() >= 3
    });
    eventually("the newest is left", || archives().len() == 1);
    let jobs = service.get("/v1/jobs?limit=1000").body["jobs"].as_array().unwrap().len();
    let first: u64 = archives()[0].split('-').next().unwrap().parse().unwrap();
    let begins = format!("the record begins with entry {first}: the archives before it were removed by retention");

    let verified = service.moira(&["journal", "verify"]);
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success() && said.contains(&begins) && said.contains("it is whole"), "{said}");
    let audit = service.moira(&["audit", "-o", "json"]);
    assert!(String::from_utf8_lossy(&audit.stderr).contains(&begins), "{audit:?}");
    let lines = String::from_utf8(audit.stdout).unwrap();
    let oldest: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(oldest["seq"].as_u64().unwrap() >= first, "{oldest}");

    let elsewhere = tempfile::tempdir().unwrap();
    let place = |name: &str| elsewhere.path().join(name).display().to_string();
    let (code, said) = service.failure(&["journal", "export", &place("record")]);
    assert!(code == 0 && said.contains(&begins), "{said}");
    let (code, said) = service.failure(&["sim", "rerun", &place("record"), "--policy", "fifo"]);
    assert!(code != 0 && said.contains(&format!("begins with entry {first}, since older archives")), "{said}");
    let made = service.moira(&["journal", "backup", &place("backup")]);
    assert!(String::from_utf8_lossy(&made.stdout).contains(&begins), "{made:?}");
    let copy = service.moira(&["journal", "verify", "--data-dir", &place("backup")]);
    assert!(copy.status.success() && String::from_utf8_lossy(&copy.stdout).contains(&begins), "{copy:?}");

    // Only a note is left of which numbers were given out.
    service.kill();
    let kept = fs::read_dir(service.data_dir()).unwrap().map(|file| file.unwrap().path());
    kept.filter(|path| path.to_string_lossy().contains("journal.db")).for_each(|path| fs::remove_file(path).unwrap());
    fs::remove_file(folder.join(&archives()[0])).unwrap();
    refuses(&mut service, "there is no journal, but there are archives of one");
    service.with("--accept-loss");
    service.rise();
    assert_eq!(service.submit(&["--hold", "--", "true"]), jobs.to_string());
}

fn submit_held(service: &Service) {
    let body = json!({ "command": ["true"], "hold": true }).to_string();
    assert_eq!(http::post(&service.socket(), "/v1/jobs", &[], &body).unwrap().status, 201);
}

#[test]
fn a_copied_data_directory_is_noticed_and_goes_on_by_a_word_under_an_identity_of_its_own() {
    let mut service = Service::start(FOUR_DEVICES);
    let running = service.submit(&["--", "sleep", "1000"]);
    service.until(&running, "running");
    let held = service.submit(&["--hold", "--", "true"]);
    service.kill();
    let folder = tempfile::tempdir().unwrap();
    let mut copy = copied(&service, &folder.path().join("copy"));
    copy.spawn();
    assert_eq!(copy.end().code(), Some(1));
    let said = copy.log();
    assert!(said.contains("is a copy of another data directory") && said.contains("--accept-copy"), "{said}");

    service.rise();
    assert_eq!(service.show(&running)["attempts"], 1, "the one it was copied from starts as ever");
    copy.with("--accept-copy");
    copy.rise();
    assert!(copy.data_dir().join("runs/0.1.foreign-1").exists(), "its run is the other one's");
    assert_eq!(copy.show(&held)["state"], "held");
    assert_eq!(service.show(&running)["state"], "running", "what runs is left alone");
    assert_eq!(processes::supervisors(service.data_dir()).len(), 1);
    let identity = |service: &Service| fs::read_to_string(service.data_dir().join("identity")).unwrap();
    assert_ne!(identity(&copy).lines().next(), identity(&service).lines().next());
    assert!(copy.audit().contains("accepted that this is a copy of another data directory"), "{}", copy.audit());
    assert!(!service.audit().contains("copy"), "{}", service.audit());
    let verified = copy.moira(&["journal", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    drop(copy);

    let mut restarted = Service::at(folder.path().join("copy"), FOUR_DEVICES);
    restarted.rise();
    assert_eq!(restarted.show(&held)["state"], "held", "from then on it needs no word");
}

#[test]
fn a_data_directory_that_was_moved_starts_without_a_word_and_one_without_its_note_keeps_its_identity() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    fs::create_dir(&first).unwrap();
    let mut service = Service::at(first.clone(), FOUR_DEVICES);
    service.rise();
    let held = service.submit(&["--hold", "--", "true"]);
    drop(service);
    fs::rename(&first, &second).unwrap();
    let mut moved = Service::at(second, FOUR_DEVICES);
    moved.rise();
    assert_eq!(moved.show(&held)["state"], "held");
    moved.kill();

    let mut restored = copied(&moved, &first);
    let identity = |place: &Path| fs::read_to_string(place.join("identity")).unwrap().lines().next().map(String::from);
    let before = identity(&first);
    fs::remove_file(first.join("identity")).unwrap();
    restored.rise();
    assert_eq!(restored.show(&held)["state"], "held");
    assert_eq!(identity(&first), before);
}

#[test]
fn entries_of_another_data_directory_are_found_by_verify_and_keep_the_service_from_starting() {
    let mut service = Service::start(FOUR_DEVICES);
    service.kill();
    let note = service.data_dir().join("identity");
    let named = fs::read_to_string(&note).unwrap().lines().next().unwrap().to_string();
    fs::remove_file(&note).unwrap();
    let (mut journal, _) = journal::Journal::open(&service.data_dir().join("journal.db")).unwrap();
    journal.take_new_identity().unwrap();
    drop(journal);
    let (code, said) = service.failure(&["journal", "verify"]);
    assert!(code != 0 && said.contains(&format!("belongs to another data directory, {named}")), "{said}");
    service.spawn();
    assert_eq!(service.end().code(), Some(1));
    assert!(service.log().contains("are of another data directory"), "{}", service.log());
}

#[test]
fn numbers_that_only_archives_tell_of_are_not_given_out_again() {
    let mut service = Service::start(&format!("{FOUR_DEVICES}[retention]\njournal_entries = 30\n"));
    let folder = service.data_dir().join("archive");
    eventually("there is an archive", || {
        submit_held(&service);
        folder.exists()
            && fs::read_dir(&folder).unwrap().any(|file| file.unwrap().path().extension() == Some("gz".as_ref()))
    });
    service.kill();
    let archive = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let packed = Command::new("gzip").arg("-dc").arg(&archive).output().unwrap();
    let numbered = String::from_utf8(packed.stdout).unwrap().matches("{\\\"Numbered\\\"").count();
    assert!(numbered > 5, "{numbered}");
    let kept = fs::read_dir(service.data_dir()).unwrap().map(|file| file.unwrap().path());
    kept.filter(|path| path.to_string_lossy().contains("journal.db")).for_each(|path| fs::remove_file(path).unwrap());
    refuses(&mut service, "there is no journal, but there are archives of one");
    service.with("--accept-loss");
    service.rise();
    assert_eq!(service.submit(&["--hold", "--", "true"]), numbered.to_string());
}

/// A copy of another's data directory with all that is in it, and no service yet.
pub(crate) fn copied(service: &Service, to: &Path) -> Service {
    let done = Command::new("cp").arg("-a").arg(service.data_dir()).arg(to).status().unwrap();
    assert!(done.success());
    Service::at(to.to_path_buf(), FOUR_DEVICES)
}

/// It does not start, and says why and what to do.
#[track_caller]
fn refuses(service: &mut Service, why: &str) {
    service.spawn();
    assert_eq!(service.end().code(), Some(1));
    let said = service.log();
    assert!(said.contains(why) && said.contains("--accept-loss"), "{said}");
}

/// As the guide says: the journal of the copy takes the place of the one that is there.
fn restore(backup: &Path, data_dir: &Path) {
    for name in ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.head"] {
        fs::remove_file(data_dir.join(name)).ok();
    }
    for entry in fs::read_dir(backup).unwrap() {
        let from = entry.unwrap().path();
        if from.is_file() {
            fs::copy(&from, data_dir.join(from.file_name().unwrap())).unwrap();
        }
    }
}

/// The recorded directory at a place of its own, with no service yet.
fn recorded() -> Service {
    let service = Service::prepare(FOUR_DEVICES);
    let data_dir = service.data_dir();
    let unpacked = Command::new("tar").arg("-xzf").arg(RECORDED).arg("-C").arg(data_dir).status().unwrap();
    assert!(unpacked.success(), "cannot unpack {RECORDED}");
    for runs in ["runs", "done"] {
        for run in fs::read_dir(data_dir.join(runs)).unwrap() {
            let note = run.unwrap().path().join("run.json");
            let text = fs::read_to_string(&note).unwrap();
            fs::write(&note, text.replace(RECORDED_AT, &data_dir.display().to_string())).unwrap();
        }
    }
    service
}

/// Plays the supervisor of a recorded run: a process that lives, and the files that the old one wrote.
struct OldSupervisor {
    dir: PathBuf,
    process: Process,
    child: Child,
}

impl OldSupervisor {
    fn of(service: &Service, run: &str) -> OldSupervisor {
        let dir = service.data_dir().join("runs").join(run);
        let child = Command::new("sh")
            .args(["-c", "trap : USR2; while :; do sleep 0.1; done", "old supervisor"])
            .arg(&dir)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::read(child.id() as i32).expect("it was just started");
        let identity = json!({ "pid": process.pid, "start": process.start });
        let note = dir.join("supervisor.json");
        let mut held: Value = serde_json::from_str(&fs::read_to_string(&note).unwrap()).unwrap();
        held["identity"] = identity.clone();
        held["boot"] = json!(fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
        fs::write(&note, held.to_string()).unwrap();
        let workers: Vec<Value> = serde_json::from_str(&fs::read_to_string(dir.join("workers.json")).unwrap()).unwrap();
        let workers = vec![identity; workers.len()];
        fs::write(dir.join("workers.json"), json!(workers).to_string()).unwrap();
        OldSupervisor { dir, process, child }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn lives(&self) -> bool {
        self.process.lives()
    }

    /// Writes down how the workers ended, as the old supervisor did, and goes.
    fn ends(mut self, codes: &[i32]) {
        let recorded = self.dir.join("../../done/0.1/exit.json");
        let mut ending: Value = serde_json::from_str(&fs::read_to_string(recorded).unwrap()).unwrap();
        ending["exits"] = codes.iter().map(|code| json!({ "code": code, "signal": null })).collect();
        ending["told_to_stop"] = json!(self.file("stop.json").exists());
        let fresh = self.file("exit.json.new");
        fs::write(&fresh, ending.to_string()).unwrap();
        fs::rename(fresh, self.file("exit.json")).unwrap();
        self.end();
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        processes::kill(self.process.pid, Signal::KILL);
        self.child.wait().unwrap();
    }
}

impl Drop for OldSupervisor {
    fn drop(&mut self) {
        self.end();
    }
}
