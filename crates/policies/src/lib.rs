//! Policies: who should hold which devices from now on. One file per policy, made of the blocks they share.
//!
//! Nothing here reads a clock, does IO or draws random numbers. A policy sees snapshots and estimates; the truth only if
//! it says so.

mod blocks;
mod config;

mod composed;
mod fifo;
mod gittins;
mod las;
pub mod pollux;
mod pollux_optimus;
mod pollux_tiresias;
pub mod sia;
mod srsf;
mod srtf;
mod tiresias;

use std::fmt;

use plan::Policy;

pub use config::{ConfigError, PolicyConfig};

/// One policy of the table.
pub struct Entry {
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    pub citation: &'static str,
    pub parameters: &'static [Parameter],
    pub build: fn(&PolicyConfig) -> Result<Box<dyn Policy>, ConfigError>,
    source: &'static str,
}

/// Something about a policy that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

/// The policy meant by a configuration.
pub fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    config.check_keys()?;
    (config.entry()?.build)(config)
}

/// All policies there are. What lists, documents, tests or compares policies reads this table.
pub static POLICIES: &[Entry] = &[
    Entry {
        name: "fifo",
        summary: "first come, first served, by priority; strict or with backfilling",
        citation: "Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001",
        parameters: &[
            parameter("backfill", "none", "who may overtake: none, easy or conservative"),
            parameter("depth", "200", "how many jobs behind the first are looked at"),
            parameter("estimates", "declared", "how long jobs take: declared, or the truth from an oracle"),
        ],
        build: fifo::build,
        source: include_str!("fifo.rs"),
    },
    Entry {
        name: "srtf",
        summary: "least remaining time first, preemptive",
        citation: "Schrage, Operations Research 1968",
        parameters: &[KNOWLEDGE],
        build: srtf::build,
        source: include_str!("srtf.rs"),
    },
    Entry {
        name: "srsf",
        summary: "least remaining service (time × GPUs) first, preemptive",
        citation: "Gu et al., Tiresias, NSDI 2019",
        parameters: &[KNOWLEDGE],
        build: srsf::build,
        source: include_str!("srsf.rs"),
    },
    Entry {
        name: "las",
        summary: "least attained service first, in rounds, preemptive",
        citation: "Nuyens and Wierman, Performance Evaluation 2008; Gu et al., Tiresias, NSDI 2019",
        parameters: &[
            parameter("round", "5m", "how often ranks are compared"),
            parameter("ties", "running", "who goes first of those who have had as much: running or arrival"),
        ],
        build: las::build,
        source: include_str!("las.rs"),
    },
    Entry {
        name: "tiresias",
        summary: "least attained service in a few queues, preemptive, packing by skew",
        citation: "Gu et al., Tiresias, NSDI 2019",
        parameters: &[
            parameter("thresholds", "3250,7200", "GPU seconds at which a job sinks to the next queue"),
            parameter("promote", "0", "promote after waiting so many times as long as it ran; 0 is never"),
            parameter("promote_after", "10m", "nobody is promoted who has waited less"),
            parameter("placement", "skew", "skew: consolidate skewed models only; free: never insist"),
            parameter("pack_above", "0.5", "skew from which a model is consolidated"),
        ],
        build: tiresias::build,
        source: include_str!("tiresias.rs"),
    },
    Entry {
        name: "gittins",
        summary: "highest Gittins index of attained service first, from the sizes of finished jobs",
        citation: "Gu et al., Tiresias, NSDI 2019; Gittins, 1979",
        parameters: &[
            parameter("delta", "3250", "GPU seconds a job is given a chance for"),
            parameter("discrete", "true", "whether queues come before the index"),
            parameter("thresholds", "3250,7200", "GPU seconds at which a job sinks to the next queue"),
            parameter("round", "1m", "how often ranks are compared"),
        ],
        build: gittins::build,
        source: include_str!("gittins.rs"),
    },
    Entry {
        name: "sia",
        summary: "goodput over GPU kinds, counts and batch sizes at once, by integer program",
        citation: "Jayaram Subramanya et al., Sia, SOSP 2023",
        parameters: &[
            parameter(
                "p",
                "-0.5",
                "fairness: the power of goodput that is summed up; below 0 favours those left behind",
            ),
            parameter("lambda", "1.1", "what it costs to give a job nothing; of the sign that p does not have"),
            parameter("round", "1m", "how often everything is weighed anew"),
            parameter(
                "others",
                "program",
                "who goes first of jobs without a model that ask for the same: program (as they come) or tiresias (who \
                 has attained least)",
            ),
            parameter(
                "explore",
                "1",
                "how fast a job is thought to be on a kind of which nothing is known, compared with the kind it knows; \
                 above 1 it is tried",
            ),
            parameter("parity", "false", "to the letter what the authors' program and simulator do"),
            MAX_NODES,
            UTIL_LOW,
            UTIL_HIGH,
        ],
        build: sia::build,
        source: include_str!("sia.rs"),
    },
    Entry {
        name: "pollux",
        summary: "goodput over GPU counts, places and batch sizes, with a fairness knob, by search",
        citation: "Qiao et al., Pollux, OSDI 2021",
        parameters: &[
            parameter("p", "-1", "fairness: the power of the mean of speed-ups; below 0 favours those left behind"),
            parameter("search", "fast", "fast: build and better; plain: the genetic search as published, 100 x 100"),
            parameter("seed", "1", "for the search; with the moment it decides all chance"),
            parameter("round", "1m", "how often everything is weighed anew"),
            parameter("parity", "false", "whole seconds and restart costs as in the authors' simulator"),
            MAX_NODES,
            UTIL_LOW,
            UTIL_HIGH,
        ],
        build: pollux::build,
        source: include_str!("pollux.rs"),
    },
    Entry {
        name: "pollux-tiresias",
        summary: "Tiresias as Pollux was compared with it: two queues, in rounds, the emptiest nodes first",
        citation: "Qiao et al., Pollux, OSDI 2021; Gu et al., Tiresias, NSDI 2019",
        parameters: &[
            parameter("threshold", "57600", "GPU seconds at which a job sinks to the second queue"),
            parameter("round", "1m", "how often queues are walked along"),
            parameter("parity", "false", "whole seconds, as the authors' simulator counts"),
        ],
        build: pollux_tiresias::build,
        source: include_str!("pollux_tiresias.rs"),
    },
    Entry {
        name: "pollux-optimus",
        summary: "Optimus as Pollux was compared with it: GPUs to whoever saves most time, with an oracle",
        citation: "Qiao et al., Pollux, OSDI 2021; Peng et al., Optimus, EuroSys 2018",
        parameters: &[
            parameter("round", "1m", "how often everything is shared out anew"),
            parameter("parity", "false", "whole seconds, as the authors' simulator counts"),
        ],
        build: pollux_optimus::build,
        source: include_str!("pollux_optimus.rs"),
    },
    Entry {
        name: "composed",
        summary: "blocks named in the configuration: order, preemption, backfilling, grants, placement",
        citation: "none; the blocks are those of the other policies",
        parameters: &[
            parameter("order", "arrival", "arrival, priority, shortest, smallest, attained, deadline or fair"),
            parameter("preempt", "false", "whether better ranked jobs stop others"),
            parameter("backfill", "none", "without preemption, who may overtake: none or easy"),
            parameter("depth", "200", "how many jobs behind the first are looked at for backfilling"),
            parameter("estimates", "declared", "how long jobs take: declared, or the truth from an oracle"),
            parameter("grant", "smallest", "smallest, or grow into what nobody waits for"),
            parameter("grow_gain", "1.5", "how much faster a running job must become to be restarted larger"),
            parameter("place", "pack", "pack, consolidate, scatter or spread"),
            parameter("round", "0", "how often ranks are compared; 0 is at every change"),
        ],
        build: composed::build,
        source: include_str!("composed.rs"),
    },
];

const MAX_NODES: Parameter = parameter("max_nodes", "0", "rent and give back nodes up to so many; 0 is never");
const UTIL_LOW: Parameter = parameter("util_low", "0.35", "utility of the cluster below which nodes are given back");
const UTIL_HIGH: Parameter = parameter("util_high", "0.65", "utility of the cluster above which nodes are rented");
const KNOWLEDGE: Parameter = parameter("knowledge", "oracle", "how long jobs take: oracle (the truth) or estimate");

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

impl Entry {
    /// What the head of the policy's file says: paper, idea, symbols, deviations.
    pub fn header(&self) -> String {
        let lines = self.source.lines().map_while(|line| line.strip_prefix("//!"));
        lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("summary", &self.summary).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = POLICIES.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), POLICIES.len());
    }

    #[test]
    fn every_policy_builds_with_its_defaults() {
        for entry in POLICIES {
            let built = build(&PolicyConfig::named(entry.name));
            assert!(built.is_ok(), "{}: {}", entry.name, built.err().unwrap());
        }
    }

    #[test]
    fn every_header_names_paper_idea_symbols_and_deviations() {
        for entry in POLICIES {
            let header = entry.header();
            for section in ["Paper: ", "The idea. ", "\n| ", "Deviations. "] {
                assert!(header.contains(section), "{}: no `{}` in its header", entry.name, section.trim());
            }
        }
    }

    #[test]
    fn every_parameter_is_explained_in_one_line() {
        let parameters = POLICIES.iter().flat_map(|entry| entry.parameters);
        assert!(parameters.into_iter().all(|parameter| !parameter.help.is_empty() && !parameter.help.contains('\n')));
    }
}
