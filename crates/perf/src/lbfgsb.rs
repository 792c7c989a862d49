//! The least value of a smooth function within bounds, by a quasi-Newton method that remembers the last ten steps:
//! L-BFGS-B (Byrd, Lu, Nocedal and Zhu 1995) with the subspace step of its third version (Morales and Nocedal 2011) and
//! the line search of Moré and Thuente (1994).
//!
//! A loose tolerance stops somewhere in a flat valley, so whoever compares fits with those of another program needs the
//! same path, not only the same minimum. Hence the constants of the authors' program, and sums in the papers' order
//! where rounding decides: steep and gentle variables differ by many powers of ten.
//!
//! | paper | here |
//! |---|---|
//! | x, f, g | `point`, `value`, `gradient` |
//! | B, θ | `Curvature`, its `scale` |
//! | s, y | a step `moved`, and `bent` the gradient |
//! | generalized Cauchy point xᶜ | `Model::cauchy_point` |
//! | subspace minimum x̄ | `Model::subspace_minimum` |

#![allow(clippy::needless_range_loop, reason = "vectors and matrices are read by their indices")]

mod curvature;
mod line_search;

use curvature::{Curvature, Halves, product};
use line_search::Bracket;

/// Points tried along one direction before it is given up.
const TRIES: u32 = 20;

pub(crate) type Vector<const N: usize> = [f64; N];

/// An infinite bound is none. A variable whose bounds are equal is fixed, but its part of the gradient still scales the
/// model of curvature.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<const N: usize> {
    pub(crate) low: Vector<N>,
    pub(crate) high: Vector<N>,
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tolerance {
    /// The value fell by no more than this, relative to itself or to one.
    pub(crate) decrease: f64,
    /// No part of the gradient that the bounds let one follow is larger.
    pub(crate) gradient: f64,
    pub(crate) iterations: u32,
}

/// Follows `value_and_gradient` downhill from `start`, and says where it ends. Every point asked for lies within the bounds,
/// up to rounding.
pub(crate) fn minimize<const N: usize>(
    start: Vector<N>,
    bounds: Bounds<N>,
    tolerance: Tolerance,
    mut value_and_gradient: impl FnMut(&Vector<N>) -> (f64, Vector<N>),
) -> Vector<N> {
    let mut here = Place::new(bounds.nearest(start), &mut value_and_gradient);
    let mut curvature = Curvature::new();
    let mut iteration = 0;
    while iteration < tolerance.iterations && bounds.steepest(&here) > tolerance.gradient {
        let model = Model { here: &here, bounds: &bounds, curvature: &curvature };
        let way = model.minimum().and_then(|goal| Way::new(&here, goal, &bounds, iteration == 0));
        let found = way.and_then(|way| way.search(&mut value_and_gradient));
        let Some(Found { place, step, direction }) = found else {
            // What was remembered misled; without any memory there is nothing left to forget.
            match curvature.is_empty() {
                true => break,
                false => curvature = Curvature::new(),
            }
            continue;
        };
        iteration += 1;
        let (before, after) = (here, place);
        here = after;
        let fell = before.value - after.value;
        if fell <= tolerance.decrease * before.value.abs().max(after.value.abs()).max(1.0) {
            break;
        }
        curvature.learn(&before, &after, &direction, step);
    }
    here.point
}

/// A point and what is known there.
#[derive(Debug, Clone, Copy)]
struct Place<const N: usize> {
    point: Vector<N>,
    value: f64,
    gradient: Vector<N>,
}

impl<const N: usize> Place<N> {
    fn new(point: Vector<N>, value_and_gradient: &mut impl FnMut(&Vector<N>) -> (f64, Vector<N>)) -> Place<N> {
        let (value, gradient) = value_and_gradient(&point);
        Place { point, value, gradient }
    }
}

impl<const N: usize> Bounds<N> {
    fn nearest(&self, point: Vector<N>) -> Vector<N> {
        std::array::from_fn(|i| point[i].max(self.low[i]).min(self.high[i]))
    }

    fn fixes(&self, i: usize) -> bool {
        self.low[i] == self.high[i]
    }

    fn are_all_finite(&self) -> bool {
        self.low.iter().chain(&self.high).all(|bound| bound.is_finite())
    }

    /// The largest part of the gradient, each cut where following it would leave the bounds.
    fn steepest(&self, here: &Place<N>) -> f64 {
        let follow = |i: usize| match here.gradient[i] {
            downhill if downhill < 0.0 => downhill.max(here.point[i] - self.high[i]),
            uphill => uphill.min(here.point[i] - self.low[i]),
        };
        (0..N).map(|i| follow(i).abs()).fold(0.0, f64::max)
    }
}

/// The quadratic model of the function around a place.
#[derive(Debug)]
struct Model<'a, const N: usize> {
    here: &'a Place<N>,
    bounds: &'a Bounds<N>,
    curvature: &'a Curvature<N>,
}

impl<const N: usize> Model<'_, N> {
    /// Where the model is least, as far as its bounds are known; none if rounding has spoilt the model.
    fn minimum(&self) -> Option<Vector<N>> {
        let cauchy = self.cauchy_point();
        match self.curvature.is_empty() || !cauchy.free.contains(&true) {
            true => Some(cauchy.point),
            false => self.subspace_minimum(&cauchy),
        }
    }

    /// The first minimum of the model along the gradient, bent where it meets bounds.
    fn cauchy_point(&self) -> Cauchy<N> {
        let Place { point, gradient, .. } = self.here;
        let (mut free, reach) = self.reach();
        let mut direction: Vector<N> = std::array::from_fn(|i| if free[i] { -gradient[i] } else { 0.0 });
        let mut goal = *point;
        if direction.iter().all(|&part| part == 0.0) {
            return Cauchy { point: goal, free, seen: Halves::ZERO };
        }

        let scale = self.curvature.scale;
        // c and p of the paper: the way so far and the direction, as W sees them.
        let mut way_seen = Halves::ZERO;
        let mut direction_seen = self.curvature.seen(&direction);
        let mut slope = -dot(&direction, &direction);
        let mut bend = -scale * slope;
        let least_bend = f64::EPSILON * bend;
        bend -= direction_seen.dot(&self.curvature.middle(&direction_seen));
        let mut passed = 0.0;
        let mut rest = -slope / bend;
        while let Some(next) = first_bound(&direction, &reach) {
            let segment = reach[next] - passed;
            if rest.is_nan() || rest < segment {
                break;
            }
            passed += segment;
            goal[next] = if direction[next] > 0.0 { self.bounds.high[next] } else { self.bounds.low[next] };
            free[next] = false;
            let (speed, way) = (direction[next], goal[next] - point[next]);
            direction[next] = 0.0;
            way_seen.add(segment, &direction_seen);
            // What the variable leaves behind may be tiny beside what it takes away: the paper's order of the sums.
            let column = self.curvature.column(next);
            let image = self.curvature.middle(&column);
            slope = slope + segment * bend + speed * speed - scale * speed * way;
            bend -= scale * (speed * speed);
            slope += speed * way_seen.dot(&image);
            bend += 2.0 * speed * direction_seen.dot(&image) - speed * speed * column.dot(&image);
            bend = bend.max(least_bend);
            direction_seen.add(-speed, &column);
            rest = -slope / bend;
        }
        let rest = if direction.iter().all(|&part| part == 0.0) { 0.0 } else { rest.max(0.0) };
        way_seen.add(rest, &direction_seen);
        for i in (0..N).filter(|&i| direction[i] != 0.0) {
            goal[i] = point[i] + (passed + rest) * direction[i];
        }
        Cauchy { point: goal, free, seen: way_seen }
    }

    /// The variables that may follow the gradient, and how far: multiples of it up to their bounds.
    fn reach(&self) -> ([bool; N], Vector<N>) {
        let Place { point, gradient, .. } = self.here;
        let mut free = [false; N];
        let mut reach = [f64::INFINITY; N];
        for i in 0..N {
            let (to_low, to_high) = (point[i] - self.bounds.low[i], self.bounds.high[i] - point[i]);
            let pushed_out = (to_low <= 0.0 && gradient[i] >= 0.0) || (to_high <= 0.0 && gradient[i] <= 0.0);
            free[i] = !self.bounds.fixes(i) && !pushed_out;
            if gradient[i] != 0.0 {
                reach[i] = if gradient[i] > 0.0 { to_low / gradient[i] } else { to_high / -gradient[i] };
            }
        }
        (free, reach)
    }

    /// The minimum of the model over the free variables, brought back within the bounds.
    fn subspace_minimum(&self, cauchy: &Cauchy<N>) -> Option<Vector<N>> {
        let Place { point, gradient, .. } = self.here;
        let Curvature { scale, ref bent, ref moved, .. } = *self.curvature;
        let seen = self.curvature.middle(&cauchy.seen);
        let downhill: Vector<N> = std::array::from_fn(|i| {
            let steps = product(&bent[i], &seen.bent) + scale * product(&moved[i], &seen.moved);
            -scale * (cauchy.point[i] - point[i]) - gradient[i] + steps
        });
        let fixed = std::array::from_fn(|i| self.bounds.fixes(i));
        let newton = self.curvature.solve(&downhill, &cauchy.free, &fixed)?;

        let beyond: Vector<N> = std::array::from_fn(|i| cauchy.point[i] + newton[i]);
        let goal = self.bounds.nearest(beyond);
        let held = (0..N).any(|i| cauchy.free[i] && (goal[i] == self.bounds.low[i] || goal[i] == self.bounds.high[i]));
        let uphill = (0..N).map(|i| (goal[i] - point[i]) * gradient[i]).sum::<f64>() > 0.0;
        match held && uphill {
            true => Some(self.cut_short(cauchy.point, newton, cauchy.free)),
            false => Some(goal),
        }
    }

    /// From the Cauchy point along the Newton step up to the first bound.
    fn cut_short(&self, cauchy: Vector<N>, newton: Vector<N>, free: [bool; N]) -> Vector<N> {
        let mut share = 1.0;
        let mut first = None;
        for i in (0..N).filter(|&i| free[i] && newton[i] != 0.0) {
            let bound = if newton[i] < 0.0 { self.bounds.low[i] } else { self.bounds.high[i] };
            let room = (bound - cauchy[i]) / newton[i];
            if room < share {
                share = room.max(0.0);
                first = Some((i, bound));
            }
        }
        let mut goal = std::array::from_fn(|i| cauchy[i] + share * newton[i]);
        if let Some((i, bound)) = first {
            goal[i] = bound;
        }
        goal
    }
}

/// The generalized Cauchy point.
#[derive(Debug)]
struct Cauchy<const N: usize> {
    point: Vector<N>,
    /// The variables not held at a bound.
    free: [bool; N],
    /// c of the paper: the way there as W sees it.
    seen: Halves,
}

/// The moving variable that reaches its bound first.
fn first_bound<const N: usize>(direction: &Vector<N>, reach: &Vector<N>) -> Option<usize> {
    (0..N).filter(|&i| direction[i] != 0.0).min_by(|&i, &j| reach[i].total_cmp(&reach[j]))
}

/// The way from a place to the model's minimum, and how far one may go beyond it.
#[derive(Debug)]
struct Way<'a, const N: usize> {
    from: &'a Place<N>,
    goal: Vector<N>,
    direction: Vector<N>,
    first_step: f64,
    longest_step: f64,
}

/// Where a line search ended.
#[derive(Debug)]
struct Found<const N: usize> {
    place: Place<N>,
    step: f64,
    direction: Vector<N>,
}

impl<'a, const N: usize> Way<'a, N> {
    /// None if the direction does not lead downhill.
    fn new(from: &'a Place<N>, goal: Vector<N>, bounds: &Bounds<N>, is_first: bool) -> Option<Way<'a, N>> {
        let direction: Vector<N> = std::array::from_fn(|i| goal[i] - from.point[i]);
        if dot(&from.gradient, &direction) >= 0.0 {
            return None;
        }
        let length = dot(&direction, &direction).sqrt();
        let longest_step = if is_first { 1.0 } else { room(from, &direction, bounds) };
        // Nothing is known yet about the size of steps: the first is at most of length one, unless bounds limit it.
        let cautious = is_first && !bounds.are_all_finite();
        let first_step = longest_step.min(if cautious { 1.0 / length } else { 1.0 });
        Some(Way { from, goal, direction, first_step, longest_step })
    }

    /// None if no step lowers the value enough in the tries there are.
    fn search(&self, value_and_gradient: &mut impl FnMut(&Vector<N>) -> (f64, Vector<N>)) -> Option<Found<N>> {
        let slope = dot(&self.from.gradient, &self.direction);
        let mut bracket = Bracket::new(self.from.value, slope, self.first_step, self.longest_step);
        for _ in 0..TRIES {
            let step = bracket.step;
            let point = match step == 1.0 {
                true => self.goal,
                false => std::array::from_fn(|i| step * self.direction[i] + self.from.point[i]),
            };
            let place = Place::new(point, value_and_gradient);
            if bracket.narrow(place.value, dot(&place.gradient, &self.direction)) {
                return Some(Found { place, step, direction: self.direction });
            }
        }
        None
    }
}

/// The longest step along a direction that stays within the bounds.
fn room<const N: usize>(from: &Place<N>, direction: &Vector<N>, bounds: &Bounds<N>) -> f64 {
    let mut longest: f64 = 1e10;
    for i in 0..N {
        let room = match direction[i] {
            down if down < 0.0 => bounds.low[i] - from.point[i],
            up if up > 0.0 => bounds.high[i] - from.point[i],
            _ => continue,
        };
        longest = longest.min((room / direction[i]).max(0.0));
    }
    longest
}

fn dot<const N: usize>(a: &Vector<N>, b: &Vector<N>) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Tolerance = Tolerance { decrease: 1e-15, gradient: 1e-9, iterations: 1000 };
    const LOOSE: Tolerance = Tolerance { decrease: 1e-5, gradient: 1e-5, iterations: 1000 };
    const ANYWHERE: Bounds<2> = Bounds { low: [f64::NEG_INFINITY; 2], high: [f64::INFINITY; 2] };

    /// Rosenbrock's banana valley with its minimum at (1, 1).
    fn valley([x, y]: &[f64; 2]) -> (f64, [f64; 2]) {
        let off = y - x * x;
        (100.0 * off * off + (1.0 - x) * (1.0 - x), [-400.0 * x * off - 2.0 * (1.0 - x), 200.0 * off])
    }

    fn check<const N: usize>(found: [f64; N], expected: [f64; N], tolerance: f64) {
        let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= tolerance);
        assert!(near, "{found:?} is not {expected:?}");
    }

    #[test]
    fn the_end_of_a_bent_valley_is_found() {
        check(minimize([-1.2, 1.0], ANYWHERE, STRICT, valley), [1.0, 1.0], 1e-6);
    }

    #[test]
    fn bounds_hold_and_the_minimum_beside_them_is_found() {
        let bounds = Bounds { low: [-2.0, -1.0], high: [0.8, 2.0] };
        let mut outside = 0;
        let found = minimize([-1.2, 1.0], bounds, STRICT, |point| {
            outside += usize::from(bounds.nearest(*point) != *point);
            valley(point)
        });
        check(found, [0.8, 0.64], 1e-6);
        assert_eq!(outside, 0);
    }

    #[test]
    fn a_start_outside_the_bounds_is_brought_inside() {
        let bounds = Bounds { low: [2.0, 2.0], high: [3.0, 3.0] };
        check(minimize([-9.0, 9.0], bounds, STRICT, valley), [2.0, 3.0], 0.0);
    }

    #[test]
    fn a_fixed_variable_stays() {
        let bounds = Bounds { low: [f64::NEG_INFINITY, 0.25], high: [f64::INFINITY, 0.25] };
        let found = minimize([3.0, 0.25], bounds, STRICT, valley);
        assert_eq!(found[1], 0.25);
        assert!(valley(&found).1[0].abs() < 1e-6, "flat along the free variable at {found:?}");
    }

    /// Where version 3.0 of the authors' program, as SciPy 1.17.1 ships it, stops with the same tolerances; the minima
    /// are elsewhere.
    #[test]
    fn a_loose_search_stops_where_the_authors_program_stops() {
        let early = Tolerance { decrease: 1e-3, gradient: 1e-3, iterations: 1000 };
        let everywhere = f64::INFINITY;
        for (start, low, high, expected) in [
            ([-1.2, 1.0], [-2.0, -1.0], [0.8, 2.0], [-1.0288275336934345, 1.0677862086430767]),
            ([-1.2, 1.0], [-2.0, 0.3], [everywhere, 2.0], [-0.5344515622560271, 0.3]),
            ([3.0, -2.0], [-everywhere, -2.0], [everywhere, 5.0], [0.9866019789828007, 0.9716367224522879]),
        ] {
            check(minimize(start, Bounds { low, high }, early, valley), expected, 1e-9);
        }
    }

    #[test]
    fn more_steps_than_are_remembered_still_lead_downhill() {
        // Twenty steps of a badly scaled bowl; the memory holds ten.
        let weights = [1.0, 30.0, 900.0, 27e3, 81e4];
        let bowl = |point: &[f64; 5]| {
            let quartic = |i: usize| weights[i] * (point[i].powi(2) + point[i].powi(4));
            let slope = |i: usize| weights[i] * (2.0 * point[i] + 4.0 * point[i].powi(3));
            ((0..5).map(quartic).sum(), std::array::from_fn(slope))
        };
        let bounds = Bounds { low: [f64::NEG_INFINITY; 5], high: [f64::INFINITY; 5] };
        let mut evaluations = 0;
        let found = minimize([1.0; 5], bounds, STRICT, |point| {
            evaluations += 1;
            bowl(point)
        });
        assert!(evaluations > 20, "only {evaluations} evaluations");
        check(found, [0.0; 5], 1e-6);
    }

    #[test]
    fn a_function_that_says_nothing_ends_the_search() {
        check(minimize([1.0, 2.0], ANYWHERE, LOOSE, |_| (f64::NAN, [f64::NAN; 2])), [1.0, 2.0], 0.0);
        let wrong_slope = |point: &[f64; 2]| (point[0], [-1.0, 0.0]);
        assert!(minimize([1.0, 2.0], ANYWHERE, LOOSE, wrong_slope)[0].is_finite());
    }
}
