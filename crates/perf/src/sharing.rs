//! How much jobs slow each other down where they share a GPU or a node.

use cluster::Invalid;
use serde::{Deserialize, Serialize};

/// Slow-down per neighbour: 0.2 means that each adds a fifth of the undisturbed step time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interference {
    pub same_gpu: f64,
    pub same_node: f64,
}

/// Other jobs in the same place. One that shares a GPU is not counted again for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Neighbours {
    pub same_gpu: u32,
    pub same_node: u32,
}

impl Interference {
    /// What is left of the undisturbed rate.
    pub fn factor(self, neighbours: Neighbours) -> f64 {
        let gpu = self.same_gpu * f64::from(neighbours.same_gpu);
        let node = self.same_node * f64::from(neighbours.same_node);
        1.0 / (1.0 + gpu + node)
    }

    pub fn is_none(self) -> bool {
        self.same_gpu == 0.0 && self.same_node == 0.0
    }

    pub fn check(self) -> Result<(), Invalid> {
        for (field, value) in [("interference.same_gpu", self.same_gpu), ("interference.same_node", self.same_node)] {
            if !(0.0..1e6).contains(&value) {
                return Err(Invalid::new(field, "a number of at least 0", value));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_neighbour_adds_its_part_of_the_step_time() {
        let interference = Interference { same_gpu: 0.5, same_node: 0.25 };
        assert_eq!(interference.factor(Neighbours::default()), 1.0);
        assert_eq!(interference.factor(Neighbours { same_gpu: 1, same_node: 2 }), 0.5);
    }
}
