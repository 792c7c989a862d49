//! The columns by which policies are compared, in a terminal as on a page, and the verdict in one sentence.

use report::{Report, RunReport, Summary};

use crate::interval::beyond_chance;

/// One column of the comparison.
#[derive(Debug)]
pub struct Column {
    pub title: &'static str,
    /// What it shows, for who does not know the title.
    pub meaning: &'static str,
    /// The number behind it, one of [`report::HEADLINES`].
    pub headline: &'static str,
    pub unit: Unit,
    pub best: Best,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Best {
    Low,
    High,
}

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Kept in seconds.
    Time,
    Plain,
    /// Kept as a part of 1.
    Percent,
}

const fn column(title: &'static str, headline: &'static str, unit: Unit, best: Best, meaning: &'static str) -> Column {
    Column { title, meaning, headline, unit, best }
}

pub const COLUMNS: [Column; 11] = [
    column("JCT MEAN", "jct_mean_s", Unit::Time, Best::Low, "mean job completion time, from submission to end"),
    column("P50", "jct_p50_s", Unit::Time, Best::Low, "half of the jobs complete within this time"),
    column("P99", "jct_p99_s", Unit::Time, Best::Low, "99 of 100 jobs complete within this time"),
    column("WAIT", "waiting_mean_s", Unit::Time, Best::Low, "mean time in which a job lives and holds no GPUs"),
    column("GPU-H/JOB", "gpu_hours_per_job", Unit::Plain, Best::Low, "GPU hours held per job, start-up included"),
    column("RESTARTS", "restarts_per_job", Unit::Plain, Best::Low, "launches after the first, per job"),
    column("WORST ρ", "finish_time_ratio_worst", Unit::Plain, Best::Low, "largest completion time over fair time"),
    column("ρ > 1", "finish_time_ratio_share_above_1", Unit::Percent, Best::Low, "jobs slower than with a fair share"),
    column("JAIN", "jain_users", Unit::Plain, Best::High, "Jain's index of how evenly users were served; 1 is even"),
    column("UTIL", "utilisation", Unit::Percent, Best::High, "GPUs held, of those in service"),
    column("DEADLINES", "deadlines_met_share", Unit::Percent, Best::High, "deadlines met"),
];

impl Column {
    pub fn value(&self, summary: &Summary) -> Option<f64> {
        summary.number(self.headline).and_then(|number| number.mean)
    }

    /// Whether no other has a better number. Alone, nobody is best.
    pub fn is_best(&self, summary: &Summary, all: &[Summary]) -> bool {
        let Some(value) = self.value(summary).filter(|_| all.len() > 1) else { return false };
        let beaten = |other: f64| if self.best == Best::Low { other < value } else { other > value };
        !all.iter().filter_map(|other| self.value(other)).any(beaten)
    }
}

/// How numbers read that stand below each other: all in one unit, so that the eye can compare them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// What a number is multiplied with.
    times: f64,
    decimals: usize,
    /// The unit, after a space.
    pub suffix: &'static str,
}

impl Reading {
    const SECONDS: Reading = Reading { times: 1.0, decimals: 1, suffix: " s" };
    const MINUTES: Reading = Reading { times: 1.0 / 60.0, decimals: 1, suffix: " min" };
    const HOURS: Reading = Reading { times: 1.0 / 3600.0, decimals: 2, suffix: " h" };
    const PLAIN: Reading = Reading { times: 1.0, decimals: 2, suffix: "" };
    const PERCENT: Reading = Reading { times: 100.0, decimals: 1, suffix: " %" };

    fn of_time(secs: f64) -> Reading {
        match secs {
            secs if secs < 60.0 => Reading::SECONDS,
            secs if secs < 3600.0 => Reading::MINUTES,
            _ => Reading::HOURS,
        }
    }

    pub fn show(self, value: f64) -> String {
        format!("{}{}", self.bare(value), self.suffix)
    }

    /// Without its unit. What would read as nothing gets the digits it needs, three at the most.
    pub(crate) fn bare(self, value: f64) -> String {
        let scaled = value * self.times;
        let rounds_to_nothing = |decimals: usize| scaled.abs() < 0.5 / 10_f64.powi(decimals as i32);
        let decimals = (self.decimals..=3).find(|&decimals| !rounds_to_nothing(decimals));
        format!("{scaled:.*}", decimals.unwrap_or(self.decimals))
    }
}

impl Column {
    /// How the numbers of this column read: times in the unit that suits the one in the middle.
    pub fn reading(&self, all: &[Summary]) -> Reading {
        match self.unit {
            Unit::Plain => Reading::PLAIN,
            Unit::Percent => Reading::PERCENT,
            Unit::Time => {
                let mut values: Vec<f64> = all.iter().filter_map(|summary| self.value(summary)).collect();
                values.sort_by(f64::total_cmp);
                Reading::of_time(values.get(values.len() / 2).copied().unwrap_or(0.0))
            }
        }
    }
}

fn time(secs: f64) -> String {
    Reading::of_time(secs).show(secs)
}

/// Who is best and who is worst among those who are told nothing a real scheduler could not know.
struct Ranking<'a> {
    /// From the soonest to the latest, by mean completion time.
    honest: Vec<(&'a Summary, f64)>,
}

impl<'a> Ranking<'a> {
    fn of(summaries: &'a [Summary]) -> Ranking<'a> {
        let honest = summaries.iter().filter(|summary| summary.knows.is_empty());
        let mut honest: Vec<(&Summary, f64)> =
            honest.filter_map(|summary| Some((summary, COLUMNS[0].value(summary)?))).collect();
        honest.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Ranking { honest }
    }
}

/// What the table says, in one sentence; nothing where there is nothing to compare.
pub fn verdict(summaries: &[Summary]) -> Option<String> {
    Some(format!("{}.", claim(&Ranking::of(summaries))?))
}

/// The verdict, and whether it is more than chance; where there is no winner, what can be said instead.
pub(crate) fn verdict_with_doubt(report: &Report, summaries: &[Summary]) -> String {
    let ranking = Ranking::of(summaries);
    let Some(claim) = claim(&ranking) else { return no_winner(&ranking, summaries) };
    let (best, second) = (ranking.honest[0].0, ranking.honest[1].0);
    let differences = differences(&report.runs, &best.policy, &second.policy);
    let lead = format!("its lead over {}, the next,", second.policy);
    let doubt = match (beyond_chance(&differences), differences.len()) {
        (None, _) => "one seed cannot tell how much of that is chance".to_string(),
        (Some(true), seeds) => format!("{lead} is more than chance over {seeds} seeds"),
        (Some(false), seeds) => format!("{lead} may be chance over {seeds} seeds"),
    };
    format!("{claim}; {doubt}.")
}

fn no_winner(ranking: &Ranking<'_>, summaries: &[Summary]) -> String {
    match ranking.honest[..] {
        [] => "No job finished under a policy that does without an oracle, so there is no verdict.".into(),
        [(only, mean)] if summaries.len() > 1 => {
            format!("Only {} does without an oracle: its jobs finish after {} on average.", only.policy, time(mean))
        }
        [(only, mean)] => format!("Under {}, jobs finish after {} on average.", only.policy, time(mean)),
        [(_, mean), ..] => format!("All policies finish jobs equally soon: {} on average.", time(mean)),
    }
}

fn claim(ranking: &Ranking<'_>) -> Option<String> {
    let (best, low) = ranking.honest.first()?;
    let (worst, high) = ranking.honest.last()?;
    (low < high).then(|| {
        let times = high / low;
        let (name, mean, last) = (&best.policy, time(*low), &worst.policy);
        format!(
            "Without an oracle, {name} finishes jobs soonest: {mean} on average, {times:.1} times as fast as {last}"
        )
    })
}

/// Mean completion times of two policies, one less the other, seed by seed.
fn differences(runs: &[RunReport], a: &str, b: &str) -> Vec<f64> {
    let of = |policy: &str, seed: u64| {
        runs.iter().find(|run| run.policy == policy && run.seed == seed).and_then(|run| run.jct.mean_s)
    };
    let seeds = runs.iter().filter(|run| run.policy == a).map(|run| run.seed);
    seeds.filter_map(|seed| Some(of(a, seed)? - of(b, seed)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{report, run};
    use report::summarise;

    #[test]
    fn times_read_in_the_unit_people_would_use() {
        assert_eq!((time(5.0), time(90.0), time(9000.0)), ("5.0 s".into(), "1.5 min".into(), "2.50 h".into()));
    }

    #[test]
    fn numbers_below_each_other_are_in_one_unit() {
        let all =
            summarise(&[run("fifo", 1, 9000.0), run("las", 1, 4000.0), run("srtf", 1, 1200.0), run("sia", 1, 2.0)]);
        let reading = COLUMNS[0].reading(&all);
        let shown: Vec<String> = all.iter().map(|one| reading.show(COLUMNS[0].value(one).unwrap())).collect();
        assert_eq!(shown, ["2.50 h", "1.11 h", "0.33 h", "0.001 h"], "the last would read as nothing");
        assert_eq!(reading.bare(360.0), "0.10");
        assert_eq!((reading.show(0.0), reading.show(0.1)), ("0.00 h".into(), "0.00 h".into()));
    }

    #[test]
    fn every_column_shows_a_headline_number() {
        let known = |column: &Column| report::HEADLINES.iter().any(|headline| headline.name == column.headline);
        assert!(COLUMNS.iter().all(known));
    }

    #[test]
    fn the_verdict_leaves_out_those_who_know_too_much() {
        let mut runs = vec![run("fifo", 1, 40.0), run("las", 1, 20.0), run("srtf", 1, 10.0)];
        runs[2].knows = vec!["true remaining time".into()];
        let said = verdict(&summarise(&runs)).unwrap();
        assert_eq!(said, "Without an oracle, las finishes jobs soonest: 20.0 s on average, 2.0 times as fast as fifo.");
    }

    #[test]
    fn a_lead_that_holds_on_every_seed_is_more_than_chance() {
        let runs = |las: [f64; 3]| {
            let mut runs: Vec<_> = (0..3).map(|seed| run("fifo", seed, 40.0 + seed as f64)).collect();
            runs.extend((0..3).map(|seed| run("las", seed, las[seed as usize])));
            report(runs)
        };
        let said = |report: &Report| verdict_with_doubt(report, &summarise(&report.runs));
        assert!(said(&runs([30.0, 31.0, 32.5])).ends_with("over fifo, the next, is more than chance over 3 seeds."));
        assert!(said(&runs([30.0, 50.0, 32.5])).ends_with("over fifo, the next, may be chance over 3 seeds."));
    }

    #[test]
    fn without_rivals_the_page_says_what_there_is_to_say() {
        let said = |runs: Vec<RunReport>| verdict_with_doubt(&report(runs.clone()), &summarise(&runs));
        assert_eq!(said(vec![run("fifo", 1, 40.0)]), "Under fifo, jobs finish after 40.0 s on average.");
        let mut oracle = run("srtf", 1, 10.0);
        oracle.knows = vec!["true remaining time".into()];
        let expected = "Only fifo does without an oracle: its jobs finish after 40.0 s on average.";
        assert_eq!(said(vec![run("fifo", 1, 40.0), oracle]), expected);
        let expected = "All policies finish jobs equally soon: 40.0 s on average.";
        assert_eq!(said(vec![run("fifo", 1, 40.0), run("las", 1, 40.0)]), expected);
    }

    #[test]
    fn nobody_is_best_alone_and_equals_are_best_together() {
        let two = summarise(&[run("fifo", 1, 40.0), run("las", 1, 40.0)]);
        assert!(COLUMNS[0].is_best(&two[0], &two) && COLUMNS[0].is_best(&two[1], &two));
        assert!(!COLUMNS[0].is_best(&two[0], &two[..1]));
    }
}
