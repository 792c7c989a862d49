//! Queues that are added, changed and closed while the service runs.

use std::fs;

use serde_json::Value;

use crate::service::{FOUR_DEVICES, Service};

/// Queues with their guarantees, as a file says them.
fn queues(of: &[(&str, u32)]) -> String {
    of.iter().map(|(name, guarantee)| format!("[[queues]]\nname = \"{name}\"\nguarantee = {guarantee}\n")).collect()
}

/// What `queue apply` says of a file with this text.
#[track_caller]
fn apply(service: &Service, text: &str, options: &[&str]) -> String {
    let file = service.data_dir().join("new.toml");
    fs::write(&file, text).unwrap();
    let applied = service.moira(&[&["queue", "apply", "-f", file.to_str().unwrap()], options].concat());
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    String::from_utf8(applied.stdout).unwrap()
}

fn refused(service: &Service, text: &str) -> (i32, String) {
    let file = service.data_dir().join("wrong.toml");
    fs::write(&file, text).unwrap();
    service.failure(&["queue", "apply", "-f", file.to_str().unwrap()])
}

/// Name, guarantee and state of every queue there is.
fn there(service: &Service) -> Vec<(String, f64, bool)> {
    let page = service.get("/v1/queues").body;
    let queue = |queue: &Value| {
        let name = queue["name"].as_str().unwrap().to_string();
        (name, queue["guarantee"].as_f64().unwrap(), queue["closed"] == true)
    };
    page["queues"].as_array().unwrap().iter().map(queue).collect()
}

fn queue(name: &str, guarantee: f64, closed: bool) -> (String, f64, bool) {
    (name.into(), guarantee, closed)
}

#[test]
fn queues_are_added_changed_and_closed_while_the_service_runs() {
    let mut service = Service::start(&format!("{FOUR_DEVICES}{}", queues(&[("a", 2), ("b", 1)])));
    let flag = service.data_dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done", flag.display());
    let inside = service.submit(&["--queue", "a", "--", "sh", "-c", &script]);
    service.until(&inside, "running");
    let wanted = queues(&[("c", 2), ("b", 2)]);

    let preview = apply(&service, &wanted, &["--dry-run"]);
    let expected = "queue a closed\n  jobs in it that go on: 0\nqueue b changed: guarantee from 1 to 2\nqueue c added: \
                    parent root, guarantee 2, limit none, weight 1, lends yes, borrows yes\n";
    assert_eq!(preview, format!("{expected}nothing was changed: leave out --dry-run to apply this\n"));
    assert_eq!(there(&service)[1], queue("a", 2.0, false));

    assert_eq!(apply(&service, &wanted, &[]), expected);
    let now = [queue("root", 0.0, false), queue("a", 0.0, true), queue("b", 2.0, false), queue("c", 2.0, false)];
    assert_eq!(there(&service), now);
    assert_eq!(apply(&service, &wanted, &[]), "nothing changes: the queues are as the file says\n");
    let (code, said) = service.failure(&["submit", "--queue", "a", "--", "true"]);
    assert_eq!((code, said.contains("queue `a` is closed and takes no new jobs")), (2, true), "{said}");
    let later = service.submit(&["--queue", "c", "--", "true"]);
    service.until(&later, "succeeded");
    let audit = String::from_utf8(service.moira(&["audit", "-o", "json"]).stdout).unwrap();
    assert!(audit.contains("changed the queues: queue a closed; queue b changed: guarantee from 1 to 2"), "{audit}");

    // The journal wins over the file, which still has the queues of the first start.
    service.kill();
    service.rise();
    assert_eq!(there(&service), now);
    assert_eq!(service.show(&inside)["queue"], "a");
    let log = service.log();
    let told =
        log.lines().find(|line| line.contains("the queues of the configuration are not those in force")).unwrap();
    assert!(told.contains("queue a reopened") && told.contains("queue c closed"), "{told}");
    fs::write(&flag, "").unwrap();
    service.until(&inside, "succeeded");

    service.kill();
    service.with("--queues-from-file");
    service.rise();
    let now = [queue("root", 0.0, false), queue("a", 2.0, false), queue("b", 1.0, false), queue("c", 0.0, true)];
    assert_eq!(there(&service), now, "numbers keep their meaning");
    assert_eq!(service.show(&later)["queue"], "c");
    let audit = service.audit();
    let told = audit.lines().rfind(|line| line.contains("changed the queues:")).unwrap();
    assert!(
        told.contains("queue a reopened") && told.contains("queue c closed"),
        "who started it so is on record: {told}"
    );
}

#[test]
fn a_file_that_says_there_are_no_queues_differs_and_one_that_says_nothing_does_not() {
    let mut service = Service::start(&format!("{FOUR_DEVICES}{}", queues(&[("a", 2), ("b", 1)])));
    service.kill();
    let file = service.data_dir().join("moira.toml");
    let mut told = |text: &str| {
        fs::write(&file, format!("{text}{FOUR_DEVICES}")).unwrap();
        let checked = service.moira(&["config", "check", file.to_str().unwrap()]);
        let before = service.log().len();
        service.rise();
        service.kill();
        let (checked, log) = (String::from_utf8(checked.stdout).unwrap(), service.log().split_off(before));
        (checked, log.lines().filter(|line| line.contains("those in force")).collect::<Vec<_>>().join("\n"))
    };
    let (checked, log) = told("queues = []\n");
    assert!(checked.contains("makes of them: queue a closed\n"), "{checked}");
    assert!(log.contains("\"WARN\"") && log.contains("queue a closed; queue b closed"), "{log}");
    let (checked, log) = told("");
    assert!(checked.contains("the file does not say any, and those in force are a, b\n"), "{checked}");
    assert!(log.contains("\"INFO\"") && log.contains("a, b") && !log.contains("closed"), "{log}");

    service.with("--queues-from-file");
    fs::write(&file, format!("queues = []\n{FOUR_DEVICES}")).unwrap();
    service.rise();
    let now = [queue("root", 0.0, false), queue("a", 0.0, true), queue("b", 0.0, true)];
    assert_eq!(there(&service), now);
}

#[test]
fn queues_that_cannot_be_are_refused_and_nothing_changes() {
    let service = Service::start(&format!("{FOUR_DEVICES}{}", queues(&[("a", 2)])));
    let before = there(&service);
    let (code, said) = refused(&service, &queues(&[("a", 3), ("b", 2)]));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("guarantees below `root` of at most 4 GPUs together, found 5"), "{said}");

    let job = service.submit(&["--queue", "a", "--hold", "--workers", "3", "--", "true"]);
    let limited = format!("{}limit = 2\n", queues(&[("a", 2)]));
    let (code, said) = refused(&service, &limited);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("with these queues job {job} could never run: queue a may never hold")), "{said}");

    let (code, said) = refused(&service, "policy = \"fifo\"\n");
    assert_eq!((code, said.contains("names no queues")), (2, true), "{said}");
    assert_eq!(there(&service), before);
    assert_eq!(apply(&service, "queues = []\n", &["--dry-run"]).lines().next(), Some("queue a closed"));
}
