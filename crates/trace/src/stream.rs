//! The jobs of a workload one after the other, in order of submission, as often as somebody wants to see them.
//!
//! A file of a layout with one row per job is read anew for every pass, if its rows stand in order of submission; then
//! only what has to be remembered between rows is in memory:
//!
//! - which ids there were, so that none comes twice: whole numbers below 2²⁸ as one bit each, others as 64 bits of hash.
//!   Ids with the same hash are compared as they stand in the file before anything is refused.
//! - the place of every job that others wait for. In a table in order it must stand further up.
//!
//! Everything else is read whole: other layouts, rows out of order, generators, and what can be read only once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::{ClaimId, Cluster, QueueTree, Time};
use perf::TrueJob;

use crate::Workload;
use crate::depend::{Pending, fault};
use crate::error::{Error, shown};
use crate::inspect::Observed;
use crate::readers::{self, Format, Options, Request};
use crate::sample::{Chosen, Sampling};

/// What is wrong in a table of up to so many jobs is said by reading it whole, which tells more.
const FEW: u64 = 1 << 20;
/// Whole numbers below this are remembered by a bit each: 32 MiB.
const MOST_NUMBER: u64 = 1 << 28;

/// One job after the other, as a layout has them: in the order of its rows, with dependencies still names.
pub(crate) trait Rows {
    fn next_job(&mut self) -> Result<Option<Pending>, Error>;

    /// What was taken for granted so far.
    fn assumptions(&self) -> Vec<String>;
}

/// A workload that can be gone through from the first job to the last any number of times.
pub struct Stream<'a> {
    name: String,
    source: Source<'a>,
    assumptions: Vec<String>,
    jobs: u64,
}

enum Source<'a> {
    Whole(Vec<TrueJob>),
    Rows(Table<'a>),
    Part(Box<Stream<'a>>, Vec<Chosen>),
}

/// A file whose rows are jobs in order of submission.
struct Table<'a> {
    format: &'static Format,
    path: PathBuf,
    options: Options,
    cluster: &'a Cluster,
    queues: &'a QueueTree,
    /// Keys of the ids that others wait for.
    waited_for: HashSet<u64>,
}

/// All jobs of one pass.
pub type Jobs<'s> = Box<dyn Iterator<Item = Result<TrueJob, Error>> + 's>;

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("name", &self.name).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl<'a> Stream<'a> {
    /// The workload that [`load_workload`](crate::load_workload) would load.
    pub fn open(text: &str, cluster: &'a Cluster, queues: &'a QueueTree, seed: u64) -> Result<Stream<'a>, Error> {
        let streamed = match readers::one_row_per_job(text)? {
            Some(file) => {
                let table = Table {
                    format: file.format,
                    path: file.path,
                    options: file.options,
                    cluster,
                    queues,
                    waited_for: HashSet::new(),
                };
                table.survey(file.name, file.how)?
            }
            None => None,
        };
        match streamed {
            Some(stream) => Ok(stream),
            None => crate::load_workload(text, cluster, queues, seed).map(Stream::of),
        }
    }

    /// A workload that is in memory anyhow.
    pub fn of(workload: Workload) -> Stream<'a> {
        let Workload { name, jobs, assumptions } = workload;
        Stream { name, jobs: jobs.len() as u64, source: Source::Whole(jobs), assumptions }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn assumptions(&self) -> &[String] {
        &self.assumptions
    }

    /// How many jobs there are.
    pub fn len(&self) -> u64 {
        self.jobs
    }

    pub fn is_empty(&self) -> bool {
        self.jobs == 0
    }

    /// Whether jobs are read from the file in every pass, instead of all being in memory.
    pub fn is_read_anew(&self) -> bool {
        match &self.source {
            Source::Whole(_) => false,
            Source::Rows(_) => true,
            Source::Part(whole, _) => whole.is_read_anew(),
        }
    }

    /// Whether some job may wait for another.
    fn may_wait(&self) -> bool {
        match &self.source {
            Source::Whole(_) => true,
            Source::Rows(table) => !table.waited_for.is_empty(),
            Source::Part(whole, _) => whole.may_wait(),
        }
    }

    /// Whether this very file is read in every pass, so that it must not change.
    pub fn reads_from(&self, path: &Path) -> bool {
        match &self.source {
            Source::Whole(_) => false,
            Source::Rows(table) => match (table.path.canonicalize(), path.canonicalize()) {
                (Ok(mine), Ok(other)) => mine == other,
                _ => false,
            },
            Source::Part(whole, _) => whole.reads_from(path),
        }
    }

    /// All jobs, in order of submission.
    pub fn jobs(&self) -> Result<Jobs<'_>, Error> {
        Ok(match &self.source {
            Source::Whole(jobs) => Box::new(jobs.iter().cloned().map(Ok)),
            Source::Rows(table) => Box::new(table.jobs()?),
            Source::Part(whole, chosen) => Box::new(crate::sample::jobs_of(whole.jobs()?, chosen)),
        })
    }

    /// What is to be seen of them.
    pub fn observe(&self, cluster: &Cluster) -> Result<Observed, Error> {
        let mut observed = Observed::default();
        for job in self.jobs()? {
            observed.add(&job?, cluster);
        }
        Ok(observed)
    }

    /// All of them in memory.
    pub fn collect(self) -> Result<Workload, Error> {
        let jobs = match self.source {
            Source::Whole(jobs) => jobs,
            _ => self.jobs()?.collect::<Result<_, _>>()?,
        };
        Ok(Workload { name: self.name, jobs, assumptions: self.assumptions })
    }

    /// The chosen part. Jobs no longer wait for others that were left out; the assumptions say what was done.
    pub fn sample(self, sampling: &Sampling, cluster: &Cluster) -> Result<Stream<'a>, Error> {
        let (chosen, told) = sampling.choose(&self, cluster)?;
        let mut assumptions = self.assumptions.clone();
        assumptions.push(told);
        let (name, jobs) = (self.name.clone(), chosen.len() as u64);
        let (source, freed) = match chosen.is_sorted_by_key(|chosen| chosen.index) {
            true => {
                let freed = if self.may_wait() { crate::sample::freed(self.jobs()?, &chosen)? } else { 0 };
                (Source::Part(Box::new(self), chosen), freed)
            }
            // They change places, for which all that are chosen have to be there.
            false => {
                let (jobs, freed) = crate::sample::rearranged(self.jobs()?, &chosen)?;
                (Source::Whole(jobs), freed)
            }
        };
        if freed > 0 {
            assumptions.push(format!("{freed} jobs no longer wait for jobs that are left out or come later now"));
        }
        Ok(Stream { name, source, assumptions, jobs })
    }
}

impl<'a> Table<'a> {
    fn rows(&self) -> Result<Box<dyn Rows + '_>, Error> {
        let rows = self.format.rows.expect("only layouts with one row per job get here");
        rows(Request { path: &self.path, options: &self.options, cluster: self.cluster, queues: self.queues })
    }

    /// Looks at every row once. Nothing if the table has to be read whole.
    fn survey(mut self, name: String, how: Option<String>) -> Result<Option<Stream<'a>>, Error> {
        let mut rows = self.rows()?;
        let mut survey = Survey::default();
        while let Some(job) = rows.next_job()? {
            survey.add(job);
        }
        let assumptions = how.into_iter().chain(rows.assumptions()).collect();
        drop(rows);
        let Survey { jobs, disordered, twice, missing, waited_for, .. } = survey;
        if disordered || (jobs <= FEW && (!twice.is_empty() || missing.is_some())) {
            return Ok(None);
        }
        self.refuse_twice(&twice)?;
        if let Some((line, id)) = missing {
            let file = self.path.display().to_string();
            return Err(fault(&file, line, "after", "ids of jobs further up", shown(&id)));
        }
        self.waited_for = waited_for;
        Ok(Some(Stream { name, source: Source::Rows(self), assumptions, jobs }))
    }

    /// Refuses an id that really comes twice.
    fn refuse_twice(&self, suspects: &HashSet<u64>) -> Result<(), Error> {
        if suspects.is_empty() {
            return Ok(());
        }
        let mut lines = HashMap::new();
        let mut rows = self.rows()?;
        while let Some(Pending { line, id, .. }) = rows.next_job()? {
            let Some(id) = id.filter(|id| suspects.contains(&key(id))) else { continue };
            if let Some(first) = lines.insert(id.clone(), line) {
                let expected = format!("ids that differ (line {first} has the same)");
                return Err(fault(&self.path.display().to_string(), line, "id", expected, shown(&id)));
            }
        }
        Ok(())
    }

    fn jobs(&self) -> Result<TableJobs<'_>, Error> {
        let file = self.path.display().to_string();
        Ok(TableJobs { rows: self.rows()?, file, waited_for: &self.waited_for, places: HashMap::new(), next: 0 })
    }
}

struct TableJobs<'s> {
    rows: Box<dyn Rows + 's>,
    file: String,
    waited_for: &'s HashSet<u64>,
    places: HashMap<u64, u32>,
    next: u32,
}

impl TableJobs<'_> {
    fn next_job(&mut self) -> Result<Option<TrueJob>, Error> {
        let Some(Pending { line, id, mut job, after }) = self.rows.next_job()? else { return Ok(None) };
        if !after.is_empty() {
            let place = |id| {
                let missing = || fault(&self.file, line, "after", "ids of jobs further up", shown(id));
                self.places.get(&key(id)).copied().map(ClaimId).ok_or_else(missing)
            };
            let mut after = after.iter().map(|id| place(id)).collect::<Result<Vec<_>, _>>()?;
            after.sort_unstable();
            after.dedup();
            job.spec = Arc::new(Arc::unwrap_or_clone(job.spec).run_after(after));
        }
        let key = id.filter(|_| !self.waited_for.is_empty()).map(|id| key(&id));
        if let Some(key) = key.filter(|key| self.waited_for.contains(key)) {
            self.places.insert(key, self.next);
        }
        self.next += 1;
        Ok(Some(job))
    }
}

impl Iterator for TableJobs<'_> {
    type Item = Result<TrueJob, Error>;

    fn next(&mut self) -> Option<Result<TrueJob, Error>> {
        self.next_job().transpose()
    }
}

/// What one has to know of a table before its jobs can be taken row by row.
#[derive(Default)]
struct Survey {
    jobs: u64,
    newest: Time,
    disordered: bool,
    ids: Ids,
    /// Keys that were met again.
    twice: HashSet<u64>,
    /// The first job, and what it waits for that does not stand further up.
    missing: Option<(u64, String)>,
    waited_for: HashSet<u64>,
}

impl Survey {
    fn add(&mut self, job: Pending) {
        self.jobs += 1;
        self.disordered |= job.job.submitted < self.newest;
        self.newest = job.job.submitted;
        for id in &job.after {
            if self.missing.is_none() && !self.ids.contains(key(id)) {
                self.missing = Some((job.line, id.to_string()));
            }
            self.waited_for.insert(key(id));
        }
        if let Some(key) = job.id.map(|id| key(&id))
            && !self.ids.insert(key)
        {
            self.twice.insert(key);
        }
    }
}

/// Ids in little memory.
#[derive(Default)]
struct Ids {
    numbers: Vec<u64>,
    hashes: HashSet<u64>,
}

impl Ids {
    /// Whether it is new.
    fn insert(&mut self, key: u64) -> bool {
        if key >= MOST_NUMBER {
            return self.hashes.insert(key);
        }
        let (word, bit) = ((key / 64) as usize, 1 << (key % 64));
        if word >= self.numbers.len() {
            self.numbers.resize(word + 1, 0);
        }
        let new = self.numbers[word] & bit == 0;
        self.numbers[word] |= bit;
        new
    }

    fn contains(&self, key: u64) -> bool {
        match key < MOST_NUMBER {
            true => self.numbers.get((key / 64) as usize).is_some_and(|word| word & (1 << (key % 64)) != 0),
            false => self.hashes.contains(&key),
        }
    }
}

/// A number below [`MOST_NUMBER`] for an id that is written like it, else a larger one.
fn key(id: &str) -> u64 {
    let plain = id.bytes().all(|byte| byte.is_ascii_digit()) && (id == "0" || !id.starts_with('0'));
    if let Some(number) = id.parse().ok().filter(|&number: &u64| plain && number < MOST_NUMBER) {
        return number;
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() | MOST_NUMBER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Part;
    use crate::{load_cluster, load_workload};
    use cluster::Span;

    /// The table read in one pass after the other and the same read whole, which must agree.
    fn both(text: &str, options: &str) -> (Workload, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.csv");
        std::fs::write(&path, text).unwrap();
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let name = format!("csv:{}{options}", path.display());
        let stream = Stream::open(&name, &cluster, &queues, 1).unwrap();
        let anew = stream.is_read_anew();
        let whole = load_workload(&name, &cluster, &queues, 1).unwrap();
        assert_eq!(stream.len(), whole.jobs.len() as u64);
        assert_eq!(stream.observe(&cluster).unwrap(), Observed::of(&whole, &cluster));
        let collected = stream.collect().unwrap();
        assert_eq!(collected, whole);
        (collected, anew)
    }

    fn fault_of(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.csv");
        std::fs::write(&path, text).unwrap();
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let error = Stream::open(&format!("csv:{}", path.display()), &cluster, &queues, 1).unwrap_err().to_string();
        error.split_once("jobs.csv:").expect("the file is named").1.to_string()
    }

    const CHAIN: &str = "id,submit_s,gpus,duration_s,after\na,0,1,5,\n7,1,2,6,\n07,2,1,5,a|7\nlast,2,4,9,07|a\n";

    #[test]
    fn a_table_in_order_is_read_anew_and_gives_the_same_jobs() {
        let (workload, anew) = both(CHAIN, "");
        assert!(anew);
        assert_eq!(workload.jobs[3].spec.after, [ClaimId(0), ClaimId(2)]);
        assert!(both("submit_s,gpus,duration_s\n0,1,5\nx,1,5\n3,1,5\n", "?skip_bad_rows=true&limit=1").1);
    }

    #[test]
    fn a_table_out_of_order_is_read_whole() {
        assert!(!both("submit_s,gpus,duration_s\n5,1,5\n3,2,5\n", "").1);
    }

    #[test]
    fn what_is_wrong_with_ids_and_dependencies_is_said_with_both_lines() {
        let again = CHAIN.replace("last,", "7,");
        assert_eq!(fault_of(&again), "5: column `id`: expected ids that differ (line 3 has the same), found 7");
        let expected = "4: column `after`: expected ids of other jobs in this file, found 8";
        assert_eq!(fault_of(&CHAIN.replace("a|7", "a|8")), expected);
    }

    #[test]
    fn large_tables_are_refused_for_the_same_reasons_without_being_read_whole() {
        let rows = (0..=FEW).map(|row| format!("j{row},{row},1,5,\n")).collect::<String>();
        let table = |last: &str| fault_of(&format!("id,submit_s,gpus,duration_s,after\n{rows}{last}\n"));
        let line = FEW + 3;
        let expected = format!("{line}: column `id`: expected ids that differ (line 9 has the same), found j7");
        assert_eq!(table("j7,2000000,1,5,"), expected);
        let expected = format!("{line}: column `after`: expected ids of jobs further up, found nobody");
        assert_eq!(table("z,2000000,1,5,j7|nobody"), expected);
    }

    #[test]
    fn numbers_and_other_ids_are_never_confused() {
        let mut ids = Ids::default();
        for (id, new) in [("7", true), ("07", true), ("7", false), ("0", true), ("-7", true), ("268435455", true)] {
            assert_eq!(ids.insert(key(id)), new, "{id}");
        }
        assert!(key("268435456") >= MOST_NUMBER && key("") >= MOST_NUMBER && key("+7") >= MOST_NUMBER);
        assert!(ids.contains(key("07")) && !ids.contains(key("8")) && !ids.contains(key("008")));
    }

    #[test]
    fn a_part_of_a_stream_is_the_same_part_of_the_workload() {
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.csv");
        let workload = load_workload("demo:chains=0.3,deadlines=0.5", &cluster, &queues, 3).unwrap();
        crate::write_csv(&Stream::of(workload), &path, &cluster, &queues).unwrap();
        let name = format!("csv:{}", path.display());
        let whole = load_workload(&name, &cluster, &queues, 1).unwrap();
        let hours = Span::from_hours;
        for (part, anew) in [
            (Part::All, true),
            (Part::Window(hours(3), hours(9)), true),
            (Part::Busiest(hours(4)), true),
            (Part::FoldedDay(hours(2), hours(10)), false),
        ] {
            let sampling = Sampling { part, thin: Some(0.5), seed: 5, ..Sampling::default() };
            let stream = Stream::open(&name, &cluster, &queues, 1).unwrap();
            let sampled = stream.sample(&sampling, &cluster).unwrap();
            let straight = sampled.is_read_anew();
            assert_eq!(sampled.collect().unwrap(), crate::sample(&whole, &sampling, &cluster).unwrap(), "{part:?}");
            assert!(straight || !anew, "{part:?}");
        }
    }
}
