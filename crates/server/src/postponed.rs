//! What jobs write to their progress files while there is no room to record it: of each run one report, in which later
//! figures take the place of earlier ones. It is told when there is room, or with the end of the run.

use std::collections::BTreeMap;

use api::ProgressReport;
use cluster::Run;
use executors::News;

use crate::ledger::newer;

/// One report of each run, and how far its file was read.
#[derive(Debug, Default)]
pub struct Postponed(BTreeMap<Run, Latest>);

#[derive(Debug, Default)]
struct Latest {
    report: Option<ProgressReport>,
    upto: Option<u64>,
}

impl Postponed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps what can wait, and returns the rest. The end of a run cannot wait, and what the run reported before it goes
    /// with it.
    pub(crate) fn keep(&mut self, news: Vec<News>) -> Vec<News> {
        let mut urgent = Vec::new();
        for heard in news {
            match heard {
                News::Progress { run, lines } => {
                    let latest = self.0.entry(run).or_default();
                    // What is no report says nothing later either.
                    for report in lines.iter().filter_map(|line| ProgressReport::parse_line(line).ok()) {
                        latest.add(report);
                    }
                }
                News::Told { run, upto } => self.0.entry(run).or_default().upto = Some(upto),
                News::Ended { run, .. } => {
                    let latest = self.0.remove(&run);
                    urgent.extend(latest.into_iter().flat_map(|latest| latest.told(run)));
                    urgent.push(heard);
                }
                heard => urgent.push(heard),
            }
        }
        urgent
    }

    /// All that was kept, and then the rest of the news.
    pub(crate) fn release_before(&mut self, news: Vec<News>) -> Vec<News> {
        let kept = std::mem::take(&mut self.0);
        kept.into_iter().flat_map(|(run, latest)| latest.told(run)).chain(news).collect()
    }
}

impl Latest {
    fn add(&mut self, mut later: ProgressReport) {
        let mut known = self.report.take().unwrap_or_default();
        let restart = later.restart.take().or(known.restart.take());
        // Names of metrics could grow without end.
        let metrics = std::mem::take(if later.metrics.is_empty() { &mut known.metrics } else { &mut later.metrics });
        self.report = Some(ProgressReport { restart, metrics, ..newer(known, later) });
    }

    fn told(self, run: Run) -> impl Iterator<Item = News> {
        let line = self.report.and_then(|report| serde_json::to_string(&report).ok());
        let report = line.map(|line| News::Progress { run, lines: vec![line] });
        report.into_iter().chain(self.upto.map(|upto| News::Told { run, upto }))
    }
}

#[cfg(test)]
mod tests {
    use cluster::ClaimId;
    use executors::Ending;

    use super::*;

    fn run(claim: u32) -> Run {
        Run { claim: ClaimId(claim), attempt: 1 }
    }

    fn says(claim: u32, line: &str) -> News {
        News::Progress { run: run(claim), lines: vec![line.into()] }
    }

    fn shown(news: Vec<News>) -> Vec<String> {
        let show = |news| match news {
            News::Progress { run, lines } => format!("{} says {}", run.claim, lines.join(" ")),
            News::Told { run, upto } => format!("{} told {upto}", run.claim),
            News::Ended { run, .. } => format!("{} ended", run.claim),
            other => format!("{other:?}"),
        };
        news.into_iter().map(show).collect()
    }

    #[test]
    fn of_each_run_the_newest_figures_are_kept_until_there_is_room() {
        let mut postponed = Postponed::default();
        let news = vec![
            says(1, r#"{"steps": 3, "checkpoint": {"steps": 2}}"#),
            says(2, r#"{"steps": 7}"#),
            News::Told { run: run(1), upto: 40 },
            says(1, r#"{"steps": 5}"#),
            says(1, "no report"),
            News::Told { run: run(1), upto: 60 },
        ];
        assert!(postponed.keep(news).is_empty());
        let released = shown(postponed.release_before(vec![says(1, r#"{"steps": 6}"#)]));
        let expected = [
            r#"1 says {"steps":5,"checkpoint":{"steps":2}}"#,
            "1 told 60",
            r#"2 says {"steps":7}"#,
            r#"1 says {"steps": 6}"#,
        ];
        assert_eq!(released, expected);
        assert!(postponed.is_empty());
    }

    #[test]
    fn what_a_run_reported_is_told_with_its_end() {
        let mut postponed = Postponed::default();
        postponed.keep(vec![says(1, r#"{"steps": 3}"#), says(2, r#"{"steps": 4}"#)]);
        let urgent = postponed.keep(vec![News::Ended { run: run(1), ending: Ending::default() }]);
        assert_eq!(shown(urgent), [r#"1 says {"steps":3}"#, "1 ended"]);
        assert_eq!(shown(postponed.release_before(Vec::new())), [r#"2 says {"steps":4}"#]);
    }
}
