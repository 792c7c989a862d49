//! How many jobs a policy gets through in a second of one processor. Run with
//! `cargo test --release -p policies --test speed -- --ignored --nocapture`; `LOAD=200` offers twice what the cluster can
//! take (100 is just as much), `POLICY=las` measures one policy only.

mod common;

use std::time::Instant;

use cluster::{ClusterDraft, Span, Time};
use common::{Dice, Story};
use policies::PolicyConfig;

#[test]
#[ignore = "takes long and says nothing about correctness"]
#[allow(clippy::print_stdout, reason = "the measurement is the point")]
fn jobs_per_second() {
    let load = std::env::var("LOAD").ok().and_then(|load| load.parse().ok()).unwrap_or(111);
    let jobs = workload(111_000, 2000, load);
    let draft = ClusterDraft::parse_short("250x8 v100").unwrap();
    let only = std::env::var("POLICY").ok();
    for name in ["fifo", "tiresias", "srtf", "srsf", "las", "gittins"] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let story = Story::plain(&draft, &jobs);
        let start = Instant::now();
        let mut most = 0;
        let story = story.play(&PolicyConfig::named(name), |moment, _, _| most = most.max(moment.live()));
        let secs = start.elapsed().as_secs_f64();
        let rate = jobs.len() as f64 / secs;
        let decisions = story.decisions;
        println!("{name}: {rate:.0} jobs/s, {decisions} decisions in {secs:.1} s, at most {most} live");
    }
}

/// Many short jobs and few long ones, in gangs as in Gavel's generator, at this percentage of what the cluster can take.
fn workload(count: usize, gpus: u64, load: u64) -> Vec<(Time, u32, Span)> {
    let mut dice = Dice::new(7);
    let mut jobs = Vec::new();
    let mut service = 0;
    for _ in 0..count {
        let gang = dice.pick(&[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 16, 32]);
        let exponent = 1.5 + dice.roll(1000) as f64 / 1000.0 * if dice.one_in(5) { 2.5 } else { 1.5 };
        let lasts = Span::from_secs_f64(10_f64.powf(exponent));
        let at = Time::from_millis(service / gpus * 100 / load);
        service += u64::from(gang) * lasts.as_millis();
        jobs.push((at, gang, lasts));
    }
    jobs
}
