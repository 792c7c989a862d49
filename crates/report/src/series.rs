//! Sums over time in buckets of equal length. When there are too many, neighbours are merged, so that a history of any
//! length takes the same little room; and because the buckets hold exact sums, merging loses nothing but detail.

use cluster::{Span, Time};

use crate::run::{Gauge, Series};
use crate::usage::Sums;

const FIRST_BUCKET: Span = Span::from_minutes(1);
const MOST_BUCKETS: usize = 256;

/// From an origin on, without gaps. It knows what to leave off when a history turns out to have been over already.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    origin: Time,
    bucket: Span,
    buckets: Vec<Totals>,
    /// How far it went when the last job ended, as long as no other has come.
    quiet: Option<Mark>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    buckets: usize,
    last: Totals,
}

/// What is the case between two events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pub(crate) gpus: Sums,
    pub(crate) queued: u64,
}

/// Levels times milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    time: u128,
    in_service: u128,
    busy: u128,
    free: u128,
    stranded: u128,
    queued: u128,
}

impl Timeline {
    pub(crate) fn new(origin: Time) -> Timeline {
        Timeline { origin, bucket: FIRST_BUCKET, buckets: Vec::new(), quiet: None }
    }

    /// From where the last stretch ended until `to`, things were at this level.
    pub(crate) fn extend(&mut self, from: Time, to: Time, level: Level) {
        while to > self.end_of(MOST_BUCKETS - 1) {
            self.merge_pairs();
        }
        let mut at = from;
        while at < to {
            let index = ((at - self.origin).as_millis() / self.bucket.as_millis()) as usize;
            let end = self.end_of(index).min(to);
            if index == self.buckets.len() {
                self.buckets.push(Totals::default());
            }
            self.buckets[index].add(Totals::of(level, end - at));
            at = end;
        }
    }

    /// Nobody is left; unless someone comes, the history is over here.
    pub(crate) fn fall_quiet(&mut self) {
        let last = self.buckets.last().copied().unwrap_or_default();
        self.quiet = Some(Mark { buckets: self.buckets.len(), last });
    }

    /// Someone has come: the quiet belongs to the history.
    pub(crate) fn wake(&mut self) {
        self.quiet = None;
    }

    /// GPUs held, of those in service.
    pub(crate) fn utilisation(&self) -> Gauge {
        self.gauge(|totals| ratio(totals.busy, totals.in_service))
    }

    /// GPUs that lie free on nodes partly in use, of all that are free; 0 when none are.
    pub(crate) fn fragmentation(&self) -> Gauge {
        self.gauge(|totals| ratio(totals.stranded, totals.free).or((totals.time > 0).then_some(0.0)))
    }

    /// Jobs that hold nothing.
    pub(crate) fn queue_length(&self) -> Gauge {
        self.gauge(|totals| ratio(totals.queued, totals.time))
    }

    fn gauge(&self, value: impl Fn(&Totals) -> Option<f64>) -> Gauge {
        let mut buckets = self.buckets.clone();
        if let Some(mark) = &self.quiet {
            buckets.truncate(mark.buckets);
            buckets.last_mut().into_iter().for_each(|last| *last = mark.last);
        }
        let mut whole = Totals::default();
        buckets.iter().for_each(|bucket| whole.add(*bucket));
        let values = buckets.iter().map(&value).collect();
        Gauge { mean: value(&whole), series: Series { bucket_s: self.bucket.as_millis() / 1000, values } }
    }

    fn end_of(&self, bucket: usize) -> Time {
        self.origin + Span::from_millis(self.bucket.as_millis().saturating_mul(bucket as u64 + 1))
    }

    fn merge_pairs(&mut self) {
        if let Some(mark) = self.quiet.as_mut().filter(|mark| mark.buckets > 0) {
            if mark.buckets.is_multiple_of(2) {
                mark.last.add(self.buckets[mark.buckets - 2]);
            }
            mark.buckets = mark.buckets.div_ceil(2);
        }
        for index in 0..self.buckets.len().div_ceil(2) {
            let mut merged = self.buckets[2 * index];
            merged.add(self.buckets.get(2 * index + 1).copied().unwrap_or_default());
            self.buckets[index] = merged;
        }
        self.buckets.truncate(self.buckets.len().div_ceil(2));
        self.bucket = self.bucket + self.bucket;
    }
}

impl Totals {
    fn of(level: Level, span: Span) -> Totals {
        let millis = u128::from(span.as_millis());
        let over = |level: u64| u128::from(level) * millis;
        Totals {
            time: millis,
            in_service: over(level.gpus.in_service),
            busy: over(level.gpus.busy),
            free: over(level.gpus.free),
            stranded: over(level.gpus.stranded),
            queued: over(level.queued),
        }
    }

    fn add(&mut self, other: Totals) {
        self.time += other.time;
        self.in_service += other.in_service;
        self.busy += other.busy;
        self.free += other.free;
        self.stranded += other.stranded;
        self.queued += other.queued;
    }
}

fn ratio(part: u128, whole: u128) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(length: u64) -> Level {
        Level { gpus: Sums::default(), queued: length }
    }

    fn minute(minute: u64) -> Time {
        Time::from_secs(60 * minute)
    }

    fn lengths(timeline: &Timeline) -> Vec<f64> {
        timeline.queue_length().series.values.into_iter().map(|length| length.expect("time has passed")).collect()
    }

    #[test]
    fn a_level_is_spread_over_the_buckets_it_lasts_through() {
        let mut timeline = Timeline::new(minute(10));
        timeline.extend(minute(10), Time::from_secs(630), queue(4));
        timeline.extend(Time::from_secs(630), minute(12), queue(2));
        assert_eq!(lengths(&timeline), [3.0, 2.0]);
        assert_eq!(timeline.queue_length().mean, Some(2.5));
    }

    #[test]
    fn a_257th_bucket_merges_all_others_in_pairs() {
        let mut timeline = Timeline::new(Time::ZERO);
        for index in 0..256 {
            timeline.extend(minute(index), minute(index + 1), queue(index % 2));
        }
        assert_eq!(lengths(&timeline).len(), 256);
        timeline.extend(minute(256), minute(257), queue(7));
        let series = timeline.queue_length().series;
        assert_eq!((series.bucket_s, series.values.len()), (120, 129));
        assert_eq!(series.values[..2], [Some(0.5), Some(0.5)]);
        assert_eq!(series.values[128], Some(7.0));
        assert_eq!(timeline.queue_length().mean, Some((128.0 + 7.0) / 257.0));
    }

    #[test]
    fn a_year_in_one_step_has_no_more_buckets_than_a_day() {
        let mut timeline = Timeline::new(Time::ZERO);
        timeline.extend(Time::ZERO, minute(525_600), queue(1));
        let series = timeline.queue_length().series;
        assert_eq!(series.bucket_s, 4096 * 60);
        assert_eq!(series.values, vec![Some(1.0); 129]);
    }

    #[test]
    fn what_comes_after_the_last_end_is_left_off_however_long_it_was() {
        for quiet_minutes in [1, 300, 5000] {
            for busy_minutes in [0, 1, 2, 3] {
                let mut timeline = Timeline::new(Time::ZERO);
                timeline.extend(Time::ZERO, minute(busy_minutes), queue(2));
                timeline.extend(minute(busy_minutes), Time::from_secs(60 * busy_minutes + 30), queue(4));
                timeline.fall_quiet();
                timeline.extend(Time::from_secs(60 * busy_minutes + 30), minute(9 + quiet_minutes), queue(0));
                let gauge = timeline.queue_length();
                let minutes = busy_minutes as f64;
                assert_eq!(gauge.mean, Some((2.0 * minutes + 2.0) / (minutes + 0.5)));
            }
        }
    }

    #[test]
    fn a_quiet_time_between_jobs_counts() {
        let mut timeline = Timeline::new(Time::ZERO);
        timeline.extend(Time::ZERO, minute(1), queue(3));
        timeline.fall_quiet();
        timeline.extend(minute(1), minute(3), queue(0));
        timeline.wake();
        assert_eq!(timeline.queue_length().mean, Some(1.0));
    }
}
