//! Quantities with their units. Time is whole milliseconds and GPU time whole GPU-milliseconds, so that sums are exact
//! and a replay agrees to the last bit.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// A moment: whole milliseconds since the start of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(u64);

/// A length of time: whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Span(u64);

/// A quantity of GPUs in thousandths, so that shares of a GPU add up exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Gpus(u32);

/// GPUs held over time: thousandths of a GPU times milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct GpuTime(u64);

/// Memory, main or on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Bytes(u64);

/// A network rate in megabits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Bandwidth(u32);

/// How much a job or queue counts beside others, in thousandths; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Time {
    pub const ZERO: Time = Time(0);
    pub const MAX: Time = Time(u64::MAX);

    pub const fn from_millis(millis: u64) -> Time {
        Time(millis)
    }

    pub const fn from_secs(secs: u64) -> Time {
        Time(secs * 1000)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The time since `earlier`, or nothing if that lies in the future.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The first multiple of `round` at or after this moment.
    pub const fn round_up(self, round: Span) -> Time {
        Time(self.0.div_ceil(round.0) * round.0)
    }
}

impl Span {
    pub const ZERO: Span = Span(0);
    pub const MAX: Span = Span(u64::MAX);

    pub const fn from_millis(millis: u64) -> Span {
        Span(millis)
    }

    pub const fn from_secs(secs: u64) -> Span {
        Span(secs * 1000)
    }

    pub const fn from_minutes(minutes: u64) -> Span {
        Span(minutes * 60_000)
    }

    pub const fn from_hours(hours: u64) -> Span {
        Span(hours * 3_600_000)
    }

    /// To the nearest millisecond; what is negative or not a number becomes zero, what is too long the longest span.
    pub fn from_secs_f64(secs: f64) -> Span {
        Span((secs * 1000.0).round() as u64)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    pub fn scale(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor).ceil() as u64)
    }
}

impl Gpus {
    pub const ZERO: Gpus = Gpus(0);
    pub const MAX: Gpus = Gpus(u32::MAX);

    pub const fn whole(count: u32) -> Gpus {
        Gpus(count.saturating_mul(1000))
    }

    pub const fn from_thousandths(thousandths: u32) -> Gpus {
        Gpus(thousandths)
    }

    pub const fn as_thousandths(self) -> u32 {
        self.0
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn saturating_sub(self, other: Gpus) -> Gpus {
        Gpus(self.0.saturating_sub(other.0))
    }

    pub const fn saturating_add(self, other: Gpus) -> Gpus {
        Gpus(self.0.saturating_add(other.0))
    }
}

impl GpuTime {
    pub const ZERO: GpuTime = GpuTime(0);
    pub const MAX: GpuTime = GpuTime(u64::MAX);

    pub const fn from_gpu_secs(secs: u64) -> GpuTime {
        GpuTime(secs * 1_000_000)
    }

    pub const fn from_raw(thousandth_gpu_millis: u64) -> GpuTime {
        GpuTime(thousandth_gpu_millis)
    }

    pub const fn as_raw(self) -> u64 {
        self.0
    }

    pub fn as_gpu_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }

    pub fn as_gpu_hours(self) -> f64 {
        self.as_gpu_secs() / 3600.0
    }

    pub const fn saturating_sub(self, other: GpuTime) -> GpuTime {
        GpuTime(self.0.saturating_sub(other.0))
    }

    /// How long `gpus` must be held to make up this much GPU time, rounded up.
    pub fn held_by(self, gpus: Gpus) -> Span {
        assert!(!gpus.is_zero(), "GPU time cannot be made up by no GPUs");
        Span(self.0.div_ceil(u64::from(gpus.0)))
    }
}

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);

    pub const fn new(bytes: u64) -> Bytes {
        Bytes(bytes)
    }

    pub const fn gib(gib: u64) -> Bytes {
        Bytes(gib << 30)
    }

    pub const fn mib(mib: u64) -> Bytes {
        Bytes(mib << 20)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub fn as_gib(self) -> f64 {
        self.0 as f64 / f64::from(1 << 30)
    }

    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Bandwidth {
    pub const fn mbps(megabits_per_second: u32) -> Bandwidth {
        Bandwidth(megabits_per_second)
    }

    pub const fn gbps(gigabits_per_second: u32) -> Bandwidth {
        Bandwidth(gigabits_per_second * 1000)
    }

    pub const fn as_mbps(self) -> u32 {
        self.0
    }

    pub fn bytes_per_sec(self) -> f64 {
        f64::from(self.0) * 125_000.0
    }

    /// This rate divided among so many that share it.
    pub fn shared_by(self, factor: f64) -> Bandwidth {
        Bandwidth((f64::from(self.0) / factor) as u32)
    }
}

impl Weight {
    pub const ONE: Weight = Weight(1000);

    pub const fn from_thousandths(thousandths: u32) -> Option<Weight> {
        if thousandths == 0 { None } else { Some(Weight(thousandths)) }
    }

    /// A positive, finite weight, to the nearest thousandth.
    pub fn from_f64(weight: f64) -> Option<Weight> {
        let thousandths = (weight * 1000.0).round();
        (thousandths >= 1.0 && thousandths <= f64::from(u32::MAX)).then_some(Weight(thousandths as u32))
    }

    pub const fn as_thousandths(self) -> u32 {
        self.0
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl TryFrom<u32> for Weight {
    type Error = &'static str;

    fn try_from(thousandths: u32) -> Result<Weight, Self::Error> {
        Weight::from_thousandths(thousandths).ok_or("a weight is at least one thousandth")
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

impl Add<Span> for Time {
    type Output = Time;

    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Time> for Time {
    type Output = Span;

    fn sub(self, earlier: Time) -> Span {
        assert!(self.0 >= earlier.0, "time runs forward: {earlier} is after {self}");
        Span(self.0 - earlier.0)
    }
}

impl Mul<u32> for Span {
    type Output = Span;

    fn mul(self, times: u32) -> Span {
        Span(self.0.saturating_mul(u64::from(times)))
    }
}

impl Mul<Span> for Gpus {
    type Output = GpuTime;

    fn mul(self, span: Span) -> GpuTime {
        GpuTime(u64::from(self.0).saturating_mul(span.0))
    }
}

impl Mul<u32> for Gpus {
    type Output = Gpus;

    fn mul(self, count: u32) -> Gpus {
        Gpus(self.0.saturating_mul(count))
    }
}

impl Mul<u32> for Bytes {
    type Output = Bytes;

    fn mul(self, count: u32) -> Bytes {
        Bytes(self.0.saturating_mul(u64::from(count)))
    }
}

macro_rules! additive {
    ($($quantity:ty),*) => {$(
        impl Add for $quantity {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $quantity {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $quantity {
            type Output = Self;

            fn sub(self, other: Self) -> Self {
                assert!(self.0 >= other.0, "{} less {} would be negative", self, other);
                Self(self.0 - other.0)
            }
        }

        impl SubAssign for $quantity {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Sum for $quantity {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self(0), Add::add)
            }
        }
    )*};
}

additive!(Span, Gpus, GpuTime, Bytes);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

/// As people write it: `1h30m`, `45s`, `250ms`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let parts = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
        let mut rest = self.0;
        for (size, unit) in parts {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

impl fmt::Display for GpuTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GPU-s", self.as_gpu_secs())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GiB", (self.as_gib() * 100.0).round() / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_prints_as_people_write_it() {
        let text = |millis| Span::from_millis(millis).to_string();
        assert_eq!(text(5_400_000), "1h30m");
        assert_eq!(text(0), "0s");
        assert_eq!(text(90_061_250), "1d1h1m1s250ms");
    }

    #[test]
    fn gpu_time_of_a_share_is_exact() {
        let half = Gpus::from_thousandths(500);
        assert_eq!(half * Span::from_secs(2), GpuTime::from_gpu_secs(1));
        assert_eq!(GpuTime::from_gpu_secs(1).held_by(half), Span::from_secs(2));
    }

    #[test]
    fn rounds_are_aligned_to_time_zero() {
        let minute = Span::from_minutes(1);
        assert_eq!(Time::from_secs(61).round_up(minute), Time::from_secs(120));
        assert_eq!(Time::from_secs(120).round_up(minute), Time::from_secs(120));
    }

    #[test]
    fn a_weight_is_never_zero_negative_or_absurd() {
        assert_eq!(Weight::from_f64(0.0), None);
        assert_eq!(Weight::from_f64(-1.0), None);
        assert_eq!(Weight::from_f64(f64::NAN), None);
        assert_eq!(Weight::from_f64(1.5), Weight::from_thousandths(1500));
    }
}
