//! How far to go along a direction (Moré and Thuente 1994): the next step from values and slopes at the steps tried.

/// An interval of steps that comes to hold one which lowers the value enough and flattens the slope enough, and the
/// step to try next.
#[derive(Debug)]
pub(super) struct Bracket {
    start: Trial,
    longest: f64,
    /// The best step so far, and the other end of the interval.
    best: Trial,
    other: Trial,
    /// Whether the two ends enclose a minimum.
    encloses: bool,
    /// Whether steps are still judged by the function less the decrease that is asked for.
    demanding: bool,
    width: f64,
    width_before: f64,
    /// Bounds of the next step.
    least: f64,
    most: f64,
    pub(super) step: f64,
}

/// A step, and value and slope there.
#[derive(Debug, Clone, Copy)]
struct Trial {
    step: f64,
    value: f64,
    slope: f64,
}

impl Bracket {
    /// The share of the decrease promised by the slope that a step must reach.
    const DECREASE: f64 = 1e-3;
    /// The share of the first slope that may be left.
    const FLATNESS: f64 = 0.9;
    /// An interval this narrow, relative to its upper end, is as good as a point.
    const NARROW: f64 = 0.1;
    /// Before a minimum is enclosed, steps grow at least and at most by these factors.
    const GROWTH: (f64, f64) = (1.1, 4.0);
    /// The interval should shrink to this share in two steps; if not, it is halved.
    const SHRINK: f64 = 0.66;

    pub(super) fn new(value: f64, slope: f64, step: f64, longest: f64) -> Bracket {
        let start = Trial { step: 0.0, value, slope };
        Bracket {
            start,
            longest,
            best: start,
            other: start,
            encloses: false,
            demanding: true,
            width: longest,
            width_before: 2.0 * longest,
            least: 0.0,
            most: step + Bracket::GROWTH.1 * step,
            step,
        }
    }

    /// Takes in value and slope at `step`. True if the search ends there, otherwise `step` is the next to try.
    pub(super) fn narrow(&mut self, value: f64, slope: f64) -> bool {
        let trial = Trial { step: self.step, value, slope };
        let asked_slope = Bracket::DECREASE * self.start.slope;
        let asked = self.start.value + trial.step * asked_slope;
        if self.demanding && value <= asked && slope >= 0.0 {
            self.demanding = false;
        }
        if self.is_exhausted(&trial, asked, asked_slope) || self.is_good(&trial, asked) {
            return true;
        }
        match self.demanding && value <= self.best.value && value > asked {
            true => {
                let tilt = |end: Trial| Trial {
                    value: end.value - end.step * asked_slope,
                    slope: end.slope - asked_slope,
                    ..end
                };
                let restore = |end: Trial| Trial {
                    value: end.value + end.step * asked_slope,
                    slope: end.slope + asked_slope,
                    ..end
                };
                (self.best, self.other) = (tilt(self.best), tilt(self.other));
                self.step_from(tilt(trial));
                (self.best, self.other) = (restore(self.best), restore(self.other));
            }
            false => self.step_from(trial),
        }
        self.prepare();
        false
    }

    fn is_good(&self, trial: &Trial, asked: f64) -> bool {
        trial.value <= asked && trial.slope.abs() <= Bracket::FLATNESS * -self.start.slope
    }

    /// Whether rounding, a narrow interval or the ends of the allowed steps leave nothing better to try.
    fn is_exhausted(&self, trial: &Trial, asked: f64, asked_slope: f64) -> bool {
        let outside = trial.step <= self.least || trial.step >= self.most;
        let narrow = self.most - self.least <= Bracket::NARROW * self.most;
        let at_longest = trial.step == self.longest && trial.value <= asked && trial.slope <= asked_slope;
        let at_shortest = trial.step == 0.0 && (trial.value > asked || trial.slope >= asked_slope);
        (self.encloses && (outside || narrow)) || at_longest || at_shortest
    }

    /// Safeguards the next step, once the interval is known.
    fn prepare(&mut self) {
        if self.encloses {
            let width = (self.other.step - self.best.step).abs();
            if width >= Bracket::SHRINK * self.width_before {
                self.step = self.best.step + 0.5 * (self.other.step - self.best.step);
            }
            self.width_before = self.width;
            self.width = width;
            self.least = self.best.step.min(self.other.step);
            self.most = self.best.step.max(self.other.step);
        } else {
            let from_best = self.step - self.best.step;
            self.least = self.step + Bracket::GROWTH.0 * from_best;
            self.most = self.step + Bracket::GROWTH.1 * from_best;
        }
        self.step = self.step.max(0.0).min(self.longest);
        let outside = self.step <= self.least || self.step >= self.most;
        let narrow = self.most - self.least <= Bracket::NARROW * self.most;
        if self.encloses && (outside || narrow) {
            self.step = self.best.step;
        }
    }

    /// Chooses the next step by the cubic and the quadratic through what is known, and moves the ends of the interval.
    fn step_from(&mut self, trial: Trial) {
        let Bracket { best, other, .. } = *self;
        let turned = trial.slope * best.slope.signum() < 0.0;
        let next = if trial.value > best.value {
            // A higher value: a minimum is enclosed. Between the cubic's and the quadratic's minimum, nearer the best.
            self.encloses = true;
            let cubic = cubic_minimum(best, trial, trial.step < best.step, f64::NEG_INFINITY).step;
            let chord = (best.value - trial.value) / (trial.step - best.step);
            let quadratic = best.step + best.slope / (chord + best.slope) / 2.0 * (trial.step - best.step);
            match (cubic - best.step).abs() < (quadratic - best.step).abs() {
                true => cubic,
                false => cubic + (quadratic - cubic) / 2.0,
            }
        } else if turned {
            // A lower value, and the slope turned: a minimum is enclosed. The farther of cubic and secant.
            self.encloses = true;
            let cubic = cubic_minimum(trial, best, trial.step > best.step, f64::NEG_INFINITY).step;
            farther(trial.step, cubic, secant(best, trial))
        } else if trial.slope.abs() < best.slope.abs() {
            self.step_on(trial)
        } else if self.encloses {
            cubic_minimum(trial, other, trial.step > other.step, f64::NEG_INFINITY).step
        } else if trial.step > best.step {
            self.most
        } else {
            self.least
        };
        if trial.value > best.value {
            self.other = trial;
        } else {
            if turned {
                self.other = best;
            }
            self.best = trial;
        }
        self.step = next;
    }

    /// A lower value and a flatter slope of the same sign: the minimum of the cubic counts only if it lies beyond.
    fn step_on(&self, trial: Trial) -> f64 {
        let Bracket { best, other, .. } = *self;
        let ahead = trial.step > best.step;
        let found = cubic_minimum(trial, best, ahead, 0.0);
        let cubic = match found.share < 0.0 && found.root != 0.0 {
            true => found.step,
            false if ahead => self.most,
            false => self.least,
        };
        let secant = secant(best, trial);
        if self.encloses {
            let nearer = match (cubic - trial.step).abs() < (secant - trial.step).abs() {
                true => cubic,
                false => secant,
            };
            let limit = trial.step + Bracket::SHRINK * (other.step - trial.step);
            if ahead { nearer.min(limit) } else { nearer.max(limit) }
        } else {
            farther(trial.step, cubic, secant).min(self.most).max(self.least)
        }
    }
}

/// The minimum of a cubic, how far it is on the way from one trial to the other, and the root that led to it.
struct Cubic {
    step: f64,
    share: f64,
    root: f64,
}

/// The cubic with the values and slopes of two trials. A rounded square below `floor` counts as `floor`.
fn cubic_minimum(from: Trial, to: Trial, negative: bool, floor: f64) -> Cubic {
    let chord = 3.0 * (from.value - to.value) / (to.step - from.step) + from.slope + to.slope;
    let size = chord.abs().max(from.slope.abs()).max(to.slope.abs());
    let square = (chord / size) * (chord / size) - (from.slope / size) * (to.slope / size);
    let root = size * square.max(floor).sqrt() * if negative { -1.0 } else { 1.0 };
    let share = ((root - from.slope) + chord) / (((root - from.slope) + root) + to.slope);
    Cubic { step: from.step + share * (to.step - from.step), share, root }
}

/// Where the slope would vanish if it changed in a straight line.
fn secant(best: Trial, trial: Trial) -> f64 {
    trial.step + trial.slope / (trial.slope - best.slope) * (best.step - trial.step)
}

fn farther(from: f64, cubic: f64, secant: f64) -> f64 {
    if (cubic - from).abs() > (secant - from).abs() { cubic } else { secant }
}
