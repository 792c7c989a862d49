//! Short jobs for a long time, with kills in between, and at last without: memory and journal stay as small as retention
//! says. It runs for `MOIRA_SOAK_MINUTES`, which `cargo xtask nightly` sets.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http;
use crate::service::{Service, eventually, say};

/// Small limits, so that minutes tell what months would.
const CONFIG: &str = "policy = \"fifo\"\ngrace = \"1s\"\n[[accelerators]]\nkind = \"t4\"\ncount = 4\n\
                      [retention]\njobs = 200\nruns = 50\njournal_entries = 2000\n";
/// What a compaction leaves is what comes until the next one is done. That one begins at 2000 entries and goes on beside
/// the work: how many come meanwhile depends on the machine, and a kill may come just before its end. Another 2000 mean
/// that there was none when it was due, for they take much longer than to write 200 jobs down.
const MOST_REPLAYED: u64 = 2 * 2000;
const MOST_RUNS: usize = 50;
/// How long the service lives between two kills, in the first two thirds of the time.
const LIFE: Duration = Duration::from_secs(45);
/// Of jobs that wait or run, so that work never ends and never piles up.
const MOST_LIVE: usize = 40;

/// What was seen at one moment.
struct Sample {
    at: Duration,
    resident_kib: u64,
}

#[test]
fn memory_and_journal_stay_small_however_long_the_service_runs() {
    let Some(minutes) = std::env::var("MOIRA_SOAK_MINUTES").ok().and_then(|text| text.parse::<u64>().ok()) else {
        return say("passed over: MOIRA_SOAK_MINUTES is not set");
    };
    let whole = Duration::from_secs(60 * minutes);
    let mut service = Service::start(CONFIG);
    let (begun, mut samples, mut submitted, mut kills) = (Instant::now(), Vec::new(), 0, 0);
    while begun.elapsed() < whole {
        // The last third is one life: what leaks within a life goes with it.
        let risen = begun.elapsed();
        let last = whole * 2 / 3;
        let until = if risen >= last { whole } else { last.min(risen + LIFE) };
        while begun.elapsed() < until {
            submitted += submit_some(&service);
            samples.push(Sample { at: begun.elapsed(), resident_kib: resident_kib(service.pid()) });
        }
        service.kill();
        kills += 1;
        let entries = entries_to_replay(&service);
        assert!(entries <= MOST_REPLAYED, "{entries} entries after {kills} kills");
        service.rise();
    }
    let peak = |from: u32, to: u32| {
        let within = |sample: &&Sample| sample.at >= whole * from / 24 && sample.at < whole * to / 24;
        samples.iter().filter(within).map(|sample| sample.resident_kib).max().unwrap_or(0)
    };
    let spans = [("over many lives", peak(4, 10), peak(10, 16)), ("within one life", peak(18, 21), peak(21, 24))];
    say(&format!("{submitted} jobs, {kills} kills"));
    spans.iter().for_each(|(what, early, late)| say(&format!("{what}: at most {early} KiB, then {late} KiB")));
    assert!(submitted > 1000 * minutes / 15, "there was too little work: {submitted} jobs");
    for (what, early, late) in spans {
        assert!(late <= early + early / 10, "memory grows {what}: from {early} to {late} KiB");
    }
    // How many pile up between two looks depends on the machine.
    let settled = || fs::read_dir(service.data_dir().join("done")).unwrap().count();
    eventually("old runs are removed", || settled() <= 2 * MOST_RUNS);
}

/// Submits a few short jobs if not enough are under way, and says how many.
fn submit_some(service: &Service) -> u64 {
    let live = service.get("/v1/jobs?state=live&limit=1000").body["jobs"].as_array().map_or(0, Vec::len);
    if live >= MOST_LIVE {
        std::thread::sleep(Duration::from_millis(50));
        return 0;
    }
    let body = json!({ "name": "short", "command": ["true"], "workdir": "/" }).to_string();
    let accepted = (0..10)
        .filter(|_| http::post(&service.socket(), "/v1/jobs", &[], &body).is_ok_and(|answer| answer.status == 201));
    accepted.count() as u64
}

fn resident_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What the next start reads beside the snapshot.
fn entries_to_replay(service: &Service) -> u64 {
    let verified = service.moira(&["journal", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    said.split(": ").nth(1).and_then(|said| said.split(' ').next()).and_then(|count| count.parse().ok()).unwrap()
}
