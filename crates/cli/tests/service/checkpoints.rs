//! Checkpoints on a file system of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::faults::{Disk, submit_held};
use crate::service::{FOUR_DEVICES, Service, eventually};

/// Saves its state as every job should, and goes on.
const SAVE: &str = "echo much > $MOIRA_CHECKPOINT_DIR/state; [ $0 = stay ] && sleep 600; true";

fn with_checkpoints_in(dir: &Path) -> String {
    format!("checkpoint_dir = {dir:?}\n{FOUR_DEVICES}")
}

fn save_and(service: &Service, what: &str) -> String {
    service.submit(&["--", "sh", "-c", SAVE, what])
}

#[test]
fn a_full_disk_of_checkpoints_holds_up_neither_the_service_nor_its_data_directory() {
    let Some(disk) = Disk::mount("4m") else { return };
    let mut service = Service::start(&with_checkpoints_in(&disk.path()));
    let first = save_and(&service, "leave");
    service.until(&first, "succeeded");
    let saved = disk.path().join(&first);
    assert_eq!(fs::read_to_string(saved.join("state")).unwrap(), "much\n");
    assert!(!service.data_dir().join("checkpoints").exists());
    let modes = [&disk.path(), &saved].map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o711, 0o700]);

    let endless = save_and(&service, "stay");
    service.until(&endless, "running");
    let ballast = disk.fill();
    let waiting = save_and(&service, "leave");
    eventually("it cannot be launched without a place for its checkpoints", || {
        service.log().contains(&disk.path().join(&waiting).display().to_string())
    });
    assert_eq!(submit_held(&service).status, 201);
    assert_eq!(service.get("/readyz").body["status"], "ok");
    service.json(&["cancel", "-o", "json", &endless]);
    service.until(&endless, "cancelled");
    service.kill();
    service.rise();
    assert_eq!(service.get("/readyz").body["status"], "ok");

    fs::remove_file(ballast).unwrap();
    let job = service.until(&waiting, "succeeded");
    assert_eq!(job["failures"], json!(0), "it was not its fault");
    assert_eq!(fs::read_to_string(disk.path().join(&waiting).join("state")).unwrap(), "much\n");
}

#[test]
fn checkpoints_of_another_job_are_moved_aside_on_their_own_file_system() {
    let Some(disk) = Disk::mount("4m") else { return };
    let mut service = Service::start(&with_checkpoints_in(&disk.path()));
    let ours = service.submit(&["--hold", "--", "sh", "-c", "cat $MOIRA_CHECKPOINT_DIR/state"]);
    let next = service.submit(&["--hold", "--", "sh", "-c", "cat $MOIRA_CHECKPOINT_DIR/state"]);
    let leave_behind = |job: &str| {
        let theirs = json!({ "data_dir": "0".repeat(32), "job": job.parse::<u32>().unwrap(), "submitted": 1 });
        fs::create_dir(disk.path().join(job)).unwrap();
        fs::write(disk.path().join(job).join("state"), "secret").unwrap();
        fs::write(disk.path().join(format!("{job}.json")), theirs.to_string()).unwrap();
    };
    service.kill();
    leave_behind(&ours);
    service.rise();
    leave_behind(&next);
    for job in [ours, next] {
        assert!(service.moira(&["release", &job]).status.success());
        assert_eq!(service.until(&job, "failed")["exit_code"], 1, "there is nothing of others to be read");
        let aside = disk.path().join(format!("{job}.foreign-1"));
        assert_eq!(fs::read_to_string(aside.join("state")).unwrap(), "secret");
    }
    service.kill();
    fs::create_dir(disk.path().join("70")).unwrap();
    fs::write(
        disk.path().join("70.json"),
        json!({ "data_dir": "0".repeat(32), "job": 70, "submitted": 1 }).to_string(),
    )
    .unwrap();
    service.rise();
    assert_eq!(service.submit(&["--hold", "--", "true"]), "71", "numbers seen there are not given out");
}

#[test]
fn a_job_does_not_lose_its_checkpoints_by_a_change_of_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| fs::canonicalize(folder.path()).unwrap().join(name));
    let mut service = Service::start(&with_checkpoints_in(&old));
    let job = save_and(&service, "stay");
    eventually("it has saved its state", || old.join(&job).join("state").exists());
    let restart = |service: &mut Service, config: &str| {
        service.kill();
        fs::write(service.data_dir().join("moira.toml"), config).unwrap();
        service.spawn();
    };
    for (config, place) in
        [(with_checkpoints_in(&new), new.clone()), (FOUR_DEVICES.into(), service.data_dir().join("checkpoints"))]
    {
        restart(&mut service, &config);
        assert_eq!(service.end().code(), Some(1), "it does not go on without them");
        let said = service.log();
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains("checkpoint_dir: jobs 0 have not ended"), "{last}");
        assert!([&old, &place].iter().all(|path| last.contains(&path.display().to_string())), "{last}");
    }
    restart(&mut service, &with_checkpoints_in(&old));
    service.until_ready();
    service.json(&["cancel", "-o", "json", &job]);
    service.until(&job, "cancelled");
    eventually("it is put away", || !service.data_dir().join("runs/0.1").exists());
    restart(&mut service, &with_checkpoints_in(&new));
    service.until_ready();
    let next = save_and(&service, "leave");
    service.until(&next, "succeeded");
    assert!(new.join(&next).join("state").exists());
    assert!(old.join(&job).join("state").exists(), "nobody removes them");

    // As if its file system were not mounted.
    service.kill();
    fs::rename(&new, folder.path().join("elsewhere")).unwrap();
    service.spawn();
    assert_eq!(service.end().code(), Some(1));
    assert!(service.log().contains("is its file system mounted?"), "{}", service.log());
}

#[test]
fn a_job_that_waits_to_run_another_again_does_not_lose_its_checkpoints_by_a_change_of_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| fs::canonicalize(folder.path()).unwrap().join(name));
    let mut service = Service::start(&with_checkpoints_in(&old));
    let script = "cat $MOIRA_CHECKPOINT_DIR/state && exit 0; echo 41 > $MOIRA_CHECKPOINT_DIR/state; exit 3";
    let first = service.submit(&["--", "sh", "-c", script]);
    service.until(&first, "failed");
    eventually("it is put away", || !service.data_dir().join("runs").join(format!("{first}.1")).exists());
    let node = service.get("/v1/nodes").body["nodes"][0]["name"].as_str().unwrap().to_string();
    assert!(service.moira(&["node", "cordon", &node]).status.success());
    let second = service.json(&["requeue", "-o", "json", &first])["id"].as_str().unwrap().to_string();
    let restart = |service: &mut Service, place: &Path| {
        service.kill();
        fs::write(service.data_dir().join("moira.toml"), with_checkpoints_in(place)).unwrap();
        service.spawn();
    };
    restart(&mut service, &new);
    assert_eq!(service.end().code(), Some(1), "it does not go on without them");
    let said = service.log();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains(&format!("checkpoint_dir: jobs {second} (as {first}) have not ended")), "{last}");
    restart(&mut service, &old);
    service.until_ready();
    assert!(service.moira(&["node", "uncordon", &node]).status.success());
    service.until(&second, "succeeded");
    assert_eq!(service.moira(&["logs", &second]).stdout, b"41\n");
}

#[test]
fn gc_removes_checkpoints_from_the_place_they_are_kept_in_and_nothing_else_there() {
    let folder = tempfile::tempdir().unwrap();
    let place = fs::canonicalize(folder.path()).unwrap().join("checkpoints");
    let service = Service::start(&with_checkpoints_in(&place));
    let ended = save_and(&service, "leave");
    service.until(&ended, "succeeded");
    let running = save_and(&service, "stay");
    eventually("it has saved its state", || place.join(&running).join("state").exists());
    fs::write(place.join("notes.txt"), "not Moira's").unwrap();
    // As if somebody's link were taken for a job's checkpoints.
    let theirs = folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("thesis"), "much work").unwrap();
    std::os::unix::fs::symlink(&theirs, place.join("77")).unwrap();

    let shown = service.json(&["gc", "--checkpoints", "--dry-run", "-o", "json"]);
    let names = |said: &serde_json::Value| {
        let items = said["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&shown), [place.join(&ended).display().to_string()]);
    assert!(place.join(&ended).join("state").exists(), "nothing has gone by looking");
    assert_eq!(names(&service.json(&["gc", "--checkpoints", "-o", "json"])), names(&shown));
    assert!(!place.join(&ended).exists() && place.join(&running).join("state").exists());
    assert!(place.join("notes.txt").exists() && theirs.join("thesis").exists());
}
