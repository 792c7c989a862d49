//! The generated part of the page: where it was measured, what was reached, and every figure behind it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::apart::{Apart, Repetition, Side, median, share_within};
use super::mix::Program;
use super::untried::{LEAST_REPORTS, Prediction};

/// What is aimed at.
const MEAN_WITHIN: f64 = 0.10;
const JOBS_WITHIN: f64 = 0.20;
const JOBS_SHARE: f64 = 0.9;
const STEPS_WITHIN: f64 = 0.15;

/// The same measurements give the same text. There is at least one repetition, and all have the same jobs.
pub(super) fn text(repetitions: &[Repetition]) -> String {
    let untried = untried(repetitions);
    [machine(repetitions), goals(repetitions, &untried), jobs(repetitions), predictions(&untried)].join("\n")
}

fn machine(repetitions: &[Repetition]) -> String {
    let conditions = &repetitions[0].conditions;
    let mut text = format!(
        "{} trainings (seed {}) on two virtual accelerators of one core each, on a machine with {} cores; policy `{}`; \
         {}.\n\n| repetition | load before | load after | calibration before | after | mean live | simulated |\n\
         |---|---|---|---|---|---|---|\n",
        conditions.jobs,
        conditions.seed,
        conditions.cores,
        conditions.policy,
        count(repetitions.len(), "repetition"),
    );
    for (number, Repetition { conditions, jobs, .. }) in (1..).zip(repetitions) {
        let load = |[one, five, fifteen]: [f64; 3]| format!("{one:.2} {five:.2} {fifteen:.2}");
        let mean = |side: fn(&Apart) -> Side| {
            jobs.iter().map(|job| side(job).completion_secs).sum::<f64>() / jobs.len() as f64
        };
        line(
            &mut text,
            format_args!(
                "| {number} | {} | {} | {:.0} M/s | {:.0} M/s | {:.1} s | {:.1} s |",
                load(conditions.load_before),
                load(conditions.load_after),
                conditions.speed_before,
                conditions.speed_after,
                mean(|job| job.live),
                mean(|job| job.simulated),
            ),
        );
    }
    text.push_str(
        "\nLoad: the system's averages over 1, 5 and 15 minutes. Calibration: dependent multiplications on one core.\n",
    );
    text
}

fn goals(repetitions: &[Repetition], untried: &[Untried]) -> String {
    let verdict = |reached: bool| if reached { "reached" } else { "**not reached**" };
    let mean = median(repetitions.iter().map(Repetition::error_of_mean));
    let with_devices = median(repetitions.iter().map(Repetition::error_with_devices));
    let share = median(repetitions.iter().map(|repetition| repetition.share_within(JOBS_WITHIN)));
    let mut text = format!(
        "| goal | median of repetitions | each | |\n|---|---|---|---|\n\
         | average completion time within {:.0} % | {} | {} | {} |\n\
         | its part with devices | {} | {} | |\n\
         | nine jobs in ten within {:.0} % | {:.0} % of them | {} | {} |\n",
        100.0 * MEAN_WITHIN,
        percent(mean),
        each(repetitions, |repetition| percent(repetition.error_of_mean())),
        verdict(mean.abs() <= MEAN_WITHIN),
        percent(with_devices),
        each(repetitions, |repetition| percent(repetition.error_with_devices())),
        100.0 * JOBS_WITHIN,
        100.0 * share,
        each(repetitions, |repetition| format!("{:.0} %", 100.0 * repetition.share_within(JOBS_WITHIN))),
        verdict(share >= JOBS_SHARE),
    );
    let what = format!("step times of configurations not yet tried within {:.0} %", 100.0 * STEPS_WITHIN);
    if untried.is_empty() {
        line(&mut text, format_args!("| {what} | too few were visited to leave one out | | {} |", verdict(false)));
        return text;
    }
    let error = median(untried.iter().map(|one| one.error.abs()));
    let within = share_within(untried.iter().map(|one| one.error), STEPS_WITHIN);
    line(
        &mut text,
        format_args!(
            "| {what} | {:.0} % of {} | median error {:.1} % | {} |",
            100.0 * within,
            untried.len(),
            100.0 * error,
            verdict(within >= 1.0),
        ),
    );
    text
}

fn jobs(repetitions: &[Repetition]) -> String {
    let mut text = String::from(
        "Medians over the repetitions; waiting is the time without a device; restarts live and simulated.\n\n\
         | job | live | simulated | error | waiting live | simulated | restarts | simulated |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for index in 0..repetitions[0].jobs.len() {
        let job = |repetition: &Repetition| repetition.jobs[index].clone();
        let middle = |figure: fn(Apart) -> f64| median(repetitions.iter().map(|repetition| figure(job(repetition))));
        line(
            &mut text,
            format_args!(
                "| {} | {:.1} s | {:.1} s | {} | {:.1} s | {:.1} s | {:.0} | {:.0} |",
                repetitions[0].jobs[index].name,
                middle(|job| job.live.completion_secs),
                middle(|job| job.simulated.completion_secs),
                percent(middle(|job| job.error())),
                middle(|job| job.live.waiting_secs),
                middle(|job| job.simulated.waiting_secs),
                middle(|job| f64::from(job.live.restarts)),
                middle(|job| f64::from(job.simulated.restarts)),
            ),
        );
    }
    text
}

fn predictions(untried: &[Untried]) -> String {
    let mut text = format!(
        "Each configuration of a program left out once, the model fitted to its others; medians over the repetitions in \
         which it was visited for at least {LEAST_REPORTS} reports. The jobs of the mix visit them: some of each program have a \
         fixed configuration, the others are tuned and change their workers.\n\n\
         | program | workers | batch of each | step reported | predicted | error |\n|---|---|---|---|---|---|\n",
    );
    for one in untried {
        line(
            &mut text,
            format_args!(
                "| {} | {} | {} | {:.1} ms | {:.1} ms | {} |",
                one.program.word(),
                one.replicas,
                one.local_batch,
                1e3 * one.reported_secs,
                1e3 * one.predicted_secs,
                percent(one.error),
            ),
        );
    }
    text
}

/// A configuration over all repetitions.
struct Untried {
    program: Program,
    replicas: u32,
    local_batch: u32,
    reported_secs: f64,
    predicted_secs: f64,
    error: f64,
}

fn untried(repetitions: &[Repetition]) -> Vec<Untried> {
    let mut same: BTreeMap<(Program, u32, u32), Vec<&Prediction>> = BTreeMap::new();
    for one in repetitions.iter().flat_map(|repetition| &repetition.untried) {
        same.entry((one.program, one.replicas, one.local_batch)).or_default().push(one);
    }
    let middle = |found: &[&Prediction], figure: fn(&Prediction) -> f64| median(found.iter().map(|one| figure(one)));
    let over_all = |((program, replicas, local_batch), found): (_, Vec<&Prediction>)| Untried {
        program,
        replicas,
        local_batch,
        reported_secs: middle(&found, |one| one.reported_secs),
        predicted_secs: middle(&found, |one| one.predicted_secs),
        error: middle(&found, Prediction::error),
    };
    same.into_iter().map(over_all).collect()
}

fn each(repetitions: &[Repetition], figure: impl Fn(&Repetition) -> String) -> String {
    repetitions.iter().map(figure).collect::<Vec<_>>().join(", ")
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", 100.0 * part)
}

fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").expect("a string grows");
}

#[cfg(test)]
mod tests {
    use super::super::apart::tests::{apart, repetition};
    use super::*;

    fn three() -> Vec<Repetition> {
        let one = |first: f64, second: f64| repetition(vec![apart("a", 10.0, first), apart("b", 20.0, second)]);
        vec![one(10.5, 21.0), one(14.0, 20.0), one(11.0, 19.0)]
    }

    fn predicted(local_batch: u32, predicted_secs: f64) -> Prediction {
        Prediction { program: Program::ImageClassifier, replicas: 1, local_batch, reported_secs: 0.02, predicted_secs }
    }

    #[test]
    fn the_goals_are_judged_by_the_median_repetition() {
        let text = text(&three());
        assert!(text.contains("| average completion time within 10 % | +5.0 % | +5.0 %, +13.3 %, +0.0 % | reached |"));
        assert!(text.contains("| nine jobs in ten within 20 % | 100 % of them | 100 %, 50 %, 100 % | reached |"));
    }

    #[test]
    fn a_job_stands_there_with_its_medians() {
        let text = text(&three());
        assert!(text.contains("| a | 10.0 s | 11.0 s | +10.0 % | 2.0 s | 2.0 s | 0 | 0 |"), "{text}");
    }

    #[test]
    fn without_predictions_the_page_says_so_and_the_goal_is_not_reached() {
        assert!(text(&three()).contains("too few were visited to leave one out | | **not reached** |"));
    }

    #[test]
    fn predictions_of_one_configuration_are_put_together() {
        let mut repetitions = three();
        repetitions[0].untried = vec![predicted(64, 0.021), predicted(128, 0.03)];
        repetitions[1].untried = vec![predicted(64, 0.023)];
        let text = text(&repetitions);
        assert!(text.contains("| image | 1 | 64 | 20.0 ms | 22.0 ms | +10.0 % |"), "{text}");
        assert!(text.contains("| 50 % of 2 | median error 30.0 % | **not reached** |"), "{text}");
    }

    #[test]
    fn the_load_of_the_machine_is_on_the_page() {
        assert!(
            text(&three()).contains("| 1 | 0.50 0.60 0.70 | 2.50 2.00 1.00 | 800 M/s | 790 M/s | 15.0 s | 15.8 s |")
        );
    }
}
