//! Who may do what, as an unfriendly user of the same machine would try it: over the port, over the socket, with tokens
//! and without.

use std::cell::RefCell;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use api::Role;
use serde_json::{Value, json};
use server::access::{ENDPOINTS, Endpoint, Reach};
use tempfile::TempDir;

use crate::faults::pass_over;
use crate::http::{self, Answer};
use crate::processes;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, binary, eventually, say};

/// Two users that every machine has, neither of them root: `daemon` and `nobody`.
pub(crate) const ANN: u32 = 1;
pub(crate) const BOB: u32 = 65_534;

/// A service that listens on a port too, in a folder that others can pass through, with a binary that others can run.
pub(crate) struct Shared {
    pub(crate) service: Service,
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
}

impl Shared {
    pub(crate) fn start(config: &str) -> Shared {
        let mut shared = Shared::prepare(config);
        shared.service.rise();
        shared
    }

    fn prepare(config: &str) -> Shared {
        let folder = tempfile::Builder::new().prefix("moira-").tempdir().unwrap();
        let open = |path: &PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(&folder.path().to_path_buf(), 0o755);
        // Of a name that no other has: the log of the service is called after it.
        let data_dir = folder.path().join(folder.path().file_name().unwrap());
        fs::create_dir(&data_dir).unwrap();
        open(&data_dir, 0o711);
        let copy = folder.path().join("moira");
        fs::copy(binary(), &copy).unwrap();
        open(&copy, 0o755);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let service = Service::at(data_dir, &format!("listen = [\"127.0.0.1:{port}\"]\n{config}"));
        Shared { service, port, folder }
    }

    /// A command of another user about this service.
    pub(crate) fn moira_as(&self, uid: u32, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.folder.path().join("moira"));
        command.args(arguments).uid(uid).gid(uid).current_dir("/").stdin(Stdio::null());
        command.env("MOIRA_DATA_DIR", self.service.data_dir()).env_remove("MOIRA_SERVER").env("HOME", "/nonexistent");
        command.output().expect("the binary runs")
    }

    #[track_caller]
    pub(crate) fn json_as(&self, uid: u32, arguments: &[&str]) -> Value {
        let output = self.moira_as(uid, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn ask(&self, token: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
        http::ask_port(self.port, token, method, path, body).unwrap()
    }

    /// The secret of a new token of this user's.
    pub(crate) fn token_of(&self, uid: u32) -> String {
        self.json_as(uid, &["token", "create", "-o", "json"])["secret"].as_str().unwrap().to_string()
    }

    /// The number of a job that is submitted with this token.
    #[track_caller]
    pub(crate) fn submit(&self, token: &str, job: &Value) -> String {
        let answer = self.ask(Some(token), "POST", "/v1/jobs", &job.to_string());
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body["id"].as_str().unwrap().to_string()
    }

    fn send(&self, token: &str, path: &str, bytes: &str) -> Answer {
        http::send_to_port(self.port, token, path, bytes).unwrap()
    }

    /// The secret of a new token of root's with this role.
    fn token(&self, role: &str) -> String {
        let made = self.service.json(&["token", "create", "--role", role, "-o", "json"]);
        made["secret"].as_str().unwrap().to_string()
    }
}

/// Whether this test can be other users; CI can.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "CI must be root");
        say("SKIPPED: only root can be other users");
    }
    is_root
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn whoever_comes_over_the_port_without_a_token_is_nobody_however_quickly_it_leaves() {
    let shared = Shared::start(FOUR_DEVICES);
    let body = r#"{"command": ["true"]}"#;
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A connection that is closed at once belongs to nobody any more when the service looks whose it is.
    for _ in 0..40 {
        let mut stream = TcpStream::connect(("127.0.0.1", shared.port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
    }
    let answer = shared.ask(None, "POST", "/v1/jobs", body);
    assert_eq!((answer.status, &answer.body["type"]), (401, &json!("urn:moira:problem:no-token")));
    assert_eq!(shared.service.json(&["ls", "--all", "-o", "json"])["jobs"], json!([]));
    for token in ["", "moira_", "moira_00", "moira-run_0.1_00", "moira-run_99.1_00", "x\u{7f}"] {
        let answer = shared.ask(Some(token), "GET", "/v1/jobs", "");
        assert!(matches!(answer.status, 400 | 401), "{token}: {}", answer.status);
    }
}

#[test]
fn without_a_token_the_port_tells_that_the_service_lives_and_no_more() {
    let shared = Shared::start(FOUR_DEVICES);
    for path in ["/healthz", "/readyz"] {
        let answer = shared.ask(None, "GET", path, "");
        assert_eq!((answer.status, answer.body), (200, json!({"status": "ok"})), "{path}");
        assert!(shared.service.get(path).body["version"].is_string(), "the socket tells more");
    }
    for path in ["/", "/nothing", "/metrics", "/v1/openapi.json"] {
        assert_eq!(shared.ask(None, "GET", path, "").status, 401, "{path}");
    }
}

#[test]
fn a_request_that_is_refused_takes_little_room_in_the_log_however_long_it_is() {
    let shared = Shared::start(FOUR_DEVICES);
    let path = format!("/v1/{}", "x".repeat(50_000));
    assert_eq!(shared.ask(None, "GET", &path, "").status, 401);
    eventually("the refusal is told", || shared.service.log().contains("\"refused\""));
    let longest = shared.service.log().lines().map(str::len).max();
    assert!(longest.is_some_and(|longest| longest < 2000), "{longest:?}");
}

/// The table of the documentation, cell by cell: each endpoint as each role.
#[test]
fn every_role_may_do_what_the_table_says_and_nothing_else() {
    let shared = Shared::start(FOUR_DEVICES);
    let job = shared.service.submit(&["--", "sleep", "600"]);
    let other = shared.service.submit(&["--hold", "--", "true"]);
    shared.service.until(&job, "running");
    let run = fs::read_to_string(shared.service.data_dir().join(format!("runs/{job}.1/token"))).unwrap();
    let tokens = Role::ALL.map(|role| (role, shared.token(role.as_str())));
    for endpoint in ENDPOINTS {
        let path = endpoint.path.replace("{id}", if endpoint.path.contains("tokens") { "999" } else { &job });
        let path = match endpoint.path {
            "/v1/events" => "/v1/events?job=x".to_string(),
            "/v1/jobs/{id}/wait" => format!("{path}?timeout_seconds=0"),
            _ => path.replace("{name}", "no-such-node").replace("{shell}", "no-such-shell"),
        };
        // Nothing is done by any of these, or nothing that matters: bodies are faulty, names unknown.
        let path = path.replace("/cancel", "x/cancel").replace("/hold", "x/hold").replace("/release", "x/release");
        let status = |token: Option<&str>| shared.ask(token, endpoint.method, &path, "{\"nonsense\": 1}").status;
        let refused = |status: u16| matches!(status, 401 | 403);
        assert_eq!(refused(status(None)), !endpoint.admits(None), "{endpoint:?} without a token");
        for (role, token) in &tokens {
            let allowed = endpoint.admits(Some(*role)) && !endpoint.socket_only;
            let status = status(Some(token));
            assert_eq!(refused(status), !allowed, "{endpoint:?} as {role}: {status}");
        }
        let status = status(Some(&run));
        assert_eq!(refused(status), !(endpoint.run || endpoint.least.is_none()), "{endpoint:?} by a run: {status}");
    }
    let report = shared.ask(Some(&run), "POST", &format!("/v1/jobs/{job}/progress"), r#"{"steps": 7}"#);
    assert_eq!(report.status, 200, "{}", report.body);
    let report = shared.ask(Some(&run), "POST", &format!("/v1/jobs/{other}/progress"), r#"{"steps": 7}"#);
    assert_eq!(report.status, 403, "on another job: {}", report.body);
}

/// What Ann has, so that others can try to get at it.
struct Belongings {
    /// It runs at a terminal.
    running: String,
    held: String,
    failed: String,
    shell: String,
}

impl Belongings {
    fn of(shared: &Shared, token: &str) -> Belongings {
        let job = |command: &str| json!({ "command": ["sh", "-c", command], "workdir": "/" });
        let mut seat = job("echo up; sleep 600");
        seat["pty"] = json!({ "rows": 24, "columns": 80 });
        let running = shared.submit(token, &seat);
        let mut held = job("true");
        held["hold"] = json!(true);
        let held = shared.submit(token, &held);
        let failed = shared.submit(token, &job("exit 1"));
        shared.service.until(&running, "running");
        shared.service.until(&failed, "failed");
        let shell = json!({ "command": ["sleep", "600"], "window": { "rows": 24, "columns": 80 } });
        let opened = shared.ask(Some(token), "POST", &format!("/v1/jobs/{running}/shells"), &shell.to_string());
        assert_eq!(opened.status, 201, "{}", opened.body);
        let shell = opened.body["id"].as_str().unwrap().to_string();
        Belongings { running, held, failed, shell }
    }

    /// A request that is in order, and does nothing that would be in the way of the next.
    fn ask(&self, shared: &Shared, token: &str, endpoint: &Endpoint) -> Answer {
        let job = match endpoint.path.rsplit('/').next() {
            Some("cancel" | "requeue") => &self.failed,
            Some("hold") => &self.held,
            _ => &self.running,
        };
        let path = endpoint.path.replace("{id}", job).replace("{shell}", &self.shell).replace("{name}", "t4");
        let window = json!({ "rows": 20, "columns": 70 });
        let body = match endpoint.path.rsplit('/').next() {
            Some("input") => return shared.send(token, &format!("{path}?offset=0"), "x"),
            Some("output") => return shared.ask(Some(token), endpoint.method, &format!("{path}?offset=0"), ""),
            Some("wait") => return shared.ask(Some(token), endpoint.method, &format!("{path}?timeout_seconds=0"), ""),
            Some("{id}") if endpoint.method == "PATCH" => json!({ "priority": 1 }),
            Some("progress") => json!({ "steps": 1 }),
            Some("trainer-status") => json!({ "trainerStatus": { "progressPercentage": 5.0 } }),
            Some("window") => window,
            Some("shells") => json!({ "command": ["true"], "window": window }),
            _ => json!({}),
        };
        shared.ask(Some(token), endpoint.method, &path, &body.to_string())
    }
}

/// The last column of the table, cell by cell: each endpoint by each role on what belongs to somebody else.
#[test]
fn what_belongs_to_others_is_reached_as_far_as_the_table_says() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let ann = shared.token_of(ANN);
    let hers = Belongings::of(&shared, &ann);
    // She looks at it all the while: a shell that nobody looks at ends.
    let _looks = asked(shared.port, &ann, &format!("/v1/jobs/{}/shells/{}/output?offset=0", hers.running, hers.shell));
    let mut strangers = Role::ALL.map(|role| (role, shared.token(role.as_str())));
    strangers[1].1 = shared.token_of(BOB);
    for endpoint in ENDPOINTS {
        for (role, token) in &strangers {
            let is_admitted = endpoint.admits(Some(*role));
            let reaches = is_admitted && endpoint.reach.least_for_others().is_some_and(|least| *role >= least);
            let cell = format!("{} {} as {role}", endpoint.method, endpoint.path);
            let ask = || hers.ask(&shared, token, endpoint);
            match endpoint.reach {
                Reach::Common | Reach::Status => {}
                Reach::Details | Reach::Change | Reach::Owner => {
                    let answer = ask();
                    let expected: &[u16] = if reaches { &[200, 201, 409] } else { &[403] };
                    assert!(expected.contains(&answer.status), "{cell}: {} {}", answer.status, answer.body);
                }
                Reach::Summary if endpoint.path == "/v1/events" => {
                    let path = format!("/v1/events?after=0&job={}", hers.running);
                    let told = RefCell::new(String::new());
                    eventually("it is told that the job has started", || {
                        told.replace(raw(shared.port, token, &path));
                        told.borrow().contains("event: started")
                    });
                    let told = told.into_inner();
                    assert_eq!(told.contains("attempt 1"), reaches, "{cell}: {told}");
                }
                Reach::Summary => {
                    let body = ask().body;
                    let jobs = body["jobs"].as_array().map_or_else(|| vec![body.clone()], Vec::clone);
                    let job = jobs.iter().find(|job| job["id"] == *hers.running).unwrap();
                    assert_eq!(job["summary"] != true, reaches, "{cell}: {job}");
                }
                // The job is not to be moved away.
                Reach::Placement if endpoint.path.ends_with("drain") => {}
                Reach::Placement => {
                    let answer = ask();
                    assert_eq!(answer.status == 403, !is_admitted, "{cell}: {}", answer.body);
                    let is_named = answer.body.to_string().contains(&format!("[\"{}\"]", hers.running));
                    assert_eq!(is_named, reaches, "{cell}: {}", answer.body);
                }
                Reach::Tokens if endpoint.method == "GET" => {
                    assert_eq!(ask().body.to_string().contains("\"daemon\""), reaches, "{cell}");
                }
                Reach::Tokens => {
                    let made = shared.json_as(ANN, &["token", "create", "-o", "json"]);
                    let status = shared.ask(Some(token), "DELETE", &format!("/v1/tokens/{}", made["id"]), "").status;
                    assert_eq!(status, if reaches { 200 } else { 404 }, "{cell}");
                }
                // No token makes one: who asks over the socket is an admin, or it is Bob.
                Reach::NewTokens if matches!(role, Role::User | Role::Admin) => {
                    let uid = if *role == Role::Admin { 0 } else { BOB };
                    let made = shared.moira_as(uid, &["token", "create", "--user", "daemon"]);
                    assert_eq!(made.status.success(), reaches, "{cell}: {}", text(&made));
                }
                Reach::NewTokens => {}
            }
        }
    }
    // What was refused was not done, and would have been done for her.
    assert_eq!(shared.service.show(&hers.running)["state"], "running");
    assert_eq!(shared.service.show(&hers.held)["state"], "held");
    let is_about_a_job = |reach| matches!(reach, Reach::Details | Reach::Change | Reach::Owner);
    let (leave, rest): (Vec<_>, Vec<_>) = ENDPOINTS
        .iter()
        .filter(|endpoint| is_about_a_job(endpoint.reach) && !endpoint.path.ends_with("output"))
        .partition(|endpoint| endpoint.method == "DELETE");
    for endpoint in rest.into_iter().chain(leave) {
        let answer = hers.ask(&shared, &ann, endpoint);
        assert!(matches!(answer.status, 200 | 201 | 409), "{endpoint:?}: {} {}", answer.status, answer.body);
        let has_left = endpoint.method == "DELETE";
        assert!(has_left || answer.body["ended"] != true, "the shell goes on until she leaves it: {}", answer.body);
    }
}

#[test]
fn the_token_of_a_run_belongs_to_its_owner_and_ends_with_the_run() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let script = "cat \"$MOIRA_TOKEN_FILE\"; stat -c %a:%u \"$MOIRA_TOKEN_FILE\"; sleep 600";
    let job = shared.json_as(ANN, &["submit", "-o", "json", "--", "sh", "-c", script]);
    let job = job["id"].as_str().unwrap();
    let log = || text(&shared.moira_as(ANN, &["logs", job]));
    eventually("the job has shown its token", || log().contains(":1\n"));
    let shown = log();
    let run = shown.lines().find(|line| line.starts_with("moira-run_")).unwrap_or(&shown).trim();
    let (run, rest) = run.split_at(run.find("600:1").unwrap_or(run.len()));
    assert!(shown.contains("600:1"), "{shown}{rest}");
    let path = format!("/v1/jobs/{job}/progress");
    assert_eq!(shared.ask(Some(run), "POST", &path, r#"{"steps": 3}"#).status, 200);
    assert_eq!(shared.service.show(job)["progress"]["steps"], 3);
    // The same by the protocol of Kubeflow's trainer.
    let trainer = format!("/v1/jobs/{job}/trainer-status");
    let report = r#"{"trainerStatus": {"metrics": [{"name": "loss", "value": "0.25"}]}}"#;
    let answer = shared.ask(Some(run), "POST", &trainer, report);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(shared.service.show(job)["progress"]["loss"], 0.25);
    shared.service.json(&["cancel", "-o", "json", job]);
    shared.service.until(job, "cancelled");
    assert_eq!(shared.ask(Some(run), "POST", &path, r#"{"steps": 4}"#).status, 401);
    assert_eq!(shared.ask(Some(run), "POST", &trainer, report).status, 401);
}

#[test]
fn terminals_and_shells_belong_to_the_user_of_the_job_and_nobody_else_opens_one() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let token = |uid| shared.json_as(uid, &["token", "create", "-o", "json"])["secret"].as_str().unwrap().to_string();
    let (ann, bob) = (token(ANN), token(BOB));
    let look = "echo I am $(id -u), it is of $(stat -c %u $(tty)); : > $(tty) && : > /dev/tty && echo mine; stty size";
    let job = json!({ "command": ["sh", "-c", format!("{look}; sleep 600")], "workdir": "/",
        "pty": { "rows": 33, "columns": 77 } });
    let answer = shared.ask(Some(&ann), "POST", "/v1/jobs", &job.to_string());
    assert_eq!(answer.status, 201, "{}", answer.body);
    let id = answer.body["id"].as_str().unwrap();
    let expected = "I am 1, it is of 1\r\nmine\r\n33 77\r\n";
    eventually("the job has looked", || text(&shared.moira_as(ANN, &["logs", id])).ends_with(expected));
    let shells = format!("/v1/jobs/{id}/shells");
    let shell = json!({ "command": ["sh", "-c", look], "window": { "rows": 33, "columns": 77 } }).to_string();
    for (whose, token) in [("bob's", &bob), ("root's", &shared.token("admin"))] {
        let answer = shared.ask(Some(token), "POST", &shells, &shell);
        assert_eq!(answer.status, 403, "{whose}: {}", answer.body);
    }
    let answer = shared.ask(Some(&ann), "POST", &shells, &shell);
    assert_eq!(answer.status, 201, "{}", answer.body);
    let path = format!("{shells}/{}", answer.body["id"].as_str().unwrap());
    let seen = || raw(shared.port, &ann, &format!("{path}/output?offset=0"));
    eventually("the shell has looked", || seen().contains(expected));
    assert_eq!(shared.ask(Some(&bob), "GET", &path, "").status, 403);
    assert_eq!(shared.ask(Some(&bob), "DELETE", &path, "").status, 403);
    let audit = shared.service.audit();
    let opened: Vec<&str> = audit.lines().filter(|line| line.contains("asked for a shell in job")).collect();
    assert!(opened.len() == 1 && opened[0].contains("daemon") && opened[0].contains(&format!("job {id}")), "{audit}");
}

#[test]
fn users_make_their_own_tokens_never_above_their_role() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.viewer]\nusers = [\"nobody\"]\n"));
    let made = shared.json_as(ANN, &["token", "create", "--label", "laptop", "--expires-in", "1h", "-o", "json"]);
    assert_eq!((&made["user"], &made["role"]), (&json!("daemon"), &json!("user")));
    assert_eq!(life_of(&made), 3600 * 1000);
    let secret = made["secret"].as_str().unwrap();
    assert_eq!(shared.ask(Some(secret), "GET", "/v1/jobs", "").status, 200);
    assert_eq!(shared.ask(Some(secret), "POST", "/v1/tokens", "{}").status, 403, "tokens beget no tokens");
    for refused in [["--role", "admin"], ["--user", "root"]] {
        let output = shared.moira_as(ANN, &[&["token", "create"][..], &refused].concat());
        assert!(!output.status.success(), "{refused:?}: {}", text(&output));
    }
    assert!(text(&shared.moira_as(BOB, &["token", "create", "--role", "user"])).contains("role"));
    assert!(text(&shared.moira_as(BOB, &["submit", "--", "true"])).contains("needs the role user"));
    assert_eq!(shared.json_as(BOB, &["token", "ls", "-o", "json"])["tokens"], json!([]));
    assert!(text(&shared.moira_as(BOB, &["token", "revoke", "1"])).contains("has no token 1"));
    assert_eq!(shared.service.json(&["token", "ls", "-o", "json"])["tokens"][0]["label"], "laptop");
    let journal = fs::read(shared.service.data_dir().join("journal.db-wal")).unwrap();
    let holds = |text: &str| journal.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds("laptop") && !holds(secret), "what is kept is not the secret");
    shared.json_as(ANN, &["token", "revoke", "1", "-o", "json"]);
    assert_eq!(shared.ask(Some(secret), "GET", "/v1/jobs", "").status, 401);
}

/// How many milliseconds a token is good from when it was made.
fn life_of(token: &Value) -> i64 {
    let moment = |name: &str| api::unix_millis(token[name].as_str().unwrap()).unwrap();
    moment("expires_at") - moment("created_at")
}

#[test]
fn a_role_is_given_to_a_group_of_the_system_too() {
    if !is_root() {
        return;
    }
    let group = Command::new("id").args(["-gn", &BOB.to_string()]).output().unwrap();
    let group = String::from_utf8_lossy(&group.stdout).trim().to_string();
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.viewer]\ngroups = [\"{group}\"]\n"));
    let refused = text(&shared.moira_as(BOB, &["submit", "--", "true"]));
    assert!(refused.contains("needs the role user"), "group {group}: {refused}");
    assert_eq!(shared.json_as(BOB, &["token", "create", "-o", "json"])["role"], "viewer");
    assert_eq!(shared.json_as(ANN, &["token", "create", "-o", "json"])["role"], "user", "she is in another group");
}

#[test]
fn a_token_is_good_for_thirty_days_if_nobody_says_otherwise() {
    let shared = Shared::start(FOUR_DEVICES);
    let made = shared.service.json(&["token", "create", "-o", "json"]);
    assert_eq!(life_of(&made), 30 * 24 * 3600 * 1000);
}

#[test]
fn a_token_that_has_expired_is_refused_and_what_goes_on_by_it_ends() {
    let shared = Shared::start(FOUR_DEVICES);
    // On a busy machine a short life may be over before anything is asked for.
    let begun = ["2s", "8s", "32s"].into_iter().find_map(|life| {
        let made = shared.service.json(&["token", "create", "--expires-in", life, "-o", "json"]);
        let secret = made["secret"].as_str().unwrap().to_string();
        follow(shared.port, &secret, "/v1/events").ok().map(|stream| (secret, stream))
    });
    let (secret, stream) = begun.expect("it is good at first");
    until_closed("/v1/events", stream);
    let answer = shared.ask(Some(&secret), "GET", "/v1/jobs", "");
    assert_eq!((answer.status, &answer.body["type"]), (401, &json!("urn:moira:problem:bad-token")));
}

#[test]
fn a_token_is_written_where_only_its_owner_reads_it_and_found_there() {
    let shared = Shared::start(FOUR_DEVICES);
    let file = shared.folder.path().join("token");
    let path = file.display().to_string();
    let made = shared.service.moira(&["token", "create", "--file", &path]);
    assert!(made.status.success() && !text(&made).contains("moira_"), "{}", text(&made));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = shared.service.moira(&["token", "create", "--file", &path]);
    assert!(!again.status.success() && text(&again).contains(&path), "{}", text(&again));
    let over_port = || {
        let mut command = Command::new(binary());
        command.args(["ls", "-o", "json"]).env("MOIRA_SERVER", format!("http://127.0.0.1:{}", shared.port));
        command.env("MOIRA_TOKEN_FILE", &path).env("MOIRA_DATA_DIR", shared.service.data_dir()).output().unwrap()
    };
    assert!(over_port().status.success(), "{}", text(&over_port()));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(text(&over_port()).contains("chmod 600"), "{}", text(&over_port()));
}

#[test]
fn a_token_is_not_sent_to_whoever_took_the_port() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let file = shared.folder.path().join("token").display().to_string();
    shared.service.moira(&["token", "create", "--file", &file]);
    let thief = shared.folder.path().join("thief");
    fs::create_dir(&thief).unwrap();
    std::os::unix::fs::chown(&thief, Some(BOB), Some(BOB)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut listening = Command::new(shared.folder.path().join("moira"))
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"])
        .arg(&thief)
        .uid(BOB)
        .gid(BOB)
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the thief listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let output = Command::new(binary())
        .args(["ls"])
        .env("MOIRA_SERVER", format!("http://127.0.0.1:{port}"))
        .env("MOIRA_TOKEN_FILE", &file)
        .env("MOIRA_DATA_DIR", shared.service.data_dir())
        .output()
        .unwrap();
    // What belongs to a service that is not root's nobody else has to pass through.
    let places = ["", "runs", "done", "checkpoints"].map(|name| thief.join(name));
    let modes = || places.each_ref().map(|place| fs::metadata(place).map_or(0, |it| it.permissions().mode() & 0o777));
    eventually("it is closed to others", || modes() == [0o700; 4]);
    listening.kill().unwrap();
    listening.wait().unwrap();
    let said = text(&output);
    assert!(!output.status.success() && said.contains("no token is sent") && said.contains("nobody"), "{said}");
}

/// A socket for IPv6 that is bound to an address of IPv4 takes its connections, and stands in another table.
#[test]
fn a_token_is_not_sent_to_whoever_took_the_port_in_the_clothes_of_ipv6() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let file = shared.folder.path().join("token").display().to_string();
    shared.service.moira(&["token", "create", "--file", &file]);
    for place in ["::ffff:127.0.0.1", "::ffff:0.0.0.0"] {
        let thief = TcpListener::bind((place, 0)).unwrap();
        let bob = (rustix::fs::Uid::from_raw(BOB), rustix::fs::Gid::from_raw(BOB));
        rustix::fs::fchown(&thief, Some(bob.0), Some(bob.1)).unwrap();
        let port = thief.local_addr().unwrap().port();
        std::thread::spawn(move || thief.incoming().for_each(drop));
        let output = Command::new(binary())
            .args(["ls"])
            .env("MOIRA_SERVER", format!("http://127.0.0.1:{port}"))
            .env("MOIRA_TOKEN_FILE", &file)
            .env("MOIRA_DATA_DIR", shared.service.data_dir())
            .output()
            .unwrap();
        let said = text(&output);
        assert!(!output.status.success(), "{place}: {said}");
        assert!(said.contains("no token is sent") && said.contains("nobody"), "{place}: {said}");
    }
}

#[test]
fn revoking_a_token_ends_what_goes_on_by_it() {
    let shared = Shared::start(FOUR_DEVICES);
    let secret = shared.token("user");
    let job = shared.service.submit(&["--", "sleep", "600"]);
    shared.service.until(&job, "running");
    let shells = format!("/v1/jobs/{job}/shells");
    let shell = json!({ "command": ["sleep", "600"], "window": { "rows": 24, "columns": 80 } }).to_string();
    let opened = shared.ask(Some(&secret), "POST", &shells, &shell);
    assert_eq!(opened.status, 201, "{}", opened.body);
    let output = format!("{shells}/{}/output?offset=0", opened.body["id"].as_str().unwrap());
    let paths = ["/v1/events".to_string(), format!("/v1/jobs/{job}/logs?follow=true"), output];
    let streams = paths.map(|path| (follow(shared.port, &secret, &path).unwrap(), path));
    shared.service.json(&["token", "revoke", "1", "-o", "json"]);
    let revoked = Instant::now();
    for (stream, path) in streams {
        until_closed(&path, stream);
    }
    // It is promised within five seconds; a machine that is busy may take a little longer.
    assert!(revoked.elapsed() < Duration::from_secs(15), "{:?}", revoked.elapsed());
}

/// An answer that has begun and goes on; else what came.
fn follow(port: u16, token: &str, path: &str) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 4096];
    let read = stream.read(&mut buffer).unwrap();
    let begun = String::from_utf8_lossy(&buffer[..read]).into_owned();
    if begun.starts_with("HTTP/1.1 200") { Ok(stream) } else { Err(begun) }
}

/// Reads until the service closes the connection.
fn until_closed(path: &str, mut stream: TcpStream) {
    let (begun, mut buffer) = (Instant::now(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(1..) => assert!(begun.elapsed() < PATIENCE, "{path} goes on"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{path} stays open"),
            Ok(0) | Err(_) => break,
        }
    }
}

/// Everything that Ann's job is made of, and everything that could tell Bob of it.
#[test]
fn no_secret_of_one_user_reaches_another() {
    if !is_root() {
        return;
    }
    // Nobody listens there.
    let hook = format!("http://127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let shared = Shared::start(&format!("notify_urls = [\"{hook}\"]\n{FOUR_DEVICES}"));
    let script = "echo the-log-secret; echo '{\"steps\": 5, \"metrics\": {\"metric-secret\": 1}}' >> \"$MOIRA_PROGRESS_FILE\"; \
                  sleep 600";
    let words = [
        &["submit", "-o", "json", "--name", "ann's", "--env", "KEY=the-env-secret"][..],
        &["--", "sh", "-c", script, "the-command-secret"],
    ];
    let job = shared.json_as(ANN, &words.concat())["id"].as_str().unwrap().to_string();
    let broken =
        shared.json_as(ANN, &["submit", "-o", "json", "--name", "broken", "--", "/no/such/the-failure-secret"]);
    let broken = broken["id"].as_str().unwrap().to_string();
    shared.service.until_it(&job, "reporting", |job| job["progress"]["steps"] == 5);
    shared.service.until(&broken, "failed");
    let own = text(&shared.moira_as(ANN, &["show", "-o", "json", &job]));
    assert!(own.contains("the-env-secret") && own.contains("the-command-secret"), "{own}");

    let ann = shared.token_of(ANN);
    let workdir = shared.folder.path().join("the-workdir-secret");
    fs::create_dir(&workdir).unwrap();
    let labels = json!({ "the-label-secret": "the-value-secret" });
    let placed = shared.submit(&ann, &json!({ "command": ["pwd"], "workdir": workdir, "labels": labels }));
    shared.service.until(&placed, "succeeded");
    let own = text(&shared.moira_as(ANN, &["show", "-o", "json", &placed]));
    assert!(["the-workdir-", "the-label-", "the-value-"].iter().all(|secret| own.contains(secret)), "{own}");
    let after = Followers::of(&shared, &ann);
    let seat = shared.submit(
        &ann,
        &json!({ "command": ["cat"], "workdir": "/", "pty": { "rows": 24, "columns": 80 }, "notify": [
            { "url": format!("{hook}/the-hook-secret"), "events": ["start"] },
            { "command": "echo the-told-secret >&2; exit 1 # the-notify-secret", "events": ["start"] },
        ] }),
    );
    shared.service.until(&seat, "running");
    assert_eq!(shared.send(&ann, &format!("/v1/jobs/{seat}/input?offset=0"), "the-typed-secret\n").status, 200);
    let shells = format!("/v1/jobs/{seat}/shells");
    let shell =
        json!({ "command": ["sh", "-c", "echo the-shell-secret; sleep 600"], "window": { "rows": 24, "columns": 80 } });
    let opened = shared.ask(Some(&ann), "POST", &shells, &shell.to_string());
    let shell = format!("{shells}/{}", opened.body["id"].as_str().unwrap());
    let own = |words: &[&str]| text(&shared.moira_as(ANN, &[words, &[&*seat]].concat()));
    eventually("it is typed", || own(&["logs"]).contains("the-typed-secret"));
    eventually("the shell has spoken", || {
        raw(shared.port, &ann, &format!("{shell}/output?offset=0")).contains("the-shell-secret")
    });
    eventually("it could not be told", || own(&["explain", "-o", "json"]).contains("the-told-secret"));
    let shown = own(&["show", "-o", "json"]);
    assert!(shown.contains("the-hook-secret") && shown.contains("the-notify-secret"), "{shown}");

    let (id, gone, seat, placed) = (job.as_str(), broken.as_str(), seat.as_str(), placed.as_str());
    let commands: [&[&str]; 21] = [
        &["show", "-o", "json", placed],
        &["explain", "-o", "json", placed],
        &["logs", placed],
        &["show", "-o", "json", seat],
        &["explain", "-o", "json", seat],
        &["logs", seat],
        &["node", "ls"],
        &["ls", "--all", "-o", "json"],
        &["ls", "--all"],
        &["show", id],
        &["show", "-o", "json", id],
        &["show", "-o", "json", gone],
        &["explain", id],
        &["explain", "-o", "json", gone],
        &["logs", id],
        &["logs", gone],
        &["wait", "--timeout", "1s", gone],
        &["cancel", id],
        &["hold", id],
        &["priority", id, "5"],
        &["audit"],
    ];
    let mut seen: Vec<(String, String)> =
        commands.iter().map(|words| (words.join(" "), text(&shared.moira_as(BOB, words)))).collect();
    let secret = shared.json_as(BOB, &["token", "create", "-o", "json"])["secret"].as_str().unwrap().to_string();
    let paths = [
        "/metrics".to_string(),
        "/v1/nodes".into(),
        "/v1/queues".into(),
        "/v1/config".into(),
        "/v1/jobs".into(),
        format!("/v1/jobs/{id}/wait?timeout_seconds=0"),
        format!("/v1/jobs/{id}/logs"),
        format!("/v1/jobs/{seat}/wait?timeout_seconds=0"),
        shell.clone(),
        format!("{shell}/output?offset=0"),
    ];
    for path in paths {
        seen.push((path.clone(), raw(shared.port, &secret, &path)));
    }
    seen.push(("events".into(), raw(shared.port, &secret, "/v1/events?after=0")));
    seen.extend(after.seen(&shared));
    for (what, text) in &seen {
        let of_jobs = ["the-log-", "the-env-", "the-command-", "the-failure-", "metric-secret", "MOIRA_"];
        let of_jobs = of_jobs.into_iter().chain(["the-workdir-", "the-label-", "the-value-"]);
        let of_seats = ["the-hook-", "the-notify-", "the-told-", "the-typed-", "the-shell-"];
        for secret in of_jobs.chain(of_seats) {
            assert!(!text.contains(secret), "{what} tells {secret}: {text}");
        }
    }
    let summary = shared.json_as(BOB, &["show", "-o", "json", id]);
    assert_eq!(
        (&summary["name"], &summary["owner"], &summary["state"]),
        (&json!("ann's"), &json!("daemon"), &json!("running"))
    );
    assert_eq!((&summary["summary"], &summary["gpus"]), (&json!(true), &json!(1.0)));
    assert!(summary["submitted_at"].is_string());
    // Where a job runs is told to those who see all of it.
    let jobs_seen = |uid| shared.json_as(uid, &["node", "ls", "-o", "json"])["nodes"][0]["jobs"].clone();
    assert_eq!([jobs_seen(BOB), jobs_seen(ANN), jobs_seen(0)], [json!([]), json!([id, seat]), json!([id, seat])]);
}

/// Jobs of Bob's that were to run after one of Ann's, which has failed in words that tell of it.
struct Followers {
    failed: String,
    first: String,
    second: String,
    /// What Bob is told.
    told: PathBuf,
}

impl Followers {
    fn of(shared: &Shared, ann: &str) -> Followers {
        let folder = shared.folder.path().join("bobs");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(BOB), Some(BOB)).unwrap();
        let told = folder.join("told");
        let notify = format!("cat > {0}.part; mv {0}.part {0}", told.display());
        let bob = |words: &[&str]| {
            let job = shared.json_as(BOB, &[&["submit", "-o", "json"], words, &["--", "true"]].concat());
            job["id"].as_str().unwrap().to_string()
        };
        // Everyone sees what a job is called, which is its program if nobody says otherwise.
        let failing =
            json!({ "command": ["/no/such/the-failure-secret"], "name": "failing", "workdir": "/", "hold": true });
        let failing = shared.submit(ann, &failing);
        let own = shared.submit(ann, &json!({ "command": ["true"], "workdir": "/", "depends_on": [failing] }));
        let first = bob(&["--after", &failing, "--notify", &notify, "--notify-on", "failure"]);
        let second = bob(&["--after", &first]);
        shared.service.json(&["release", "-o", "json", &failing]);
        for id in [&failing, &own, &first, &second] {
            shared.service.until(id, "failed");
        }
        eventually("Bob is told", || told.exists());
        let known = text(&shared.moira_as(ANN, &["explain", &own]));
        assert!(known.contains("the-failure-secret"), "she is told why her own job failed: {known}");
        Followers { failed: failing, first, second, told }
    }

    fn seen(&self, shared: &Shared) -> Vec<(String, String)> {
        let Followers { failed, first, second, told } = self;
        let commands = [&["show"][..], &["show", "-o", "json"], &["explain"], &["explain", "-o", "json"], &["wait"]];
        let ids = [first.as_str(), second.as_str()];
        let asked = ids.into_iter().flat_map(|id| commands.map(move |words| [words, &[id]].concat()));
        let mut seen: Vec<(String, String)> =
            asked.map(|words| (words.join(" "), text(&shared.moira_as(BOB, &words)))).collect();
        let cause = format!("dependency {failed} failed");
        assert!(seen.iter().all(|(_, text)| text.contains(&cause)), "it is said which job failed: {seen:#?}");
        seen.push(("a notification".into(), fs::read_to_string(told).unwrap()));
        seen
    }
}

#[test]
fn nothing_of_a_jobs_environment_reaches_a_process_of_root() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let hostile = shared.folder.path().join("hostile");
    fs::create_dir(&hostile).unwrap();
    fs::set_permissions(&hostile, fs::Permissions::from_mode(0o1777)).unwrap();
    let ran = hostile.join("ran");
    // Each program that somebody might look up says whose process found it here.
    for name in ["sh", "moira", "id", "nvidia-smi", "env", "sleep"] {
        let (real, path) = (format!("/bin/{name}"), hostile.join(name));
        let text =
            format!("#!/bin/sh\necho \"{name} by $(/usr/bin/id -u)\" >> {}\nexec {real} \"$@\"\n", ran.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", hostile.display());
    let library = hostile.join("library.so").display().to_string();
    let mut command = Command::new(shared.folder.path().join("moira"));
    command.args(["submit", "-o", "json", "--export=ALL", "--env", &format!("LD_PRELOAD={library}")]);
    command.args(["--", "sh", "-c", "sleep 600"]).uid(ANN).gid(ANN).current_dir("/").stdin(Stdio::null());
    command.env_clear().env("MOIRA_DATA_DIR", shared.service.data_dir()).env("HOME", "/nonexistent");
    command.env("PATH", &path).env("LD_LIBRARY_PATH", &hostile).env("HOSTILE", "yes");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    eventually("the job runs", || fs::read_to_string(&ran).is_ok_and(|ran| ran.contains("sleep by ")));
    let supervisors = processes::supervisors(shared.service.data_dir());
    assert_eq!(supervisors.len(), 1);
    for name in ["HOSTILE", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        assert_eq!(supervisors[0].variable(name), std::env::var(name).ok().as_deref(), "{name}");
    }
    assert!(!supervisors[0].variable("PATH").unwrap_or_default().contains("hostile"));
    // The loader complains about the library in every process that has it in its environment.
    let said = fs::read_to_string(shared.service.data_dir().join("runs/0.1/supervisor.log")).unwrap();
    assert_eq!(said, "");
    shared.service.json(&["cancel", "-o", "json", "0"]);
    shared.service.until("0", "cancelled");
    assert_eq!(fs::read_to_string(&ran).unwrap(), "sh by 1\nsleep by 1\n");
}

#[test]
fn a_job_has_the_groups_that_the_system_gives_its_user() {
    if !is_root() {
        return;
    }
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return pass_over("a service cannot have mounts of its own here");
    }
    let mut shared = Shared::prepare(&format!("{FOUR_DEVICES}\n[access.viewer]\ngroups = [\"video\"]\n"));
    // The system reads this file and lets a name in another encoding be.
    let groups = shared.folder.path().join("group");
    fs::write(&groups, b"root:x:0:\ndaemon:x:1:\ncaf\xe9:x:4242:\nrender:x:777:daemon,nobody\nvideo:x:778:nobody\n")
        .unwrap();
    let wrapper = shared.folder.path().join("serve-with-groups");
    let (groups, binary) = (groups.display(), binary().display());
    let inner = format!("mount --bind {groups} /etc/group && exec {binary} \"$@\"");
    fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --mount sh -c '{inner}' serve \"$@\"\n")).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    shared.service.use_program(&wrapper);
    shared.service.rise();
    let job = shared.json_as(ANN, &["submit", "-o", "json", "--", "id", "-G"]);
    let job = job["id"].as_str().unwrap();
    shared.service.until(job, "succeeded");
    assert_eq!(String::from_utf8_lossy(&shared.moira_as(ANN, &["logs", job]).stdout), "1 777\n");
    let refused = text(&shared.moira_as(BOB, &["submit", "--", "true"]));
    assert!(refused.contains("needs the role user"), "roles go by the same groups: {refused}");
}

/// Everything that is sent within two seconds.
fn raw(port: u16, token: &str, path: &str) -> String {
    let mut stream = asked(port, token, path);
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let (mut text, mut buffer) = (Vec::new(), [0; 65536]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A connection on which something was asked for, and the answer was not read.
fn asked(port: u16, token: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn the_configuration_may_open_what_others_see() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access]\nothers_see = \"all\"\n"));
    let job = shared.json_as(ANN, &["submit", "-o", "json", "--", "echo", "hello"]);
    let job = job["id"].as_str().unwrap();
    shared.service.until(job, "succeeded");
    assert_eq!(shared.json_as(BOB, &["show", "-o", "json", job])["spec"]["command"], json!(["echo", "hello"]));
    assert!(text(&shared.moira_as(BOB, &["logs", job])).contains("hello"));
    assert!(text(&shared.moira_as(BOB, &["cancel", job])).contains("belongs to someone else"));
}

#[test]
fn ceilings_bound_what_one_user_has() {
    if !is_root() {
        return;
    }
    let ceilings = "[access.ceilings]\nlive_jobs = 3\ndevices = 4\npriority = 10\n";
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n{ceilings}"));
    let submit = |words: &[&str]| shared.moira_as(ANN, &[&["submit"], words, &["--", "sleep", "600"]].concat());
    assert!(text(&submit(&["--priority", "11"])).contains("expected at most 10"));
    assert!(text(&submit(&["--workers", "1..5"])).contains("4 devices"), "{}", text(&submit(&["--workers", "1..5"])));
    assert!(submit(&["--priority", "10"]).status.success());
    assert!(text(&shared.moira_as(ANN, &["priority", "0", "11"])).contains("expected at most 10"));
    assert!(text(&submit(&["--array", "1-3"])).contains("3 jobs"));
    assert!(submit(&["--array", "1-2"]).status.success());
    assert!(text(&submit(&[])).contains("3 jobs"));
    assert!(shared.moira_as(BOB, &["submit", "--", "true"]).status.success(), "others have ceilings of their own");
    shared.service.submit(&["--priority", "1000", "--", "true"]);
}

#[test]
fn a_user_who_submits_a_lot_at_once_has_to_wait() {
    if !is_root() {
        return;
    }
    // A minute's worth is sixty bytes: the first job takes all of it.
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.ceilings]\nsubmissions_size_per_second = 1\n"));
    let submit = |uid| shared.moira_as(uid, &["submit", "--hold", "--", "true"]);
    assert!(submit(ANN).status.success());
    let refused = submit(ANN);
    assert!(!refused.status.success() && text(&refused).contains("larger jobs than allowed"), "{}", text(&refused));
    assert!(submit(BOB).status.success(), "others have ceilings of their own");
}

#[test]
fn a_user_who_submits_often_has_to_wait() {
    if !is_root() {
        return;
    }
    // One job, and the next after a quarter of an hour.
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.ceilings]\nsubmissions_per_second = 0.001\n"));
    let submit = |uid| shared.moira_as(uid, &["submit", "--hold", "--", "true"]);
    assert!(submit(ANN).status.success());
    let ann = shared.token_of(ANN);
    let refused = shared.ask(Some(&ann), "POST", "/v1/jobs", r#"{"command": ["true"], "hold": true}"#);
    assert_eq!((refused.status, &refused.body["type"]), (429, &json!("urn:moira:problem:ceiling")), "{}", refused.body);
    assert!(refused.body["detail"].as_str().unwrap().contains("submits faster than allowed"), "{}", refused.body);
    assert!(submit(BOB).status.success(), "others have ceilings of their own");
    for _ in 0..3 {
        shared.service.submit(&["--hold", "--", "true"]);
    }
}

#[test]
fn a_user_who_changes_a_lot_at_once_has_to_wait() {
    if !is_root() {
        return;
    }
    // One change, and the next after a quarter of an hour.
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.ceilings]\nchanges_per_second = 0.001\n"));
    let (job, other) =
        (["submit", "--hold", "-o", "json", "--", "true"], ["submit", "-o", "json", "--", "sleep", "600"]);
    let held = shared.json_as(ANN, &job)["id"].as_str().unwrap().to_string();
    let running = shared.json_as(ANN, &other)["id"].as_str().unwrap().to_string();
    shared.service.until(&running, "running");
    let ann = shared.token_of(ANN);
    let asks = [
        ("PATCH", format!("/v1/jobs/{held}")),
        ("POST", format!("/v1/jobs/{held}/release")),
        ("POST", format!("/v1/jobs/{running}/hold")),
        ("POST", format!("/v1/jobs/{running}/cancel")),
        ("POST", format!("/v1/jobs/{running}/cancel?now=true")),
        ("DELETE", "/v1/tokens/1".into()),
    ];
    for (method, path) in asks {
        let answer = shared.ask(Some(&ann), method, &path, r#"{"priority": 1}"#);
        let expected = (429, &json!("urn:moira:problem:too-fast"));
        assert_eq!((answer.status, &answer.body["type"]), expected, "{method} {path}: {}", answer.body);
    }
    assert_eq!(shared.service.show(&running)["state"], "running");
    shared.token_of(BOB);
    for _ in 0..3 {
        shared.service.json(&["hold", "-o", "json", &running]);
        shared.service.json(&["release", "-o", "json", &running]);
    }
}

#[test]
fn who_cancels_many_jobs_at_once_has_all_of_them_cancelled() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.ceilings]\nchanges_per_second = 0.5\n"));
    let ids: Vec<String> = (0..8)
        .map(|_| shared.json_as(ANN, &["submit", "--hold", "-o", "json", "--", "true"])["id"].as_str().unwrap().into())
        .collect();
    let words: Vec<&str> = ["cancel"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    let cancelled = shared.moira_as(ANN, &words);
    assert!(cancelled.status.success(), "{}", text(&cancelled));
    for id in &ids {
        assert_eq!(shared.service.show(id)["state"], "cancelled");
    }
}

#[test]
fn input_of_jobs_that_have_not_started_counts_as_what_is_submitted() {
    if !is_root() {
        return;
    }
    // The job takes a minute's worth.
    let shared = Shared::start(&format!("{FOUR_DEVICES}\n[access.ceilings]\nsubmissions_size_per_second = 1\n"));
    let ann = shared.token_of(ANN);
    let job = json!({ "command": ["sleep", "600"], "workdir": "/", "stdin": true, "hold": true });
    let id = shared.submit(&ann, &job);
    let path = format!("/v1/jobs/{id}/input?offset=0");
    let refused = shared.send(&ann, &path, &"x".repeat(1000));
    assert_eq!(
        (refused.status, &refused.body["type"]),
        (429, &json!("urn:moira:problem:too-fast")),
        "{}",
        refused.body
    );
    shared.service.json(&["release", "-o", "json", &id]);
    shared.service.until(&id, "running");
    assert_eq!(shared.send(&ann, &path, &"x".repeat(1000)).status, 200, "it is read as it comes");
}

#[test]
fn who_did_what_is_on_record() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let job = shared.json_as(ANN, &["submit", "-o", "json", "--name", "mine", "--", "sleep", "600"]);
    let job = job["id"].as_str().unwrap();
    let refused = shared.moira_as(BOB, &["cancel", job]);
    assert!(!refused.status.success());
    shared.json_as(BOB, &["token", "create", "-o", "json"]);
    shared.service.json(&["cancel", "-o", "json", job]);
    shared.service.json(&["node", "cordon", "-o", "json", "t4"]);
    let audit = text(&shared.service.moira(&["audit", "-o", "json"]));
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(String, String)> = lines
        .iter()
        .map(|line| (line["user"].as_str().unwrap().into(), line["what"].as_str().unwrap().into()))
        .collect();
    let expected = [
        ("daemon", format!("submitted job {job} (mine)")),
        ("nobody", "made token 1 for nobody as user".into()),
        ("root", format!("cancelled job {job}")),
        ("root", "cordoned node t4".into()),
    ];
    assert_eq!(told, expected.map(|(user, what)| (user.to_string(), what)));
    let log = shared.service.log();
    let refused = |line: &str| line.contains("\"refused\"") && line.contains("nobody") && line.contains("403");
    assert!(log.lines().any(refused), "{log}");
}
