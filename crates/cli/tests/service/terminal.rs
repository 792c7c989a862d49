//! What reaches a terminal: names, reasons and logs are others' words, and none of them is obeyed.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::http;
use crate::service::{FOUR_DEVICES, Service, binary, say};

/// Clears the screen, changes the title, and does the latter by a single character too.
const CODES: &str = "\\033[2J\\033]0;owned\\007\\302\\2330m";

#[test]
fn escape_codes_of_a_log_reach_a_file_and_not_a_terminal() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "printf", &format!("50%%\\r100%%\\n{CODES}done\\n")]);
    service.until(&id, "succeeded");
    let file = service.moira(&["logs", &id]).stdout;
    assert_eq!(file, b"50%\r100%\n\x1b[2J\x1b]0;owned\x07\xc2\x9b0mdone\n", "a file gets what was written");
    for arguments in [vec!["logs", &id], vec!["logs", "--follow", &id], vec!["run", "--", "printf", CODES]] {
        let Some(shown) = on_a_terminal(&service, &arguments) else { return };
        assert!(shown.contains("^[[2J^[]0;owned^G\u{fffd}0m"), "{arguments:?}: {shown:?}");
        assert!(!shown.contains(['\x1b', '\u{9b}', '\x07']), "{arguments:?}: {shown:?}");
    }
}

#[test]
fn escape_codes_of_commands_reasons_and_labels_reach_no_terminal() {
    let service = Service::start(FOUR_DEVICES);
    let command = json!({ "command": ["/no/such/\x1b[2Jprogram\u{9b}0m\u{202e}"], "env": { "A": "\x1b[2J" } });
    let answer = http::post(&service.socket(), "/v1/jobs", &[], &command.to_string()).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.body);
    let id = answer.body["id"].as_str().unwrap();
    service.until(id, "failed");
    let views = [
        vec!["ls", "--all", "-o", "wide"],
        vec!["show", id],
        vec!["show", id, "-o", "json"],
        vec!["explain", id],
        vec!["wait", id],
    ];
    for arguments in views {
        let Some(shown) = on_a_terminal(&service, &arguments) else { return };
        let ours = ["\x1b[1m", "\x1b[0m", "\x1b[22m"].iter().fold(shown, |text, code| text.replace(code, ""));
        assert!(!ours.contains(['\x1b', '\u{9b}', '\u{202e}']), "{arguments:?}: {ours:?}");
    }
    let named = json!({ "command": ["true"], "name": "a\x1b[2Jb" });
    let answer = http::post(&service.socket(), "/v1/jobs", &[], &named.to_string()).unwrap();
    assert_eq!((answer.status, &answer.body["field"]), (422, &json!("name")));
    assert!(!service.log().contains('\x1b'), "{}", service.log());
}

/// What a command shows on a terminal; nothing if none can be had.
fn on_a_terminal(service: &Service, arguments: &[&str]) -> Option<String> {
    let words = arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qec", &format!("{} {words}", binary().display()), "/dev/null"]);
    script.env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER").env("TERM", "xterm");
    match script.stdin(Stdio::null()).output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => {
            assert!(std::env::var_os("CI").is_none(), "script (of util-linux) is not installed");
            say("passed over: script is not installed");
            None
        }
    }
}
