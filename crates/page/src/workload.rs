//! What a workload is made of, or two of them beside each other, as a page. The figures come from whoever knows workloads;
//! here they are laid out.

use serde::Serialize;

use crate::data::Rounded;
use crate::frame::{self, Frame, add};
use crate::text::html as escape;

const SCRIPT: &str = include_str!("../assets/workload.js");
const CHARTS: &str = include_str!("../assets/workload.html");

/// What such a page is made of.
#[derive(Debug)]
pub struct WorkloadPage<'a> {
    /// What reproduces it.
    pub command: &'a str,
    pub version: &'a str,
    /// What there is to say in a sentence.
    pub verdict: &'a str,
    /// The figures as text.
    pub table: &'a [TableLine],
    /// What one must know to read the figures rightly.
    pub remarks: &'a [String],
    /// One workload or two.
    pub sides: &'a [Side],
    /// Of the cluster whose load it would be.
    pub cluster_gpus: Option<u32>,
    /// How far the two are apart in each marginal, by the name of its chart.
    pub distances: &'a [(&'static str, String)],
}

/// One figure of each side, and how far the two are apart in it.
#[derive(Debug, Clone, PartialEq)]
pub struct TableLine {
    pub what: String,
    pub cells: Vec<String>,
    pub distance: String,
}

/// The plots of one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    pub name: String,
    /// From the first submission to the last.
    pub span_s: f64,
    /// Jobs per hour.
    pub arrivals: Line,
    /// By hour of the day and of the week, compared with the mean.
    pub day: Vec<f64>,
    pub week: Vec<f64>,
    /// Points of distribution functions: seconds, and the share of the jobs up to there.
    pub gaps: Vec<(f64, f64)>,
    pub durations: Vec<(f64, f64)>,
    /// GPUs.
    pub load: Line,
    /// Numbers of GPUs, ascending.
    pub sizes: Vec<Share<f64>>,
    pub size_count: usize,
    pub users: Vec<Share<String>>,
    pub user_count: usize,
}

/// A value for every step from the first submission on.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub step_s: f64,
    pub values: Vec<f64>,
}

/// Of all jobs and of all GPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct Share<T> {
    pub of: T,
    pub jobs: f64,
    pub gpu_time: f64,
}

impl WorkloadPage<'_> {
    pub fn html(&self) -> String {
        let names = names(self.sides);
        let title = match &names[..] {
            [one, other] => format!("Workload {} beside {}", escape(one), escape(other)),
            names => format!("Workload {}", escape(&names.join(" beside "))),
        };
        let frame = Frame { title: &title, command: self.command, version: self.version };
        let about = match self.sides.len() {
            1 => "What the workload is made of.",
            _ => "What the two workloads are made of, and how far they are apart in each marginal.",
        };
        frame.page(&self.data(&names), SCRIPT, |page| {
            frame::beginning(page, &title, about, &escape(self.verdict));
            self.table(page, &names);
            page.push_str(&match self.sides.len() {
                // There is nothing to choose from.
                1 => CHARTS.replace("<fieldset id=\"legend\"><legend>Workloads shown</legend></fieldset>\n", ""),
                _ => CHARTS.to_string(),
            });
        })
    }

    fn table(&self, page: &mut String, names: &[String]) {
        page.push_str(
            "<section id=\"figures\">\n<h2>Figures</h2>\n<div class=\"scroll\" role=\"region\" \
             aria-label=\"Figures of the workload\" tabindex=\"0\">\n<table>\n<thead><tr><td></td>",
        );
        names.iter().for_each(|name| add(page, format_args!("<th scope=\"col\">{}</th>", escape(name))));
        let distances = self.sides.len() > 1;
        page.push_str(if distances { "<th scope=\"col\">distance</th>" } else { "" });
        page.push_str("</tr></thead>\n<tbody>\n");
        for TableLine { what, cells, distance } in self.table {
            add(page, format_args!("<tr><th scope=\"row\">{}</th>", escape(what)));
            let shown = cells.iter().chain(distances.then_some(distance));
            shown.for_each(|cell| add(page, format_args!("<td>{}</td>", escape(cell))));
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody>\n</table>\n</div>\n");
        if !self.remarks.is_empty() {
            page.push_str("<h2>What is missing and what was assumed</h2>\n<ul class=\"remarks\">\n");
            self.remarks.iter().for_each(|remark| add(page, format_args!("<li>{}</li>\n", escape(remark))));
            page.push_str("</ul>\n");
        }
        page.push_str("</section>\n");
    }

    fn data<'a>(&'a self, names: &'a [String]) -> Data<'a> {
        Data {
            names,
            sides: self.sides.iter().map(SideData::of).collect(),
            cluster_gpus: self.cluster_gpus,
            distances: self.distances.iter().map(|(chart, told)| (*chart, told.as_str())).collect(),
        }
    }
}

/// Names that differ, so that colours can be told by them.
fn names(sides: &[Side]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for side in sides {
        let again = names.contains(&side.name);
        names.push(if again { format!("{} (again)", side.name) } else { side.name.clone() });
    }
    names
}

/// The numbers behind the charts, as the page's script reads them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    names: &'a [String],
    sides: Vec<SideData<'a>>,
    cluster_gpus: Option<u32>,
    distances: std::collections::BTreeMap<&'a str, &'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SideData<'a> {
    lasted: Rounded,
    arrivals: LineData,
    day: Vec<Rounded>,
    week: Vec<Rounded>,
    gaps: Vec<[Rounded; 2]>,
    durations: Vec<[Rounded; 2]>,
    load: LineData,
    sizes: Vec<SizeData>,
    size_count: usize,
    users: Vec<UserData<'a>>,
    user_count: usize,
}

#[derive(Debug, Serialize)]
struct LineData {
    step: Rounded,
    values: Vec<Rounded>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SizeData {
    gpus: Rounded,
    jobs: Rounded,
    gpu_time: Rounded,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UserData<'a> {
    name: &'a str,
    jobs: Rounded,
    gpu_time: Rounded,
}

impl<'a> SideData<'a> {
    fn of(side: &'a Side) -> SideData<'a> {
        let rounded = |values: &[f64]| values.iter().map(|&value| Rounded::of(value)).collect::<Vec<_>>();
        let line = |line: &Line| LineData { step: Rounded::of(line.step_s), values: rounded(&line.values) };
        let curve = |points: &[(f64, f64)]| points.iter().map(|&(x, y)| [Rounded::of(x), Rounded::of(y)]).collect();
        let user = |share: &'a Share<String>| UserData {
            name: &share.of,
            jobs: Rounded::of(share.jobs),
            gpu_time: Rounded::of(share.gpu_time),
        };
        let size = |share: &Share<f64>| SizeData {
            gpus: Rounded::of(share.of),
            jobs: Rounded::of(share.jobs),
            gpu_time: Rounded::of(share.gpu_time),
        };
        SideData {
            lasted: Rounded::of(side.span_s),
            arrivals: line(&side.arrivals),
            day: rounded(&side.day),
            week: rounded(&side.week),
            gaps: curve(&side.gaps),
            durations: curve(&side.durations),
            load: line(&side.load),
            sizes: side.sizes.iter().map(size).collect(),
            size_count: side.size_count,
            users: side.users.iter().map(user).collect(),
            user_count: side.user_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, user: &str) -> Side {
        let line = || Line { step_s: 600.0, values: vec![1.0, 2.5] };
        let size = |of: f64| Share { of, jobs: 0.5, gpu_time: 0.25 };
        Side {
            name: name.into(),
            span_s: 1200.0,
            arrivals: line(),
            day: vec![1.0; 24],
            week: vec![1.0; 168],
            gaps: vec![(5.0, 1.0)],
            durations: vec![(60.0, 0.5), (90.0, 1.0)],
            load: line(),
            sizes: vec![size(0.25), size(8.0)],
            size_count: 2,
            users: vec![Share { of: user.into(), jobs: 0.5, gpu_time: 0.25 }],
            user_count: 1,
        }
    }

    fn page(sides: &[Side]) -> String {
        let cells = sides.iter().map(|side| side.name.clone()).collect();
        WorkloadPage {
            command: "moira trace inspect 'a<b'",
            version: "0.0.0",
            verdict: "2 jobs in 20 min",
            table: &[TableLine { what: "jobs".into(), cells, distance: "KS 0.5".into() }],
            remarks: &["assumed: no user is known".into()],
            sides,
            cluster_gpus: Some(64),
            distances: &[("durations", "KS 0.5".into())],
        }
        .html()
    }

    #[test]
    fn one_workload_has_no_distances_and_no_legend() {
        let page = page(&[side("a", "ann")]);
        assert!(page.contains("<title>Moira: Workload a</title>") && page.contains("assumed: no user is known"));
        assert!(!page.contains(">distance<") && !page.contains("id=\"legend\""));
        assert!(page.contains("moira trace inspect &#39;a&lt;b&#39;"));
        assert!(page.contains("\"sizes\":[{\"gpus\":0.25,\"jobs\":0.5,\"gpuTime\":0.25},{\"gpus\":8,"));
    }

    #[test]
    fn two_workloads_stand_side_by_side_with_their_distance() {
        let page = page(&[side("a", "ann"), side("a", "bob")]);
        assert!(page.contains("Workload a beside a (again)") && page.contains("<td>KS 0.5</td>"));
        assert!(page.contains("id=\"legend\"") && page.contains("\"distances\":{\"durations\":\"KS 0.5\"}"));
    }

    #[test]
    fn names_from_outside_stay_text() {
        let page = page(&[side("<script>alert(1)</script>", "</script><script>alert(2)</script>")]);
        assert!(!page.contains("<script>alert"));
        assert_eq!(page.matches("<script type").count(), page.matches("</script>").count());
    }
}
