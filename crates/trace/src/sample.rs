//! A part of a workload, chosen as papers choose theirs: a window, the busiest hours, all days folded into one, so many
//! jobs at random, a rate.
//!
//! What is chosen starts at time zero. The steps are always in the same order: conditions on jobs, then a part of the
//! time, then thinning, then a number of jobs, then a rate.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, JobDraft, Span, Time};
use perf::TrueJob;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Workload;
use crate::error::{Error, shown};
use crate::inspect::run_time_s;
use crate::stream::Stream;

const DAY: Span = Span::from_hours(24);

/// Which part.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// Only jobs that run at least so long. Pollux (OSDI 2021) and Sia (SOSP 2023): 60 s.
    pub min_duration: Option<Span>,
    /// Only jobs of less GPU time. Pollux and Sia: 1000 GPU hours.
    pub max_gpu_hours: Option<f64>,
    pub part: Part,
    /// Every job with this probability.
    pub thin: Option<f64>,
    /// So many jobs at random, each at most once. Pollux, Sia: 160; Tiresias (NSDI 2019): 480.
    pub jobs: Option<usize>,
    pub rate: Option<Rate>,
    pub seed: u64,
}

/// A part of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    #[default]
    All,
    /// Jobs submitted from the first moment on and before the second. Helios (SC 2021) and Lucid (ASPLOS 2023) take the
    /// last month, Sia a window of 8 hours.
    Window(Span, Span),
    /// The window of this length with most submissions. Sia: 8 hours.
    Busiest(Span),
    /// All days laid upon one another, then a window of that one day. Pollux: hours 2 to 10.
    FoldedDay(Span, Span),
}

/// Jobs per hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// By leaving out jobs at random, which leaves the rhythm as it is. Sia: 20 jobs per hour.
    Thinned(f64),
    /// By stretching or compressing time, run times excepted; all jobs stay. Gavel (OSDI 2020) and Shockwave (NSDI 2023)
    /// sweep the rate of arrivals so.
    Compressed(f64),
}

/// The chosen part of a workload. Jobs no longer wait for others that were left out; `assumptions` say what was done.
pub fn sample(workload: &Workload, sampling: &Sampling, cluster: &Cluster) -> Result<Workload, Error> {
    Stream::of(workload.clone()).sample(sampling, cluster)?.collect()
}

/// A job that is still there: its place in the workload and when it is submitted now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) index: u32,
    pub(crate) at: Time,
}

impl Sampling {
    /// The jobs chosen, in order of submission, and how; sixteen bytes for each that fits the conditions.
    pub(crate) fn choose(&self, stream: &Stream<'_>, cluster: &Cluster) -> Result<(Vec<Chosen>, String), Error> {
        self.check()?;
        let fault = |what: String| Error::Workload { name: stream.name().into(), what };
        let mut steps = Vec::new();
        let mut kept = self.fitting(stream, cluster, &mut steps)?;
        let length = self.part.apply(&mut kept, &mut steps);
        if kept.is_empty() {
            return Err(fault(format!("expected jobs in the part asked for, found none ({})", steps.join("; "))));
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        if let Some(share) = self.thin {
            kept.retain(|_| random.random::<f64>() < share);
            steps.push(format!("thinned to a share of {share} (seed {}): {} jobs", self.seed, kept.len()));
        }
        if let Some(jobs) = self.jobs {
            if kept.len() < jobs {
                return Err(fault(format!("expected at least {jobs} jobs to choose from, found {}", kept.len())));
            }
            kept = choose(kept, jobs, &mut random);
            steps.push(format!("{jobs} jobs at random (seed {})", self.seed));
        }
        if let Some(rate) = self.rate {
            steps.push(rate.apply(&mut kept, length, &mut random).map_err(fault)?);
        }
        if kept.is_empty() {
            return Err(fault(format!("expected at least one job to be left, found none ({})", steps.join("; "))));
        }
        Ok((kept, format!("sampled from {} jobs: {}", stream.len(), steps.join("; "))))
    }

    fn check(&self) -> Result<(), Error> {
        let fault = |what: String| Err(Error::Name(what));
        match self.part {
            Part::Window(start, end) | Part::FoldedDay(start, end) if start >= end => {
                return fault(format!("expected a window that ends after it starts, found {start}..{end}"));
            }
            Part::FoldedDay(_, end) if end > DAY => {
                return fault(format!("expected a window within the one day, found an end of {end}"));
            }
            Part::Busiest(Span::ZERO) => return fault("expected busiest hours of some length, found 0s".into()),
            _ => {}
        }
        if let Some(share) = self.thin.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return fault(format!("expected a share above 0 and up to 1 to thin to, found {share}"));
        }
        if self.jobs == Some(0) {
            return fault("expected at least 1 job to choose, found 0".into());
        }
        if let Some(hours) = self.max_gpu_hours.filter(|hours| !(*hours > 0.0 && hours.is_finite())) {
            return fault(format!("expected positive GPU hours, found {hours}"));
        }
        if let Some(Rate::Thinned(rate) | Rate::Compressed(rate)) = self.rate
            && !(1e-6..=1e9).contains(&rate)
        {
            return fault(format!("expected a rate from 0.000001 to 1000000000 jobs per hour, found {rate}"));
        }
        Ok(())
    }

    fn fitting(&self, stream: &Stream<'_>, cluster: &Cluster, steps: &mut Vec<String>) -> Result<Vec<Chosen>, Error> {
        let least = self.min_duration.unwrap_or(Span::ZERO).as_secs_f64();
        let most = self.max_gpu_hours.unwrap_or(f64::INFINITY);
        let fits = |job: &TrueJob| {
            let duration = run_time_s(job, cluster);
            duration >= least && job.spec.min_gpus().as_f64() * duration / 3600.0 < most
        };
        let mut kept = Vec::new();
        for (index, job) in (0..).zip(stream.jobs()?) {
            let job = job?;
            kept.extend(fits(&job).then_some(Chosen { index, at: job.submitted }));
        }
        if let Some(least) = self.min_duration {
            steps.push(format!("only jobs of at least {least}"));
        }
        if let Some(most) = self.max_gpu_hours {
            steps.push(format!("only jobs of less than {most} GPU hours"));
        }
        Ok(kept)
    }
}

impl Part {
    /// Leaves the jobs of this part, counted from its start, and says how long it is.
    fn apply(self, kept: &mut Vec<Chosen>, steps: &mut Vec<String>) -> Span {
        match self {
            Part::All => {
                let first = kept.first().map_or(Time::ZERO, |kept| kept.at);
                let last = kept.last().map_or(Time::ZERO, |kept| kept.at);
                cut(kept, first.since(Time::ZERO), Span::MAX);
                last.since(first)
            }
            Part::Window(start, end) => {
                cut(kept, start, end);
                steps.push(format!("from {start} to {end}: {} jobs", kept.len()));
                end.saturating_sub(start)
            }
            Part::Busiest(length) => {
                let start = busiest(kept, length).since(Time::ZERO);
                cut(kept, start, start + length);
                steps.push(format!("the busiest {length}, from {start}: {} jobs", kept.len()));
                length
            }
            Part::FoldedDay(start, end) => {
                let of_day = |at: Time| Time::from_millis(at.as_millis() % DAY.as_millis());
                kept.iter_mut().for_each(|kept| kept.at = of_day(kept.at));
                kept.sort_by_key(|kept| kept.at);
                cut(kept, start, end);
                steps.push(format!("all days folded into one, from {start} to {end}: {} jobs", kept.len()));
                end.saturating_sub(start)
            }
        }
    }
}

/// Jobs from the start on and before the end, counted from the start.
fn cut(kept: &mut Vec<Chosen>, start: Span, end: Span) {
    let (from, to) = (Time::ZERO + start, Time::ZERO + end);
    kept.retain(|kept| from <= kept.at && (kept.at < to || end == Span::MAX));
    kept.iter_mut().for_each(|kept| kept.at = Time::ZERO + (kept.at - from));
}

/// Where a window of this length holds most jobs: the earliest such moment at which one is submitted.
fn busiest(kept: &[Chosen], length: Span) -> Time {
    let (mut best, mut most, mut end) = (Time::ZERO, 0, 0);
    for (first, job) in kept.iter().enumerate() {
        while end < kept.len() && kept[end].at < job.at + length {
            end += 1;
        }
        if end - first > most {
            (best, most) = (job.at, end - first);
        }
    }
    best
}

/// So many of them, in their order.
fn choose(mut kept: Vec<Chosen>, jobs: usize, random: &mut ChaCha8Rng) -> Vec<Chosen> {
    for place in 0..jobs {
        let other = random.random_range(place..kept.len());
        kept.swap(place, other);
    }
    kept.truncate(jobs);
    kept.sort_by_key(|kept| (kept.at, kept.index));
    kept
}

impl Rate {
    fn apply(self, kept: &mut Vec<Chosen>, length: Span, random: &mut ChaCha8Rng) -> Result<String, String> {
        let hours = length.as_secs_f64() / 3600.0;
        if hours == 0.0 {
            return Err("expected jobs over some time to have a rate, found all in one moment".into());
        }
        let found = kept.len() as f64 / hours;
        match self {
            Rate::Thinned(rate) => {
                let jobs = (rate * hours).round() as usize;
                if jobs > kept.len() {
                    return Err(format!(
                        "expected at least {rate} jobs per hour to thin, found {found:.3}; compressing time can reach it"
                    ));
                }
                *kept = choose(std::mem::take(kept), jobs, random);
                Ok(format!("thinned from {found:.3} to {rate} jobs per hour: {jobs} jobs"))
            }
            Rate::Compressed(rate) => {
                let factor = found / rate;
                for kept in kept {
                    kept.at = Time::ZERO + Span::from_secs_f64(kept.at.as_secs_f64() * factor);
                }
                Ok(format!("time multiplied by {factor:.4}, from {found:.3} to {rate} jobs per hour"))
            }
        }
    }
}

/// The chosen of all jobs, as they are submitted now. Both are in the same order.
pub(crate) fn jobs_of<'s>(
    all: impl Iterator<Item = Result<TrueJob, Error>> + 's,
    chosen: &'s [Chosen],
) -> impl Iterator<Item = Result<TrueJob, Error>> + 's {
    let mut next = 0;
    (0..).zip(all).filter_map(move |(index, job)| {
        let Chosen { at, .. } = *chosen.get(next).filter(|chosen| chosen.index == index || job.is_err())?;
        next += 1;
        Some(job.map(|job| moved(&job, at, next - 1, |need| place_of(chosen, need)).0))
    })
}

/// How many of the chosen no longer wait for all they waited for.
pub(crate) fn freed(all: impl Iterator<Item = Result<TrueJob, Error>>, chosen: &[Chosen]) -> Result<u64, Error> {
    let (mut next, mut freed) = (0, 0);
    for (index, job) in (0..).zip(all) {
        let job = job?;
        if chosen.get(next).is_some_and(|chosen| chosen.index == index) {
            let stays = |need: &ClaimId| place_of(chosen, *need).is_some();
            freed += u64::from(!job.spec.after.iter().all(stays));
            next += 1;
        }
    }
    Ok(freed)
}

fn place_of(chosen: &[Chosen], need: ClaimId) -> Option<usize> {
    chosen.binary_search_by_key(&need.0, |chosen| chosen.index).ok()
}

/// The same of jobs that change places, and how many are freed.
pub(crate) fn rearranged(
    all: impl Iterator<Item = Result<TrueJob, Error>>,
    chosen: &[Chosen],
) -> Result<(Vec<TrueJob>, u64), Error> {
    let places: HashMap<u32, usize> = chosen.iter().enumerate().map(|(place, chosen)| (chosen.index, place)).collect();
    let mut found: Vec<Option<TrueJob>> = vec![None; chosen.len()];
    let mut freed = 0;
    for (index, job) in (0..).zip(all) {
        let job = job?;
        let Some(&place) = places.get(&index) else { continue };
        let (job, waits_less) = moved(&job, chosen[place].at, place, |need| places.get(&need.0).copied());
        freed += u64::from(waits_less);
        found[place] = Some(job);
    }
    Ok((found.into_iter().flatten().collect(), freed))
}

/// A job as it is submitted now, and whether it waits for fewer; `after` and the deadline follow.
fn moved(job: &TrueJob, at: Time, place: usize, place_of: impl Fn(ClaimId) -> Option<usize>) -> (TrueJob, bool) {
    let mut moved = TrueJob { submitted: at, ..job.clone() };
    let mut waits_less = false;
    if job.spec.deadline.is_some() || !job.spec.after.is_empty() {
        let mut draft = JobDraft::from((*job.spec).clone());
        draft.deadline = draft.deadline.map(|deadline| at + deadline.since(job.submitted));
        let still = |need: &ClaimId| place_of(*need).filter(|&now| now < place).map(|now| ClaimId(now as u32));
        draft.after = draft.after.iter().filter_map(still).collect();
        waits_less = draft.after.len() < job.spec.after.len();
        moved.spec = Arc::new(draft.build().expect("a job stays sound when it is moved"));
    }
    (moved, waits_less)
}

/// A length of time as people write it: `90`, `90s`, `8h`, `1d12h`, `1.5h`; a bare number is seconds.
pub fn parse_span(text: &str) -> Result<Span, String> {
    let fault = || format!("expected a time like 90, 8h or 1d12h, found {}", shown(text));
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(fault());
    }
    let (mut total, mut first) = (0.0, true);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| fault())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "d" => 86_400.0,
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                "" if first => 1.0,
                _ => return Err(fault()),
            };
        first = false;
        rest = &rest[letters..];
    }
    if total > crate::csv::LONGEST_S {
        return Err(fault());
    }
    Ok(Span::from_secs_f64(total))
}

/// Two such times with `..` between them: `0..8h`.
pub fn parse_window(text: &str) -> Result<(Span, Span), String> {
    let (start, end) =
        text.split_once("..").ok_or_else(|| format!("expected a window like 0..8h, found {}", shown(text)))?;
    Ok((parse_span(start)?, parse_span(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Like, load_cluster};
    use cluster::Ends;
    use perf::Truth;

    fn cluster() -> Cluster {
        load_cluster("16x8 v100").unwrap().0
    }

    /// Two thousand jobs over some weeks, different for every seed.
    fn drawn(seed: u64) -> Workload {
        let (cluster, queues, _) = load_cluster("16x8 v100").unwrap();
        let mut like = Like::named("helios-venus").unwrap();
        like.jobs = 2000;
        like.generate(&cluster, &queues, seed).unwrap()
    }

    fn sampled(workload: &Workload, sampling: Sampling) -> Workload {
        sample(workload, &sampling, &cluster()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn fault(sampling: Sampling) -> String {
        sample(&drawn(1), &sampling, &cluster()).unwrap_err().to_string()
    }

    fn part(part: Part) -> Sampling {
        Sampling { part, ..Sampling::default() }
    }

    #[test]
    fn a_window_holds_exactly_its_jobs_from_time_zero_on() {
        for seed in 1..=20 {
            let workload = drawn(seed);
            let (start, end) = (Span::from_hours(3 * seed), Span::from_hours(3 * seed + 200));
            let inside = |at: Time| Time::ZERO + start <= at && at < Time::ZERO + end;
            let expected: Vec<Time> = workload
                .jobs
                .iter()
                .filter(|job| inside(job.submitted))
                .map(|job| Time::ZERO + (job.submitted - (Time::ZERO + start)))
                .collect();
            let found = sampled(&workload, part(Part::Window(start, end)));
            assert_eq!(found.jobs.iter().map(|job| job.submitted).collect::<Vec<_>>(), expected, "seed {seed}");
        }
    }

    #[test]
    fn no_window_is_busier_than_the_busiest() {
        for seed in 1..=5 {
            let workload = drawn(seed);
            let most = sampled(&workload, part(Part::Busiest(Span::from_hours(8)))).jobs.len();
            for job in &workload.jobs {
                let end = job.submitted + Span::from_hours(8);
                let found =
                    workload.jobs.iter().filter(|other| job.submitted <= other.submitted && other.submitted < end);
                assert!(found.count() <= most, "seed {seed}, from {}", job.submitted);
            }
        }
    }

    #[test]
    fn so_many_jobs_are_chosen_each_once_and_by_the_seed() {
        for seed in 1..=20 {
            let workload = drawn(seed);
            let choose = |seed| sampled(&workload, Sampling { jobs: Some(160), seed, ..Sampling::default() });
            let found = choose(seed);
            assert_eq!(found.jobs.len(), 160);
            assert!(found.jobs.windows(2).all(|pair| pair[0].submitted <= pair[1].submitted), "seed {seed}");
            assert_eq!(found, choose(seed));
            assert_ne!(found.jobs, choose(seed + 1).jobs, "seed {seed}");
            let mut specs: Vec<_> = found.jobs.iter().map(|job| Arc::as_ptr(&job.spec)).collect();
            specs.sort_unstable();
            specs.dedup();
            assert_eq!(specs.len(), 160, "seed {seed}");
        }
    }

    #[test]
    fn a_folded_day_lies_within_its_hours() {
        let found = sampled(&drawn(4), part(Part::FoldedDay(Span::from_hours(2), Span::from_hours(10))));
        assert!(found.jobs.len() > 100);
        assert!(found.jobs.iter().all(|job| job.submitted < Time::from_secs(8 * 3600)));
    }

    #[test]
    fn a_rate_is_reached_by_thinning_and_by_compressing() {
        let workload = drawn(3);
        let rate =
            |rate| Sampling { rate: Some(rate), part: Part::Busiest(Span::from_hours(48)), ..Sampling::default() };
        let thinned = sampled(&workload, rate(Rate::Thinned(2.0)));
        assert_eq!(thinned.jobs.len(), 96);
        let all = sampled(&workload, part(Part::Busiest(Span::from_hours(48)))).jobs.len();
        let compressed = sampled(&workload, rate(Rate::Compressed(100.0)));
        assert_eq!(compressed.jobs.len(), all);
        let hours = compressed.jobs.last().unwrap().submitted.as_secs_f64() / 3600.0;
        assert!(hours <= all as f64 / 100.0, "{hours}");
    }

    #[test]
    fn conditions_hold_for_every_job() {
        let sampling =
            Sampling { min_duration: Some(Span::from_secs(60)), max_gpu_hours: Some(10.0), ..Sampling::default() };
        let found = sampled(&drawn(2), sampling);
        for job in &found.jobs {
            let duration = run_time_s(job, &cluster());
            assert!(duration >= 60.0 && duration * job.spec.min_gpus().as_f64() < 36_000.0);
        }
        assert!(found.assumptions.last().unwrap().contains("at least 1m"), "{:?}", found.assumptions);
    }

    #[test]
    fn thinning_keeps_about_its_share() {
        let found = sampled(&drawn(9), Sampling { thin: Some(0.25), ..Sampling::default() }).jobs.len();
        assert!((400..600).contains(&found), "{found}");
    }

    #[test]
    fn deadlines_move_along_and_jobs_wait_only_for_those_that_are_there() {
        let job = |submitted, after: &[u32], deadline| TrueJob {
            submitted: Time::from_secs(submitted),
            spec: Arc::new(
                JobDraft {
                    after: after.iter().copied().map(ClaimId).collect(),
                    deadline: Some(Time::from_secs(deadline)),
                    ends: Ends::Itself,
                    ..JobDraft::rigid("a", 1)
                }
                .build()
                .unwrap(),
            ),
            speed: Arc::new(perf::Speed::constant(1000.0)),
            truth: Arc::new(Truth::lasting(Span::from_secs(5))),
        };
        let jobs = vec![job(0, &[], 50), job(100, &[0], 150), job(200, &[0, 1], 300)];
        let workload = Workload { name: "w".into(), jobs, assumptions: Vec::new() };
        let found = sampled(&workload, part(Part::Window(Span::from_secs(100), Span::from_secs(1000))));
        let line =
            |job: &TrueJob| format!("{} after {:?} until {:?}", job.submitted, job.spec.after, job.spec.deadline);
        let lines: Vec<String> = found.jobs.iter().map(line).collect();
        let until = |secs| Some(Time::from_secs(secs));
        assert_eq!(
            lines,
            [format!("0s after [] until {:?}", until(50)), format!("1m40s after [ClaimId(0)] until {:?}", until(200))]
        );
        assert!(found.assumptions[1].starts_with("2 jobs no longer wait"), "{:?}", found.assumptions);
    }

    #[test]
    fn what_cannot_be_chosen_is_refused() {
        let hours = Span::from_hours;
        assert_eq!(
            fault(part(Part::Window(hours(2), hours(2)))),
            "expected a window that ends after it starts, found 2h..2h"
        );
        let empty = fault(part(Part::Window(hours(900_000), hours(900_001))));
        assert!(
            empty.starts_with("workload like-helios-venus: expected jobs in the part asked for, found none"),
            "{empty}"
        );
        assert_eq!(
            fault(Sampling { jobs: Some(9999), ..Sampling::default() }),
            "workload like-helios-venus: expected at least 9999 jobs to choose from, found 2000"
        );
        assert!(fault(Sampling { thin: Some(f64::NAN), ..Sampling::default() }).contains("found NaN"));
        assert!(fault(Sampling { rate: Some(Rate::Thinned(1e6)), ..Sampling::default() }).contains("compressing"));
    }

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(parse_span("90"), Ok(Span::from_secs(90)));
        assert_eq!(parse_span("1d12h"), Ok(Span::from_hours(36)));
        assert_eq!(parse_span("1.5h"), Ok(Span::from_minutes(90)));
        assert_eq!(parse_window("0..8h"), Ok((Span::ZERO, Span::from_hours(8))));
        for wrong in ["", "8x", "-5", "h", "1h30", "1e99", "nan", "99999999999"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
        assert!(parse_window("8h").is_err());
    }
}
