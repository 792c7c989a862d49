//! Tables for people; for programs the report itself.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use page::{COLUMNS, Column, Page, RunPlot};
use report::{Figure, Report, RunReport, Summary, summarise};

use crate::failure::Failure;
use crate::options::Output;
use crate::visible::{visible, visible_json};

pub(crate) fn print(report: &Report, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => json_line(&serde_json::to_string(report).expect("a report can be written as JSON")),
        Output::Csv => write(&page::runs_csv(&report.runs)),
        Output::Table => comparison(report),
    }
}

/// One table for each workload.
fn comparison(report: &Report) -> Result<(), Failure> {
    let mut workloads: Vec<&str> = report.runs.iter().map(|run| &*run.workload).collect();
    workloads.dedup();
    for (index, workload) in workloads.iter().enumerate() {
        if index > 0 {
            line("")?;
        }
        let runs = report.runs.iter().filter(|run| run.workload == *workload).cloned().collect();
        comparison_of_one(&Report { runs, ..report.clone() })?;
    }
    Ok(())
}

fn comparison_of_one(report: &Report) -> Result<(), Failure> {
    let summaries = summarise(&report.runs);
    let mut table = new_table();
    let titles = ["POLICY"].into_iter().chain(COLUMNS.iter().map(|column| column.title));
    table.set_header(titles.map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    for summary in &summaries {
        let mark = if summary.knows.is_empty() { "" } else { " *" };
        let mut row = vec![Cell::new(format!("{}{mark}", visible(&summary.policy)))];
        row.extend(COLUMNS.iter().map(|column| cell(column, summary, &summaries)));
        table.add_row(row);
    }
    drawing(&table.to_string())?;
    footnotes(report, &summaries)
}

/// The number, in bold if no other policy has a better one.
fn cell(column: &Column, summary: &Summary, all: &[Summary]) -> Cell {
    let text = column.value(summary).map_or_else(|| "-".into(), |value| column.reading(all).show(value));
    let cell = Cell::new(text).set_alignment(CellAlignment::Right);
    if column.is_best(summary, all) { cell.add_attribute(Attribute::Bold) } else { cell }
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
    page::verdict(summaries).map_or(Ok(()), |verdict| line(&format!("\n{verdict}")))
}

/// A plain table of text; without a header if none is given.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<(), Failure> {
    let mut table = new_table();
    if !header.is_empty() {
        table.set_header(header.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)));
    }
    drawing(&table.to_string())
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
    let mut text = String::new();
    page::csv_line(&mut text, fields);
    write(&text)
}

/// A line of text. What is in it may come from anybody: control characters are made visible.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{}\n", visible(text)))
}

/// A line of JSON, of which the same is true.
pub(crate) fn json_line(text: &str) -> Result<(), Failure> {
    write(&format!("{}\n", visible_json(text)))
}

/// What may move the cursor and change colours, because all of it is our own.
pub(crate) fn drawing(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Home, and everything below away.
pub(crate) fn clear_screen() -> Result<(), Failure> {
    write("\x1b[H\x1b[2J")
}

/// Bytes as they are, for other programs.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    io::stdout().write_all(bytes).map_err(of_output)
}

fn write(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

/// Whoever reads our output may stop reading: then a command ends at once, and that is no failure.
pub(crate) fn of_output(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe { Failure::silent(0) } else { Failure::new(error) }
}

/// Files that a comparison leaves behind: a page, tables, or neither.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Files {
    /// Write the comparison with its charts as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write runs.csv, jobs.csv and series.csv into this folder, with README.md that says what every column means
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
}

/// What is kept of a run for the files.
#[derive(Debug)]
pub(crate) struct Kept {
    plot: Option<RunPlot>,
    jobs: String,
    series: String,
}

impl Files {
    pub(crate) fn wanted(&self) -> bool {
        self.html.is_some() || self.csv.is_some()
    }

    /// Where the page is written, if one is wanted.
    pub(crate) fn page(&self) -> Option<&Path> {
        self.html.as_deref()
    }

    /// Details are kept of the first seed only.
    pub(crate) fn keep(&self, run: &RunReport, figure: &Figure, first_seed: u64) -> Kept {
        let table = |make: fn(&RunReport, &Figure) -> String| self.csv.as_ref().map(|_| make(run, figure));
        Kept {
            plot: self.html.as_ref().map(|_| RunPlot::of(run, figure, run.seed == first_seed)),
            jobs: table(page::jobs_csv).unwrap_or_default(),
            series: table(page::series_csv).unwrap_or_default(),
        }
    }

    /// `command` is what would lead to the same runs again, without the options for files.
    pub(crate) fn write(&self, report: &Report, kept: Vec<Kept>, command: &str) -> Result<(), Failure> {
        if let Some(folder) = &self.csv {
            write_tables(folder, report, &kept, command)?;
        }
        if let Some(path) = &self.html {
            let plots: Vec<RunPlot> = kept.into_iter().filter_map(|kept| kept.plot).collect();
            let command = format!("{command} --html report.html");
            let page = Page { command: &command, version: env!("CARGO_PKG_VERSION"), report, plots: &plots };
            fs::write(path, page.html()).with_context(|| format!("cannot write the page {}", path.display()))?;
        }
        Ok(())
    }
}

fn write_tables(folder: &Path, report: &Report, kept: &[Kept], command: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let file = |name: &str, parts: &[&str]| -> Result<(), Failure> {
        let path = folder.join(name);
        let written = File::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            parts.iter().try_for_each(|part| file.write_all(part.as_bytes()))?;
            file.flush()
        });
        Ok(written.with_context(|| format!("cannot write {}", path.display()))?)
    };
    let (jobs, series) = (page::jobs_csv_header(), page::series_csv_header());
    let below = |header, part: fn(&Kept) -> &str| [header].into_iter().chain(kept.iter().map(part)).collect::<Vec<_>>();
    file("runs.csv", &[&page::runs_csv(&report.runs)])?;
    file("jobs.csv", &below(&jobs, |kept| &kept.jobs))?;
    file("series.csv", &below(&series, |kept| &kept.series))?;
    file("README.md", &[&page::data_dictionary(&format!("{command} --csv tables"))])
}

/// A command as one would type it: words that a shell would take apart are quoted.
pub(crate) fn command_line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,%+@".contains(character);
    let quoted = words.into_iter().map(|word| match word.as_ref() {
        word if !word.is_empty() && word.chars().all(plain) => word.to_string(),
        word => format!("'{}'", word.replace('\'', "'\\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_a_shell_would_take_apart_are_quoted() {
        let line = command_line(["moira", "--cluster", "2x4 t4", "--seeds", "1..3", "--workload", "csv:it's.csv", ""]);
        assert_eq!(line, r"moira --cluster '2x4 t4' --seeds 1..3 --workload 'csv:it'\''s.csv' ''");
    }
}
