//! Why a job failed is said where people look first, and what to do about it.

use std::fs;

use executors::{CpuLimit, Enforcement};

use crate::faults::pass_over;
use crate::service::{FOUR_DEVICES, Service};

/// Everything that a command says.
fn said(service: &Service, arguments: &[&str]) -> String {
    let output = service.moira(arguments);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Where people look first.
#[track_caller]
fn is_said_everywhere(service: &Service, id: &str, why: &str) {
    for arguments in [&["wait", id][..], &["logs", id], &["logs", "--follow", id], &["explain", id], &["show", id]] {
        let said = said(service, arguments);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
    // A table breaks long texts.
    let listed = said(service, &["ls", "--all", "-o", "json"]);
    assert!(listed.contains(&why.replace('"', "\\\"")), "{listed}");
    assert_eq!(service.show(id)["failure"]["message"].as_str(), Some(why));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let service = Service::start(FOUR_DEVICES);
    let run = service.moira(&["run", "--", "pyton", "train.py"]);
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(127));
    assert!(told.contains("job 0 (pyton) failed: no such program: `pyton`\n"), "{told}");
    is_said_everywhere(&service, "0", "no such program: `pyton`");
    let table = said(&service, &["ls", "--all", "--no-headers"]);
    assert!(table.contains("no such"), "{table}");
}

#[test]
fn the_worker_that_failed_is_named_with_its_last_lines() {
    let service = Service::start(FOUR_DEVICES);
    let script = "[ $RANK = 1 ] && { echo loss is nan; exit 3; }; exec sleep 600";
    let id = service.submit(&["--workers", "2", "--", "sh", "-c", script]);
    service.until(&id, "failed");
    is_said_everywhere(&service, &id, "worker 1 failed: exit 3");
    let told = said(&service, &["wait", &id]);
    let expected = "job 0 (sh) failed: worker 1 failed: exit 3\n\
                    last lines of worker 1, which failed:\n  loss is nan\n  \
                    read what it wrote: moira logs 0 --worker 1\n";
    assert!(told.starts_with(expected), "{told}");
    assert!(told.contains("--retries"), "{told}");
    let table = said(&service, &["ls", "--all", "--no-headers"]);
    let cells: Vec<&str> = table.split("  ").map(str::trim).collect();
    assert!(cells.contains(&"worker 1 failed: exit 3"), "{table}");
    // Also where another worker is asked for, and once where it is this one.
    let last = "last lines of worker 1, which failed:\n  loss is nan\n";
    let log = said(&service, &["logs", &id]);
    assert!(log.starts_with(&format!("{last}job 0 (sh) failed: worker 1 failed: exit 3\n")), "{log}");
    let explained = said(&service, &["explain", &id]);
    assert!(explained.ends_with(last), "{explained}");
    for options in [&["logs", "--worker", "1", &id][..], &["logs", "--all-workers", &id]] {
        let log = said(&service, options);
        assert_eq!(log.matches("loss is nan").count(), 1, "{options:?}: {log}");
    }
}

#[test]
fn the_dependency_that_failed_is_named_and_why() {
    let service = Service::start(FOUR_DEVICES);
    let go = service.data_dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done; exit 3", go.display());
    let first = service.submit(&["--", "sh", "-c", &script]);
    let second = service.submit(&["--after", &first, "--", "true"]);
    let third = service.submit(&["--after", &second, "--", "true"]);
    fs::write(&go, "").unwrap();
    service.until(&third, "failed");
    let why = format!("dependency {first} failed: exit 3");
    is_said_everywhere(&service, &second, &why);
    is_said_everywhere(&service, &third, &format!("dependency {second} failed: {why}"));
}

#[test]
fn that_memory_was_too_little_is_said_with_its_limit() {
    match Enforcement::choose(CpuLimit::Auto) {
        Ok(Enforcement::CgroupV1 { memory: Some(_), .. } | Enforcement::CgroupV2 { limits_memory: true, .. }) => {}
        _ => return pass_over("memory cannot be limited"),
    }
    let service = Service::start(FOUR_DEVICES);
    let run = service.moira(&["run", "--memory", "64MiB", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=256M"]);
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(137), "{told}");
    assert!(told.contains("job 0 (dd) failed: out of memory (limit 64 MiB)\n"), "{told}");
    assert!(told.contains("submit it with more --memory"), "{told}");
    is_said_everywhere(&service, "0", "out of memory (limit 64 MiB)");
}

#[test]
fn the_task_of_an_array_that_failed_is_named() {
    let service = Service::start(FOUR_DEVICES);
    let script = "[ $MOIRA_ARRAY_TASK_ID = 2 ] || exit 0; echo bad shard; exit 3";
    let id = service.submit(&["--array", "1-3", "--", "sh", "-c", script]);
    service.until(&id, "failed");
    assert_eq!(service.show(&id)["message"], format!("task {id}_2 failed: exit 3"));
    let told = said(&service, &["wait", &id]);
    assert!(told.contains("bad shard") && told.contains(&format!("moira logs {id}_2")), "{told}");
    assert!(said(&service, &["explain", &id]).contains(&format!("task {id}_2 failed: exit 3")));
    let why = format!("job {id} (sh) failed: task {id}_2 failed: exit 3\n");
    for options in [&["logs", "--all", &id][..], &["logs", "--all", "--follow", &id]] {
        let log = said(&service, options);
        assert!(log.starts_with(&format!("[2] bad shard\n{why}")), "{options:?}: {log}");
        assert!(log.contains(&format!("moira logs {id}_2")), "{options:?}: {log}");
    }
    // An array as a whole has no log, but its failure is what one looks for.
    for options in [&["logs", &id][..], &["logs", "--follow", &id]] {
        let (code, log) = service.failure(options);
        assert_eq!(code, 1, "{options:?}");
        assert!(log.contains(&format!("  bad shard\n{why}")), "{options:?}: {log}");
        assert!(log.ends_with(&format!("job {id} is an array: say which task, like {id}_1, or all\n")), "{log}");
    }
    let all = service.submit(&["--array", "1-3", "--", "false"]);
    service.until(&all, "failed");
    assert_eq!(service.show(&all)["message"], format!("task {all}_1 failed: exit 1, and 2 other tasks"));
}

#[test]
fn a_job_that_will_be_tried_again_says_why_it_has_to_be() {
    let service = Service::start(&FOUR_DEVICES.replace("100ms", "1h"));
    let id = service.submit(&["--retries", "1", "--", "sh", "-c", "kill -SEGV $$"]);
    let job = service.until_it(&id, "tried again", |job| job["failures"] == 1 && job["state"] == "pending");
    let message = job["message"].as_str().unwrap();
    assert!(message.starts_with("its last run failed") && message.ends_with("; last: killed by SIGSEGV"), "{message}");
}

#[test]
fn a_requeued_job_goes_on_from_the_checkpoint_of_the_one_that_failed() {
    let mut service = Service::start(FOUR_DEVICES);
    let script = "cat $MOIRA_CHECKPOINT_DIR/step 2>/dev/null && exit 0; echo 41 > $MOIRA_CHECKPOINT_DIR/step; exit 3";
    let first = service.submit(&["--name", "train", "--priority", "5", "--", "sh", "-c", script]);
    service.until(&first, "failed");
    assert!(said(&service, &["wait", &first]).contains(&format!("moira requeue {first}")));
    // It is durable before it is answered, and what was answered is done.
    assert_eq!(said(&service, &["requeue", &first]), "job 1 (train) goes on from job 0\n");
    service.kill();
    service.rise();
    let again = service.until("1", "succeeded");
    assert_eq!((again["priority"].as_i64(), service.moira(&["logs", "1"]).stdout.as_slice()), (Some(5), &b"41\n"[..]));
    assert_eq!(service.show(&first)["state"], "failed", "what has ended stays as it ended");
    let (code, told) = service.failure(&["requeue", &first]);
    assert_eq!(code, 1);
    assert!(told.contains("job 0 was requeued before, as job 1: requeue that one"), "{told}");
    assert!(service.failure(&["requeue", "1"]).1.contains("job 1 has succeeded"));
}

#[test]
fn of_an_array_the_tasks_that_failed_are_requeued() {
    let service = Service::start(FOUR_DEVICES);
    let script = "[ $MOIRA_ARRAY_TASK_ID = 2 ] || exit 0; [ -e $MOIRA_CHECKPOINT_DIR/a ] && exit 0; \
                  echo > $MOIRA_CHECKPOINT_DIR/a; exit 1";
    let id = service.submit(&["--array", "1-3", "--", "sh", "-c", script]);
    service.until(&id, "failed");
    let again = service.json(&["requeue", "-o", "json", &id])["id"].as_str().unwrap().to_string();
    let again = service.until(&again, "succeeded");
    assert_eq!((&again["array"]["count"], &again["array"]["first"]), (&1.into(), &2.into()));
}

#[test]
fn a_job_that_runs_is_not_requeued() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sleep", "600"]);
    assert!(service.failure(&["requeue", &id]).1.contains(&format!("job {id} has not ended")));
    service.json(&["cancel", "-o", "json", &id]);
}
