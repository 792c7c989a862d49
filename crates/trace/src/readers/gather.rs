//! From rows of other people's traces to a workload: what all readers have in common. Decides what is left out, counts
//! it, and says so; knows no layout.
//!
//! Rows are read one by one. What is kept of each until the end is small; equal requests, speeds and run times are
//! shared between jobs.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use cluster::{
    Bytes, Cluster, Ends, GpuKind, Grain, JobDraft, JobSpec, Name, QueueId, QueueTree, Recovery, Role, Scaling, Slice,
    Span, Time, Weight,
};
use perf::{Speed, TrueJob, Truth};

use crate::Workload;
use crate::error::Error;
use crate::readers::clock::{Zone, is_never, midnight, parse_stamp, show_stamp};
use crate::readers::options::Options;
use crate::table::{Row, Table};

/// A hundred years: longer times are taken for mistakes.
pub(crate) const LONGEST_S: f64 = 3_155_760_000.0;
pub(crate) const MOST_GPUS: u32 = 1_000_000;
/// So many bad rows are listed, the others only counted.
const LISTED: usize = 20;
/// So many different run times are shared between jobs.
const MOST_SHARED: usize = 1 << 16;

/// What is to be read, how, and for which cluster.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) path: &'a Path,
    pub(crate) options: &'a Options,
    pub(crate) cluster: &'a Cluster,
    pub(crate) queues: &'a QueueTree,
}

/// A job as a trace has it. Times are milliseconds of the trace's own clock.
pub(crate) struct Job {
    pub(crate) line: u64,
    pub(crate) id: Option<String>,
    pub(crate) submitted: i64,
    pub(crate) work: Work,
    pub(crate) gang: Gang,
    pub(crate) user: Option<Name>,
    /// Whatever stands between the user and the cluster: a virtual cluster, an account, a group.
    pub(crate) tenant: Option<Name>,
    pub(crate) kinds: Vec<GpuKind>,
    pub(crate) priority: i32,
    pub(crate) weight: Weight,
    /// After the submission.
    pub(crate) deadline: Option<Span>,
    pub(crate) expected: Option<Span>,
    pub(crate) iterations: Option<u64>,
}

pub(crate) enum Work {
    Lasting(Span),
    /// So many iterations at a known speed.
    Steps(Arc<Speed>, u64),
    /// As was measured of its application.
    Trained(Box<Trained>),
}

/// A job whose application was measured.
pub(crate) struct Trained {
    pub(crate) speed: Arc<Speed>,
    pub(crate) truth: Arc<Truth>,
    pub(crate) scaling: Scaling,
    /// The workers its user asked for, where that can be had.
    pub(crate) asked: Option<u32>,
    pub(crate) recovery: Recovery,
}

/// Workers and what each of them takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Gang {
    pub(crate) workers: u32,
    pub(crate) slice: Option<Slice>,
    pub(crate) millicores: u32,
    pub(crate) memory: Bytes,
}

/// What is done with a second row of the same job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Refused,
    /// The run times are added up.
    Merged,
    First,
    Last,
}

/// Which moment becomes time zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    File,
    First,
    Midnight,
}

/// Jobs of one trace, as they are found.
pub(crate) struct Gathering<'a> {
    request: Request<'a>,
    file: String,
    zone: Zone,
    skips: bool,
    limit: usize,
    from: Option<i64>,
    until: Option<i64>,
    zero_gpu: &'static str,
    names_dropped: bool,
    queues_matched: bool,
    kinds_matched: bool,
    cores_kept: bool,
    by_node: bool,
    tells_iterations: bool,
    states: Vec<String>,
    /// How repeated ids are dealt with, and in which column they stand.
    pub(crate) again: Again,
    pub(crate) id_column: String,
    /// Whether times are stamps, which have no zero of their own.
    pub(crate) stamped: bool,
    names: HashMap<String, Name>,
    kept: Vec<Kept>,
    asks: Vec<Ask>,
    ask_index: HashMap<Ask, u32>,
    ids: HashMap<u64, u32>,
    lasting: HashMap<(u32, u64), (Arc<Speed>, Arc<Truth>)>,
    speeds: HashMap<u32, Arc<Speed>>,
    left_out: Vec<(String, u64)>,
    bad: u64,
    bad_rows: Vec<String>,
    repeated: u64,
    disordered: u64,
    newest: i64,
    short: u64,
    coreless: u64,
    undivided: u64,
    unknown_kinds: u64,
    unmatched_tenants: u64,
    unknown_users: u64,
    stateless: bool,
    assumptions: Vec<String>,
}

struct Kept {
    line: u64,
    name: Option<Name>,
    submitted: i64,
    ask: u32,
    deadline: Option<Span>,
    expected: Option<Span>,
    iterations: Option<u64>,
    speed: Arc<Speed>,
    truth: Arc<Truth>,
    trained: Option<(Scaling, Option<u32>, Recovery)>,
}

/// What many jobs ask for alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ask {
    user: Name,
    queue: QueueId,
    priority: i32,
    weight: Weight,
    gang: Gang,
    kinds: Vec<GpuKind>,
}

impl Job {
    pub(crate) fn new(line: u64, submitted: i64, work: Span, gang: Gang) -> Job {
        Job {
            line,
            id: None,
            submitted,
            work: Work::Lasting(work),
            gang,
            user: None,
            tenant: None,
            kinds: Vec::new(),
            priority: 0,
            weight: Weight::ONE,
            deadline: None,
            expected: None,
            iterations: None,
        }
    }
}

impl Gang {
    pub(crate) fn whole(workers: u32, gpus_each: u32) -> Gang {
        let slice = Slice { grain: Grain::Whole, count: gpus_each, memory: Bytes::ZERO };
        Gang { workers, slice: Some(slice), millicores: 0, memory: Bytes::ZERO }
    }

    /// Workers that take a part of a GPU each, in thousandths below 1000.
    pub(crate) fn shared(workers: u32, thousandths: u16) -> Gang {
        let grain = Grain::Share { thousandths, memory: Bytes::ZERO };
        let slice = Slice { grain, count: 1, memory: Bytes::ZERO };
        Gang { workers, slice: Some(slice), millicores: 0, memory: Bytes::ZERO }
    }

    pub(crate) fn without_gpus(workers: u32, millicores: u32, memory: Bytes) -> Gang {
        Gang { workers, slice: None, millicores, memory }
    }
}

/// How a job was asked for, where a trace speaks of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) gpus: u32,
    pub(crate) nodes: Option<u32>,
    /// Of the whole job, in thousandths.
    pub(crate) millicores: Option<u64>,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(request: Request<'a>) -> Result<Gathering<'a>, Error> {
        let options = request.options;
        options.choice("origin", &["file", "first", "midnight"])?;
        Ok(Gathering {
            request,
            file: request.path.display().to_string(),
            zone: options.zone()?,
            skips: options.flag("skip_bad_rows")?,
            limit: options.whole("limit")?.map_or(usize::MAX, |limit| limit as usize),
            from: options.moment("from")?,
            until: options.moment("until")?,
            zero_gpu: options.choice("zero_gpu", &["drop", "keep", "refuse"])?,
            names_dropped: options.choice("names", &["keep", "drop"])? == "drop",
            queues_matched: options.choice("queues", &["root", "match"])? == "match",
            kinds_matched: options.choice("kinds", &["any", "match"])? == "match",
            cores_kept: options.choice("cores", &["drop", "keep"])? == "keep",
            by_node: options.choice("workers", &["gpu", "node"])? == "node",
            tells_iterations: options.choice("ends", &["itself", "iterations"])? == "iterations",
            states: options.words("states"),
            again: Again::Refused,
            id_column: "job_id".into(),
            stamped: false,
            names: HashMap::new(),
            kept: Vec::new(),
            asks: Vec::new(),
            ask_index: HashMap::new(),
            ids: HashMap::new(),
            lasting: HashMap::new(),
            speeds: HashMap::new(),
            left_out: Vec::new(),
            bad: 0,
            bad_rows: Vec::new(),
            repeated: 0,
            disordered: 0,
            newest: i64::MIN,
            short: 0,
            coreless: 0,
            undivided: 0,
            unknown_kinds: 0,
            unmatched_tenants: 0,
            unknown_users: 0,
            stateless: true,
            assumptions: Vec::new(),
        })
    }

    /// Reads a table to its end; `job` makes a job of a row, or leaves it out.
    pub(crate) fn read(
        &mut self,
        table: &mut Table,
        mut job: impl FnMut(&Row<'_>, &mut Gathering<'a>) -> Result<Option<Job>, Error>,
    ) -> Result<(), Error> {
        while self.wants_more() {
            let found = match table.next_row() {
                Ok(None) => break,
                Ok(Some(row)) => job(&row, self),
                Err(error) => Err(error),
            };
            self.take(found, table.is_broken())?;
        }
        if !table.others().is_empty() {
            self.assume(format!("columns that are not looked at: {}", table.others().join(", ")));
        }
        Ok(())
    }

    /// Keeps a job, or counts what is wrong with it if bad rows are to be skipped.
    pub(crate) fn take(&mut self, found: Result<Option<Job>, Error>, broken: bool) -> Result<(), Error> {
        let kept = found.and_then(|job| job.map_or(Ok(()), |job| self.keep(job)));
        match kept {
            Err(error) if broken || !self.skips || matches!(error, Error::Name(_)) => Err(error),
            Err(error) => {
                self.bad += 1;
                if self.bad_rows.len() < LISTED {
                    self.bad_rows.push(error.to_string());
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.kept.len() < self.limit
    }

    /// One name for all who are called alike.
    pub(crate) fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let name: Name = text.into();
        self.names.insert(text.into(), name.clone());
        name
    }

    /// Says whether policies are told how many of these a job takes.
    pub(crate) fn assume_ends(&mut self, what: &str) {
        self.assume(match self.tells_iterations {
            true => format!("policies are told how many {what} a job takes (ends=iterations)"),
            false => format!("policies are not told how many {what} a job takes (ends=itself; or iterations)"),
        });
    }

    pub(crate) fn assume(&mut self, what: impl Into<String>) {
        self.assumptions.push(what.into());
    }

    /// Counts a row that is no job to be run.
    pub(crate) fn leave_out(&mut self, what: &str) {
        match self.left_out.iter_mut().find(|(known, _)| known == what) {
            Some((_, count)) => *count += 1,
            None => self.left_out.push((what.into(), 1)),
        }
    }

    /// Whether jobs that ended like this are wanted.
    pub(crate) fn wants_state(&mut self, state: Option<&str>) -> bool {
        self.stateless &= state.is_none();
        let word = state.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_lowercase();
        let wanted = self.states.is_empty() || self.states.contains(&word);
        if !wanted {
            self.leave_out("in other states than those asked for (states=…)");
        }
        wanted
    }

    /// The kinds of GPU that go by these names in the cluster; any if there are none.
    pub(crate) fn kinds<'b>(&mut self, names: impl IntoIterator<Item = &'b str>) -> Vec<GpuKind> {
        if !self.kinds_matched {
            return Vec::new();
        }
        let cluster = self.request.cluster;
        let of = |name: &str| cluster.kinds().find(|(_, kind)| kind.name.eq_ignore_ascii_case(name)).map(|(id, _)| id);
        let mut names = names.into_iter().peekable();
        let asked = names.peek().is_some();
        let mut kinds: Vec<GpuKind> = names.filter_map(of).collect();
        self.unknown_kinds += u64::from(asked && kinds.is_empty());
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The gang of a job that was asked for like this; none if it is left out because it has no GPUs.
    pub(crate) fn gang(&mut self, wanted: Wanted, fault: impl FnOnce() -> Error) -> Result<Option<Gang>, Error> {
        let Wanted { gpus, nodes, millicores } = wanted;
        if gpus == 0 {
            return match self.zero_gpu {
                "drop" => {
                    self.leave_out("without GPUs (zero_gpu=drop; or keep, refuse)");
                    Ok(None)
                }
                "keep" => {
                    self.coreless += u64::from(millicores.unwrap_or(0) == 0);
                    let workers = nodes.unwrap_or(1).max(1);
                    let each = millicores.unwrap_or(0).div_ceil(u64::from(workers)).max(1);
                    let each = if millicores.unwrap_or(0) == 0 { 1000 } else { each.min(u64::from(u32::MAX)) as u32 };
                    Ok(Some(Gang::without_gpus(workers, each, Bytes::ZERO)))
                }
                _ => Err(fault()),
            };
        }
        let mut gang = Gang::whole(gpus, 1);
        if let Some(nodes) = nodes.filter(|&nodes| self.by_node && nodes > 0) {
            match gpus.is_multiple_of(nodes) {
                true => gang = Gang::whole(nodes, gpus / nodes),
                false => self.undivided += 1,
            }
        }
        if self.cores_kept {
            let each = millicores.unwrap_or(0).div_ceil(u64::from(gang.workers));
            gang.millicores = each.min(u64::from(u32::MAX)) as u32;
        }
        Ok(Some(gang))
    }

    /// The moment in a cell with a stamp, or with seconds since 1970; none if it never came.
    pub(crate) fn stamp(&self, row: &Row<'_>, column: usize) -> Result<Option<i64>, Error> {
        let Some(text) = row.text(column).filter(|text| !is_never(text)) else { return Ok(None) };
        self.parse_moment(text).map(Some).ok_or_else(|| row.fault(column, STAMP, text))
    }

    pub(crate) fn required_stamp(&self, row: &Row<'_>, column: usize) -> Result<i64, Error> {
        let missing = || row.fault(column, STAMP, row.text(column).unwrap_or_default());
        self.stamp(row, column)?.ok_or_else(missing)
    }

    pub(crate) fn parse_moment(&self, text: &str) -> Option<i64> {
        let seconds = || text.parse::<f64>().ok().filter(|seconds| (0.0..=7.25e9).contains(seconds));
        parse_stamp(text, self.zone).or_else(|| Some((seconds()? * 1000.0).round() as i64))
    }

    fn keep(&mut self, job: Job) -> Result<(), Error> {
        if self.from.is_some_and(|from| job.submitted < from) || self.until.is_some_and(|until| job.submitted >= until)
        {
            self.leave_out("submitted outside the time asked for (from=…, until=…)");
            return Ok(());
        }
        let place = self.kept.len() as u32;
        if let Some(id) = &job.id {
            let mut hasher = DefaultHasher::new();
            id.hash(&mut hasher);
            match self.ids.entry(hasher.finish()) {
                Entry::Vacant(entry) => {
                    entry.insert(place);
                }
                Entry::Occupied(entry) => {
                    let first = *entry.get() as usize;
                    // Two ids may have the same hash. Where names are not kept nobody can tell: at ten million ids, a
                    // chance of three in a million that a file is refused for it.
                    if self.kept[first].name.as_deref().is_none_or(|name| name == id) {
                        return self.meet_again(first, job);
                    }
                }
            }
        }
        self.disordered += u64::from(job.submitted < self.newest);
        self.newest = job.submitted;
        let (speed, truth) = self.truth(&job);
        let trained = match &job.work {
            Work::Trained(trained) => Some((trained.scaling, trained.asked, trained.recovery)),
            Work::Lasting(_) | Work::Steps(..) => None,
        };
        let name = if self.names_dropped { None } else { job.id.as_deref().map(Name::from) };
        let (deadline, expected) = (job.deadline, job.expected);
        let iterations = job.iterations.filter(|_| self.tells_iterations);
        let (line, submitted) = (job.line, job.submitted);
        let ask = self.ask(job);
        self.kept.push(Kept { line, name, submitted, ask, deadline, expected, iterations, speed, truth, trained });
        Ok(())
    }

    fn meet_again(&mut self, first: usize, job: Job) -> Result<(), Error> {
        let (line, id) = (job.line, job.id.clone().unwrap_or_default());
        if self.again == Again::Refused {
            return Err(Error::Field {
                file: self.file.clone(),
                line,
                column: self.id_column.clone(),
                expected: format!("ids that differ (line {} has the same)", self.kept[first].line),
                found: crate::error::shown(&id),
            });
        }
        self.repeated += 1;
        let (speed, truth) = match self.again {
            Again::First | Again::Refused => return Ok(()),
            Again::Last => self.truth(&job),
            Again::Merged => {
                let Work::Lasting(span) = job.work else { return Ok(()) };
                // The iterations of a job that lasts are milliseconds; no format has both retries and iterations.
                let before = Span::from_millis(self.kept[first].truth.iterations);
                self.truth(&Job { work: Work::Lasting(before + span), ..job })
            }
        };
        (self.kept[first].speed, self.kept[first].truth) = (speed, truth);
        Ok(())
    }

    /// The speed of a job, and the truth about it.
    fn truth(&mut self, job: &Job) -> (Arc<Speed>, Arc<Truth>) {
        let span = match &job.work {
            Work::Lasting(span) => *span,
            Work::Steps(speed, iterations) => {
                let truth = Truth {
                    speed: (**speed).clone(),
                    iterations: (*iterations).max(1),
                    start_up: Span::ZERO,
                    course: None,
                    resize: None,
                };
                return (speed.clone(), Arc::new(truth));
            }
            Work::Trained(trained) => return (trained.speed.clone(), trained.truth.clone()),
        };
        self.short += u64::from(span.as_millis() == 0);
        let share = job.gang.slice.map_or(1000, |slice| slice.grain.share().as_thousandths()).max(1);
        let ms = span.as_millis().max(1);
        if let Some(iterations) = job.iterations.filter(|_| self.tells_iterations) {
            let rate = iterations.max(1) as f64 * 1e6 / (ms as f64 * f64::from(share));
            let speed = Arc::new(Speed::constant(rate));
            let truth = Truth {
                speed: (*speed).clone(),
                iterations: iterations.max(1),
                start_up: Span::ZERO,
                course: None,
                resize: None,
            };
            return (speed, Arc::new(truth));
        }
        if let Some((speed, truth)) = self.lasting.get(&(share, ms)) {
            return (speed.clone(), truth.clone());
        }
        let constant = || Arc::new(Speed::constant(1e6 / f64::from(share)));
        let speed = self.speeds.entry(share).or_insert_with(constant).clone();
        let truth = Arc::new(Truth {
            speed: (*speed).clone(),
            iterations: ms,
            start_up: Span::ZERO,
            course: None,
            resize: None,
        });
        if self.lasting.len() < MOST_SHARED {
            self.lasting.insert((share, ms), (speed.clone(), truth.clone()));
        }
        (speed, truth)
    }

    fn ask(&mut self, job: Job) -> u32 {
        let queue = match &job.tenant {
            Some(tenant) if self.queues_matched => {
                let queue = self.request.queues.named(tenant);
                self.unmatched_tenants += u64::from(queue.is_none());
                queue.unwrap_or(QueueId::ROOT)
            }
            _ => QueueId::ROOT,
        };
        let user = match job.user.or(job.tenant) {
            Some(user) => user,
            None => {
                self.unknown_users += 1;
                self.name("unknown")
            }
        };
        let ask = Ask { user, queue, priority: job.priority, weight: job.weight, gang: job.gang, kinds: job.kinds };
        let fresh = self.asks.len() as u32;
        match self.ask_index.entry(ask) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                self.asks.push(entry.key().clone());
                *entry.insert(fresh)
            }
        }
    }

    /// The workload, in order of submission.
    pub(crate) fn finish(mut self) -> Result<Workload, Error> {
        self.check_kept()?;
        let zero = self.zero()?;
        self.conclude(zero);
        let mut order: Vec<u32> = (0..self.kept.len() as u32).collect();
        order.sort_by_key(|&place| self.kept[place as usize].submitted);
        let mut jobs = Vec::with_capacity(order.len());
        let mut specs: Vec<Option<Arc<JobSpec>>> = vec![None; self.asks.len()];
        let unnamed: Name = "job".into();
        for place in order {
            let kept = &self.kept[place as usize];
            let submitted = Time::from_millis((kept.submitted - zero) as u64);
            let alike = self.names_dropped
                && kept.trained.is_none()
                && kept.deadline.is_none()
                && kept.expected.is_none()
                && kept.iterations.is_none();
            let known = specs[kept.ask as usize].as_ref().filter(|_| alike);
            let spec = match known {
                Some(spec) => spec.clone(),
                None => Arc::new(self.spec(kept, submitted, &unnamed)?),
            };
            if alike {
                specs[kept.ask as usize] = Some(spec.clone());
            }
            jobs.push(TrueJob { submitted, spec, speed: kept.speed.clone(), truth: kept.truth.clone() });
        }
        Ok(Workload { name: self.file, jobs, assumptions: self.assumptions })
    }

    fn spec(&self, kept: &Kept, submitted: Time, unnamed: &Name) -> Result<JobSpec, Error> {
        let Ask { user, queue, priority, weight, gang, kinds } = self.asks[kept.ask as usize].clone();
        let name = match (&kept.name, self.names_dropped) {
            (Some(name), _) => name.clone(),
            (None, true) => unnamed.clone(),
            (None, false) => format!("line{}", kept.line).into(),
        };
        let Gang { workers, slice, millicores, memory } = gang;
        let draft = JobDraft {
            user,
            queue,
            priority,
            weight,
            scaling: Scaling::Rigid(workers),
            roles: vec![Role { slice, millicores, memory, ..Role::worker() }],
            kinds,
            ends: kept.iterations.map_or(Ends::Itself, |iterations| Ends::Iterations(iterations.max(1))),
            deadline: kept.deadline.map(|after| submitted + after),
            expected: kept.expected,
            ..JobDraft::rigid(name, workers)
        };
        let draft = match kept.trained {
            None => draft,
            Some((scaling, asked, recovery)) => {
                let asked = asked.filter(|&workers| scaling.allows(workers));
                JobDraft { scaling, asked, recovery, ends: Ends::Iterations(kept.truth.iterations), ..draft }
            }
        };
        let fault = |what: String| Error::Line { file: self.file.clone(), line: kept.line, what };
        draft.build().map_err(|invalid| fault(invalid.to_string()))
    }

    fn check_kept(&self) -> Result<(), Error> {
        let Some(first) = self.kept.iter().min_by_key(|kept| kept.submitted) else {
            let left = self.left_out.iter().map(|(what, count)| format!("{count} {what}"));
            let bad = (self.bad > 0).then(|| format!("{} bad rows", self.bad));
            let left: Vec<String> = left.chain(bad).collect();
            let left = if left.is_empty() { String::new() } else { format!("; left out: {}", left.join(", ")) };
            return Err(Error::File {
                file: self.file.clone(),
                what: format!("expected at least one job, found none{left}"),
            });
        };
        let last = self.kept.iter().max_by_key(|kept| kept.submitted).unwrap_or(first);
        if (last.submitted - first.submitted) as f64 > LONGEST_S * 1000.0 {
            let (early, late) = (first.line, last.line);
            let what = format!("expected submissions within 100 years, found more since that on line {early}");
            return Err(Error::Line { file: self.file.clone(), line: late, what });
        }
        Ok(())
    }

    /// The moment that becomes time zero, on the trace's clock.
    fn zero(&mut self) -> Result<i64, Error> {
        let options = self.request.options;
        let first = self.kept.iter().map(|kept| kept.submitted).min().unwrap_or(0);
        let default = if self.stamped { Origin::First } else { Origin::File };
        let origin = match options.get("origin") {
            None => default,
            Some("file") => Origin::File,
            Some("first") => Origin::First,
            Some(_) => Origin::Midnight,
        };
        let show = |ms: i64| match self.stamped {
            true => format!("{} ({})", show_stamp(ms, self.zone), self.zone),
            false => format!("second {} of the trace", ms as f64 / 1000.0),
        };
        let (zero, why) = match (origin, self.from) {
            (Origin::File, _) if self.stamped => {
                let what =
                    "a trace with dates has no zero of its own: expected first or midnight for `origin`, found file";
                return Err(options.fault(what.into()));
            }
            (Origin::Midnight, _) if !self.stamped => {
                let what =
                    "a trace without dates knows no midnight: expected file or first for `origin`, found midnight";
                return Err(options.fault(what.into()));
            }
            (_, Some(from)) if options.get("origin").is_none() => (from, "the start asked for"),
            (Origin::File, _) => return Ok(first.min(0)),
            (Origin::First, _) => (first, "the first submission"),
            (Origin::Midnight, _) => (midnight(first, self.zone), "the midnight before the first submission"),
        };
        self.assumptions.push(format!("time 0 is {}, {why} (origin=…)", show(zero)));
        Ok(zero)
    }

    /// Says what was counted on the way.
    fn conclude(&mut self, zero: i64) {
        let mut lines = Vec::new();
        if self.stamped && self.request.options.get("timezone").is_none() {
            lines.push("stamps that name no time zone are taken as UTC, without summer time (timezone=+08:00)".into());
        }
        if !self.stateless && self.states.is_empty() {
            lines.push("jobs that failed or were cancelled count like those that finished (states=…)".into());
        }
        if !self.states.is_empty() {
            lines.push(format!("only jobs in these states are read: {}", self.states.join(", ")));
        }
        lines.extend(self.left_out.iter().map(|(what, count)| format!("{count} jobs are left out: {what}")));
        let told = [
            (self.unknown_users, "jobs have no user: they belong to `unknown`"),
            (self.repeated, "rows continue a job that stands further up (retries=…)"),
            (self.disordered, "jobs stand below others that were submitted later: sorted by submission"),
            (self.short, "jobs shorter than 1 ms last 1 ms"),
            (self.coreless, "jobs without GPUs do not say how many cores they take: one"),
            (self.undivided, "jobs cannot be divided evenly among their nodes: one worker per GPU"),
            (self.unknown_kinds, "jobs ask for kinds of GPU that the cluster does not have: they may run on any"),
            (self.unmatched_tenants, "jobs belong to tenants that are no queue of the cluster: the root queue"),
        ];
        lines.extend(told.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        if !self.wants_more() {
            lines.push(format!("only the first {} jobs of the file were read (limit)", self.limit));
        }
        if self.names_dropped {
            lines.push("all jobs are called `job` (names=drop)".into());
        }
        if self.bad > 0 {
            lines.push(format!("{} bad rows are left out (skip_bad_rows=true)", self.bad));
            lines.extend(self.bad_rows.drain(..).map(|row| format!("left out: {row}")));
            if self.bad > LISTED as u64 {
                lines.push(format!("left out: {} more bad rows", self.bad - LISTED as u64));
            }
        }
        debug_assert!(self.kept.iter().all(|kept| kept.submitted >= zero), "time zero comes first");
        self.assumptions.extend(lines);
    }
}

pub(crate) const FREE_INTERRUPTIONS: &str =
    "interruptions cost nothing: the trace does not say how long a restart takes";

const STAMP: &str = "a time like 2017-10-09 07:03:03 from 1970 to 2199";

/// Seconds in a cell that must not be empty, in milliseconds.
pub(crate) fn required_seconds(row: &Row<'_>, column: usize) -> Result<i64, Error> {
    row.required(column, &format!("a number from 0 to {LONGEST_S}"))?;
    Ok(seconds(row, column)?.unwrap_or(0))
}

/// Seconds in a cell, in milliseconds.
pub(crate) fn seconds(row: &Row<'_>, column: usize) -> Result<Option<i64>, Error> {
    timed(row, column, 1.0)
}

/// A time in units of so many seconds, in milliseconds.
pub(crate) fn timed(row: &Row<'_>, column: usize, unit_s: f64) -> Result<Option<i64>, Error> {
    let most = LONGEST_S / unit_s;
    Ok(row.real(column, 0.0..=most)?.map(|number| (number * unit_s * 1000.0).round() as i64))
}

/// A number of GPUs in a cell that must not be empty; 0 is left to whoever makes the gang.
pub(crate) fn required_gpus(row: &Row<'_>, column: usize) -> Result<u32, Error> {
    row.required(column, &format!("a whole number from 0 to {MOST_GPUS}"))?;
    Ok(row.count(column, 0..=MOST_GPUS)?.unwrap_or(0))
}

/// What is wrong with a job without GPUs where none are wanted.
pub(crate) fn no_gpus(row: &Row<'_>, column: usize) -> Error {
    row.fault(column, format!("a whole number from 1 to {MOST_GPUS}"), "0")
}

/// From a start to an end that must not lie before it.
pub(crate) fn between(row: &Row<'_>, start: i64, end: i64, end_column: usize) -> Result<Span, Error> {
    let found = || row.text(end_column).unwrap_or_default();
    let span = (end - start) as f64 / 1000.0;
    if !(0.0..=LONGEST_S).contains(&span) {
        return Err(row.fault(end_column, "a time after the start, by at most 100 years", found()));
    }
    Ok(Span::from_millis((end - start) as u64))
}

pub(crate) fn span(ms: i64) -> Span {
    Span::from_millis(ms.max(0) as u64)
}
