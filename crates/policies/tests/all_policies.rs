//! What holds for every policy of the table, on random workloads: plans are faultless, a restarted policy plans like one
//! that was not, planning again at once changes nothing, and every job ends.

mod common;

use common::{Story, variants};
use policies::{POLICIES, PolicyConfig, build};

/// How many stories each policy is tried on; `SEEDS=500` looks longer.
fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12)
}

#[test]
fn every_plan_is_faultless_and_every_job_ends() {
    for config in variants() {
        for seed in 0..seeds() {
            Story::random(seed).play(&config, |_, _, _| {});
        }
    }
}

#[test]
fn a_restarted_policy_plans_like_one_that_was_not() {
    for config in variants() {
        for seed in 1000..1000 + seeds() {
            Story::random(seed).play(&config, |moment, warm, plan| {
                let fresh = moment.ask_fresh(&config);
                assert_eq!(fresh.changes, plan.changes, "{config:?} at {} with seed {seed}", moment.now());
                assert_eq!(fresh.wake_at, plan.wake_at, "{config:?} at {} with seed {seed}", moment.now());
                assert_eq!(fresh.memory, plan.memory, "{config:?} at {} with seed {seed}", moment.now());
                assert_eq!(warm.knows(), build(&config).unwrap().knows());
            });
        }
    }
}

#[test]
fn planning_again_at_once_changes_nothing() {
    for config in variants() {
        if !config.build().unwrap().is_stable() {
            continue;
        }
        for seed in 2000..2000 + seeds() {
            Story::random(seed).play(&config, |moment, _, plan| {
                let after = moment.after(plan);
                let again = after.ask_fresh(&config);
                let (first, then) = (moment.describe(plan), after.describe(&again));
                let now = moment.now();
                assert!(again.changes.is_empty(), "{config:?} at {now} with seed {seed}:\n{first}then\n{then}");
            });
        }
    }
}

#[test]
fn every_policy_of_the_table_is_covered() {
    let covered = |name: &str| variants().iter().any(|config| config.name == name);
    assert!(POLICIES.iter().all(|entry| covered(entry.name)));
    assert!(POLICIES.iter().all(|entry| variants().contains(&PolicyConfig::named(entry.name))));
}
