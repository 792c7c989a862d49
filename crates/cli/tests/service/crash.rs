//! The service is killed again and again while users are at work and gangs run; in the end a judge looks whether anything
//! was lost. `MOIRA_CRASHES` says how often, `MOIRA_SEED` which moments.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http;
use crate::judge::{Errand, Evidence, STEPS, Sent, judge, together};
use crate::processes;
use crate::service::{Service, eventually, say};

const CONFIG: &str = "policy = \"tiresias:thresholds=1\"\ngrace = \"1s\"\nrest_after_failure = \"50ms\"\n\
                      [[accelerators]]\nkind = \"t4\"\ncount = 6\n";
const DEVICES: f64 = 6.0;
const CLIENTS: u64 = 3;
/// More are not submitted while so many are under way.
const MOST_LIVE: usize = 14;
/// Rounds, preemptions and neither.
const POLICIES: [&str; 3] = ["tiresias:thresholds=1", "sia:others=tiresias,round=1s", "fifo"];

/// Every worker writes down by itself when it starts and how it ends.
const SCRIPT: &str = r#"#!/bin/sh
seconds=$1 code=$2 fails=$3 traps=$4
file=$NOTES/$NAME.$RANK
note() { read -r now rest < /proc/uptime; echo "$1 $MOIRA_ATTEMPT $now $2" >> "$file"; }
note start -
[ "$traps" = true ] && trap 'note end 143; exit 143' TERM
sleep "$seconds"
if [ "$RANK" = 0 ] && [ "$(grep -c " $code\$" "$file")" -lt "$fails" ]; then
    note end "$code"
    exit "$code"
fi
[ "$RANK" = 0 ] && echo "{\"steps\": $STEPS}" >> "$MOIRA_PROGRESS_FILE"
note end 0
"#;

#[test]
fn nothing_is_lost_however_often_the_service_is_killed() {
    let crashes = number("MOIRA_CRASHES").unwrap_or(200);
    let seed = number("MOIRA_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    say(&format!("MOIRA_CRASHES={crashes} MOIRA_SEED={seed}"));
    let notes = tempfile::Builder::new().prefix("notes-").tempdir().unwrap();
    fs::write(notes.path().join("job.sh"), SCRIPT).unwrap();
    let mut service = Service::prepare(CONFIG);
    let users = Users::new(service.socket(), notes.path());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let users = &users;
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || users.work(seed + client))));
        let data_dir = service.data_dir().to_path_buf();
        scope.spawn(move || users.watch(&data_dir));
        // They leave also if the service does not come up again: nobody waits for them then.
        let _at_the_end = Leaving(users);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..crashes {
            live_for_a_while(&mut service, &mut random);
            service.kill();
        }
        service.rise();
    });
    users.until_all_is_done();
    let jobs = users.list("");
    let wall_seconds = begun.elapsed().as_secs_f64();
    service.kill();
    say(&summary(&jobs, crashes, wall_seconds));
    eventually("no process is left", || processes::of(service.data_dir()).is_empty());
    let sent = users.sent.lock().unwrap();
    let mut faults = users.faults.lock().unwrap().clone();
    let evidence = Evidence { sent: &sent, jobs: &jobs, notes: notes.path(), devices: DEVICES, wall_seconds };
    faults.extend(judge(&evidence));
    assert!(!service.log().contains("panicked"), "the service panicked: see its log");
    assert!(faults.is_empty(), "MOIRA_SEED={seed}, {} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(sent.values().filter(|sent| sent.id.is_some()).count() as u64 > crashes / 4, "there was too little work");
}

/// Sends the users home when it goes.
struct Leaving<'a>(&'a Users<'a>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave.store(true, Ordering::Relaxed);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

fn summary(jobs: &[Value], crashes: u64, seconds: f64) -> String {
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    jobs.iter().for_each(|job| *states.entry(job["state"].as_str().unwrap_or("?")).or_default() += 1);
    let sum = |field: &str| jobs.iter().filter_map(|job| job[field].as_u64()).sum::<u64>();
    format!(
        "{crashes} crashes in {seconds:.0} s; jobs: {states:?}; {} launches, {} failures, {} preemptions",
        sum("attempts"),
        sum("failures"),
        sum("preemptions")
    )
}

/// Half of the crashes come while the service is still finding out what was, half while it is at work.
fn live_for_a_while(service: &mut Service, random: &mut ChaCha8Rng) {
    service.spawn();
    if random.random_bool(0.5) {
        std::thread::sleep(Duration::from_millis(random.random_range(0..500)));
    } else {
        service.until_ready();
        std::thread::sleep(Duration::from_millis(random.random_range(0..600)));
    }
}

/// Everybody who uses the service, and what they remember of it.
struct Users<'a> {
    socket: PathBuf,
    notes: &'a Path,
    sent: Mutex<BTreeMap<String, Sent>>,
    faults: Mutex<Vec<String>>,
    leave: AtomicBool,
}

impl Users<'_> {
    fn new(socket: PathBuf, notes: &Path) -> Users<'_> {
        Users { socket, notes, sent: Mutex::default(), faults: Mutex::default(), leave: AtomicBool::new(false) }
    }

    /// One user: submits, changes its mind, and tries again whatever was not answered.
    fn work(&self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1_000_003));
        let mut count = 0;
        while !self.leave.load(Ordering::Relaxed) {
            match random.random_range(0..200) {
                0..=89 => {
                    if self.live_count().is_some_and(|live| live < MOST_LIVE) {
                        self.submit(errand(&mut random, format!("job-{seed}-{count}")));
                        count += 1;
                    }
                }
                90..=99 => self.change_one(&mut random, "cancel"),
                100..=119 => self.change_one(&mut random, "hold"),
                120..=169 => self.change_one(&mut random, "release"),
                170..=177 => {
                    let policy = json!({ "policy": POLICIES[random.random_range(0..POLICIES.len())] }).to_string();
                    self.try_once("PUT", "/v1/policy", &policy);
                }
                178 => self.kill_a_supervisor(&mut random),
                _ => drop(http::get(&self.socket, "/v1/jobs?limit=50")),
            }
            std::thread::sleep(Duration::from_millis(random.random_range(0..120)));
        }
    }

    /// What the kernel does when memory is short: its run is over, and nobody is to blame.
    fn kill_a_supervisor(&self, random: &mut ChaCha8Rng) {
        let data_dir = self.socket.parent().expect("the socket is in the data directory");
        let supervisors = processes::supervisors(data_dir);
        if !supervisors.is_empty() {
            processes::kill(supervisors[random.random_range(0..supervisors.len())].pid, Signal::KILL);
        }
    }

    /// Looks at the process table, again and again, for two attempts of one job.
    fn watch(&self, data_dir: &Path) {
        while !self.leave.load(Ordering::Relaxed) {
            self.faults.lock().unwrap().extend(together(&processes::of(data_dir)));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Until it is acknowledged: the same words under the same key.
    fn submit(&self, errand: Errand) {
        let (name, request) = (errand.name.clone(), self.request(&errand).to_string());
        let sent = Sent { errand, id: None, cancel_was_sent: false, cancelled_after: None };
        self.sent.lock().unwrap().insert(name.clone(), sent);
        loop {
            match http::post(&self.socket, "/v1/jobs", &[("Idempotency-Key", &name)], &request) {
                Ok(answer) if matches!(answer.status, 200 | 201) => {
                    let id = answer.body["id"].as_str().map(String::from);
                    self.sent.lock().unwrap().get_mut(&name).expect("it was just sent").id = id;
                    return;
                }
                Ok(answer) if answer.status < 500 => {
                    self.faults.lock().unwrap().push(format!("{name}: was refused: {}", answer.body));
                    return;
                }
                Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn request(&self, errand: &Errand) -> Value {
        let script = self.notes.join("job.sh").display().to_string();
        let words =
            [errand.seconds.to_string(), errand.code.to_string(), errand.fails.to_string(), errand.traps.to_string()];
        let command: Vec<String> = ["/bin/sh".to_string(), script].into_iter().chain(words).collect();
        // Only who says that it can be interrupted is stopped to make room for others.
        let checkpoint = if errand.traps { json!({ "grace": "1s" }) } else { json!({}) };
        json!({
            "name": errand.name,
            "command": command,
            "workers": errand.workers,
            "workdir": "/",
            "env": { "NOTES": self.notes.display().to_string(), "NAME": errand.name, "STEPS": STEPS.to_string() },
            "retry": { "max_failures": errand.max_failures },
            "checkpoint": checkpoint,
        })
    }

    /// A change to a job of one's own; whoever is not answered forgets it.
    fn change_one(&self, random: &mut ChaCha8Rng, change: &str) {
        let live = self.try_list("?state=live&limit=1000").unwrap_or_default();
        if live.is_empty() {
            return;
        }
        let job = &live[random.random_range(0..live.len())];
        let (Some(id), Some(name)) = (job["id"].as_str(), job["name"].as_str()) else { return };
        if change == "cancel" {
            self.note(name, |sent| sent.cancel_was_sent = true);
        }
        let answer = self.try_once("POST", &format!("/v1/jobs/{id}/{change}"), "");
        if let Some(attempts) = answer.filter(|_| change == "cancel").and_then(|job| job["attempts"].as_u64()) {
            self.note(name, |sent| sent.cancelled_after = Some(attempts));
        }
    }

    fn note(&self, name: &str, change: impl FnOnce(&mut Sent)) {
        if let Some(sent) = self.sent.lock().unwrap().get_mut(name) {
            change(sent);
        }
    }

    /// The answer, if one came and it was a good one.
    fn try_once(&self, method: &str, path: &str, body: &str) -> Option<Value> {
        let answer = http::ask(&self.socket, method, path, &[], body).ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    fn live_count(&self) -> Option<usize> {
        self.try_list("?state=live&limit=1000").map(|jobs| jobs.len())
    }

    fn try_list(&self, query: &str) -> Option<Vec<Value>> {
        self.try_once("GET", &format!("/v1/jobs{query}"), "")?["jobs"].as_array().cloned()
    }

    /// All jobs, page by page, from a service that is there.
    fn list(&self, state: &str) -> Vec<Value> {
        let mut jobs = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/v1/jobs?limit=1000{state}{after}");
            let page = http::get(&self.socket, &path).expect("the service is there").body;
            jobs.extend(page["jobs"].as_array().expect("a page has jobs").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return jobs,
            }
        }
    }

    /// Lets go whatever is held, and waits for the last job.
    fn until_all_is_done(&self) {
        eventually("every job has ended", || {
            let live = self.list("&state=live");
            for job in live.iter().filter(|job| job["state"] == "held") {
                self.try_once("POST", &format!("/v1/jobs/{}/release", job["id"].as_str().unwrap_or_default()), "");
            }
            live.is_empty()
        });
    }
}

/// A gang of one to three, short, that ends well, fails and is tried again, or fails for good.
fn errand(random: &mut ChaCha8Rng, name: String) -> Errand {
    let (fails, max_failures) = [(0, 0), (0, 2), (1, 2), (2, 3), (9, 0), (9, 1)][random.random_range(0..6)];
    Errand {
        name,
        workers: random.random_range(1..=3),
        seconds: f64::from(random.random_range(5..200)) / 100.0,
        code: random.random_range(1..100),
        fails,
        max_failures,
        traps: random.random_bool(0.5),
    }
}
