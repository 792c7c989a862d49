//! Every write of the service fails once, in the ways a disk can fail. Which writes there are is found by tracing a service
//! at its first start, at a later one and at work, so that a new one is tried without a word here. A shell has no part in it: its
//! directory has a name that is drawn when it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::{detach, is_there, pass_over, trace};
use crate::http::{self, Answer};
use crate::service::{Service, eventually, say};

/// It is compacted all the time.
const CONFIG: &str = "policy = \"fifo\"\ngrace = \"2s\"\nrest_after_failure = \"100ms\"\n\
                      [retention]\njournal_entries = 20\n[[accelerators]]\nkind = \"t4\"\ncount = 4\n";
const TWO_DEVICES: &str = "policy = \"sia:others=tiresias,round=1s\"\ngrace = \"2s\"\n\
                           [[accelerators]]\nkind = \"t4\"\ncount = 2\n";
const CALLS: &str = "openat,mkdir,mkdirat,write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,\
                     rmdir,ftruncate,fallocate";
const ERRORS: [&str; 3] = ["ENOSPC", "EIO", "EROFS"];
/// So many are tried at the same time: most of it is waiting.
const AT_ONCE: usize = 4;
/// More entries than a compaction can take at once here.
const LONGEST_ARCHIVE: u64 = 100;

/// A place in the program where it writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    call: String,
    /// In the data directory, with `+N` for the Nth job since a moment, `PID` for the service's process, `NEW` for the next
    /// archive, and `NAME` for the input of a job.
    path: String,
    /// Which of the thread's calls of this kind on this file it is.
    nth: usize,
}

#[test]
fn whatever_write_fails_at_the_first_start_the_next_one_succeeds() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let sites = sites_at_start(|| Service::prepare(CONFIG));
    let parts = ["identity", "journal.db.new", "journal.db.head", "journal.db.lock", "reserve/spare", "runs"];
    assert!(parts.iter().all(|part| sites.iter().any(|site| site.path.contains(part))), "{sites:#?}");
    start_with_each(&sites, || Service::prepare(CONFIG), &[]);
}

#[test]
fn whatever_write_fails_at_a_later_start_all_jobs_are_there_at_the_next() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let notes = tempfile::tempdir().unwrap();
    let mut service = Service::start(CONFIG);
    let known = session(&service, notes.path(), "before");
    service.kill();
    let copy = || {
        let mut copy = Service::prepare(CONFIG);
        copy.with("--accept-copy");
        let from = format!("{}/.", service.data_dir().display());
        assert!(Command::new("cp").args(["-a", &from]).arg(copy.data_dir()).status().unwrap().success());
        copy
    };
    let sites = sites_at_start(copy);
    assert!(sites.iter().any(|site| site.path.contains("journal.db.head")), "{sites:#?}");
    start_with_each(&sites, copy, &known);
}

#[test]
fn whatever_write_fails_at_work_no_job_is_lost_or_runs_twice_and_all_is_recorded_later() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let Some(sites) = sites_at_work() else { return pass_over("strace may not attach to a process") };
    let parts = ["run.json", "token", "owner.json", "stop.json", "archive/NEW", "journal.db-wal", "journal.db.head"];
    let of_input = ["input/NAME/data", "input/NAME/boot", "input/NAME/end", "input/NAME/window"];
    let parts = [&parts[..], &of_input, &["checkpoints"]].concat();
    assert!(parts.iter().all(|part| sites.iter().any(|site| site.path.contains(part))), "{sites:#?}");
    let cases = cases(&sites);
    say(&format!("{} writes at work, {} faults", sites.len(), cases.len()));
    let fired = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            let (cases, fired) = (&cases, &fired);
            scope.spawn(move || {
                let notes = tempfile::tempdir().unwrap();
                let service = Service::start(CONFIG);
                for (number, (site, error)) in cases.iter().enumerate().skip(part).step_by(AT_ONCE) {
                    let case = format!("{} of {} fails with {error}", site.call, site.path);
                    fired
                        .fetch_add(fails_at_work(&service, notes.path(), site, error, &case, number), Ordering::SeqCst);
                }
                service.check_journal();
            });
        }
    });
    assert!(fired.into_inner() * 10 >= cases.len() * 9, "most faults happened");
}

#[test]
fn whatever_write_fails_when_a_gang_is_resized_it_gets_its_second_worker_and_loses_nothing() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(TWO_DEVICES);
    let threads = threads(&service);
    let calls = format!("trace={CALLS},clone,clone3");
    let place = folder.path().join("trace").display().to_string();
    let Some(strace) = trace(service.pid(), &["-ff", "-y", "-o", &place, "-e", &calls]) else {
        return pass_over("strace may not attach to a process");
    };
    grow(&service, "nothing fails");
    detach(strace);
    let is_of_resize = |site: &Site| ["wish.json", "tuning.json"].iter().any(|part| site.path.contains(part));
    let sites: Vec<Site> = sites(folder.path(), &service, &threads, service.pid(), 0);
    let sites: Vec<Site> = sites.into_iter().filter(is_of_resize).collect();
    assert!(sites.iter().any(|site| site.path.contains("wish.json")), "{sites:#?}");
    assert!(sites.iter().any(|site| site.path.contains("tuning.json")), "{sites:#?}");
    let cases = cases(&sites);
    say(&format!("{} writes of a resize, {} faults", sites.len(), cases.len()));
    let fired = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            let (cases, fired) = (&cases, &fired);
            scope.spawn(move || {
                for (site, error) in cases.iter().skip(part).step_by(AT_ONCE) {
                    let case = format!("{} of {} fails with {error}", site.call, site.path);
                    let service = Service::start(TWO_DEVICES);
                    fired.fetch_add(
                        while_it_fails(&service, site, error, "0", || grow(&service, &case)),
                        Ordering::SeqCst,
                    );
                    assert!(!service.log().contains("panicked"), "{case}: {}", service.log());
                    service.check_journal();
                }
            });
        }
    });
    assert!(fired.into_inner() * 10 >= cases.len() * 9, "most faults happened");
}

/// A job that begins with one worker and gets a second.
fn grow(service: &Service, case: &str) {
    let shared = tempfile::tempdir().unwrap();
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executors/tests/local/worker.py");
    let job = json!({
        "command": ["python3", worker],
        "workers": { "min": 1, "max": 2 },
        "batch": { "initial": 64, "max": 128 },
        "env": { "SHARED": shared.path(), "REPORT": "1" },
        "name": case.replace('/', " "),
    });
    let id = submit(service, &job);
    eventually(&format!("{case}: it has two workers"), || service.show(&id)["workers"]["have"] == 2);
    fs::write(shared.path().join("end"), "").unwrap();
    let job = service.until(&id, "succeeded");
    assert_eq!(job["failures"], 0, "{case}: it was not its fault: {job}");
    assert!(job["attempts"].as_u64().unwrap() <= 2, "{case}: launched once more at the most: {job}");
}

/// What is done to files at work while one call fails; one if it did.
fn fails_at_work(service: &Service, notes: &Path, site: &Site, error: &str, case: &str, number: usize) -> usize {
    let mut jobs = Vec::new();
    let name = format!("{number}: {case}").replace('/', " ");
    let typed = submit_typed(service, notes, &name);
    let fired = while_it_fails(service, site, error, &typed.clone(), || {
        jobs = session_with(service, notes, &name, typed);
    });
    eventually(&format!("{case}: the service is well again"), || service.get("/readyz").body["status"] == "ok");
    for job in jobs {
        let shown = service.show(&job);
        let expected = u32::from(shown["state"] == "failed");
        assert_eq!(shown["failures"], expected, "{case}: it was not the fault of job {job}");
    }
    assert!(!service.log().contains("panicked"), "{case}: {}", service.log());
    fired
}

/// Does something while a call fails at a site; one if it really failed. The jobs of that are counted from the first.
fn while_it_fails(service: &Service, site: &Site, error: &str, first: &str, work: impl FnOnce()) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told").display().to_string();
    let mut options: Vec<String> = ["-o", &told, "-e", &format!("trace={}", site.call)].map(Into::into).into();
    options.extend(["-e".into(), format!("inject={}:error={error}:when={}", site.call, site.nth)]);
    for path in site.places(service, first.parse().unwrap()) {
        options.extend(["-P".into(), path.display().to_string()]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let strace = trace(service.pid(), &options).expect("it could be attached before");
    work();
    detach(strace);
    usize::from(fs::read_to_string(told).unwrap().contains("INJECTED"))
}

/// A day at work: a job that reports and ends, one that is cancelled, one that is held and released, one at whose terminal
/// somebody types, one that fails and goes on from its checkpoint when it is requeued. All of them come to their ends, once.
fn session(service: &Service, notes: &Path, name: &str) -> Vec<String> {
    let typed = submit_typed(service, notes, name);
    session_with(service, notes, name, typed)
}

/// A job at whose terminal somebody types, and which waits: with it the name of what is typed is drawn.
fn submit_typed(service: &Service, notes: &Path, name: &str) -> String {
    let script = "read -r line; [ \"$line\" = typed ] && echo \"$NAME\" >> $NOTES/ran";
    let name = format!("{name}, typed");
    let size = json!({ "rows": 24, "columns": 80 });
    let env = json!({ "NOTES": notes, "NAME": name });
    submit(service, &json!({ "command": ["sh", "-c", script], "name": name, "env": env, "hold": true, "pty": size }))
}

fn session_with(service: &Service, notes: &Path, name: &str, typed: String) -> Vec<String> {
    let job = |part: &str, script: &str| {
        let script = format!("echo \"$NAME\" >> $NOTES/ran; {script}");
        let name = format!("{name}, {part}");
        let command = ["sh", "-c", &script];
        json!({ "command": command, "name": name, "env": { "NOTES": notes, "NAME": name }, "hold": part == "held" })
    };
    let ending = submit(service, &job("ending", "echo '{\"steps\": 3}' >> $MOIRA_PROGRESS_FILE; sleep 0.2"));
    let endless = submit(service, &job("endless", "sleep 600"));
    let held = submit(service, &job("held", "true"));
    let failing = submit(service, &job("again", "cd $MOIRA_CHECKPOINT_DIR; [ -e step ] || { echo 1 > step; exit 3; }"));
    post(service, &format!("/v1/jobs/{typed}/window"), &[], &json!({ "rows": 30, "columns": 90 }).to_string());
    order(service, &format!("/v1/jobs/{typed}/release"));
    service.until(&endless, "running");
    order(service, &format!("/v1/jobs/{held}/release"));
    // What was typed before would not be typed again if its first launch failed.
    service.until(&typed, "running");
    let octets = [("Content-Type", "application/octet-stream")];
    post(service, &format!("/v1/jobs/{typed}/input?offset=0"), &octets, "ty");
    post(service, &format!("/v1/jobs/{typed}/input?offset=2&end=true"), &octets, "ped\n");
    service.until(&failing, "failed");
    let requeue = format!("/v1/jobs/{failing}/requeue");
    let again = post(service, &requeue, &[("Idempotency-Key", &format!("{name}, requeue"))], "");
    let again = again["id"].as_str().unwrap().to_string();
    order(service, &format!("/v1/jobs/{endless}/cancel"));
    let good = [&ending, &held, &typed, &again];
    good.iter().for_each(|job| drop(service.until(job, "succeeded")));
    service.until(&endless, "cancelled");
    eventually(&format!("{name}: all are put away"), || {
        fs::read_dir(service.data_dir().join("runs")).unwrap().next().is_none()
    });
    let ran = fs::read_to_string(notes.join("ran")).unwrap();
    // Its checkpoint says which of the two it is.
    for (part, expected) in [("ending", 1), ("held", 1), ("typed", 1), ("again", 2)] {
        let times = ran.lines().filter(|line| *line == format!("{name}, {part}")).count();
        assert_eq!(times, expected, "{name}: so often the job `{part}` ran");
    }
    let all = service.get("/v1/jobs?limit=1000").body;
    let named = |job: &&Value| job["name"].as_str().is_some_and(|it| it.starts_with(&format!("{name}, ")));
    assert_eq!(all["jobs"].as_array().unwrap().iter().filter(named).count(), 6, "{name}: none is lost or doubled");
    vec![ending, endless, held, typed, failing, again]
}

/// Asks until it is known that the job is taken on. Until then it says that it does not know, or why it cannot.
fn submit(service: &Service, job: &Value) -> String {
    let key = job["name"].as_str().unwrap();
    let id = std::cell::OnceCell::new();
    eventually(&format!("{key} is taken on"), || {
        let answer = http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", key)], &job.to_string());
        let answer = answer.unwrap_or_else(|error| panic!("{key}: {error}\n{}", service.log()));
        assert!(matches!(answer.status, 200 | 201) || is_honest(&answer), "{key}: {} {}", answer.status, answer.body);
        answer.body["id"].as_str().is_some_and(|known| id.set(known.to_string()).is_ok())
    });
    id.into_inner().unwrap()
}

/// Says the same again until it is known to be done, and returns the answer.
fn post(service: &Service, path: &str, headers: &[(&str, &str)], body: &str) -> Value {
    let (done, is_unknown) = (std::cell::OnceCell::new(), std::cell::Cell::new(false));
    eventually(&format!("{path} is done"), || {
        let answer = http::post(&service.socket(), path, headers, body).unwrap();
        // The end of its input may have ended the job although it was not known to be taken.
        let is_done = matches!(answer.status, 200 | 201) || (is_unknown.get() && answer.status == 409);
        is_unknown.set(true);
        assert!(is_done || is_honest(&answer), "{path}: {} {}", answer.status, answer.body);
        is_done && done.set(answer.body).is_ok()
    });
    done.into_inner().unwrap()
}

fn order(service: &Service, path: &str) {
    eventually(&format!("{path} is done"), || {
        let answer = http::post(&service.socket(), path, &[], "{}").unwrap();
        // What was not known to be done and is done cannot be done again.
        let is_done = matches!(answer.status, 200 | 409);
        assert!(is_done || is_honest(&answer), "{path}: {} {}", answer.status, answer.body);
        is_done
    });
}

fn is_honest(answer: &Answer) -> bool {
    let kinds = [":unknown-outcome", ":not-durable", ":disk-full"];
    answer.status == 503 && answer.body["type"].as_str().is_some_and(|it| kinds.iter().any(|kind| it.ends_with(kind)))
}

/// Starts a service while each of these fails. It comes up or ends with an error; the next start succeeds, and knows these
/// jobs.
fn start_with_each(sites: &[Site], prepare: impl Fn() -> Service + Sync, known: &[String]) {
    let cases = cases(sites);
    say(&format!("{} writes at the start, {} faults", sites.len(), cases.len()));
    let fired = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            let (cases, fired, prepare) = (&cases, &fired, &prepare);
            scope.spawn(move || {
                for (site, error) in cases.iter().skip(part).step_by(AT_ONCE) {
                    let case = format!("{} of {} fails with {error}", site.call, site.path);
                    fired.fetch_add(fails_at_start(prepare(), site, error, &case, known), Ordering::SeqCst);
                }
            });
        }
    });
    assert!(fired.into_inner() * 10 >= cases.len() * 9, "most faults happened");
}

fn fails_at_start(mut service: Service, site: &Site, error: &str, case: &str, known: &[String]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let mut options = format!("-f -o {} -e trace={}", told.display(), site.call);
    options.push_str(&format!(" -e inject={}:error={error}:when={}", site.call, site.nth));
    for path in site.places(&service, 0) {
        // The process that is traced keeps the number of the shell.
        options.push_str(&format!(" -P \"{}\"", path.display().to_string().replace("PID", "$$")));
    }
    service.start_after(&traced(&options));
    service.spawn();
    let mut submitted = Vec::new();
    match service.ready_or_ended() {
        Some(status) => {
            assert_eq!(status.code(), Some(1), "{case}: {}", service.log());
            assert!(service.log().contains("ERROR") || service.log().contains("error"), "{case}: {}", service.log());
        }
        None => submitted.push(submit(&service, &json!({ "command": ["true"], "name": "during", "hold": true }))),
    }
    assert!(!service.log().contains("panicked"), "{case}: {}", service.log());
    service.kill();
    service.start_after(":");
    service.spawn();
    assert_eq!(service.ready_or_ended(), None, "{case}: {}", service.log());
    known.iter().chain(&submitted).for_each(|job| drop(service.show(job)));
    let job = submit(&service, &json!({ "command": ["true"], "name": "after" }));
    assert_eq!(service.until(&job, "succeeded")["failures"], 0, "{case}");
    let count = service.get("/v1/jobs?limit=1000").body["jobs"].as_array().unwrap().len();
    assert_eq!(count, known.len() + submitted.len() + 1, "{case}: no job is doubled");
    assert_eq!(service.get("/readyz").body["status"], "ok", "{case}");
    service.check_journal();
    usize::from(fs::read_to_string(told).unwrap_or_default().contains("INJECTED"))
}

/// All of them on a full disk, and with one of the other errors, by turns; with all errors where there is time.
fn cases(sites: &[Site]) -> Vec<(Site, &'static str)> {
    let all = std::env::var_os("MOIRA_ALL_FAULTS").is_some();
    let [full, others @ ..] = ERRORS;
    let errors = |number: usize| if all { ERRORS.to_vec() } else { vec![full, others[number % others.len()]] };
    let of = |(number, site): (usize, &Site)| errors(number).into_iter().map(|error| (site.clone(), error)).collect();
    sites.iter().enumerate().flat_map::<Vec<_>, _>(of).collect()
}

/// What a shell does to become a traced service. A script would do too, but one that is started right after it was written
/// may still be open in a process that another test is just starting.
fn traced(options: &str) -> String {
    format!("exec strace -D -qq {options} \"$0\" \"$@\"")
}

fn sites_at_start(prepare: impl Fn() -> Service) -> Vec<Site> {
    let folder = tempfile::tempdir().unwrap();
    let mut service = prepare();
    let options = format!("-ff -y -o {} -e trace={CALLS},clone,clone3", folder.path().join("trace").display());
    service.start_after(&traced(&options));
    service.rise();
    let pid = service.pid();
    service.kill();
    sites(folder.path(), &service, &[pid], pid, 0)
}

fn sites_at_work() -> Option<Vec<Site>> {
    let folder = tempfile::tempdir().unwrap();
    let notes = tempfile::tempdir().unwrap();
    let service = Service::start(CONFIG);
    let calls = format!("trace={CALLS},clone,clone3");
    let place = folder.path().join("trace").display().to_string();
    let threads = threads(&service);
    let strace = trace(service.pid(), &["-ff", "-y", "-o", &place, "-e", &calls])?;
    // Two of them, so that the journal is compacted too.
    session(&service, notes.path(), "first");
    session(&service, notes.path(), "second");
    detach(strace);
    Some(sites(folder.path(), &service, &threads, service.pid(), 0))
}

fn threads(service: &Service) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{}/task", service.pid())).unwrap();
    threads.map(|it| it.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// The places in which the service's threads have written; one for all files that differ in numbers only.
fn sites(folder: &Path, service: &Service, threads: &[i32], pid: i32, first_job: u32) -> Vec<Site> {
    let mut sites: BTreeMap<(String, String), Site> = BTreeMap::new();
    let mut known: BTreeSet<i32> = BTreeSet::new();
    let mut left = threads.to_vec();
    while let Some(thread) = left.pop() {
        if !known.insert(thread) {
            continue;
        }
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        let text = fs::read(folder.join(format!("trace.{thread}"))).unwrap_or_default();
        for line in String::from_utf8_lossy(&text).lines() {
            let Some((call, arguments)) = line.split_once('(') else { continue };
            if call.starts_with("clone") {
                let made = line.rsplit(' ').next().and_then(|pid| pid.parse::<i32>().ok());
                left.extend(made.filter(|_| line.contains("CLONE_THREAD")));
                continue;
            }
            let Some(path) = path_in(arguments, service.data_dir()) else { continue };
            let path = template(&path, pid, first_job);
            let nth = counts.entry((call.to_string(), path.clone())).or_default();
            *nth += 1;
            let is_write = call != "openat" || line.contains("O_CREAT");
            if is_write && !line.contains(" = -1 ") {
                let alike = (call.to_string(), path.replace(|letter: char| letter.is_ascii_digit(), ""));
                sites.entry(alike).or_insert_with(|| Site { call: call.into(), path, nth: *nth });
            }
        }
    }
    sites.into_values().collect()
}

/// The first path of the data directory among the arguments of a call.
fn path_in(arguments: &str, data_dir: &Path) -> Option<String> {
    let start = format!("{}", data_dir.display());
    let arguments =
        arguments.strip_prefix("AT_FDCWD<").and_then(|rest| rest.split_once('>')).map_or(arguments, |it| it.1);
    let (_, rest) = arguments.split_once(&start)?;
    let path = rest.split(['"', '>']).next()?;
    path.is_empty().then(String::new).or_else(|| path.strip_prefix('/').map(str::to_string))
}

fn template(path: &str, pid: i32, first_job: u32) -> String {
    let path = path.trim_end_matches(" (deleted)").replace(&format!(".{pid}.tmp"), ".PID.tmp");
    let Some((folder, name)) = path.split_once('/') else { return path };
    let (number, rest) = name.split_at(name.find(|it: char| !it.is_ascii_digit()).unwrap_or(name.len()));
    match (folder, number.parse::<u32>()) {
        ("runs" | "done" | "checkpoints", Ok(number)) => format!("{folder}/+{}{rest}", number - first_job),
        ("input", _) => name.split_once('/').map_or("input/NAME".into(), |(_, file)| format!("input/NAME/{file}")),
        ("archive", Ok(_)) => format!("archive/NEW.{}", name.split_once('.').map_or("", |it| it.1)),
        _ => path,
    }
}

impl Site {
    /// Where that is in the data directory of this service now.
    fn places(&self, service: &Service, first_job: u32) -> Vec<PathBuf> {
        let in_data_dir = |path: &str| match path {
            "" => service.data_dir().to_path_buf(),
            path => service.data_dir().join(path),
        };
        if let Some(ending) = self.path.strip_prefix("archive/NEW") {
            let last = last_archived(&service.data_dir().join("archive"));
            let name = |upto: u64| format!("archive/{:012}-{upto:012}{ending}", last + 1);
            return (last + 1..last + LONGEST_ARCHIVE).map(|upto| in_data_dir(&name(upto))).collect();
        }
        let mut path = self.path.clone();
        if service.is_started() {
            path = path.replace("PID", &service.pid().to_string());
        }
        if let Some((before, after)) = path.clone().split_once('+') {
            let (number, rest) = after.split_at(after.find(|it: char| !it.is_ascii_digit()).unwrap_or(after.len()));
            path = format!("{before}{}{rest}", first_job + number.parse::<u32>().unwrap());
        }
        if path.starts_with("input/NAME") {
            path = path.replace("NAME", &latest_input(service));
        }
        vec![in_data_dir(&path)]
    }
}

/// How the input of the job is called that was submitted last: nobody but the journal says it before there is any.
fn latest_input(service: &Service) -> String {
    let all = service.data_dir().with_extension("export");
    let exported = service.moira(&["journal", "export", "--all", &all.display().to_string()]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let text = fs::read_to_string(&all).unwrap();
    fs::remove_file(all).unwrap();
    let (_, latest) = text.rsplit_once("\"input\":\"").expect("it takes input");
    latest.split('"').next().unwrap().to_string()
}

fn last_archived(folder: &Path) -> u64 {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.file_name().into_string().unwrap());
    let last = |name: String| name.strip_suffix(".jsonl.gz")?.split_once('-')?.1.parse().ok();
    names.filter_map(last).max().unwrap_or(0)
}

impl Service {
    fn check_journal(&self) {
        // It may be compacted just now.
        std::thread::sleep(Duration::from_millis(50));
        let verified = self.moira(&["journal", "verify"]);
        let told = [verified.stdout, verified.stderr].concat();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&told));
    }
}
