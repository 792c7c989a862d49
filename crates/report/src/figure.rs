//! What there is to plot of one history beyond the numbers of its report: who held how much when, each kind of GPU on
//! its own, and every job's fair time. It remembers each run of each job, so it is collected only when somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, Gpus, Name, NodeDraft, NodeId, Placement, Run, Slot, Time};
use engine::{Command, Event};
use plan::Allotment;

use crate::fairness::Isolated;
use crate::fold::Fold;
use crate::hold::Hold;
use crate::job::JobRow;
use crate::run::Gauge;
use crate::series::{Level, Timeline};
use crate::usage::Usage;

#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The first submission that was not refused: where all series begin.
    pub origin: Time,
    /// Every job ever submitted, in order of submission.
    pub jobs: Vec<JobRow>,
    /// T_fair of each job in seconds; nothing of jobs that did not finish or have no share.
    pub fair_times: Vec<Option<f64>>,
    /// In the order in which they ended.
    pub holdings: Vec<Holding>,
    /// In the order of the cluster's definition; kinds of which there are no nodes are left out.
    pub kinds: Vec<KindFigure>,
}

/// A job held so many GPUs from its launch until it was gone, or until the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    pub job: ClaimId,
    pub from: Time,
    pub until: Time,
    pub gpus: Gpus,
}

/// As in the report, over the GPUs of one kind alone.
#[derive(Debug, Clone, PartialEq)]
pub struct KindFigure {
    pub name: Name,
    pub gpus: u32,
    pub utilisation: Gauge,
    pub fragmentation: Gauge,
}

/// Collects a [`Figure`], event by event, beside a [`Fold`] of the same history.
#[derive(Debug, Clone, Default)]
pub struct FigureFold {
    now: Time,
    origin: Option<Time>,
    live: u64,
    kinds: Vec<KindFold>,
    /// Which kind each node is of, and its number among the nodes of that kind.
    nodes: Vec<Option<(usize, NodeId)>>,
    holding: BTreeMap<ClaimId, (Time, Hold)>,
    holdings: Vec<Holding>,
}

#[derive(Debug, Clone)]
struct KindFold {
    name: Name,
    nodes: u32,
    gpus: u32,
    usage: Usage,
    timeline: Option<Timeline>,
}

impl FigureFold {
    /// Before the first event, which defines the cluster.
    pub fn new() -> FigureFold {
        FigureFold::default()
    }

    /// `fold` has observed the event already.
    pub fn observe(&mut self, at: Time, event: &Event, fold: &Fold) {
        self.advance(at);
        match event {
            Event::ClusterDefined { cluster, .. } => self.define(cluster),
            Event::ClaimSubmitted { .. } => self.submitted(),
            Event::NodeJoined { node, .. } => self.join(node),
            Event::NodeChanged { node, availability, broken } => {
                if let Some((kind, node)) = self.nodes[node.0 as usize] {
                    self.kinds[kind].usage.set(node, *availability, *broken);
                }
            }
            Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                self.let_go(*run);
            }
            Event::Issued(Command::Launch { run, allotment, .. }) => self.launched(*run, allotment),
            Event::Issued(Command::Resize { run, allotment, .. }) => {
                let more = self.change_hold(*run, |hold| hold.resize(allotment));
                self.take(&more);
            }
            Event::RunResized { run } => {
                let less = self.change_hold(*run, Hold::resized);
                self.give(&less);
            }
            Event::RunNotResized { run } => {
                let less = self.change_hold(*run, Hold::not_resized);
                self.give(&less);
            }
            _ => {}
        }
        if fold.live() == 0 && self.live > 0 {
            self.timelines().for_each(Timeline::fall_quiet);
        }
        self.live = fold.live();
    }

    /// What was seen so far. `fold` has observed the same events.
    pub fn finish(mut self, fold: &Fold, isolated: &Isolated<'_>) -> Figure {
        let open = std::mem::take(&mut self.holding);
        let until = self.now;
        self.holdings.extend(open.iter().map(|(&job, (from, hold))| Holding {
            job,
            from: *from,
            until,
            gpus: hold.gpus(),
        }));
        Figure {
            origin: self.origin.unwrap_or(self.now),
            jobs: fold.jobs().collect(),
            fair_times: fold.fair_times(isolated),
            holdings: self.holdings,
            kinds: self.kinds.into_iter().filter(|kind| kind.gpus > 0).map(KindFold::finish).collect(),
        }
    }

    fn timelines(&mut self) -> impl Iterator<Item = &mut Timeline> {
        self.kinds.iter_mut().filter_map(|kind| kind.timeline.as_mut())
    }

    fn advance(&mut self, to: Time) {
        if to == self.now {
            return;
        }
        for kind in &mut self.kinds {
            if let Some(timeline) = &mut kind.timeline {
                timeline.extend(self.now, to, Level { gpus: kind.usage.sums(), queued: 0 });
            }
        }
        self.now = to;
    }

    fn define(&mut self, cluster: &Cluster) {
        self.kinds = cluster.kinds().map(|(_, kind)| KindFold::new(kind.name.clone())).collect();
        for (_, node) in cluster.nodes() {
            let place = node.kind.map(|kind| (kind.0 as usize, self.kinds[kind.0 as usize].add(u32::from(node.gpus))));
            self.nodes.push(place);
        }
    }

    fn join(&mut self, draft: &NodeDraft) {
        let kind = draft.kind.as_ref().map(|name| self.kind_named(name));
        for _ in 0..draft.count {
            self.nodes.push(kind.map(|kind| (kind, self.kinds[kind].add(draft.gpus as u32))));
        }
    }

    /// A kind that nobody had before has had no GPUs up to now.
    fn kind_named(&mut self, name: &str) -> usize {
        if let Some(known) = self.kinds.iter().position(|kind| &*kind.name == name) {
            return known;
        }
        let mut kind = KindFold::new(name.into());
        kind.timeline = self.origin.map(|origin| {
            let mut timeline = Timeline::new(origin);
            timeline.extend(origin, self.now, Level { gpus: kind.usage.sums(), queued: 0 });
            timeline
        });
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    fn submitted(&mut self) {
        let origin = *self.origin.get_or_insert(self.now);
        for kind in &mut self.kinds {
            kind.timeline.get_or_insert_with(|| Timeline::new(origin)).wake();
        }
    }

    fn launched(&mut self, run: Run, allotment: &Arc<Allotment>) {
        self.take(&allotment.placement);
        self.holding.insert(run.claim, (self.now, Hold::new(allotment)));
    }

    /// From now on a run has more, or less: one holding ends and the next begins. Returns the difference.
    fn change_hold(&mut self, run: Run, change: impl FnOnce(&mut Hold) -> Placement) -> Placement {
        let (from, hold) = self.holding.get_mut(&run.claim).expect("a run holds something until it ends");
        let past = Holding { job: run.claim, from: *from, until: self.now, gpus: hold.gpus() };
        self.holdings.push(past);
        *from = self.now;
        change(hold)
    }

    fn take(&mut self, placement: &Placement) {
        for (kind, part) in self.parts(placement) {
            self.kinds[kind].usage.take(&part);
        }
    }

    fn give(&mut self, placement: &Placement) {
        for (kind, part) in self.parts(placement) {
            self.kinds[kind].usage.give(&part);
        }
    }

    fn let_go(&mut self, run: Run) {
        let (from, hold) = self.holding.remove(&run.claim).expect("a run holds something until it ends");
        hold.placements().for_each(|placement| self.give(&placement));
        let gpus = hold.gpus();
        self.holdings.push(Holding { job: run.claim, from, until: self.now, gpus });
    }

    /// What of a placement lies on nodes of each kind, with nodes numbered within the kind.
    fn parts(&self, placement: &Placement) -> impl Iterator<Item = (usize, Placement)> + use<> {
        let mut parts: BTreeMap<usize, Vec<Slot>> = BTreeMap::new();
        for slot in placement.slots() {
            if let Some((kind, node)) = self.nodes[slot.node.0 as usize] {
                parts.entry(kind).or_default().push(Slot { node, ..*slot });
            }
        }
        parts.into_iter().map(|(kind, slots)| (kind, Placement::new(slots)))
    }
}

impl KindFold {
    fn new(name: Name) -> KindFold {
        KindFold { name, nodes: 0, gpus: 0, usage: Usage::default(), timeline: None }
    }

    fn add(&mut self, gpus: u32) -> NodeId {
        let node = NodeId(self.nodes);
        self.usage.join(&NodeDraft { count: 1, gpus: i64::from(gpus), ..NodeDraft::default() });
        self.nodes += 1;
        self.gpus += gpus;
        node
    }

    fn finish(self) -> KindFigure {
        let gauge = |of: fn(&Timeline) -> Gauge| self.timeline.as_ref().map_or_else(Gauge::default, of);
        let (utilisation, fragmentation) = (gauge(Timeline::utilisation), gauge(Timeline::fragmentation));
        KindFigure { name: self.name, gpus: self.gpus, utilisation, fragmentation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::{Tale, cluster, placement};
    use cluster::{JobDraft, QueueTree, Span};
    use perf::Speed;

    /// Tells the same history to both folds.
    struct Watched {
        fold: Fold,
        figure: FigureFold,
        jobs: u32,
    }

    impl Watched {
        fn on(short: &str) -> Watched {
            let mut watched = Watched { fold: Fold::new(), figure: FigureFold::new(), jobs: 0 };
            let queues = Box::new(QueueTree::single());
            watched.tell(0, Event::ClusterDefined { cluster: Box::new(cluster(short)), queues });
            watched
        }

        fn tell(&mut self, at: u64, event: Event) {
            let at = Time::from_secs(at);
            self.fold.observe(at, &event);
            self.figure.observe(at, &event, &self.fold);
        }

        fn submit(&mut self, at: u64) -> Run {
            let claim = ClaimId(self.jobs);
            self.jobs += 1;
            let spec = Arc::new(JobDraft::rigid("a", 1).build().unwrap());
            self.tell(at, Event::ClaimSubmitted { claim, spec, speed: Arc::new(Speed::constant(1.0)) });
            Run { claim, attempt: 1 }
        }

        fn launch(&mut self, at: u64, run: Run, places: &[(u32, u64)]) {
            let allotment = Arc::new(Allotment { placement: placement(places), batch: None });
            let until = Time::from_secs(at) + Span::from_minutes(10);
            self.tell(at, Event::Issued(Command::Launch { run, allotment, tuning: None, until }));
        }

        fn finish(self) -> Figure {
            self.figure.finish(&self.fold, &|_, _, _| None)
        }
    }

    #[test]
    fn each_kind_is_measured_on_its_own() {
        let mut history = Watched::on("1x4 t4, 1x8 a100");
        let (a, b) = (history.submit(0), history.submit(0));
        history.launch(0, a, &[(0, 0b11)]);
        history.launch(0, b, &[(1, 0b1111_1111)]);
        history.tell(120, Event::RunFinished { run: a });
        history.tell(120, Event::RunFinished { run: b });
        let figure = history.finish();
        let seen: Vec<_> = figure
            .kinds
            .iter()
            .map(|kind| (&*kind.name, kind.gpus, kind.utilisation.mean, kind.fragmentation.mean))
            .collect();
        assert_eq!(seen, [("t4", 4, Some(0.5), Some(1.0)), ("a100", 8, Some(1.0), Some(0.0))]);
    }

    #[test]
    fn a_run_that_is_not_over_holds_until_the_last_event() {
        let mut history = Watched::on("1x4 t4");
        let (a, b) = (history.submit(10), history.submit(10));
        history.launch(10, a, &[(0, 0b1)]);
        history.launch(20, b, &[(0, 0b110)]);
        history.tell(50, Event::RunFinished { run: a });
        let holding = |job, from, until, gpus| Holding {
            job: ClaimId(job),
            from: Time::from_secs(from),
            until: Time::from_secs(until),
            gpus: Gpus::whole(gpus),
        };
        let figure = history.finish();
        assert_eq!(figure.holdings, [holding(0, 10, 50, 1), holding(1, 20, 50, 2)]);
        assert_eq!(figure.origin, Time::from_secs(10));
    }

    #[test]
    fn a_run_that_resizes_in_place_holds_one_after_the_other() {
        let mut history = Watched::on("1x4 t4");
        let a = history.submit(0);
        history.launch(0, a, &[(0, 0b1)]);
        let allotment = Arc::new(Allotment { placement: placement(&[(0, 0b110), (0, 0b1)]), batch: None });
        let until = Time::from_secs(90);
        history.tell(60, Event::Issued(Command::Resize { run: a, allotment, tuning: None, until }));
        history.tell(70, Event::RunResized { run: a });
        history.tell(120, Event::RunFinished { run: a });
        let figure = history.finish();
        let held: Vec<(Time, Gpus)> = figure.holdings.iter().map(|holding| (holding.until, holding.gpus)).collect();
        assert_eq!(held, [(60, 1), (70, 3), (120, 3)].map(|(until, gpus)| (Time::from_secs(until), Gpus::whole(gpus))));
        assert_eq!(figure.kinds[0].utilisation.series.values, [Some(0.25), Some(0.75)]);
    }

    #[test]
    fn nodes_of_a_new_kind_that_join_late_count_from_then_on() {
        let mut history = Watched::on("1x4 t4");
        let a = history.submit(0);
        let node = NodeDraft { kind: Some("h100".into()), gpus: 2, ..NodeDraft::default() };
        history.tell(60, Event::NodeJoined { node: Box::new(node), kinds: Vec::new() });
        history.launch(60, a, &[(1, 0b1)]);
        history.tell(180, Event::RunFinished { run: a });
        let figure = history.finish();
        assert_eq!(&*figure.kinds[1].name, "h100");
        assert_eq!(figure.kinds[1].utilisation.series.values, [None, Some(0.5), Some(0.5)]);
    }

    #[test]
    fn of_no_jobs_there_is_nothing_to_plot() {
        let fold = Tale::on("1x4 t4").fold;
        let figure = FigureFold::new().finish(&fold, &|_, _, _| None);
        assert!(figure.jobs.is_empty() && figure.holdings.is_empty() && figure.kinds.is_empty());
    }
}
