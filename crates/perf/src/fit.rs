//! The parameters of [`StepTime`] from the steps a job has seen (Pollux, OSDI 2021, section 4.1): least error of the
//! logarithms, with a mild preference for simple models. What a job has not tried looks free, so that a scheduler tries
//! it: a parameter on which no observation bears stays at almost nothing.

use serde::{Deserialize, Serialize};

use crate::lbfgsb::{Bounds, Tolerance, Vector, minimize};
use crate::step_time::{Line, Link, StepTime, TINY, link, replicas_beyond_two};

/// A network between nodes is at least this much slower than the one within a node, until seen.
const SLOWER_BETWEEN_NODES: f64 = 1.1;

/// Weights of the preference for γ near one, and for exchanges that depend little on the number of replicas.
const OVERLAP_WEIGHT: f64 = 1e-3;
const SLOPE_WEIGHT: f64 = 1e-2;

/// Where the published search begins.
const START: Parameters = [0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001];
const HIGHEST_OVERLAP: f64 = 10.0;
/// Where a thorough search begins as well: exchanges that hide behind computing hardly, and well.
const OVERLAPS: [f64; 2] = [1.001, 2.0];

/// Loose on purpose: the published schedules come from fits that stop this early.
const LOOSE: Tolerance = Tolerance { decrease: 1e-5, gradient: 1e-5, iterations: 15_000 };
const TIGHT: Tolerance = Tolerance { decrease: 1e-8, gradient: 1e-7, iterations: 500 };

/// α_c β_c α_n β_n α_r β_r γ.
type Parameters = Vector<7>;
const COMPUTE: usize = 0;
const BETWEEN_NODES: usize = 2;
const WITHIN_NODE: usize = 4;
const OVERLAP: usize = 6;

/// What a job saw in one situation: mean seconds over all steps in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub nodes: u32,
    pub replicas: u32,
    pub local_batch: u32,
    /// A pass without the exchange of gradients.
    pub accumulation_secs: f64,
    /// A pass with it.
    pub step_secs: f64,
}

/// How a model is searched for. Both begin at places that depend on the observations alone: a job that forgot its model
/// finds the same again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// From several places, to the end.
    Thorough,
    /// From one place and loosely, as in the programs of Pollux' and Sia's authors. Their place is far away for a job
    /// whose steps take milliseconds: the first stride may throw the cost of exchanges to nothing, where the loss is flat.
    AsPublished,
}

/// The model that explains the observations best. The caller has at least one, with positive seconds.
pub fn fit(observations: &[Observation], search: Search) -> StepTime {
    let points: Vec<Point> = observations.iter().map(Point::new).collect();
    let from = |start: Parameters, tolerance: Tolerance| {
        let (start, bounds) = told_by(observations, start);
        minimize(start, bounds, tolerance, |parameters| loss_and_gradient(parameters, &points))
    };
    let found = match search {
        Search::AsPublished => from(START, LOOSE),
        Search::Thorough => {
            let near = OVERLAPS.map(|overlap| from(near(observations, overlap), TIGHT));
            let loss = |parameters: &Parameters| loss_and_gradient(parameters, &points).0;
            let better = |best: Parameters, other: Parameters| if loss(&other) < loss(&best) { other } else { best };
            near.into_iter().fold(from(START, TIGHT), better)
        }
    };
    with_prior(step_time(&found), observations)
}

/// A place that explains the observations roughly: computing half fixed, and what a step takes beyond it exchange.
fn near(observations: &[Observation], overlap: f64) -> Parameters {
    let mean = |of: &dyn Fn(&Observation) -> Option<f64>| {
        let found: Vec<f64> = observations.iter().filter_map(of).filter(|secs| secs.is_finite()).collect();
        let sum: f64 = found.iter().sum();
        if found.is_empty() { TINY } else { (sum / found.len() as f64).max(TINY) }
    };
    let exchange = |over: Link| {
        mean(&|seen| {
            let beyond = seen.step_secs.powf(overlap) - seen.accumulation_secs.powf(overlap);
            (link(seen.nodes, seen.replicas) == over).then(|| beyond.max(0.0).powf(1.0 / overlap))
        })
    };
    let (between, within) = (exchange(Link::BetweenNodes), exchange(Link::WithinNode));
    let fixed = mean(&|seen| Some(seen.accumulation_secs / 2.0));
    let slope = mean(&|seen| Some(seen.accumulation_secs / 2.0 / f64::from(seen.local_batch)));
    [fixed, slope, between, between / 10.0, within, within / 10.0, overlap]
}

/// How badly a model explains observations: what [`fit`] minimises.
pub fn loss(step: &StepTime, observations: &[Observation]) -> f64 {
    let points: Vec<Point> = observations.iter().map(Point::new).collect();
    loss_and_gradient(&parameters(step), &points).0
}

/// A start within the range in which observations can tell each parameter, and that range.
fn told_by(observations: &[Observation], mut start: Parameters) -> (Parameters, Bounds<7>) {
    let any = |holds: fn(&Observation) -> bool| observations.iter().any(holds);
    let mut fixed = [false; 7];
    let mut fix = |parameter: usize, value: f64| {
        start[parameter] = value;
        fixed[parameter] = true;
    };
    if !any(|seen| link(seen.nodes, seen.replicas) == Link::BetweenNodes) {
        fix(BETWEEN_NODES, TINY);
        fix(BETWEEN_NODES + 1, TINY);
    }
    if !any(|seen| link(seen.nodes, seen.replicas) == Link::WithinNode) {
        fix(WITHIN_NODE, TINY);
        fix(WITHIN_NODE + 1, TINY);
    }
    if !any(|seen| seen.replicas > 2) {
        fix(BETWEEN_NODES + 1, TINY);
        fix(WITHIN_NODE + 1, TINY);
    }
    if observations.windows(2).all(|pair| pair[0].local_batch == pair[1].local_batch) {
        // One batch size does not tell what is fixed and what grows with it: half each.
        let total: f64 = observations.iter().map(|seen| seen.accumulation_secs).sum();
        fix(COMPUTE, total / observations.len() as f64 / 2.0);
    }
    let mut bounds = Bounds { low: [TINY; 7], high: [f64::INFINITY; 7] };
    (bounds.low[OVERLAP], bounds.high[OVERLAP]) = (1.0, HIGHEST_OVERLAP);
    for parameter in (0..7).filter(|&parameter| fixed[parameter]) {
        bounds.low[parameter] = start[parameter];
        bounds.high[parameter] = start[parameter];
    }
    (start, bounds)
}

fn with_prior(step: StepTime, observations: &[Observation]) -> StepTime {
    if observations.iter().any(|seen| link(seen.nodes, seen.replicas) == Link::BetweenNodes) {
        return step;
    }
    let between_nodes = Line {
        fixed: step.between_nodes.fixed.max(SLOWER_BETWEEN_NODES * step.within_node.fixed),
        slope: step.between_nodes.slope.max(SLOWER_BETWEEN_NODES * step.within_node.slope),
    };
    StepTime { between_nodes, ..step }
}

/// An observation as the loss needs it.
#[derive(Debug, Clone, Copy)]
struct Point {
    local_batch: f64,
    /// The pair of parameters of the link, or none for a single replica.
    network: Option<usize>,
    beyond_two: f64,
    log_accumulation: f64,
    log_step: f64,
}

impl Point {
    fn new(seen: &Observation) -> Point {
        Point {
            local_batch: f64::from(seen.local_batch),
            network: match link(seen.nodes, seen.replicas) {
                Link::None => None,
                Link::WithinNode => Some(WITHIN_NODE),
                Link::BetweenNodes => Some(BETWEEN_NODES),
            },
            beyond_two: replicas_beyond_two(seen.replicas),
            log_accumulation: seen.accumulation_secs.ln(),
            log_step: seen.step_secs.ln(),
        }
    }
}

/// Root mean square errors of ln T_acc and ln T_opt, plus the preferences, and the derivative by every parameter.
///
/// Operations come in the order in which reverse-mode differentiation of the loss performs them, and sums are summed up as
/// array libraries do: a search that stops early hangs on the last bits, and the published schedules on where it stops.
fn loss_and_gradient(parameters: &Parameters, points: &[Point]) -> (f64, Parameters) {
    let gamma = parameters[OVERLAP];
    let values: Vec<Value> = points.iter().map(|point| Value::new(parameters, point)).collect();
    let count = points.len() as f64;
    let rms = |error: fn(&Value) -> f64| (sum(&values, |value| error(value) * error(value)) / count).sqrt();
    let (accumulation_error, step_error) = (rms(|value| value.accumulation_error), rms(|value| value.step_error));
    // An error of exactly zero has no direction.
    let weight = |error: f64| if error > 0.0 { 0.5 / error / count } else { 0.0 };
    let (accumulation_weight, step_weight) = (weight(accumulation_error), weight(step_error));
    let slopes: Vec<Slope> = values.iter().map(|value| value.slope(accumulation_weight, step_weight, gamma)).collect();
    let both = || slopes.iter().zip(points);
    let pairs: Vec<(&Slope, &Point)> = both().collect();
    let mut gradient = [0.0; 7];
    gradient[COMPUTE] = sum(&pairs, |(slope, _)| slope.compute);
    gradient[COMPUTE + 1] = sum(&pairs, |(slope, point)| slope.compute * point.local_batch);
    for pair in [BETWEEN_NODES, WITHIN_NODE] {
        let here = |point: &Point| if point.network == Some(pair) { 1.0 } else { 0.0 };
        gradient[pair] = sum(&pairs, |(slope, point)| slope.network * here(point));
        gradient[pair + 1] = sum(&pairs, |(slope, point)| slope.network * here(point) * point.beyond_two);
    }
    gradient[OVERLAP] = sum(&pairs, |(slope, _)| slope.overlap);

    let mut value = accumulation_error + step_error;
    value += OVERLAP_WEIGHT * (gamma - 1.0) * (gamma - 1.0);
    gradient[OVERLAP] += 2.0 * OVERLAP_WEIGHT * (gamma - 1.0);
    for pair in [BETWEEN_NODES, WITHIN_NODE] {
        let ratio = parameters[pair + 1] / parameters[pair];
        value += SLOPE_WEIGHT * ratio * ratio;
        gradient[pair] -= 2.0 * SLOPE_WEIGHT * ratio * ratio / parameters[pair];
        gradient[pair + 1] += 2.0 * SLOPE_WEIGHT * ratio / parameters[pair];
    }
    (value, gradient)
}

/// What the model says of an observation, and how far that is off.
struct Value {
    compute_secs: f64,
    network_secs: f64,
    compute_power: f64,
    network_power: f64,
    log_both: f64,
    accumulation_error: f64,
    step_error: f64,
}

/// How the loss changes with the seconds of an observation, and with γ through it.
struct Slope {
    compute: f64,
    network: f64,
    overlap: f64,
}

impl Value {
    fn new(parameters: &Parameters, point: &Point) -> Value {
        let gamma = parameters[OVERLAP];
        let compute_secs = parameters[COMPUTE] + parameters[COMPUTE + 1] * point.local_batch;
        let network_secs = match point.network {
            Some(pair) => parameters[pair] + parameters[pair + 1] * point.beyond_two,
            None => TINY + TINY * point.beyond_two,
        };
        let (compute_power, network_power) = (compute_secs.powf(gamma), network_secs.powf(gamma));
        let log_both = (compute_power + network_power).ln();
        Value {
            accumulation_error: compute_secs.ln() - point.log_accumulation,
            step_error: log_both / gamma - point.log_step,
            compute_secs,
            network_secs,
            compute_power,
            network_power,
            log_both,
        }
    }

    fn slope(&self, accumulation_weight: f64, step_weight: f64, gamma: f64) -> Slope {
        let by_accumulation = accumulation_weight * 2.0 * self.accumulation_error;
        let by_step = step_weight * 2.0 * self.step_error;
        let by_both = by_step / gamma / (self.compute_power + self.network_power);
        let power = |secs: f64| by_both * gamma * secs.powf(gamma - 1.0);
        Slope {
            compute: by_accumulation / self.compute_secs + power(self.compute_secs),
            network: power(self.network_secs),
            overlap: by_both * self.compute_secs.ln() * self.compute_power
                + by_both * self.network_secs.ln() * self.network_power
                - by_step * self.log_both / (gamma * gamma),
        }
    }
}

/// The sum, eight at a time from eight elements on.
fn sum<T>(items: &[T], of: impl Fn(&T) -> f64) -> f64 {
    if items.len() < 8 {
        return items.iter().map(of).sum();
    }
    let (eights, rest) = items.split_at(items.len() / 8 * 8);
    let mut lanes = [0.0; 8];
    for chunk in eights.chunks_exact(8) {
        lanes.iter_mut().zip(chunk).for_each(|(lane, item)| *lane += of(item));
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    rest.iter().map(of).fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, item| sum + item)
}

fn step_time(parameters: &Parameters) -> StepTime {
    let line = |pair: usize| Line { fixed: parameters[pair], slope: parameters[pair + 1] };
    StepTime {
        compute: line(COMPUTE),
        between_nodes: line(BETWEEN_NODES),
        within_node: line(WITHIN_NODE),
        overlap: parameters[OVERLAP],
    }
}

fn parameters(step: &StepTime) -> Parameters {
    let StepTime { compute, between_nodes, within_node, overlap } = step;
    [
        compute.fixed,
        compute.slope,
        between_nodes.fixed,
        between_nodes.slope,
        within_node.fixed,
        within_node.slope,
        *overlap,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes, replicas and examples per GPU; seconds of a whole step, and how many of them are the exchange.
    type Seen = (u32, u32, u32, f64, f64);

    fn observations(seen: &[Seen]) -> Vec<Observation> {
        let observation = |&(nodes, replicas, local_batch, step_secs, sync_secs): &Seen| Observation {
            nodes,
            replicas,
            local_batch,
            accumulation_secs: step_secs - sync_secs,
            step_secs,
        };
        seen.iter().map(observation).collect()
    }

    /// What the steps of a job would be if `step` were true of it.
    fn seen_of(step: &StepTime, shapes: &[(u32, u32, u32)]) -> Vec<Observation> {
        let observation = |&(nodes, replicas, local_batch): &(u32, u32, u32)| Observation {
            nodes,
            replicas,
            local_batch,
            accumulation_secs: step.accumulation_secs(f64::from(local_batch)),
            step_secs: step.step_secs(nodes, replicas, f64::from(local_batch)),
        };
        shapes.iter().map(observation).collect()
    }

    fn truth() -> StepTime {
        StepTime {
            compute: Line { fixed: 0.05, slope: 0.002 },
            between_nodes: Line { fixed: 0.09, slope: 0.004 },
            within_node: Line { fixed: 0.03, slope: 0.001 },
            overlap: 1.5,
        }
    }

    fn check(found: &StepTime, expected: Parameters, tolerance: f64) {
        let parameters = parameters(found);
        let near = |(found, expected): (&f64, &f64)| (found / expected - 1.0).abs() <= tolerance;
        assert!(parameters.iter().zip(&expected).all(near), "{parameters:?} is not {expected:?}");
    }

    /// The authors' program on the jobs of a small workload, where its result does not hang on the last bit.
    #[test]
    fn fits_end_where_those_of_sias_authors_end() {
        for (seen, expected) in [
            (&[(1, 1, 20, 0.39394926, 0.000741856)][..], [0.196604, 0.00983058, 1.1e-8, 1.1e-8, 1e-8, 1e-8, 1.001]),
            (
                &[(1, 2, 64, 0.029921427, 0.00072979201)],
                [0.0145958, 0.000230843, 0.0025668, 1.1e-8, 0.00233345, 1e-8, 1.42737],
            ),
            (&[(1, 2, 10, 0.51540513, 0.003421632)], [0.255992, 0.0255962, 0.10978, 1.1e-8, 0.0998004, 1e-8, 1.00124]),
            (
                &[
                    (1, 2, 64, 0.029921427, 0.00072979201),
                    (1, 2, 69, 0.030209119, 0.0007217209),
                    (1, 4, 87, 0.034232178, 0.0031975277),
                    (1, 4, 142, 0.036342092, 0.0021308704),
                    (1, 4, 308, 0.051405531, 0.0015416254),
                    (1, 4, 287, 0.049594762, 0.0014531876),
                    (1, 4, 331, 0.053388755, 0.0016384857),
                    (1, 4, 381, 0.057780735, 0.0017958733),
                    (1, 4, 409, 0.06032051, 0.0018310682),
                    (1, 4, 439, 0.063041697, 0.001868777),
                    (1, 4, 471, 0.065944297, 0.0019089997),
                    (1, 4, 505, 0.06902831, 0.0019517363),
                    (1, 4, 542, 0.072589608, 0.0019719037),
                    (1, 8, 409, 0.061378767, 0.002505033),
                    (1, 8, 433, 0.063439486, 0.0024949646),
                ],
                [0.0125585, 9.62441e-5, 0.0137508, 0.00137145, 0.0125008, 0.00124677, 1.10444],
            ),
        ] {
            check(&fit(&observations(seen), Search::AsPublished), expected, 1e-5);
        }
    }

    #[test]
    fn enough_observations_find_a_model_that_predicts_the_others() {
        let shapes = [(1, 1, 16), (1, 1, 64), (1, 2, 32), (1, 4, 64), (2, 8, 32), (2, 8, 64), (4, 16, 32), (4, 16, 16)];
        let found = fit(&seen_of(&truth(), &shapes), Search::Thorough);
        for (nodes, replicas, local_batch) in [(1, 2, 64.0), (1, 4, 128.0), (3, 12, 48.0), (4, 16, 64.0)] {
            let error = found.step_secs(nodes, replicas, local_batch) / truth().step_secs(nodes, replicas, local_batch);
            assert!((error - 1.0).abs() < 0.05, "{error} times the truth at {nodes} nodes, {replicas} replicas");
        }
    }

    /// Medians of a small network on two cores: the published search says that exchanges cost nothing.
    #[test]
    fn steps_of_milliseconds_are_explained_too() {
        let seen = observations(&[(1, 1, 64, 0.0201, 0.0), (1, 1, 128, 0.042, 0.0), (1, 2, 128, 0.0502, 0.0102)]);
        let (thorough, published) = (fit(&seen, Search::Thorough), fit(&seen, Search::AsPublished));
        assert!(loss(&thorough, &seen) < 0.5 * loss(&published, &seen), "{thorough:?} and {published:?}");
        let untried = thorough.step_secs(1, 2, 32.0);
        assert!((untried / 0.021 - 1.0).abs() < 0.15, "{untried}");
    }

    #[test]
    fn what_was_not_tried_looks_free() {
        let found = fit(&seen_of(&truth(), &[(1, 1, 16), (1, 1, 64)]), Search::Thorough);
        assert!(found.step_secs(1, 8, 16.0) < 1.01 * found.step_secs(1, 1, 16.0));
        assert!(found.step_secs(1, 8, 16.0) < 0.9 * truth().step_secs(1, 8, 16.0), "the estimate is not the truth");
    }

    #[test]
    fn one_batch_size_splits_computing_into_halves() {
        let found = fit(&seen_of(&truth(), &[(1, 1, 50), (1, 2, 50)]), Search::Thorough);
        assert!((found.compute.fixed - 0.15 / 2.0).abs() < 1e-12, "{found:?}");
        assert!((found.compute.slope * 50.0 / 0.075 - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn two_replicas_do_not_tell_how_more_of_them_slow_down() {
        let found = fit(&seen_of(&truth(), &[(1, 1, 16), (1, 2, 32), (2, 2, 32)]), Search::Thorough);
        assert_eq!((found.within_node.slope, found.between_nodes.slope), (TINY, TINY));
        assert!(found.within_node.fixed > 0.001 && found.between_nodes.fixed > 0.001, "{found:?}");
    }

    #[test]
    fn an_unseen_network_is_a_tenth_slower_than_the_seen_one() {
        let found = fit(&seen_of(&truth(), &[(1, 1, 16), (1, 2, 32), (1, 4, 32), (1, 8, 64)]), Search::Thorough);
        assert_eq!(found.between_nodes.fixed, 1.1 * found.within_node.fixed);
        assert_eq!(found.between_nodes.slope, 1.1 * found.within_node.slope);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let shapes = [(1, 1, 16), (1, 1, 64), (1, 2, 32), (1, 4, 64), (2, 8, 32), (4, 16, 16)];
        let points: Vec<Point> = seen_of(&truth(), &shapes).iter().map(Point::new).collect();
        let place = [0.07, 0.001, 0.2, 0.03, 0.1, 0.002, 2.5];
        let (_, gradient) = loss_and_gradient(&place, &points);
        for parameter in 0..7 {
            let width = 1e-5 * place[parameter];
            let at = |offset: f64| {
                let mut moved = place;
                moved[parameter] += offset;
                loss_and_gradient(&moved, &points).0
            };
            let slope = (at(width) - at(-width)) / (2.0 * width);
            assert!((gradient[parameter] / slope - 1.0).abs() < 1e-6, "{} is not {slope}", gradient[parameter]);
        }
    }

    #[test]
    fn seconds_that_cannot_be_do_no_harm() {
        for secs in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut seen = seen_of(&truth(), &[(1, 1, 16), (1, 2, 32)]);
            seen[1].step_secs = secs;
            assert!(
                parameters(&fit(&seen, Search::Thorough)).iter().all(|parameter| parameter.is_finite()),
                "with a step of {secs} s"
            );
        }
    }
}
