//! What is trained: a network of one hidden layer that tells two classes apart, on examples drawn from a seed. A larger
//! hidden layer makes an example dearer and little else, so a job can be given any weight.

use super::random::Random;

/// The width of an example.
pub(super) const FEATURES: usize = 32;
/// So many there are; an epoch is one pass over them.
pub(super) const EXAMPLES: usize = 1024;
/// The part of the labels that is wrong: gradients stay noisy to the end, as those of real trainings do.
const MISLABELLED: f32 = 0.1;

#[derive(Debug)]
pub(super) struct Examples {
    inputs: Vec<[f32; FEATURES]>,
    /// 0 or 1.
    labels: Vec<f32>,
}

/// The network: all weights in one list, each hidden unit's inputs and then its output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    pub(super) weights: Vec<f32>,
}

/// The mean over a batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gradient {
    pub(super) values: Vec<f32>,
    pub(super) loss: f64,
}

/// Weights of one hidden unit.
const UNIT: usize = FEATURES + 1;

impl Examples {
    /// Points that a plane through the origin divides, some of them with the label of the other side.
    pub(super) fn drawn(seed: u64) -> Examples {
        let mut random = Random::new(&[seed, 0]);
        let plane: [f32; FEATURES] = std::array::from_fn(|_| random.centred());
        let mut examples = Examples { inputs: Vec::new(), labels: Vec::new() };
        // Inputs of about length one keep a sensible learning rate the same whatever the sizes.
        let scale = (3.0 / FEATURES as f32).sqrt();
        for _ in 0..EXAMPLES {
            let input: [f32; FEATURES] = std::array::from_fn(|_| scale * random.centred());
            let above = dot(&input, &plane) > 0.0;
            let wrong = random.unit() < MISLABELLED;
            examples.labels.push(if above != wrong { 1.0 } else { 0.0 });
            examples.inputs.push(input);
        }
        examples
    }
}

impl Model {
    pub(super) fn new(hidden: usize, seed: u64) -> Model {
        let mut random = Random::new(&[seed, 1]);
        Model { weights: (0..hidden * UNIT).map(|_| 1.7 * random.centred()).collect() }
    }

    pub(super) fn weights_of(hidden: usize) -> usize {
        hidden * UNIT
    }

    /// Gradient and loss of the examples with these numbers.
    pub(super) fn gradient(&self, examples: &Examples, batch: &[usize]) -> Gradient {
        let mut values = vec![0.0; self.weights.len()];
        let mut loss = 0.0;
        let mut active = vec![0.0; self.weights.len() / UNIT];
        for &index in batch {
            let (input, label) = (&examples.inputs[index], examples.labels[index]);
            let score = self.score(input, &mut active);
            loss += logistic_loss(score, label);
            let error = (sigmoid(score) - label) * self.share() / batch.len() as f32;
            for ((unit, into), &activity) in
                self.weights.chunks_exact(UNIT).zip(values.chunks_exact_mut(UNIT)).zip(&active)
            {
                if activity > 0.0 {
                    let through = error * unit[FEATURES];
                    into[..FEATURES].iter_mut().zip(input).for_each(|(into, input)| *into += through * input);
                    into[FEATURES] += error * activity;
                }
            }
        }
        Gradient { values, loss: loss / batch.len() as f64 }
    }

    pub(super) fn descend(&mut self, gradient: &[f32], rate: f32) {
        self.weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= rate * slope);
    }

    /// The mean loss over all examples.
    pub(super) fn loss(&self, examples: &Examples) -> f64 {
        let mut active = vec![0.0; self.weights.len() / UNIT];
        let all = examples.inputs.iter().zip(&examples.labels);
        all.map(|(input, &label)| logistic_loss(self.score(input, &mut active), label)).sum::<f64>() / EXAMPLES as f64
    }

    fn score(&self, input: &[f32; FEATURES], active: &mut [f32]) -> f32 {
        let mut sum = 0.0;
        for (unit, activity) in self.weights.chunks_exact(UNIT).zip(active) {
            *activity = dot(&unit[..FEATURES], input).max(0.0);
            sum += unit[FEATURES] * *activity;
        }
        sum * self.share()
    }

    /// What a hidden unit contributes shrinks with their number, so that the sum does not grow with it.
    fn share(&self) -> f32 {
        1.0 / ((self.weights.len() / UNIT) as f32).sqrt()
    }
}

pub(super) fn square(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(score: f32) -> f32 {
    1.0 / (1.0 + (-score).exp())
}

fn logistic_loss(score: f32, label: f32) -> f64 {
    let score = f64::from(score);
    score.max(0.0) - score * f64::from(label) + (-score.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let (examples, model) = (Examples::drawn(7), Model::new(5, 7));
        let batch: Vec<usize> = (0..64).collect();
        let gradient = model.gradient(&examples, &batch);
        let loss_with = |weight: usize, change: f32| {
            let mut changed = model.clone();
            changed.weights[weight] += change;
            changed.gradient(&examples, &batch).loss
        };
        for weight in [0, FEATURES, 2 * UNIT + 3, 5 * UNIT - 1] {
            let slope = (loss_with(weight, 0.01) - loss_with(weight, -0.01)) / 0.02;
            let found = f64::from(gradient.values[weight]);
            assert!(
                (slope - found).abs() < 2e-3,
                "weight {weight}: the loss rises by {slope}, the gradient is {found}"
            );
        }
    }

    #[test]
    fn descending_lowers_the_loss_whatever_the_size() {
        for hidden in [4, 40] {
            let (examples, mut model) = (Examples::drawn(1), Model::new(hidden, 1));
            let all: Vec<usize> = (0..EXAMPLES).collect();
            let before = model.loss(&examples);
            for _ in 0..200 {
                let gradient = model.gradient(&examples, &all);
                model.descend(&gradient.values, 4.0);
            }
            let after = model.loss(&examples);
            assert!(after < 0.9 * before, "{hidden} units: from {before} to {after}");
        }
    }
}
