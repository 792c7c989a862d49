//! Tables for people; for programs the report itself.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use report::{Report, Summary, summarise};

use crate::failure::Failure;
use crate::options::Output;

/// One column of the comparison: its name, the headline number behind it, how it reads, and whether less is better.
struct Column {
    title: &'static str,
    headline: &'static str,
    format: fn(f64) -> String,
    best: Best,
}

#[derive(Clone, Copy, PartialEq)]
enum Best {
    Low,
    High,
}

const COLUMNS: [Column; 11] = [
    Column { title: "JCT MEAN", headline: "jct_mean_s", format: time, best: Best::Low },
    Column { title: "P50", headline: "jct_p50_s", format: time, best: Best::Low },
    Column { title: "P99", headline: "jct_p99_s", format: time, best: Best::Low },
    Column { title: "WAIT", headline: "waiting_mean_s", format: time, best: Best::Low },
    Column { title: "GPU-H/JOB", headline: "gpu_hours_per_job", format: two_places, best: Best::Low },
    Column { title: "RESTARTS", headline: "restarts_per_job", format: two_places, best: Best::Low },
    Column { title: "WORST ρ", headline: "finish_time_ratio_worst", format: two_places, best: Best::Low },
    Column { title: "ρ > 1", headline: "finish_time_ratio_share_above_1", format: percent, best: Best::Low },
    Column { title: "JAIN", headline: "jain_users", format: two_places, best: Best::High },
    Column { title: "UTIL", headline: "utilisation", format: percent, best: Best::High },
    Column { title: "DEADLINES", headline: "deadlines_met_share", format: percent, best: Best::High },
];

pub(crate) fn print(report: &Report, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => line(&serde_json::to_string(report).expect("a report can be written as JSON")),
        Output::Csv => write(&report::runs_csv(&report.runs)),
        Output::Table => comparison(report),
    }
}

fn comparison(report: &Report) -> Result<(), Failure> {
    let summaries = summarise(&report.runs);
    let mut table = new_table();
    let titles = ["POLICY"].into_iter().chain(COLUMNS.iter().map(|column| column.title));
    table.set_header(titles.map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    for summary in &summaries {
        let mark = if summary.knows.is_empty() { "" } else { " *" };
        let mut row = vec![Cell::new(format!("{}{mark}", summary.policy))];
        row.extend(COLUMNS.iter().map(|column| column.cell(summary, &summaries)));
        table.add_row(row);
    }
    line(&table.to_string())?;
    footnotes(report, &summaries)
}

impl Column {
    fn value(&self, summary: &Summary) -> Option<f64> {
        summary.number(self.headline).and_then(|number| number.mean)
    }

    /// The number, in bold if no other policy has a better one.
    fn cell(&self, summary: &Summary, all: &[Summary]) -> Cell {
        let Some(value) = self.value(summary) else { return Cell::new("-").set_alignment(CellAlignment::Right) };
        let cell = Cell::new((self.format)(value)).set_alignment(CellAlignment::Right);
        let beaten = |other: f64| if self.best == Best::Low { other < value } else { other > value };
        let best = all.len() > 1 && !all.iter().filter_map(|other| self.value(other)).any(beaten);
        if best { cell.add_attribute(Attribute::Bold) } else { cell }
    }
}

fn footnotes(report: &Report, summaries: &[Summary]) -> Result<(), Failure> {
    let oracle = summaries.iter().find(|summary| !summary.knows.is_empty());
    if let Some(oracle) = oracle {
        line(&format!("* is told what no real scheduler knows: {}", oracle.knows.join(", ")))?;
    }
    if let Some(run) = report.runs.first() {
        let seeds = report.runs.iter().filter(|other| other.policy == run.policy).count();
        let seeds = if seeds == 1 { format!("seed {}", run.seed) } else { format!("means over {seeds} seeds") };
        line(&format!(
            "{} jobs of {} on {}, {seeds}; ρ = completion time over fair share's",
            run.jobs, run.workload, report.cluster
        ))?;
    }
    for run in report.runs.iter().filter(|run| run.refused + run.unfinished + run.plans_refused > 0) {
        let reasons: Vec<String> = run.refusals.iter().map(|(why, count)| format!("{count} × {why}")).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        line(&format!(
            "{} seed {}: {} jobs refused{reasons}, {} unfinished, {} plans refused",
            run.policy, run.seed, run.refused, run.unfinished, run.plans_refused
        ))?;
    }
    for assumption in &report.assumptions {
        line(&format!("assumed: {assumption}"))?;
    }
    verdict(summaries)
}

/// What the table says, in one sentence.
fn verdict(summaries: &[Summary]) -> Result<(), Failure> {
    let mean = |summary: &Summary| COLUMNS[0].value(summary);
    let honest: Vec<&Summary> = summaries.iter().filter(|summary| summary.knows.is_empty()).collect();
    let by_time = |a: &&&Summary, b: &&&Summary| mean(a).unwrap_or(f64::MAX).total_cmp(&mean(b).unwrap_or(f64::MAX));
    let (Some(best), Some(worst)) = (honest.iter().min_by(by_time), honest.iter().max_by(by_time)) else {
        return Ok(());
    };
    match (mean(best), mean(worst)) {
        (Some(low), Some(high)) if honest.len() > 1 && low < high => line(&format!(
            "\nWithout an oracle, {} finishes jobs soonest: {} on average, {:.1} times as fast as {}.",
            best.policy,
            time(low),
            high / low,
            worst.policy
        )),
        _ => Ok(()),
    }
}

/// A plain table of text.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<(), Failure> {
    let mut table = new_table();
    table.set_header(header.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    for row in rows {
        table.add_row(row);
    }
    line(&table.to_string())
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if std::env::var_os("NO_COLOR").is_some() {
        table.force_no_tty();
    }
    table
}

/// One line of comma-separated values, quoted where need be.
pub(crate) fn csv_line<S: AsRef<str>>(fields: &[S]) -> Result<(), Failure> {
    let quoted = fields.iter().map(|field| match field.as_ref() {
        field if field.contains([',', '"', '\n']) => format!("\"{}\"", field.replace('"', "\"\"")),
        field => field.to_string(),
    });
    line(&quoted.collect::<Vec<_>>().join(","))
}

pub(crate) fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Whoever reads our output may stop reading: that is no failure.
fn write(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(error)),
        _ => Ok(()),
    }
}

fn time(secs: f64) -> String {
    match secs {
        secs if secs < 60.0 => format!("{secs:.1} s"),
        secs if secs < 3600.0 => format!("{:.1} min", secs / 60.0),
        secs => format!("{:.2} h", secs / 3600.0),
    }
}

fn two_places(value: f64) -> String {
    format!("{value:.2}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_in_the_unit_people_would_use() {
        assert_eq!((time(5.0), time(90.0), time(9000.0)), ("5.0 s".into(), "1.5 min".into(), "2.50 h".into()));
    }

    #[test]
    fn every_column_shows_a_headline_number() {
        let known = |column: &Column| report::HEADLINES.iter().any(|headline| headline.name == column.headline);
        assert!(COLUMNS.iter().all(known));
    }
}
