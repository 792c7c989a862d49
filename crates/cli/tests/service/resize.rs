//! A job that grows without a restart, under the real service.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::service::{Service, eventually};

pub(crate) const TWO_DEVICES: &str = "policy = \"sia:others=tiresias,round=1s\"\ngrace = \"2s\"\n\
                           [[accelerators]]\nkind = \"t4\"\ncount = 2\n";

#[test]
fn a_job_that_can_be_resized_grows_as_the_same_process_also_while_the_service_is_killed() {
    let mut service = Service::start(TWO_DEVICES);
    let shared = tempfile::tempdir().unwrap();
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executors/tests/local/worker.py");
    let shared_is = format!("SHARED={}", shared.path().display());
    let id = service.submit(&[
        "--workers",
        "1..2",
        "--batch",
        "64..128",
        "--env",
        &shared_is,
        "--env",
        "REPORT=1",
        "--",
        "python3",
        worker.to_str().unwrap(),
    ]);
    eventually("a second worker is started", || shared.path().join("pid.1").exists());
    service.kill();
    service.rise();
    eventually("the job has two workers", || service.show(&id)["resizes"] == 1);
    let job = service.show(&id);
    assert_eq!((&job["workers"]["have"], &job["attempts"]), (&Value::from(2), &Value::from(1)), "{job}");
    eventually("what it cost is known", || service.show(&id)["resize"]["phases"]["process_group"].is_f64());
    fs::write(shared.path().join("end"), "").unwrap();
    let job = service.until(&id, "succeeded");
    assert_eq!((&job["attempts"], &job["preemptions"]), (&Value::from(1), &Value::from(0)), "{job}");
}
