//! A comparison, or what a workload is made of, as one self-contained page of HTML, and a comparison as tables of CSV:
//! reports and figures in, text out.
//!
//! It knows neither files nor the time of day: the same input gives the same bytes. The charts are drawn in the browser
//! by Observable Plot, which is embedded with D3, on which it is built.

mod comparison;
mod data;
mod frame;
mod interval;
mod plot;
mod tables;
mod text;
mod workload;

use report::{Report, RunReport, Summary, summarise};

use crate::comparison::verdict_with_doubt;
use crate::data::Data;
use crate::frame::{Frame, add};
use crate::text::html as escape;

pub use comparison::{Best, COLUMNS, Column, Reading, Unit, verdict};
pub use interval::half_width;
pub use plot::RunPlot;
pub use tables::{data_dictionary, jobs_csv, jobs_csv_header, runs_csv, series_csv, series_csv_header};
pub use text::csv_line;
pub use workload::{Line, Share, Side, TableLine, WorkloadPage};

const SCRIPT: &str = include_str!("../assets/comparison.js");
const CHARTS: &str = include_str!("../assets/comparison.html");

/// What a page is made of.
#[derive(Debug)]
pub struct Page<'a> {
    /// What reproduces it.
    pub command: &'a str,
    pub version: &'a str,
    pub report: &'a Report,
    /// One for each run of the report, in its order; the first of each policy in detail.
    pub plots: &'a [RunPlot],
}

impl Page<'_> {
    pub fn html(&self) -> String {
        let summaries = summarise(&self.report.runs);
        let frame = Frame { title: &self.title(), command: self.command, version: self.version };
        frame.page(&Data::of(self.plots), SCRIPT, |page| {
            self.beginning(page, &summaries);
            self.table(page, &summaries);
            self.remarks(page, &summaries);
            page.push_str(CHARTS);
        })
    }

    fn title(&self) -> String {
        let workload = self.report.runs.first().map_or("nothing", |run| run.workload.as_str());
        format!("Workload {} on cluster {}", escape(workload), escape(&self.report.cluster))
    }

    /// What was compared, and the verdict.
    fn beginning(&self, page: &mut String, summaries: &[Summary]) {
        let verdict = verdict_with_doubt(self.report, summaries);
        frame::beginning(page, &self.title(), &self.compared(summaries), &breakable(&verdict));
    }

    fn compared(&self, summaries: &[Summary]) -> String {
        let runs = &self.report.runs;
        let seeds = runs.iter().filter(|run| run.policy == runs[0].policy).map(|run| run.seed).collect::<Vec<_>>();
        let seeds = match seeds[..] {
            [] => return "No runs.".into(),
            [seed] => format!("one seed ({seed})"),
            [first, .., last] => format!("{} seeds ({first} to {last})", seeds.len()),
        };
        let jobs = runs.iter().map(|run| run.jobs).max().unwrap_or_default();
        let gpus = self.kinds();
        let policies = if summaries.len() == 1 { "1 policy".into() } else { format!("{} policies", summaries.len()) };
        format!(
            "{policies} compared on the same jobs: {} with {} jobs, {seeds}, on cluster {}{gpus}.",
            escape(&runs[0].workload),
            grouped(jobs),
            escape(&self.report.cluster)
        )
    }

    fn kinds(&self) -> String {
        let detail = self.plots.first().and_then(|plot| plot.detail.as_ref());
        let kinds = detail.map_or(&[][..], |detail| &detail.kinds);
        let named: Vec<String> =
            kinds.iter().map(|kind| format!("{} {}", grouped(u64::from(kind.gpus)), escape(&kind.name))).collect();
        if named.is_empty() { String::new() } else { format!(" with GPUs: {}", named.join(", ")) }
    }

    fn table(&self, page: &mut String, summaries: &[Summary]) {
        page.push_str(
            "<section id=\"comparison\">\n<h2>Comparison</h2>\n<div class=\"scroll\" role=\"region\" \
             aria-label=\"Comparison of policies\" tabindex=\"0\">\n<table>\n<thead><tr><th scope=\"col\">Policy</th>",
        );
        let shown: Vec<&Column> =
            COLUMNS.iter().filter(|column| summaries.iter().any(|summary| column.value(summary).is_some())).collect();
        for column in &shown {
            let (title, meaning) = (escape(column.title), escape(column.meaning));
            add(page, format_args!("<th scope=\"col\"><abbr title=\"{meaning}\">{title}</abbr></th>"));
        }
        page.push_str("</tr></thead>\n<tbody>\n");
        for summary in summaries {
            let mark = if summary.knows.is_empty() { "" } else { " *" };
            add(page, format_args!("<tr><th scope=\"row\">{}{mark}</th>", breakable(&summary.policy)));
            shown.iter().for_each(|column| add(page, format_args!("{}", cell(column, summary, summaries))));
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody>\n</table>\n</div>\n");
        let seeds = summaries.iter().map(|summary| summary.runs).max().unwrap_or_default();
        let interval = match seeds {
            0 | 1 => "One seed: no interval can be given.".to_string(),
            seeds => {
                format!("Means over {seeds} seeds; ± is the half width of the 95 % confidence interval (Student's t).")
            }
        };
        add(
            page,
            format_args!(
                "<p class=\"note\">{interval} Bold: no other policy has a better mean. ρ is completion \
                 time over the time with a fair share of the cluster.</p>\n<details><summary>What the columns \
                 mean</summary>\n<dl>\n"
            ),
        );
        for column in &shown {
            add(page, format_args!("<dt>{}</dt><dd>{}</dd>\n", escape(column.title), escape(column.meaning)));
        }
        page.push_str("</dl>\n</details>\n");
    }

    /// What one must know to read the table rightly.
    fn remarks(&self, page: &mut String, summaries: &[Summary]) {
        let mut remarks: Vec<String> = Vec::new();
        if let Some(oracle) = summaries.iter().find(|summary| !summary.knows.is_empty()) {
            remarks.push(format!("* is told what no real scheduler knows: {}", oracle.knows.join(", ")));
        }
        remarks.extend(self.report.runs.iter().filter_map(trouble));
        remarks.extend(self.report.assumptions.iter().map(|assumption| format!("assumed: {assumption}")));
        if !remarks.is_empty() {
            page.push_str("<ul class=\"remarks\">\n");
            remarks.iter().for_each(|remark| add(page, format_args!("<li>{}</li>\n", escape(remark))));
            page.push_str("</ul>\n");
        }
        page.push_str("</section>\n");
    }
}

fn cell(column: &Column, summary: &Summary, all: &[Summary]) -> String {
    let title = escape(column.title);
    let number = summary.number(column.headline);
    let Some((number, mean)) = number.and_then(|number| Some((number, number.mean?))) else {
        return format!("<td data-title=\"{title}\">–</td>");
    };
    let reading = column.reading(all);
    let shown = reading.show(mean).replace(' ', "\u{a0}");
    let shown = if column.is_best(summary, all) { format!("<strong>{shown}</strong>") } else { shown };
    let around = half_width(number).map(|half| reading.bare(half));
    let around = around.map(|half| format!(" <span class=\"ci\">±\u{a0}{half}</span>")).unwrap_or_default();
    format!("<td data-title=\"{title}\">{shown}{around}</td>")
}

fn trouble(run: &RunReport) -> Option<String> {
    if run.refused + run.unfinished + run.plans_refused == 0 {
        return None;
    }
    let reasons: Vec<String> = run.refusals.iter().map(|(why, count)| format!("{count} × {why}")).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
    let RunReport { policy, seed, refused, unfinished, plans_refused, .. } = run;
    Some(format!(
        "{policy} seed {seed}: {refused} jobs refused{reasons}, {unfinished} unfinished, {plans_refused} plans refused"
    ))
}

/// With a thin space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Escaped text that may go on in a new line between the parameters of a policy.
fn breakable(text: &str) -> String {
    let mut broken = escape(text);
    for mark in ['(', ','] {
        broken = broken.replace(mark, &format!("{mark}<wbr>")).replace("<wbr> ", " ");
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClaimId, GpuTime, Gpus, Span, Time};
    use plan::Outcome;
    use report::{Figure, Fold, Gauge, Holding, Identity, JobRow, KindFigure, Series};

    pub(crate) fn report(runs: Vec<RunReport>) -> Report {
        Report::new("small", vec!["jobs never crash".into()], runs)
    }

    fn series(values: &[f64]) -> Series {
        Series { bucket_s: 60, values: values.iter().copied().map(Some).collect() }
    }

    /// A run of two minutes with this mean completion time.
    pub(crate) fn run(policy: &str, seed: u64, jct_mean_s: f64) -> RunReport {
        let identity = Identity { policy: policy.into(), workload: "tale".into(), seed, knows: Vec::new() };
        let mut run = Fold::new().finish(identity, &|_, _, _| None);
        run.jobs = 2;
        run.jct.mean_s = Some(jct_mean_s);
        run.queue_length = Gauge { mean: Some(2.0), series: series(&[3.0, 1.0]) };
        run.utilisation = Gauge { mean: Some(0.4), series: series(&[0.5, 0.3]) };
        run.fragmentation = Gauge { mean: Some(0.0), series: series(&[0.0, 0.0]) };
        run
    }

    /// One job of one GPU for each user, who waits for nothing; each holds it half a minute longer than the one before.
    pub(crate) fn figure(users: &[&str]) -> Figure {
        let end = |index: usize| if users.len() > 9 { 60 } else { 60 + 30 * index as u64 };
        let job = |(index, user): (usize, &&str)| JobRow {
            id: ClaimId(index as u32),
            name: format!("job-{index}").into(),
            user: (*user).into(),
            queue: Some("root".into()),
            submitted: Time::ZERO,
            started: Some(Time::ZERO),
            ended: Some(Time::from_secs(end(index))),
            outcome: Some(Outcome::Finished),
            gpus: Gpus::whole(1),
            jct: Some(Span::from_secs(end(index))),
            waiting: Span::ZERO,
            held: GpuTime::from_gpu_secs(end(index)),
            launches: 1,
            restarts: 0,
            preemptions: 0,
            deadline_met: None,
        };
        let holding = |index: usize| Holding {
            job: ClaimId(index as u32),
            from: Time::ZERO + Span::from_secs(if index == 0 { 30 } else { 0 }),
            until: Time::from_secs(end(index)),
            gpus: Gpus::whole(1),
        };
        let gauge = |values: &[f64]| Gauge { mean: None, series: series(values) };
        let kind = KindFigure {
            name: "t4".into(),
            gpus: 4,
            utilisation: gauge(&[0.5, 0.3]),
            fragmentation: gauge(&[0.0, 0.0]),
        };
        Figure {
            origin: Time::ZERO,
            jobs: users.iter().enumerate().map(job).collect(),
            fair_times: vec![Some(30.0); users.len()],
            holdings: (0..users.len()).map(holding).collect(),
            kinds: vec![kind],
        }
    }

    fn page(policy: &str, user: &str) -> String {
        let runs = vec![run(policy, 1, 20.0), run(policy, 2, 22.0), run("fifo", 1, 40.0), run("fifo", 2, 41.0)];
        let plots: Vec<RunPlot> = runs.iter().map(|run| RunPlot::of(run, &figure(&[user]), run.seed == 1)).collect();
        let command = "moira sim compare --workload 'a<b'";
        Page { command, version: "0.0.0", report: &report(runs), plots: &plots }.html()
    }

    #[test]
    fn the_page_says_what_was_compared_who_won_and_how_to_do_it_again() {
        let page = page("las", "ann");
        for expected in [
            "2 policies compared on the same jobs: tale with 2 jobs, 2 seeds (1 to 2), on cluster small with GPUs: 4 t4.",
            "Without an oracle, las finishes jobs soonest: 21.0 s on average, 1.9 times as fast as fifo",
            "<strong>21.0\u{a0}s</strong> <span class=\"ci\">±\u{a0}12.7</span>",
            "moira sim compare --workload &#39;a&lt;b&#39;",
            "assumed: jobs never crash",
            "Permission to use, copy, modify, and/or distribute this software",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
    }

    #[test]
    fn names_from_outside_stay_text() {
        let page = page("<script>alert(1)</script>", "</script><script>alert(2)</script>");
        assert!(!page.contains("<script>alert"));
        assert!(page.contains("&lt;script&gt;alert(<wbr>1)"));
        assert!(page.contains("\\u003c/script\\u003e\\u003cscript\\u003ealert(2)"));
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert_eq!(page("las", "ann"), page("las", "ann"));
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let page = page("las", "ann");
        for loading in ["src=\"http", "href=\"http", "src=\"//", "@import", "url(http", "<link", "<iframe"] {
            assert!(!page.contains(loading), "{loading}");
        }
    }

    #[test]
    fn scripts_end_where_they_should() {
        let page = page("las", "ann");
        assert_eq!(page.matches("<script type").count(), 5);
        assert_eq!(page.matches("</script>").count(), 5);
    }

    #[test]
    fn thousands_are_grouped_from_five_digits_on() {
        assert_eq!((grouped(1234), grouped(100_000)), ("1234".into(), "100\u{202f}000".into()));
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        let page = Page { command: "moira demo", version: "0.0.0", report: &report(Vec::new()), plots: &[] }.html();
        assert!(page.contains("No runs."));
    }
}
