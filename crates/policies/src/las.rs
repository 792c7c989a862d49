//! LAS: whoever has had the least runs first.
//!
//! Paper: M. Nuyens and A. Wierman, "The Foreground-Background queue: a survey", Performance Evaluation 65, 2008; with
//! GPU time as the measure: Gu et al., "Tiresias", NSDI 2019, section 3.2 (2D-LAS, continuous priorities).
//!
//! The idea. Nobody knows how long a job will run, but a job that has run little may be short. Rank by attained service,
//! the GPU time held so far over the job's weight, least first: short jobs are done before they have attained much, long
//! ones share what is left. At the start of every round, walk along all jobs in that order and run each whose gang fits.
//!
//! | paper                   | here                                   |
//! |-------------------------|----------------------------------------|
//! | attained service W_j·t_j| `claim.attained(now)`                  |
//! | weight                  | `spec.weight`                          |
//! | quantum                 | `round`                                |
//!
//! Deviations. The ideal shares devices in infinitely small turns; here a turn is a round, and who runs is stopped only
//! for one who has had strictly less (`ties=arrival`: or as much and came earlier), and not before it has run for as long
//! as a restart takes. Newcomers wait for the next round even if devices are free. Rounds cost as much as
//! there are running jobs.

use cluster::{Span, Time};
use plan::{Claim, Plan, Policy, Rhythm, Snapshot, Turns};

use crate::blocks::draft::Draft;
use crate::blocks::order::{self, Line, Order, Rank, Standing};
use crate::blocks::place::Style;
use crate::blocks::preempt;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    let ties = config.choice("ties", &[("running", Ties::Running), ("arrival", Ties::Arrival)])?;
    Ok(Box::new(Las { round: config.round("round")?, rule: LeastAttained { ties }, line: Line::new() }))
}

#[derive(Debug)]
struct Las {
    round: Span,
    rule: LeastAttained,
    line: Line<Key>,
}

/// Who goes first of those who have had as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ties {
    /// Whoever runs: nobody is stopped for nothing.
    Running,
    /// Whoever came first, as in the paper's example.
    Arrival,
}

/// What was attained per weight; who runs before who waits; who came first.
type Key = (u64, Standing, Time);

impl Policy for Las {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.line.update(snapshot, &self.rule);
        let mut draft = Draft::new(snapshot);
        let nobody_waits = preempt::in_order(&mut draft, &self.line, &self.rule, |_| Style::Pack, false);
        draft.plan((!nobody_waits).then(|| order::next_round(snapshot.now, self.round)))
    }

    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        self.line.update(snapshot, &self.rule);
        self.line.turns(false)
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }
}

#[derive(Debug)]
struct LeastAttained {
    ties: Ties,
}

impl Order for LeastAttained {
    type Key = Key;

    fn rank(&self, snapshot: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<Key> {
        let attained = order::per_weight(claim.attained(snapshot.now).as_raw(), claim);
        let moves = !claim.progress.holding().is_zero();
        let standing = if self.ties == Ties::Running { standing } else { Standing::Waiting };
        Rank::moving_if(moves, (attained, standing, claim.submitted))
    }

    fn spares(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> bool {
        order::is_settling(snapshot, claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn las() -> Box<dyn Policy> {
        build(&PolicyConfig::named("las")).unwrap()
    }

    // The examples here are our own, small enough to be worked out by hand.

    #[test]
    fn a_newcomer_preempts_one_who_has_used_much() {
        let scenario = Scenario::new("1x2")
            .at("1h")
            .job("much 1 gpu attained 7200 runs n0:0")
            .job("little 1 gpu attained 60 runs n0:1")
            .job("new 1 gpu submitted 1h");
        scenario.check(&mut *las(), "little: n0:1\nnew: n0:0");
    }

    #[test]
    fn who_has_had_as_much_is_not_preempted() {
        let scenario = Scenario::new("1x1").job("first attained 60").job("second attained 60 runs n0:0");
        scenario.check(&mut *las(), "second: n0:0");
    }

    #[test]
    fn twice_the_weight_is_worth_twice_the_service() {
        let scenario = Scenario::new("1x1").job("heavy weight 2 attained 150").job("light weight 1 attained 100");
        scenario.check(&mut *las(), "heavy: n0:0");
    }

    #[test]
    fn gpu_time_counts_and_not_time() {
        // Both ran for an hour; the wide one held four GPUs.
        let scenario = Scenario::new("1x4").job("wide 4 gpus attained 14400").job("narrow 1 gpu attained 3600");
        scenario.check(&mut *las(), "narrow: n0:0");
    }

    #[test]
    fn it_wakes_at_the_next_round_while_someone_waits() {
        let waits = Scenario::new("1x1").at("7m").job("a runs n0:0").job("b attained 60");
        assert_eq!(waits.ask(&mut *las()).wake_at, Some(Time::from_secs(600)));
        let content = Scenario::new("1x1").at("7m").job("a runs n0:0");
        assert_eq!(content.ask(&mut *las()).wake_at, None);
    }
}
