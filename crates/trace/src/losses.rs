//! What of a workload is no longer the same after it was written and read again.

use cluster::Name;
use perf::{Rates, Speed, TrueJob, Truth};

use crate::error::Error;
use crate::stream::Stream;

/// Rates are written in decimals of seconds and read back by division.
const ROUNDING: f64 = 1e-6;

/// What differs, one line for every field; nothing if every job is the same up to rounding.
pub fn losses(written: &Stream<'_>, read: &Stream<'_>) -> Result<Vec<String>, Error> {
    if written.len() != read.len() {
        return Ok(vec![format!("jobs: {} written, {} read", written.len(), read.len())]);
    }
    let mut differing: [(u64, Option<Name>); FIELDS.len()] = Default::default();
    for (one, other) in written.jobs()?.zip(read.jobs()?) {
        let (one, other) = (one?, other?);
        for ((_, same), (count, first)) in FIELDS.iter().zip(&mut differing) {
            if !same(&one, &other) {
                *count += 1;
                first.get_or_insert_with(|| one.spec.name.clone());
            }
        }
    }
    let line = |((field, _), (count, first)): (&(&str, Same), (u64, Option<Name>))| {
        Some(format!("{field} of {count} jobs, of which the first is {}", first?))
    };
    Ok(FIELDS.iter().zip(differing).filter_map(line).collect())
}

type Same = fn(&TrueJob, &TrueJob) -> bool;

const FIELDS: [(&str, Same); 17] = [
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
    ("course of training", |a, b| a.truth.course == b.truth.course),
    ("speed", |a, b| near(&a.truth.speed, &b.truth.speed) && near(&a.speed, &b.speed)),
];

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
    rates
        && one.scaling == other.scaling
        && one.gradients == other.gradients
        && one.noise_scale == other.noise_scale
        && one.adaptation == other.adaptation
}
