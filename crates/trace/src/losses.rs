//! What of a workload is no longer the same after it was written and read again.

use perf::{Rates, Speed, TrueJob, Truth};

use crate::Workload;

/// Rates are written in decimals of seconds and read back by division.
const ROUNDING: f64 = 1e-6;

/// What differs, one line for every field; nothing if every job is the same up to rounding.
pub fn losses(written: &Workload, read: &Workload) -> Vec<String> {
    if written.jobs.len() != read.jobs.len() {
        return vec![format!("jobs: {} written, {} read", written.jobs.len(), read.jobs.len())];
    }
    FIELDS.iter().filter_map(|(field, same)| loss(field, *same, written, read)).collect()
}

type Same = fn(&TrueJob, &TrueJob) -> bool;

const FIELDS: [(&str, Same); 16] = [
    ("submission", |a, b| a.submitted == b.submitted),
    ("name", |a, b| a.spec.name == b.spec.name),
    ("user", |a, b| a.spec.user == b.spec.user),
    ("queue", |a, b| a.spec.queue == b.spec.queue),
    ("priority", |a, b| a.spec.priority == b.spec.priority),
    ("weight", |a, b| a.spec.weight == b.spec.weight),
    ("scaling", |a, b| a.spec.scaling == b.spec.scaling),
    ("roles", |a, b| a.spec.roles == b.spec.roles),
    ("kinds of GPU", |a, b| a.spec.kinds == b.spec.kinds),
    ("end", |a, b| a.spec.ends == b.spec.ends && near_truth(&a.truth, &b.truth)),
    ("deadline", |a, b| a.spec.deadline == b.spec.deadline),
    ("dependencies", |a, b| a.spec.after == b.spec.after),
    ("user's estimate", |a, b| a.spec.expected == b.spec.expected),
    ("skew", |a, b| a.spec.skew == b.spec.skew),
    ("cost of interruptions", |a, b| a.spec.recovery == b.spec.recovery && a.truth.start_up == b.truth.start_up),
    ("speed", |a, b| near(&a.truth.speed, &b.truth.speed) && near(&a.speed, &b.speed)),
];

fn loss(field: &str, same: Same, written: &Workload, read: &Workload) -> Option<String> {
    let differing = || written.jobs.iter().zip(&read.jobs).filter(|(one, other)| !same(one, other));
    let (first, _) = differing().next()?;
    Some(format!("{field} of {} jobs, of which the first is {}", differing().count(), first.spec.name))
}

fn near_truth(one: &Truth, other: &Truth) -> bool {
    let (one, other) = (one.iterations as f64, other.iterations as f64);
    (one - other).abs() <= (one * ROUNDING).max(0.5)
}

fn near(one: &Speed, other: &Speed) -> bool {
    let near = |one: f64, other: f64| (one - other).abs() <= one.abs() * ROUNDING;
    let rates = match (&one.rates, &other.rates) {
        (Rates::Anywhere(one), Rates::Anywhere(other)) => near(*one, *other),
        (Rates::ByKind(one), Rates::ByKind(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.0 == b.0 && near(a.1, b.1))
        }
        _ => false,
    };
    rates && one.scaling == other.scaling && one.gradients == other.gradients && one.noise_scale == other.noise_scale
}
