//! `moira config check` and `moira serve` agree, and systemd is told how to start it.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::journal::copied;
use crate::service::{FOUR_DEVICES, Service, binary};

/// What both say of this configuration in a data directory where nothing was started yet; it is to be the same.
#[track_caller]
fn refused(config: &str, expected: &str) {
    let service = Service::prepare(config);
    assert_refused(service, expected);
}

#[track_caller]
fn assert_refused(mut service: Service, expected: &str) {
    let file = service.data_dir().join("moira.toml");
    let (code, said) = service.failure(&["config", "check", file.to_str().unwrap()]);
    assert_ne!(code, 0, "expected: {expected}");
    assert!(said.contains(expected), "{said}");
    service.spawn();
    assert!(!service.end().success());
    let log = service.log();
    assert!(log.contains(expected), "{log}");
}

#[test]
fn config_check_finds_what_serve_refuses() {
    refused("[[queues]]\nname = \"a\"\nguarantee = 3000000\n", "guarantees below `root` of at most");
    refused("[[queues]]\nname = \"a\"\nparent = \"b\"\n", "queues[0].parent: expected a queue that stands before");
    let twice = format!("listen = [\"127.0.0.1:7\", \"127.0.0.1:7\"]\n{FOUR_DEVICES}");
    refused(&twice, "listen[1]: expected each address once");
    let nowhere = format!("checkpoint_dir = \"/no/such/folder/at/all\"\n{FOUR_DEVICES}");
    refused(&nowhere, "make the checkpoint_dir /no/such/folder/at/all");
    let foreign = Service::prepare(FOUR_DEVICES);
    fs::write(foreign.data_dir().join("thesis.tex"), "mine").unwrap();
    assert_refused(foreign, "which is not Moira's");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    refused(&format!("listen = [\"{address}\"]\n{FOUR_DEVICES}"), &format!("cannot listen on {address}: "));
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(100));
    fs::create_dir(&deep).unwrap();
    assert_refused(Service::at(deep, FOUR_DEVICES), "choose a data directory with a shorter path");
    let mut limited = Service::prepare(FOUR_DEVICES);
    limited.set("MOIRA_CPU_LIMIT", "some");
    let expected = "expected auto, cgroup, duty or none in MOIRA_CPU_LIMIT, found some";
    let file = limited.data_dir().join("moira.toml");
    let check = Command::new(binary()).args(["config", "check"]).arg(file).env("MOIRA_CPU_LIMIT", "some").output();
    let said = String::from_utf8(check.unwrap().stderr).unwrap();
    assert!(said.contains(expected), "{said}");
    limited.spawn();
    assert!(!limited.end().success());
    assert!(limited.log().contains(expected), "{}", limited.log());
}

#[test]
fn config_check_of_a_file_that_lies_elsewhere_finds_what_serve_would_refuse_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (home, file) = (folder.path().join("home"), folder.path().join("elsewhere.toml"));
    fs::create_dir(&home).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let of_another = folder.path().join("thesis");
    fs::create_dir(&of_another).unwrap();
    fs::write(of_another.join("thesis.tex"), "mine").unwrap();
    let wrong = [
        (format!("listen = [\"{address}\"]\n"), format!("cannot listen on {address}: ")),
        (format!("checkpoint_dir = \"{}\"\n", of_another.display()), "thesis.tex".to_string()),
    ];
    let said = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).arg(&file).env("HOME", &home).stdin(Stdio::null());
        command.env_remove("MOIRA_DATA_DIR").env_remove("MOIRA_SERVER").env_remove("XDG_STATE_HOME");
        let output = command.output().unwrap();
        (output.status.success(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat())
    };
    for (key, expected) in wrong {
        fs::write(&file, format!("{key}{FOUR_DEVICES}")).unwrap();
        let (right, checked) = said(&["config", "check"]);
        assert!(!right && checked.contains(&expected), "{checked}");
        assert!(checked.contains(&format!("{}/.local/state/moira;", home.display())), "{checked}");
        assert!(!home.join(".local").exists(), "a check makes nothing");
        let (right, served) = said(&["serve", "--config"]);
        assert!(!right && served.contains(&expected), "{served}");
        fs::remove_dir_all(home.join(".local")).ok();
    }
    fs::write(&file, FOUR_DEVICES).unwrap();
    let (right, checked) = said(&["config", "check"]);
    assert!(right && checked.ends_with("elsewhere.toml is right\n"), "{checked}");
    assert!(!home.join(".local").exists(), "a check makes nothing");
}

#[test]
fn config_check_finds_what_serve_refuses_of_a_data_directory() {
    let mut service = Service::start(FOUR_DEVICES);
    service.submit(&["--hold", "--", "true"]);
    service.kill();
    let folder = tempfile::tempdir().unwrap();
    let copy = copied(&service, &folder.path().join("copy"));
    assert_refused(copy, "is a copy of another data directory");
    fs::remove_file(service.data_dir().join("journal.db.head")).unwrap();
    assert_refused(service, "its head file is missing or unreadable");
}

#[test]
fn config_check_looks_at_what_was_recorded() {
    let mut service = Service::start(FOUR_DEVICES);
    let file = service.data_dir().join("moira.toml");
    let check = ["config", "check", file.to_str().unwrap()];
    let said = |service: &Service| String::from_utf8(service.moira(&check).stdout).unwrap();
    assert!(said(&service).ends_with("moira.toml is right\n"), "also while it runs");
    fs::write(&file, format!("{FOUR_DEVICES}[[queues]]\nname = \"a\"\n")).unwrap();
    assert!(said(&service).contains("only `moira queue apply` or `moira serve --queues-from-file`"));
    service.kill();
    fs::write(&file, FOUR_DEVICES.replace("kind = \"t4\"", "kind = \"a100\"\nnode = \"t4\"")).unwrap();
    assert_refused(service, "node `t4` had another kind of accelerator before");
}

#[test]
fn the_unit_starts_this_binary_with_these_options() {
    let service = Service::prepare(FOUR_DEVICES);
    let printed =
        service.moira(&["serve", "--listen", "127.0.0.1:7070", "--policy", "fifo:backfill=easy", "--print-unit"]);
    let unit = String::from_utf8(printed.stdout).unwrap();
    let data_dir = service.data_dir().display();
    let start = format!(
        "ExecStart={} serve --data-dir {data_dir} --listen 127.0.0.1:7070 --policy fifo:backfill=easy\n",
        fs::canonicalize(binary()).unwrap().display()
    );
    assert!(unit.contains(&start), "{unit}");
    assert!(unit.contains("\nKillMode=process\n"), "{unit}");
    let file = service.data_dir().join("moira.service");
    fs::write(&file, &unit).unwrap();
    // Where systemd is, it understands all that matters; what is new to an old one it says and passes over.
    if let Ok(verified) = Command::new("systemd-analyze").arg("verify").arg(&file).output() {
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        let about_it = |line: &&str| line.contains("moira.service") && !line.contains("DelegateSubgroup");
        assert_eq!(said.lines().filter(about_it).collect::<Vec<_>>(), [] as [&str; 0]);
    }
}
