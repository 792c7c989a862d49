//! The service, supervisors and workers are killed again and again while users are at work and gangs run: arrays, chains
//! of jobs, gangs that change their size. In the end a judge looks whether anything was lost. `MOIRA_CRASHES` says how
//! often, `MOIRA_SEED` which moments.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http;
use crate::judge::{Errand, Evidence, Killed, STEPS, Sent, judge, task_name, together};
use crate::processes::{self, Process};
use crate::service::{PATIENCE, Service, eventually, say};

const CONFIG: &str = "policy = \"sia:others=tiresias,round=1s\"\ngrace = \"1s\"\nrest_after_failure = \"50ms\"\n\
                      [[accelerators]]\nkind = \"t4\"\ncount = 8\n";
const DEVICES: f64 = 8.0;
const CLIENTS: u64 = 3;
/// More are not submitted while so many are under way.
const MOST_LIVE: usize = 12;
/// Rounds and resizes, preemptions, neither.
const POLICIES: [&str; 4] =
    ["sia:others=tiresias,round=1s", "tiresias:thresholds=1", "sia:others=tiresias,round=1s", "fifo"];
/// Of five kills so many hit the service; the others hit supervisors and workers by turns.
const OF_THE_SERVICE: u64 = 3;
/// Gangs that change their size are interpreters, which cost more than all else.
const MOST_ELASTIC: usize = 2;

/// Every worker writes down by itself when it starts and how it ends.
const SCRIPT: &str = r#"#!/bin/sh
seconds=$1 code=$2 fails=$3 traps=$4
file=$NOTES/$NAME${MOIRA_ARRAY_TASK_ID:+_$MOIRA_ARRAY_TASK_ID}.$RANK
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

/// A gang that changes its size until its user has had enough of it. Gangs are numbered anew in each attempt.
const ELASTIC: &str = r#"#!/bin/sh
read -r now rest < /proc/uptime
echo "start $MOIRA_ATTEMPT $now -" >> "$NOTES/$NAME.$MOIRA_MEMBER"
export SHARED="$NOTES/$NAME.shared/$MOIRA_ATTEMPT"
mkdir -p "$SHARED"
ln -sfn "$NOTES/$NAME.end" "$SHARED/end"
exec python3 "$1"
"#;

#[test]
fn nothing_is_lost_however_often_the_service_supervisors_and_workers_are_killed() {
    let crashes = number("MOIRA_CRASHES").unwrap_or(300);
    let seed = number("MOIRA_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    say(&format!("MOIRA_CRASHES={crashes} MOIRA_SEED={seed}"));
    let notes = tempfile::Builder::new().prefix("notes-").tempdir().unwrap();
    fs::write(notes.path().join("job.sh"), SCRIPT).unwrap();
    fs::write(notes.path().join("elastic.sh"), ELASTIC).unwrap();
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
        for kill in 0..crashes {
            if kill == crashes / 2 {
                users.until_a_gang_has_grown(&mut service);
            }
            match kill % 5 {
                place if place < OF_THE_SERVICE => {
                    service.kill();
                    users.killed.lock().unwrap().services += 1;
                    service.spawn();
                    live_for_a_while(&mut service, users, &mut random);
                }
                OF_THE_SERVICE => users.kill_a_supervisor(&mut random),
                _ => users.kill_a_worker(&mut random),
            }
        }
        service.kill();
        service.rise();
    });
    users.until_all_is_done();
    let (again, jobs): (Vec<Value>, Vec<Value>) = users.list_tasks().into_iter().partition(is_run_again);
    let wall_seconds = begun.elapsed().as_secs_f64();
    service.kill();
    let killed = users.killed.lock().unwrap();
    say(&summary(&jobs, &killed, wall_seconds));
    say(&format!("{} jobs that fail were requeued again and again", again.len()));
    eventually("no process is left", || processes::of(service.data_dir()).is_empty());
    let sent = users.sent.lock().unwrap();
    let mut faults = users.faults.lock().unwrap().clone();
    let evidence =
        Evidence { sent: &sent, jobs: &jobs, killed: &killed, notes: notes.path(), devices: DEVICES, wall_seconds };
    faults.extend(judge(&evidence));
    faults.extend(users.judge_requeues(&again));
    assert!(!service.log().contains("panicked"), "the service panicked: see its log");
    assert!(faults.is_empty(), "MOIRA_SEED={seed}, {} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(sent.values().filter(|sent| sent.id.is_some()).count() as u64 > crashes / 6, "there was too little work");
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

fn summary(jobs: &[Value], killed: &Killed, seconds: f64) -> String {
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    jobs.iter().for_each(|job| *states.entry(job["state"].as_str().unwrap_or("?")).or_default() += 1);
    let sum = |field: &str| jobs.iter().filter_map(|job| job[field].as_u64()).sum::<u64>();
    format!(
        "{killed} in {seconds:.0} s; jobs: {states:?}; {} launches, {} failures, {} preemptions, {} resizes",
        sum("attempts"),
        sum("failures"),
        sum("preemptions"),
        sum("resizes")
    )
}

/// Half of the crashes come while the service is still finding out what was, half while it is at work. Now and then users
/// ask for nothing, so that gangs grow: it is killed in the middle of that.
fn live_for_a_while(service: &mut Service, users: &Users<'_>, random: &mut ChaCha8Rng) {
    let kind = random.random_range(0..16);
    if kind >= 8 {
        service.until_ready();
    }
    let is_quiet = kind >= 14;
    users.rest.store(is_quiet, Ordering::Relaxed);
    if is_quiet {
        users.use_policy(POLICIES[0]);
    }
    let milliseconds = if is_quiet { 2000..4000 } else { 0..600 };
    std::thread::sleep(Duration::from_millis(random.random_range(milliseconds)));
    users.rest.store(false, Ordering::Relaxed);
}

/// Everybody who uses the service, and what they remember of it.
struct Users<'a> {
    socket: PathBuf,
    notes: &'a Path,
    sent: Mutex<BTreeMap<String, Sent>>,
    faults: Mutex<Vec<String>>,
    killed: Mutex<Killed>,
    again: Mutex<Again>,
    leave: AtomicBool,
    rest: AtomicBool,
    /// Held for reading by a user who is doing something.
    acting: RwLock<()>,
}

/// What users know of the jobs that fail and are run again.
#[derive(Default)]
struct Again {
    jobs: Vec<String>,
    /// By the number of the job that had failed.
    requeued: BTreeMap<String, String>,
}

/// So their names begin. The judge does not know them.
const AGAIN: &str = "again-";

fn is_run_again(job: &Value) -> bool {
    job["name"].as_str().is_some_and(|name| name.starts_with(AGAIN))
}

impl Users<'_> {
    fn new(socket: PathBuf, notes: &Path) -> Users<'_> {
        Users {
            socket,
            notes,
            sent: Mutex::default(),
            faults: Mutex::default(),
            killed: Mutex::default(),
            again: Mutex::default(),
            leave: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            acting: RwLock::default(),
        }
    }

    /// One user: submits, changes its mind, and tries again whatever was not answered.
    fn work(&self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1_000_003));
        let mut count = 0;
        let request = json!({ "name": format!("{AGAIN}{seed}"), "command": ["false"], "workdir": "/" }).to_string();
        if let Some(id) = self.until_answered("/v1/jobs", &format!("{AGAIN}{seed}"), &request, &[]) {
            self.again.lock().unwrap().jobs.push(id);
        }
        while !self.leave.load(Ordering::Relaxed) {
            let acting = self.acting.read();
            match random.random_range(0..200) {
                _ if self.rest.load(Ordering::Relaxed) => {}
                0..=89 => {
                    if self.live_count().is_some_and(|live| live < MOST_LIVE) {
                        let errand = errand(&mut random, format!("job-{seed}-{count}"));
                        let crowded = errand.elastic && self.elastic().len() >= MOST_ELASTIC;
                        if !crowded {
                            self.submit(Errand { after: self.dependency(&mut random, &errand), ..errand });
                        }
                        count += 1;
                    }
                }
                90..=99 => self.change_one(&mut random, "cancel"),
                100..=119 => self.change_one(&mut random, "hold"),
                120..=169 => self.change_one(&mut random, "release"),
                170..=177 => {
                    self.use_policy(POLICIES[random.random_range(0..POLICIES.len())]);
                }
                178..=180 => self.let_an_elastic_end(),
                181..=189 => {
                    self.requeue_one(&mut random, &format!("requeue-{seed}-{count}"));
                    count += 1;
                }
                _ => drop(http::get(&self.socket, "/v1/jobs?limit=50")),
            }
            drop(acting);
            std::thread::sleep(Duration::from_millis(random.random_range(0..120)));
        }
    }

    fn use_policy(&self, policy: &str) {
        self.try_once("PUT", "/v1/policy", &json!({ "policy": policy }).to_string());
    }

    fn data_dir(&self) -> &Path {
        self.socket.parent().expect("the socket is in the data directory")
    }

    /// What the kernel does when memory is short: its run is over, and nobody is to blame.
    fn kill_a_supervisor(&self, random: &mut ChaCha8Rng) {
        self.kill_one(random, || processes::supervisors(self.data_dir()));
        self.killed.lock().unwrap().supervisors += 1;
    }

    /// Its gang fails by that, and it counts as a failure of the job.
    fn kill_a_worker(&self, random: &mut ChaCha8Rng) {
        let is_worker = |process: &Process| {
            let command = &process.command;
            command.contains("/job.sh ") || command.contains("worker.py")
        };
        let worker = self.kill_one(random, || processes::of(self.data_dir()).into_iter().filter(is_worker).collect());
        self.killed.lock().unwrap().note_worker(&worker);
    }

    /// Kills one of those that there are, as soon as there is one.
    fn kill_one(&self, random: &mut ChaCha8Rng, there_are: impl Fn() -> Vec<Process>) -> Process {
        let begun = Instant::now();
        loop {
            let found = there_are();
            if !found.is_empty() {
                let victim = found[random.random_range(0..found.len())].clone();
                processes::kill(victim.pid, Signal::KILL);
                return victim;
            }
            assert!(begun.elapsed() < PATIENCE, "there is nothing to be killed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The names of gangs that change their size and have not been told to end.
    fn elastic(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        let of_elastic = sent.values().filter(|sent| sent.errand.elastic && sent.id.is_some());
        of_elastic.map(|sent| sent.errand.name.clone()).filter(|name| !self.end_of(name).exists()).collect()
    }

    fn end_of(&self, name: &str) -> PathBuf {
        self.notes.join(format!("{name}.end"))
    }

    /// Whoever has changed its size may go.
    fn let_an_elastic_end(&self) {
        let live = self.try_list("?state=live&limit=1000").unwrap_or_default();
        let has_resized = |job: &&Value| job["resizes"].as_u64() > Some(0);
        if let Some(name) = live.iter().find(has_resized).and_then(|job| job["name"].as_str()) {
            fs::write(self.end_of(name), "").unwrap();
        }
    }

    /// One job in five is to run after another that was acknowledged. Who runs after a gang that does not end by itself
    /// might wait for long.
    fn dependency(&self, random: &mut ChaCha8Rng, errand: &Errand) -> Option<String> {
        if errand.elastic || !random.random_bool(0.2) {
            return None;
        }
        let sent = self.sent.lock().unwrap();
        let known: Vec<&Sent> = sent.values().filter(|sent| sent.id.is_some() && !sent.errand.elastic).collect();
        (!known.is_empty()).then(|| known[random.random_range(0..known.len())].errand.name.clone())
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
        let follows = errand.after.is_some();
        let sent = Sent { errand, id: None, cancel_was_sent: false, cancelled_after: None };
        self.sent.lock().unwrap().insert(name.clone(), sent);
        loop {
            match http::post(&self.socket, "/v1/jobs", &[("Idempotency-Key", &name)], &request) {
                Ok(answer) if matches!(answer.status, 200 | 201) => {
                    let id = answer.body["id"].as_str().map(String::from);
                    self.sent.lock().unwrap().get_mut(&name).expect("it was just sent").id = id;
                    return;
                }
                // Whom it was to follow has ended otherwise meanwhile: the judge looks into it.
                Ok(answer) if answer.status == 422 && follows => return,
                Ok(answer) if answer.status < 500 => {
                    self.faults.lock().unwrap().push(format!("{name}: was refused: {}", answer.body));
                    return;
                }
                Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// The number of the job that came of it; nothing if it was refused, as it may be with one of these.
    fn until_answered(&self, path: &str, key: &str, body: &str, may_be: &[u16]) -> Option<String> {
        loop {
            match http::post(&self.socket, path, &[("Idempotency-Key", key)], body) {
                Ok(answer) if matches!(answer.status, 200 | 201) => {
                    return answer.body["id"].as_str().map(String::from);
                }
                Ok(answer) if answer.status < 500 => {
                    if !may_be.contains(&answer.status) {
                        self.faults.lock().unwrap().push(format!("{key}: was refused: {}", answer.body));
                    }
                    return None;
                }
                Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Runs one of the jobs again that fail. It may not have ended, or another user may have been faster.
    fn requeue_one(&self, random: &mut ChaCha8Rng, key: &str) {
        let known = self.again.lock().unwrap().jobs.clone();
        let Some(earlier) = known.get(random.random_range(0..known.len().max(1))) else { return };
        let path = format!("/v1/jobs/{earlier}/requeue");
        let Some(later) = self.until_answered(&path, key, "", &[409]) else { return };
        let mut again = self.again.lock().unwrap();
        again.jobs.push(later.clone());
        if let Some(other) = again.requeued.insert(earlier.clone(), later.clone()) {
            self.faults.lock().unwrap().push(format!("job {earlier} was requeued as job {other} and as job {later}"));
        }
    }

    /// Each was run again once at most, and nothing else is there.
    fn judge_requeues(&self, found: &[Value]) -> Vec<String> {
        let Again { jobs, .. } = &*self.again.lock().unwrap();
        let mut faults = Vec::new();
        let found: Vec<&str> = found.iter().filter_map(|job| job["id"].as_str()).collect();
        for id in jobs {
            match (found.iter().filter(|found| *found == id).count(), jobs.iter().filter(|job| *job == id).count()) {
                (1, 1) => {}
                (there, sent) => faults.push(format!("job {id}, to be run again, is there {there} times of {sent}")),
            }
        }
        let strangers = found.iter().filter(|id| !jobs.iter().any(|job| job == *id));
        faults.extend(strangers.map(|id| format!("job {id} was requeued by nobody")));
        faults
    }

    fn request(&self, errand: &Errand) -> Value {
        let ids = |name: &String| self.sent.lock().unwrap().get(name).and_then(|sent| sent.id.clone());
        let mut request = if errand.elastic { self.elastic_request(errand) } else { self.plain_request(errand) };
        request["depends_on"] = errand.after.iter().filter_map(ids).collect();
        if let Some(tasks) = errand.tasks {
            request["array"] = json!({ "first": 0, "last": tasks - 1 });
        }
        request
    }

    fn elastic_request(&self, errand: &Errand) -> Value {
        let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executors/tests/local/worker.py");
        json!({
            "name": errand.name,
            "command": ["/bin/sh", self.notes.join("elastic.sh"), worker],
            "workers": { "min": 1, "max": errand.workers },
            "batch": { "initial": 64, "max": 256 },
            "workdir": "/",
            "env": { "NOTES": self.notes.display().to_string(), "NAME": errand.name, "REPORT": "1" },
            "retry": { "max_failures": errand.max_failures },
            "checkpoint": { "grace": "1s" },
        })
    }

    fn plain_request(&self, errand: &Errand) -> Value {
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
        let mut live = self.try_list("?state=live&limit=1000").unwrap_or_default();
        // A gang that is to change its size is let alone until it has.
        let is_to_resize = |job: &Value| job["workers"]["min"] != job["workers"]["max"] && job["resizes"] == 0;
        live.retain(|job| !is_to_resize(job));
        if live.is_empty() {
            return;
        }
        let job = &live[random.random_range(0..live.len())];
        let (Some(id), Some(name)) = (job["id"].as_str(), job["name"].as_str()) else { return };
        if change == "cancel" {
            self.note(name, |sent| sent.cancel_was_sent = true);
        }
        let answer = self.try_once("POST", &format!("/v1/jobs/{id}/{change}"), "");
        // Of an array only the sum is shown.
        let answer = answer.filter(|job| job["array"].is_null());
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

    /// All jobs, and of arrays all tasks, by the names by which the judge knows them.
    fn list_tasks(&self) -> Vec<Value> {
        let mut found = Vec::new();
        for job in self.list("") {
            let (id, name) = (job["id"].as_str().unwrap_or_default(), job["name"].as_str().unwrap_or_default());
            let Some(tasks) = job["array"]["count"].as_u64() else {
                found.push(job);
                continue;
            };
            for task in 0..tasks {
                let path = format!("/v1/jobs/{id}_{task}");
                let mut view = http::get(&self.socket, &path).expect("the service is there").body;
                view["name"] = task_name(name, Some(task)).into();
                found.push(view);
            }
        }
        found
    }

    /// Before the last of the kills, so that there is one after a resize: if none of the gangs has grown between two kills,
    /// nobody is killed for as long as it takes, and users ask for nothing.
    fn until_a_gang_has_grown(&self, service: &mut Service) {
        self.rest.store(true, Ordering::SeqCst);
        service.until_ready();
        // Whoever was just doing something, such as to choose another policy, has done it.
        drop(self.acting.write());
        self.use_policy(POLICIES[0]);
        let has_grown = || self.list("").iter().any(|job| job["resizes"].as_u64() > Some(0));
        if !has_grown() {
            // Those that were restarted all the time are not worth another interruption to the policy.
            self.elastic().iter().for_each(|name| fs::write(self.end_of(name), "").unwrap());
            self.submit(elastic_errand("job-alone".into()));
        }
        eventually("a gang has grown", has_grown);
        self.rest.store(false, Ordering::SeqCst);
    }

    /// Lets go whatever is held, ends what does not end by itself, and waits for the last job.
    fn until_all_is_done(&self) {
        self.elastic().iter().for_each(|name| fs::write(self.end_of(name), "").unwrap());
        eventually("every job has ended", || {
            let live = self.list("&state=live");
            for job in live.iter().filter(|job| job["state"] == "held") {
                self.try_once("POST", &format!("/v1/jobs/{}/release", job["id"].as_str().unwrap_or_default()), "");
            }
            live.is_empty()
        });
    }
}

/// A gang of one to three, short, that ends well, fails and is tried again, or fails for good; or an array of such; or a
/// gang that changes its size.
fn errand(random: &mut ChaCha8Rng, name: String) -> Errand {
    if random.random_bool(0.1) {
        return elastic_errand(name);
    }
    let tasks = random.random_bool(0.15).then(|| random.random_range(2..=3));
    let (fails, max_failures) = [(0, 0), (0, 2), (1, 2), (2, 3), (9, 0), (9, 1)][random.random_range(0..6)];
    Errand {
        name,
        workers: random.random_range(1..=if tasks.is_some() { 2 } else { 3 }),
        seconds: f64::from(random.random_range(5..200)) / 100.0,
        code: random.random_range(1..100),
        fails,
        max_failures,
        traps: random.random_bool(0.5),
        tasks,
        ..Errand::default()
    }
}

fn elastic_errand(name: String) -> Errand {
    Errand { name, workers: 4, max_failures: 99, elastic: true, ..Errand::default() }
}
