//! `moira gc`: what it shows is what it removes, and checkpoints go only if somebody asks for it.

use std::fs;

use serde_json::Value;

use crate::service::{FOUR_DEVICES, Service, eventually};

/// What would go or has gone, as kind and name.
fn gc(service: &Service, options: &[&str]) -> Vec<(String, String)> {
    let said = service.json(&[&["gc", "-o", "json"], options].concat());
    assert_eq!(said["dry_run"], options.contains(&"--dry-run"), "{said}");
    let items = said["items"].as_array().unwrap();
    let bytes: u64 = items.iter().map(|item| item["bytes"].as_u64().unwrap()).sum();
    assert_eq!(said["bytes"], bytes, "{said}");
    let word = |item: &Value, key: &str| item[key].as_str().unwrap().to_string();
    items.iter().map(|item| (word(item, "kind"), word(item, "name"))).collect()
}

fn of_kind(items: &[(String, String)], kind: &str) -> Vec<String> {
    items.iter().filter(|(found, _)| found == kind).map(|(_, name)| name.clone()).collect()
}

fn finished(service: &Service) -> String {
    let id = service.submit(&["--", "sh", "-c", "echo state > $MOIRA_CHECKPOINT_DIR/state"]);
    service.until(&id, "succeeded");
    id
}

#[test]
fn what_would_go_is_shown_before_it_goes() {
    let mut service = Service::start(&format!("{FOUR_DEVICES}[retention]\njournal_entries = 5\n"));
    (0..3).for_each(|_| drop(finished(&service)));
    let count = |place: &str| fs::read_dir(service.data_dir().join(place)).map_or(0, Iterator::count);
    eventually("the last run is put away and there is an archive", || count("done") == 3 && count("archive") > 0);
    service.kill();
    let (done, archive) = (service.data_dir().join("done"), service.data_dir().join("archive"));
    let limits = "[retention]\njobs = 1\nruns = 1\narchives = 0\n";
    fs::write(service.data_dir().join("moira.toml"), format!("{FOUR_DEVICES}{limits}")).unwrap();

    let shown = gc(&service, &["--dry-run"]);
    assert_eq!(of_kind(&shown, "job"), ["0", "1"]);
    assert_eq!(of_kind(&shown, "run"), ["done/0.1", "done/1.1"]);
    assert!(!of_kind(&shown, "archive").is_empty() && of_kind(&shown, "checkpoints").is_empty(), "{shown:?}");
    let table = String::from_utf8(service.moira(&["gc", "--dry-run"]).stdout).unwrap();
    let row = table.lines().find(|line| line.contains("done/0.1")).unwrap();
    assert!(row.contains("KiB") && table.contains("would go: 2 jobs, 2 runs, "), "{table}");
    assert_eq!(gc(&service, &["--dry-run"]), shown, "nothing has gone by looking");

    assert_eq!(gc(&service, &[]), shown);
    assert!(gc(&service, &["--dry-run"]).is_empty(), "all of it is gone");
    assert!(done.join("2.1").exists() && fs::read_dir(&done).unwrap().count() == 1);
    assert!(!fs::read_dir(&archive).unwrap().any(|file| file.unwrap().path().extension() == Some("gz".as_ref())));
    assert!(service.data_dir().join("checkpoints/0/state").exists(), "checkpoints stay");
    let verified = service.moira(&["journal", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    assert!(service.audit().contains("forgot 2 jobs and tasks that had ended"), "{}", service.audit());
    service.rise();
    let (code, said) = service.failure(&["show", "0"]);
    assert!(code != 0 && said.contains("job 0 is forgotten"), "{said}");
    assert_eq!(service.show("2")["state"], "succeeded");
    assert_eq!(service.submit(&["--hold", "--", "true"]), "3");
}

#[test]
fn checkpoints_go_only_if_asked_for_and_never_those_of_a_job_that_has_not_ended() {
    let service = Service::start(FOUR_DEVICES);
    let (ended, needed) = (finished(&service), finished(&service));
    let after = service.submit(&["--hold", "--after", &needed, "--", "true"]);
    let running = service.submit(&["--", "sh", "-c", "echo state > $MOIRA_CHECKPOINT_DIR/state; sleep 1000"]);
    let state = |id: &str| service.data_dir().join("checkpoints").join(id).join("state");
    eventually("it has saved its state", || state(&running).exists());
    let place = |id: &str| service.data_dir().join("checkpoints").join(id).display().to_string();

    assert!(gc(&service, &["--dry-run"]).is_empty());
    assert!(gc(&service, &["--dry-run", "--checkpoints=1d"]).is_empty(), "it ended just now");
    let shown = gc(&service, &["--dry-run", "--checkpoints"]);
    assert_eq!(shown, [("checkpoints".to_string(), place(&ended))]);
    assert!(state(&ended).exists());
    assert_eq!(gc(&service, &["--checkpoints"]), shown);
    assert!(!state(&ended).exists() && state(&needed).exists() && state(&running).exists());
    service.until(&running, "running");
    assert_eq!(service.show(&after)["state"], "held");
}

#[test]
fn checkpoints_of_a_job_that_is_run_again_stay_until_the_new_one_has_taken_them_over() {
    let service = Service::start(FOUR_DEVICES);
    let script = "cat $MOIRA_CHECKPOINT_DIR/state && exit 0; echo 41 > $MOIRA_CHECKPOINT_DIR/state; exit 3";
    let first = service.submit(&["--", "sh", "-c", script]);
    service.until(&first, "failed");
    let node = service.get("/v1/nodes").body["nodes"][0]["name"].as_str().unwrap().to_string();
    let turn = |how: &str| assert!(service.moira(&["node", how, &node]).status.success(), "{how}");
    // Nothing is launched here meanwhile.
    turn("cordon");
    let requeue = |id: &str| service.json(&["requeue", "-o", "json", id])["id"].as_str().unwrap().to_string();
    let second = requeue(&first);
    assert!(gc(&service, &["--checkpoints"]).is_empty(), "job {second} needs what job {first} has saved");
    // One that never began has nothing of its own to go on from.
    service.json(&["cancel", "-o", "json", &second]);
    service.until(&second, "cancelled");
    let third = requeue(&second);
    assert!(gc(&service, &["--checkpoints"]).is_empty(), "job {third} needs it too");
    turn("uncordon");
    service.until(&third, "succeeded");
    assert_eq!(service.moira(&["logs", &third]).stdout, b"41\n");
    let place = service.data_dir().join("checkpoints").join(&third).display().to_string();
    assert_eq!(gc(&service, &["--checkpoints"]), [("checkpoints".to_string(), place)]);
}

#[test]
fn jobs_are_left_to_a_service_that_runs() {
    let service = Service::start(FOUR_DEVICES);
    let id = finished(&service);
    let elsewhere = tempfile::tempdir().unwrap();
    let config = elsewhere.path().join("other.toml");
    fs::write(&config, format!("{FOUR_DEVICES}[retention]\njobs = 0\n")).unwrap();
    let (code, said) = service.failure(&["gc", "--config", &config.display().to_string()]);
    assert!(code == 0 && said.contains("the service forgets jobs by itself"), "{said}");
    assert_eq!(service.show(&id)["state"], "succeeded");
}
