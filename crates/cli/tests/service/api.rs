//! What scripts rely on: words, fields and exit codes; and that no request, however bad, hurts anybody but its sender.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http;
use crate::service::{FOUR_DEVICES, Service, say};

#[test]
fn a_job_is_submitted_shown_and_listed_as_one_object_each() {
    let service = Service::start(FOUR_DEVICES);
    let submitted = service.json(&["submit", "-o", "json", "--name", "first", "--", "sh", "-c", "exit 3"]);
    assert_eq!((&submitted["id"], &submitted["name"]), (&json!("0"), &json!("first")));
    service.until("0", "failed");
    let shown = service.json(&["show", "-o", "json", "0"]);
    assert_eq!((&shown["state"], &shown["exit_code"], &shown["attempts"]), (&json!("failed"), &json!(3), &json!(1)));
    assert_eq!(service.submit(&["--", "true"]), "1");
    service.until("1", "succeeded");
    let listed = jobs_in(&service.json(&["ls", "--all", "-o", "json"]));
    assert_eq!(listed.iter().map(|job| &job["id"]).collect::<Vec<_>>(), ["1", "0"]);
}

#[test]
fn programs_see_all_jobs_and_eyes_those_that_live() {
    let service = Service::start(FOUR_DEVICES);
    let ended = service.submit(&["--", "true"]);
    service.until(&ended, "succeeded");
    let live = service.submit(&["--", "sleep", "60"]);
    let ids = |arguments: &[&str]| -> Vec<String> {
        let jobs = jobs_in(&service.json(&[&["ls", "-o", "json"], arguments].concat()));
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(ids(&[]), [&*live, &*ended]);
    assert_eq!(ids(&["--limit", "1"]), [&*live]);
    assert_eq!(ids(&["--state", "succeeded"]), [&*ended]);
    let table = String::from_utf8(service.moira(&["ls", "--no-headers"]).stdout).unwrap();
    assert_eq!(table.lines().count(), 1, "{table}");
    service.json(&["cancel", "-o", "json", &live]);
}

#[test]
fn without_a_configuration_jobs_run_on_the_cores_of_a_machine_without_gpus() {
    let service = Service::start("");
    let kinds = service.json(&["node", "ls", "-o", "json"]);
    if kinds["nodes"][0]["kind"] != "cpu" {
        return say("this machine has GPUs: its cores are not used");
    }
    let gang = service.submit(&["--workers", "3", "--", "sh", "-c", "exit $RANK"]);
    assert_eq!(service.until(&gang, "failed")["exit_code"].as_i64().map(|code| (1..=2).contains(&code)), Some(true));
}

#[test]
fn waiting_ends_with_a_code_that_says_how_the_job_did() {
    let service = Service::start(FOUR_DEVICES);
    let code = |arguments: &[&str]| service.failure(&[&["wait"], arguments].concat()).0;
    let good = service.submit(&["--", "true"]);
    let bad = service.submit(&["--", "sh", "-c", "exit 9"]);
    let long = service.submit(&["--", "sleep", "60"]);
    assert_eq!(code(&[&good]), 0);
    assert_eq!(code(&[&bad]), 100);
    assert_eq!(code(&["--timeout", "1s", &long]), 101);
    assert_eq!(code(&["77"]), 102);
    service.json(&["cancel", "-o", "json", &long]);
    assert_eq!(code(&[&long]), 103);
    assert_eq!(code(&[&good, &bad]), 100, "of several jobs, that of the first that did not succeed");
}

#[test]
fn run_shows_what_the_job_writes_and_ends_as_it_ends() {
    let service = Service::start(FOUR_DEVICES);
    let output = service.moira(&["run", "--", "sh", "-c", "echo to the world; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stdout).contains("to the world"));
    assert_eq!(service.moira(&["run", "--", "true"]).status.code(), Some(0));
}

#[test]
fn an_array_is_one_object_and_each_task_has_its_number() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--array", "1-5%2", "--", "sh", "-c", "sleep 0.2; exit $MOIRA_ARRAY_TASK_ID"]);
    let array = service.until_it(&id, "over", |job| job["array"]["failed"] == 5);
    assert_eq!((&array["array"]["count"], &array["array"]["at_once"]), (&json!(5), &json!(2)));
    for task in 1..=5 {
        assert_eq!(service.show(&format!("{id}_{task}"))["exit_code"], task);
    }
    assert_eq!(jobs_in(&service.json(&["ls", "--all", "-o", "json"])).len(), 1);
}

#[test]
fn a_job_starts_after_the_one_it_depends_on_and_not_if_that_fails() {
    let service = Service::start(FOUR_DEVICES);
    let first = service.submit(&["--", "sleep", "1"]);
    let second = service.submit(&["--after", &first, "--", "true"]);
    assert_eq!(service.show(&second)["state"], "pending");
    let second = service.until(&second, "succeeded");
    assert!(second["started_at"].as_str() >= service.show(&first)["finished_at"].as_str());
    let bad = service.submit(&["--", "sh", "-c", "sleep 0.5; exit 1"]);
    let never = service.submit(&["--after", &bad, "--", "true"]);
    let never = service.until(&never, "failed");
    assert_eq!((&never["reason"], &never["attempts"]), (&json!("DependencyFailed"), &json!(0)));
}

#[test]
fn a_held_job_waits_and_a_running_one_is_stopped_until_it_is_released() {
    let service = Service::start(FOUR_DEVICES);
    let waiting = service.submit(&["--hold", "--", "true"]);
    let running = service.submit(&["--", "sh", "-c", "[ $MOIRA_ATTEMPT = 1 ] && sleep 60; true"]);
    service.until(&running, "running");
    service.json(&["hold", "-o", "json", &running]);
    service.until(&running, "held");
    assert_eq!(service.show(&waiting)["state"], "held");
    assert_eq!(service.failure(&["hold", &running]).0, 1, "it is held already");
    for id in [&waiting, &running] {
        service.json(&["release", "-o", "json", id]);
        service.until(id, "succeeded");
    }
    assert_eq!(service.show(&running)["failures"], 0, "being held is no failure");
}

#[test]
fn a_job_that_reaches_its_time_limit_is_ended() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--max-runtime", "1s", "--retries", "3", "--", "sleep", "60"]);
    let job = service.until(&id, "timed_out");
    assert_eq!(job["attempts"], 1);
    assert_eq!(service.failure(&["wait", &id]).0, 100);
}

#[test]
fn a_job_is_tried_again_after_the_exit_codes_it_names_and_no_others() {
    let service = Service::start(FOUR_DEVICES);
    let submit = |code: u32| {
        let script = format!("[ $MOIRA_ATTEMPT = 3 ] && exit 0; exit {code}");
        let job = json!({ "command": ["sh", "-c", script], "retry": { "max_failures": 5, "exit_codes": [75] } });
        let answer = http::post(&service.socket(), "/v1/jobs", &[], &job.to_string()).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body["id"].as_str().unwrap().to_string()
    };
    let (tried, given_up) = (submit(75), submit(76));
    let tried = service.until(&tried, "succeeded");
    assert_eq!((&tried["failures"], &tried["attempts"]), (&json!(2), &json!(3)));
    let given_up = service.until(&given_up, "failed");
    assert_eq!((&given_up["exit_code"], &given_up["attempts"]), (&json!(76), &json!(1)));
}

#[test]
fn a_priority_can_be_changed_within_limits() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--hold", "--priority", "-3", "--", "true"]);
    assert_eq!(service.show(&id)["priority"], -3);
    assert_eq!(service.json(&["priority", "-o", "json", &id, "12"])["priority"], 12);
    assert_eq!(service.failure(&["priority", &id, "5000"]).0, 2);
    assert_eq!(service.show(&id)["priority"], 12);
}

#[test]
fn a_drained_node_is_left_and_a_cordoned_one_is_not_entered() {
    let service = Service::start(FOUR_DEVICES);
    let script = "[ $MOIRA_ATTEMPT = 1 ] && sleep 60; true";
    let id = service.submit(&["--", "sh", "-c", script]);
    let node = service.until(&id, "running")["nodes"][0].as_str().unwrap().to_string();
    service.json(&["node", "drain", "-o", "json", &node]);
    service.until(&id, "pending");
    let later = service.submit(&["--", "true"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(service.show(&later)["state"], "pending");
    service.json(&["node", "uncordon", "-o", "json", &node]);
    service.until(&later, "succeeded");
    let ended = service.until(&id, "succeeded");
    assert_eq!(ended["failures"], 0, "being sent away is no failure");
    service.json(&["node", "cordon", "-o", "json", &node]);
    assert_eq!(
        service.failure(&["node", "drain", "t5"]),
        (1, "error: there is no node `t5`; did you mean `t4`?\n".into())
    );
}

#[test]
fn another_policy_decides_from_now_on_and_after_a_restart() {
    let mut service = Service::start("[[accelerators]]\nkind = \"t4\"\ncount = 4\n");
    service.json(&["policy", "set", "-o", "json", "tiresias:thresholds=5"]);
    assert_eq!(service.get("/v1/policy").body["name"], "tiresias");
    let (code, said) = service.failure(&["policy", "set", "tiresia"]);
    assert_eq!(code, 2);
    assert!(said.contains("tiresias"), "{said}");
    service.kill();
    service.rise();
    let policy = service.get("/v1/policy").body;
    assert_eq!((&policy["name"], &policy["parameters"]["thresholds"]), (&json!("tiresias"), &json!("5")));
}

#[test]
fn the_same_key_submits_once_also_across_a_crash() {
    let mut service = Service::start(FOUR_DEVICES);
    let submit = |service: &Service, seconds: &str| {
        let job = json!({ "command": ["sleep", seconds], "hold": true }).to_string();
        http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", "mine")], &job).unwrap()
    };
    assert_eq!(submit(&service, "1").status, 201);
    assert_eq!(submit(&service, "1").status, 200);
    service.kill();
    service.rise();
    let again = submit(&service, "1");
    assert_eq!((again.status, &again.body["id"]), (200, &json!("0")));
    assert_eq!(submit(&service, "2").status, 409, "another job under the same key");
    assert_eq!(jobs_in(&service.get("/v1/jobs").body).len(), 1);
}

#[test]
fn shell_metacharacters_are_plain_words() {
    let service = Service::start(FOUR_DEVICES);
    let words = "$(touch /tmp/no) `id` ; rm -rf $HOME && * > x | \"'";
    let id = service.submit(&["--", "printf", "%s", words]);
    service.until(&id, "succeeded");
    assert_eq!(String::from_utf8_lossy(&service.moira(&["logs", &id]).stdout), words);
}

#[test]
fn bad_requests_are_refused_with_the_name_of_the_field_and_the_service_is_well() {
    let service = Service::start(FOUR_DEVICES);
    let long = "x".repeat(10 << 20);
    let refused = |request: Value, field: &str| {
        let answer = http::post(&service.socket(), "/v1/jobs", &[], &request.to_string()).unwrap();
        assert!((400..500).contains(&answer.status), "{field}: {}", answer.status);
        let text = answer.body.to_string();
        assert!(text.contains(field), "`{field}` is not named in {}", &text[..text.len().min(500)]);
    };
    refused(json!({ "command": ["true"], "name": "../../etc/passwd" }), "name");
    refused(json!({ "command": ["true"], "workdir": "/tmp/../etc" }), "workdir");
    refused(json!({ "command": ["true"], "workdir": "somewhere" }), "workdir");
    refused(json!({ "command": ["true"], "resources": { "gpus": -1 } }), "gpus");
    refused(json!({ "command": ["true"], "array": "0-999999" }), "array");
    refused(json!({ "command": ["true"], "env": { "A": "x".repeat(1 << 20) } }), "env");
    refused(json!({ "command": ["true"], "env": { "A": long } }), "");
    refused(json!({ "command": ["true"], "worker": 2 }), "workers");
    refused(json!({ "command": [] }), "command");
    refused(json!({ "command": ["true"], "workers": 9 }), "resources");
    refused(json!({ "command": ["true"], "depends_on": ["55"] }), "depends_on");
    refused(json!({ "command": ["a\0b"] }), "command");
    let raw = |body: &str| http::post(&service.socket(), "/v1/jobs", &[], body).unwrap().status;
    assert_eq!((raw("{"), raw("[]"), raw(&"[".repeat(100_000))), (400, 422, 422));
    assert_eq!(service.get("/v1/jobs/..%2f..%2fetc").status, 404);
    assert_eq!(jobs_in(&service.get("/v1/jobs?state=live").body), Vec::<Value>::new());
    let begun = Instant::now();
    let id = service.submit(&["--", "true"]);
    service.until(&id, "succeeded");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn bad_command_lines_end_with_code_2_and_one_line() {
    let service = Service::start(FOUR_DEVICES);
    let refused = |arguments: &[&str], word: &str| {
        let (code, said) = service.failure(&[&["submit"], arguments].concat());
        assert_eq!((code, said.lines().count()), (2, 1), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    };
    refused(&["--gpus", "-1", "--", "true"], "GPUs");
    refused(&["--array", "0-999999", "--", "true"], "array");
    refused(&["--name", "a/b", "--", "true"], "name");
    refused(&["--queue", "nowhere", "--", "true"], "queue");
    refused(&["--gpu-kind", "t5", "--", "true"], "t4");
    let (code, said) = service.failure(&["show", "99"]);
    assert_eq!((code, said.as_str()), (1, "error: there is no job 99\n"));
    let (code, said) = service.failure(&["cancel", "x"]);
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.contains('x'), "{said}");
}

/// The jobs of a list, however it is wrapped.
fn jobs_in(page: &Value) -> Vec<Value> {
    page.as_array().or_else(|| page["jobs"].as_array()).expect("a list of jobs").clone()
}
