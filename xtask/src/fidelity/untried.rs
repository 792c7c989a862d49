//! Step times of configurations that were not tried: each configuration that a program reported is left out once, the model
//! is fitted to the others, and what it says is held against what was reported. Jobs of one program share their steps.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use engine::{Event, Record};
use perf::{Observation, Search, fit};

use super::apart::median;
use super::mix::{Program, Training};

/// Fewer reports of about a second each say more about the moment than about the configuration.
pub(super) const LEAST_REPORTS: usize = 3;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prediction {
    pub(super) program: Program,
    pub(super) replicas: u32,
    pub(super) local_batch: u32,
    pub(super) reported_secs: f64,
    pub(super) predicted_secs: f64,
}

impl Prediction {
    pub(super) fn error(&self) -> f64 {
        self.predicted_secs / self.reported_secs - 1.0
    }
}

/// Nodes, replicas and the batch of one of them.
type Configuration = (u32, u32, u32);
type Reports = BTreeMap<Configuration, Vec<Observation>>;

pub(super) fn predictions(records: &[Record], mix: &[Training]) -> Result<Vec<Prediction>> {
    let mut programs: BTreeMap<Program, Reports> = BTreeMap::new();
    for record in records {
        let Event::RunProgressed { run, report } = &record.event else { continue };
        let training = mix.get(run.claim.0 as usize).with_context(|| format!("job {} is not of the mix", run.claim))?;
        if let Some(steps) = report.steps {
            let reports = programs.entry(training.program).or_default();
            reports.entry((steps.nodes, steps.replicas, steps.local_batch)).or_default().push(steps);
        }
    }
    Ok(programs.into_iter().flat_map(|(program, reports)| of_program(program, &reports)).collect())
}

fn of_program(program: Program, reports: &Reports) -> Vec<Prediction> {
    let enough = reports.values().filter(|reports| reports.len() >= LEAST_REPORTS);
    let seen: Vec<Observation> = enough.map(|reports| in_the_middle(reports)).collect();
    let left_out = |index: usize| {
        let (one, mut others) = (seen[index], seen.clone());
        others.remove(index);
        can_tell(&others, &one).then(|| Prediction {
            program,
            replicas: one.replicas,
            local_batch: one.local_batch,
            reported_secs: one.step_secs,
            predicted_secs: fit(&others, Search::Thorough).step_secs(
                one.nodes,
                one.replicas,
                f64::from(one.local_batch),
            ),
        })
    };
    (0..seen.len()).filter_map(left_out).collect()
}

fn in_the_middle(reports: &[Observation]) -> Observation {
    Observation {
        accumulation_secs: median(reports.iter().map(|report| report.accumulation_secs)),
        step_secs: median(reports.iter().map(|report| report.step_secs)),
        ..reports[0]
    }
}

/// What a scheduler tries because nothing is known of it is no prediction: there must be two sizes of batch to draw a line
/// through, and somebody who exchanged gradients if that is in question.
fn can_tell(others: &[Observation], one: &Observation) -> bool {
    let batches: BTreeSet<u32> = others.iter().map(|seen| seen.local_batch).collect();
    batches.len() >= 2 && (one.replicas == 1 || others.iter().any(|seen| seen.replicas > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(configurations: &[(u32, u32, f64)], times: usize) -> Reports {
        let seen = |&(replicas, local_batch, step_secs): &(u32, u32, f64)| {
            let accumulation_secs = 0.01 + 0.001 * f64::from(local_batch);
            let steps = Observation { nodes: 1, replicas, local_batch, accumulation_secs, step_secs };
            ((1, replicas, local_batch), vec![steps; times])
        };
        configurations.iter().map(seen).collect()
    }

    const LINE: [(u32, u32, f64); 3] = [(1, 20, 0.03), (1, 40, 0.05), (1, 90, 0.1)];

    #[test]
    fn what_lies_on_the_line_of_the_others_is_predicted() {
        let found = of_program(Program::ImageClassifier, &reports(&LINE, LEAST_REPORTS));
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|prediction| prediction.error().abs() < 0.02), "{found:?}");
    }

    #[test]
    fn what_is_off_the_line_is_an_error() {
        let mut bent = LINE;
        bent[2].2 = 0.2;
        let found = of_program(Program::ImageClassifier, &reports(&bent, LEAST_REPORTS));
        assert!(found[2].error() < -0.4, "{found:?}");
    }

    #[test]
    fn configurations_that_were_hardly_visited_do_not_count() {
        assert!(of_program(Program::LanguageModel, &reports(&LINE, LEAST_REPORTS - 1)).is_empty());
    }

    #[test]
    fn what_two_workers_exchange_is_not_predicted_from_single_ones() {
        let mut one_of_two = LINE.to_vec();
        one_of_two.push((2, 40, 0.06));
        let found = of_program(Program::LanguageModel, &reports(&one_of_two, LEAST_REPORTS));
        assert!(found.iter().all(|prediction| prediction.replicas == 1));
        one_of_two.push((2, 90, 0.11));
        let found = of_program(Program::LanguageModel, &reports(&one_of_two, LEAST_REPORTS));
        assert_eq!(found.iter().filter(|prediction| prediction.replicas == 2).count(), 2);
    }
}
