//! Composed: a policy put together from named blocks in a configuration.
//!
//! Paper: none. The blocks are those of the other policies; the thought of composing list schedulers by name is that of
//! DSLab's `DynamicList` and of Blox (Agarwal et al., EuroSys 2024).
//!
//! The idea. Most simple policies are an order, a rule for those who do not fit, a size and a place. Name one of each:
//! rank by `order`; with `preempt`, better ones stop worse ones; without it the first that does not fit holds up the
//! others, unless `backfill` lets them pass; everyone gets the smallest size, and with `grant = grow` elastic jobs take
//! what nobody waits for and give it back when someone does; `place` says how tasks are laid out.
//!
//! | word in the configuration | least first                                                        |
//! |---------------------------|--------------------------------------------------------------------|
//! | `arrival`, `priority`     | submission; highest priority, then submission                      |
//! | `shortest`, `smallest`    | time left; GPUs at the smallest size                               |
//! | `attained`                | GPU time held so far, over the job's weight                        |
//! | `deadline`                | deadline; jobs without one last                                    |
//! | `fair`                    | GPUs of the same user's jobs before it, each over its weight       |
//!
//! Deviations. `fair` counts for every job what its user would hold if the user's jobs were served in turn: whoever holds
//! least goes first, and a user's later jobs wait for other users' earlier ones. Without `preempt` a user's running jobs
//! count before the waiting ones; with it, jobs count in order of submission, so a large job that cannot be placed holds
//! its user's later jobs back. When a loan is called in, `fair` without `preempt` follows one decision later. It ranks
//! everyone anew in every decision. A running job grows only if that makes it `grow_gain` times as fast by estimate,
//! because it must be restarted for it; it takes the largest size there is room for. Shrinking keeps a job on a part of
//! its own devices.

use std::collections::BTreeMap;

use cluster::{ClaimId, Span, Time};
use plan::{Claim, Knowledge, Plan, Policy, Rhythm, Snapshot, Turns, UserId};

use crate::blocks::backfill::{self, Backfill, Rules};
use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::order::{self, Line, Order, Rank, Standing};
use crate::blocks::place::Style;
use crate::blocks::preempt;
use crate::blocks::remaining::Source;
use crate::config::{ConfigError, PolicyConfig, bad_value};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    let by = config.choice(
        "order",
        &[
            ("arrival", By::Arrival),
            ("priority", By::Priority),
            ("shortest", By::Shortest),
            ("smallest", By::Smallest),
            ("attained", By::Attained),
            ("deadline", By::Deadline),
            ("fair", By::Fair),
        ],
    )?;
    let styles = [
        ("pack", Style::Pack),
        ("consolidate", Style::Consolidate),
        ("scatter", Style::Scatter),
        ("spread", Style::Spread),
    ];
    let estimates = config.choice("estimates", &[("declared", Source::Estimate), ("oracle", Source::Oracle)])?;
    let grow = config.choice("grant", &[("smallest", false), ("grow", true)])?;
    let rules = Rules {
        backfill: config.choice("backfill", &[("none", Backfill::None), ("easy", Backfill::Easy)])?,
        depth: config.count("depth")?,
        estimates,
        style: config.choice("place", &styles)?,
        shrink: grow,
    };
    let preempt = config.switch("preempt")?;
    if preempt && rules.backfill != Backfill::None {
        return Err(bad_value("backfill", "none, because with preempt = true whoever fits may pass", "easy"));
    }
    Ok(Box::new(Composed {
        blocks: Blocks {
            preempt,
            rules,
            grow_gain: grow.then_some(config.number("grow_gain", 1.0)?),
            round: config.span("round")?,
        },
        rule: Rule { by, estimates, in_rounds: config.span("round")?.is_some(), ahead: BTreeMap::new() },
        line: Line::new(),
    }))
}

#[derive(Debug)]
struct Composed {
    blocks: Blocks,
    rule: Rule,
    line: Line<Key>,
}

#[derive(Debug)]
struct Blocks {
    preempt: bool,
    rules: Rules,
    grow_gain: Option<f64>,
    round: Option<Span>,
}

/// What the order counts; who runs before who waits; who came first.
type Key = (u64, Standing, Time);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Arrival,
    Priority,
    Shortest,
    Smallest,
    Attained,
    Deadline,
    Fair,
}

#[derive(Debug)]
struct Rule {
    by: By,
    estimates: Source,
    in_rounds: bool,
    /// For `fair`: GPUs over weight of the same user's claims that come before each claim.
    ahead: BTreeMap<ClaimId, u64>,
}

impl Policy for Composed {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.update(snapshot);
        let blocks = &self.blocks;
        let mut draft = Draft::new(snapshot);
        let nobody_waits = if blocks.preempt {
            preempt::in_order(&mut draft, &self.line, &self.rule, |_| blocks.rules.style, blocks.rules.shrink)
        } else {
            backfill::in_order(&mut draft, &self.line, &self.rule, blocks.rules)
        };
        if let Some(gain) = blocks.grow_gain.filter(|_| nobody_waits) {
            grant::grow(&mut draft, &self.line, gain, blocks.rules.style);
        }
        let next_round = blocks.round.map(|round| order::next_round(snapshot.now, round));
        draft.plan(next_round.filter(|_| !nobody_waits))
    }

    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        self.update(snapshot);
        self.line.turns(!self.blocks.preempt)
    }

    fn rhythm(&self) -> Rhythm {
        self.blocks.round.map_or(Rhythm::OnChange, Rhythm::EveryRound)
    }

    /// Without preemption, whom a called-in loan puts in front is seen only once the loan is back.
    fn is_stable(&self) -> bool {
        self.rule.by != By::Fair || self.blocks.preempt
    }

    fn knows(&self) -> &'static [Knowledge] {
        self.rule.estimates.knows()
    }
}

impl Composed {
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        if self.rule.by == By::Fair {
            self.rule.ahead = ahead_of_each(snapshot, self.blocks.preempt);
            self.line.rebuild(snapshot, &self.rule);
        } else {
            self.line.update(snapshot, &self.rule);
        }
    }
}

impl Order for Rule {
    type Key = Key;

    fn rank(&self, snapshot: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<Key> {
        let counts = match self.by {
            By::Arrival => claim.submitted.as_millis(),
            By::Priority => (i64::from(i32::MAX) - i64::from(claim.priority)) as u64,
            By::Shortest => self.estimates.at_best(snapshot, claim).map_or(u64::MAX, Span::as_millis),
            By::Smallest => u64::from(claim.spec.asked_gpus().as_thousandths()),
            By::Attained => order::per_weight(claim.attained(snapshot.now).as_raw(), claim),
            By::Deadline => claim.spec.deadline.map_or(u64::MAX, Time::as_millis),
            By::Fair => self.ahead.get(&claim.id).copied().unwrap_or(u64::MAX),
        };
        let moves = match self.by {
            By::Shortest => self.estimates.moves(claim),
            By::Attained => !claim.progress.holding().is_zero(),
            _ => false,
        };
        // Without preemption nobody who runs is compared with one who waits, and arrival alone counts.
        Rank::moving_if(moves, (counts, standing, claim.submitted))
    }

    fn spares(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> bool {
        self.in_rounds && order::is_settling(snapshot, claim)
    }
}

/// For every claim, the GPUs over weight of those of its user's claims that come before it.
///
/// Without preemption those that run come first: they are what the user holds. With preemption the order is that of
/// submission alone; if it depended on who runs, every plan would change the ranks it was made by.
fn ahead_of_each(snapshot: &Snapshot<'_>, preempt: bool) -> BTreeMap<ClaimId, u64> {
    let mut of_user: BTreeMap<UserId, Vec<(bool, Time, ClaimId)>> = BTreeMap::new();
    for claim in snapshot.eligible() {
        let behind = !preempt && claim.target.is_none();
        of_user.entry(claim.user).or_default().push((behind, claim.submitted, claim.id));
    }
    let mut ahead = BTreeMap::new();
    for claims in of_user.values_mut() {
        claims.sort_unstable();
        let mut sum = 0_u64;
        for &(_, _, id) in claims.iter() {
            ahead.insert(id, sum);
            let claim = snapshot.claim(id);
            sum = sum.saturating_add(order::per_weight(u64::from(claim.spec.asked_gpus().as_thousandths()), claim));
        }
    }
    ahead
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn composed(pairs: &[&str]) -> Box<dyn Policy> {
        build(&PolicyConfig::from_pairs("composed", pairs).unwrap()).unwrap()
    }

    // The examples here are our own, small enough to be worked out by hand.

    #[track_caller]
    fn first_by(order: &str, expected: &str) {
        let scenario = Scenario::new("1x2")
            .at("1h")
            .job("arrival 2 gpus submitted 1s expected 5h attained 500")
            .job("priority 2 gpus submitted 2s expected 5h attained 500 priority 3")
            .job("shortest 2 gpus submitted 3s expected 1h attained 500")
            .job("smallest 1 gpu submitted 4s expected 5h attained 500")
            .job("attained 2 gpus submitted 5s expected 5h attained 100")
            .job("deadline 2 gpus submitted 6s expected 5h attained 500 deadline 9h");
        scenario.check(&mut *composed(&[&format!("order={order}")]), expected);
    }

    #[test]
    fn each_order_puts_another_first() {
        for order in ["arrival", "priority", "shortest", "attained", "deadline"] {
            first_by(order, &format!("{order}: n0:0-1"));
        }
        first_by("smallest", "smallest: n0:0");
    }

    #[test]
    fn the_user_who_holds_least_goes_first() {
        let scenario = Scenario::new("1x4")
            .job("a1 2 gpus user ann runs n0:0-1")
            .job("a2 1 gpu user ann submitted 1s")
            .job("a3 1 gpu user ann submitted 2s")
            .job("b1 1 gpu user bob submitted 3s");
        scenario.check(&mut *composed(&["order=fair"]), "a1: n0:0-1\na2: n0:3\nb1: n0:2");
    }

    #[test]
    fn users_take_turns() {
        let scenario = Scenario::new("1x2").job("a1 user ann").job("a2 user ann").job("b1 user bob").job("b2 user bob");
        scenario.check(&mut *composed(&["order=fair"]), "a1: n0:0\nb1: n0:1");
    }

    #[test]
    fn with_preemption_the_user_who_holds_most_gives() {
        let scenario = Scenario::new("1x2")
            .job("a1 user ann runs n0:0")
            .job("a2 user ann runs n0:1 since 5s")
            .job("b1 user bob submitted 9s");
        scenario.check(&mut *composed(&["order=fair", "preempt=true"]), "a1: n0:0\nb1: n0:1");
    }

    #[test]
    fn with_preemption_the_earlier_arrival_stops_the_later_one() {
        let scenario = Scenario::new("1x2")
            .job("late runs n0:0 submitted 9s")
            .job("later runs n0:1 submitted 10s")
            .job("early 1 gpu submitted 2s");
        scenario.check(&mut *composed(&["order=arrival", "preempt=true"]), "late: n0:0\nearly: n0:1");
        scenario.check(&mut *composed(&["order=arrival"]), "late: n0:0\nlater: n0:1");
    }

    #[test]
    fn preemption_and_backfilling_exclude_each_other() {
        let config = PolicyConfig::from_pairs("composed", &["preempt=true", "backfill=easy"]).unwrap();
        let expected = "backfill: expected none, because with preempt = true whoever fits may pass, found `easy`";
        assert_eq!(build(&config).err().unwrap().to_string(), expected);
    }

    #[test]
    fn backfilling_works_in_any_order() {
        let scenario = Scenario::new("1x4")
            .job("runs 2 gpus expected 1h runs n0:0-1")
            .job("last 2 gpus expected 30m")
            .job("head 4 gpus expected 1h priority 5");
        scenario.check(&mut *composed(&["order=priority"]), "runs: n0:0-1");
        scenario.check(&mut *composed(&["order=priority", "backfill=easy"]), "runs: n0:0-1\nlast: n0:2-3");
    }

    #[test]
    fn elastic_jobs_grow_into_what_nobody_waits_for() {
        let scenario = Scenario::new("1x8").job("a elastic 1..4 speed gpu=1").job("b elastic 2..8 speed gpu=1");
        scenario.check(&mut *composed(&["grant=grow"]), "a: n0:0,3-5\nb: n0:1-2,6-7");
        scenario.check(&mut *composed(&[]), "a: n0:0\nb: n0:1-2");
    }

    #[test]
    fn a_running_job_grows_only_if_it_is_worth_a_restart() {
        let running = |cluster| Scenario::new(cluster).job("a elastic 4..8 speed gpu=1 runs n0:0-3");
        running("1x5").check(&mut *composed(&["grant=grow"]), "a: n0:0-3");
        running("1x6").check(&mut *composed(&["grant=grow"]), "a: n0:0-5");
    }

    #[test]
    fn grown_jobs_give_back_what_someone_waits_for() {
        let scenario = Scenario::new("1x4").job("grown elastic 1..4 runs n0:0-3").job("new 2 gpus");
        for preempt in ["preempt=false", "preempt=true"] {
            scenario.check(&mut *composed(&["grant=grow", preempt]), "grown: n0:0\nnew: n0:1-2");
        }
    }

    #[test]
    fn nobody_shrinks_for_one_who_then_does_not_fit() {
        let scenario = Scenario::new("1x4").job("grown elastic 2..4 runs n0:0-3").job("new 3 gpus submitted 1s");
        for preempt in ["preempt=false", "preempt=true"] {
            scenario.check(&mut *composed(&["grant=grow", preempt]), "grown: n0:0-3");
        }
    }

    #[test]
    fn adaptive_jobs_grow_with_their_batch() {
        let scenario = Scenario::new("1x4").job("a adaptive 1..4 batch 32..96 speed gpu=1");
        scenario.check(&mut *composed(&["grant=grow"]), "a: n0:0-3 batch 96");
    }

    #[test]
    fn rounds_are_kept_while_someone_waits() {
        let scenario = Scenario::new("1x1").at("90s").job("a runs n0:0").job("b");
        let mut policy = composed(&["round=1m"]);
        assert_eq!(policy.rhythm(), Rhythm::EveryRound(Span::from_minutes(1)));
        assert_eq!(scenario.ask(&mut *policy).wake_at, Some(Time::from_secs(120)));
        assert_eq!(scenario.ask(&mut *composed(&[])).wake_at, None);
    }
}
