//! The same jobs once simulated and once as real processes: the same orders in the same sequence, on the same devices.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::service::Service;

/// When each job is submitted and how long it takes, in seconds; on two devices whatever happens is then at least a
/// second apart: submissions at 0, 1, 2 and 3, ends at 5, 7, 9 and 11.
const JOBS: [(u64, u64); 4] = [(0, 5), (1, 6), (2, 4), (3, 4)];

#[test]
fn real_processes_get_the_orders_that_a_simulation_foretells() {
    let simulated = simulated();
    assert_eq!(simulated.len(), JOBS.len(), "{simulated:?}");
    assert_eq!(lived(), simulated);
}

fn simulated() -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (table, journal) = (folder.path().join("jobs.csv"), folder.path().join("journal"));
    let rows = JOBS.map(|(at, seconds)| format!("{at},1,{seconds}\n")).concat();
    fs::write(&table, format!("submit_s,gpus,duration_s\n{rows}")).unwrap();
    let workload = format!("csv:{}", table.display());
    let journal_path = journal.display().to_string();
    let service = Service::prepare("");
    let output = service.moira(&[
        "sim",
        "run",
        "--policy",
        "fifo",
        "--cluster",
        "1x2 t4",
        "--workload",
        &workload,
        "--journal",
        &journal_path,
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    orders(&fs::read_to_string(journal).unwrap())
}

fn lived() -> Vec<String> {
    let service = Service::start("policy = \"fifo\"\n[[accelerators]]\nkind = \"t4\"\ncount = 2\n");
    let begun = Instant::now();
    let mut last = String::new();
    for (at, seconds) in JOBS {
        std::thread::sleep(Duration::from_secs(at).saturating_sub(begun.elapsed()));
        last = service.submit(&["--", "sleep", &seconds.to_string()]);
    }
    service.until(&last, "succeeded");
    orders_on_record(service)
}

fn orders_on_record(mut service: Service) -> Vec<String> {
    service.kill();
    let output = service.moira(&["journal", "export"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    orders(&String::from_utf8(output.stdout).unwrap())
}

/// Every order on record: its kind, its run, and where.
fn orders(history: &str) -> Vec<String> {
    let order = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let (kind, order) = record["event"]["Issued"].as_object()?.iter().next()?;
        Some(format!("{kind} {} {}", order["run"], order["allotment"]["placement"]))
    };
    history.lines().filter_map(order).collect()
}
