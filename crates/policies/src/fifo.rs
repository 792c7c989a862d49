//! FIFO: first come, first served, by priority; with or without backfilling.
//!
//! Paper: D. Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY backfilling); A. Mu'alem and D. Feitelson,
//! "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE
//! TPDS 12(6), 2001, section 2 (EASY and conservative).
//!
//! The idea. Jobs start in order of priority, then of submission, and run to their end. Strictly, the first that does
//! not fit holds up all others. EASY promises the first one the earliest time at which enough running jobs will have
//! ended (the shadow time); others may start now if they will have ended by then, or fit beside it. Conservative
//! backfilling makes such a promise to everyone in line, so that nobody is delayed by one who came later.
//!
//! | paper             | here                                                     |
//! |-------------------|----------------------------------------------------------|
//! | shadow time       | `Reservation::at`                                        |
//! | extra nodes       | `Reservation::beside`, the room beside the head          |
//! | usage profile     | `Profile`, whole devices free by kind over time          |
//! | user estimate     | `Snapshot::remaining`, or the truth for an oracle        |
//!
//! Deviations. A queue without quota holds up only itself. A queue above its budget gives devices back at once, last
//! come first: that is how loans are called in. EASY computes its promise on exact devices, conservative
//! backfilling by counts of each kind, so a gang whose time has come may still wait for scattered devices. Running jobs
//! without an estimate are taken never to end; a waiting one may then start only beside the head, and if no promise can
//! be made to the head, whoever has an estimate may start. Only `depth` jobs behind the first are looked at.

use std::cmp::Reverse;

use cluster::Time;
use plan::{Claim, Knowledge, Plan, Policy, Snapshot};

use crate::blocks::backfill::{self, Backfill, Rules};
use crate::blocks::draft::Draft;
use crate::blocks::order::{Line, Order, Rank, Standing};
use crate::blocks::place::Style;
use crate::blocks::remaining::Source;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    let backfill = [("none", Backfill::None), ("easy", Backfill::Easy), ("conservative", Backfill::Conservative)];
    let rules = Rules {
        backfill: config.choice("backfill", &backfill)?,
        depth: config.count("depth")?,
        estimates: config.choice("estimates", &[("declared", Source::Estimate), ("oracle", Source::Oracle)])?,
        style: Style::Pack,
        shrink: false,
    };
    Ok(Box::new(Fifo { rules, line: Line::new() }))
}

#[derive(Debug)]
struct Fifo {
    rules: Rules,
    line: Line<Key>,
}

type Key = (Reverse<i32>, Time);

impl Policy for Fifo {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.line.update(snapshot, &FirstCome);
        let mut draft = Draft::new(snapshot);
        backfill::in_order(&mut draft, &self.line, &FirstCome, self.rules);
        draft.plan(None)
    }

    fn knows(&self) -> &'static [Knowledge] {
        self.rules.estimates.knows()
    }
}

struct FirstCome;

impl Order for FirstCome {
    type Key = Key;

    fn rank(&self, _: &Snapshot<'_>, claim: &Claim, _: Standing) -> Rank<Key> {
        Rank::fixed((Reverse(claim.priority), claim.submitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::QueueDraft;
    use plan::text::Scenario;

    fn fifo(pairs: &[&str]) -> Box<dyn Policy> {
        build(&PolicyConfig::from_pairs("fifo", pairs).unwrap()).unwrap()
    }

    fn strict() -> Box<dyn Policy> {
        fifo(&[])
    }

    #[test]
    fn jobs_start_in_order_of_submission() {
        let scenario =
            Scenario::new("1x2").job("late submitted 20s").job("early submitted 10s").job("last submitted 30s");
        scenario.check(&mut *strict(), "late: n0:1\nearly: n0:0");
    }

    #[test]
    fn a_higher_priority_goes_first() {
        let scenario = Scenario::new("1x1").job("low submitted 1s").job("high submitted 2s priority 5");
        scenario.check(&mut *strict(), "high: n0:0");
    }

    #[test]
    fn the_first_that_does_not_fit_holds_up_all_others() {
        let scenario = Scenario::new("1x4").job("runs 2 gpus runs n0:0-1").job("wide 4 gpus").job("narrow 1 gpu");
        scenario.check(&mut *strict(), "runs: n0:0-1");
        let reason = |job| scenario.reason(&mut *strict(), job).unwrap();
        assert_eq!(reason("wide"), "WaitingForResources: needs 4 GPUs, 2 free");
        assert_eq!(reason("narrow"), "Priority: job 1 comes first");
    }

    /// The textbook case, our numbers: two of four GPUs are busy for an hour, the head needs all four.
    fn textbook() -> Scenario {
        Scenario::new("1x4")
            .job("runs 2 gpus expected 1h runs n0:0-1")
            .job("head 4 gpus expected 1h")
            .job("long 1 gpu expected 2h")
            .job("short 2 gpus expected 30m")
    }

    #[test]
    fn easy_lets_those_start_who_end_before_the_head_can() {
        textbook().check(&mut *fifo(&["backfill=easy"]), "runs: n0:0-1\nshort: n0:2-3");
        let reason = |job| textbook().reason(&mut *fifo(&["backfill=easy"]), job).unwrap();
        assert_eq!(reason("long"), "Reservation: kept for job 1 until 1h");
        assert_eq!(reason("short"), "Backfilled: 2 workers on 1 nodes");
    }

    #[test]
    fn easy_lets_those_start_who_fit_beside_the_head() {
        let scenario = Scenario::new("1x5")
            .job("runs 2 gpus expected 1h runs n0:3-4")
            .job("head 4 gpus expected 1h")
            .job("long 1 gpu expected 9h")
            .job("longer 1 gpu expected 9h");
        // Of five GPUs the head leaves one.
        scenario.check(&mut *fifo(&["backfill=easy"]), "runs: n0:3-4\nlong: n0:0");
    }

    #[test]
    fn an_oracle_is_not_fooled_by_estimates() {
        let scenario = Scenario::new("1x4")
            .job("runs 2 gpus expected 1h takes 1h runs n0:0-1")
            .job("head 4 gpus expected 1h takes 1h")
            .job("liar 2 gpus expected 30m takes 5h");
        scenario.check(&mut *fifo(&["backfill=easy", "estimates=oracle"]), "runs: n0:0-1");
    }

    #[test]
    fn easy_may_delay_the_second_in_line_and_conservative_does_not() {
        // One of three GPUs is busy for an hour. The head (3 GPUs) starts then and ends after another hour. The second
        // (1 GPU, 90 minutes) would end too late to start now; it is promised the end of the head, as is the third.
        let scenario = || {
            Scenario::new("1x3")
                .job("runs 1 gpu expected 1h runs n0:0")
                .job("head 2 gpus on gpu expected 1h runs n0:1-2")
                .job("second 3 gpus expected 1h")
                .job("third 1 gpu expected 1h")
        };
        scenario().check(&mut *fifo(&["backfill=conservative"]), "runs: n0:0\nhead: n0:1-2");
        let gap = Scenario::new("1x4")
            .job("runs 2 gpus expected 1h runs n0:0-1")
            .job("head 3 gpus expected 1h")
            .job("second 2 gpus expected 30m")
            .job("third 1 gpu expected 3h");
        // The second ends before the head starts. The third fits beside the head, but the second holds its place now.
        gap.check(&mut *fifo(&["backfill=conservative"]), "runs: n0:0-1\nsecond: n0:2-3");
    }

    #[test]
    fn conservative_keeps_its_promise_to_the_second() {
        // Shadow of the head: 1 h, all four GPUs, until 2 h. The second needs four as well: 2 h to 3 h. The third, two
        // GPUs for 30 minutes, delays neither and starts; the fourth, as wide, finds no room now.
        let scenario = Scenario::new("1x4")
            .job("runs 2 gpus expected 1h runs n0:0-1")
            .job("head 4 gpus expected 1h")
            .job("second 4 gpus expected 1h")
            .job("third 2 gpus expected 30m")
            .job("fourth 1 gpu expected 10h");
        scenario.check(&mut *fifo(&["backfill=conservative"]), "runs: n0:0-1\nthird: n0:2-3");
    }

    #[test]
    fn depth_limits_how_far_backfilling_looks() {
        let policy = |depth: u32| fifo(&["backfill=easy", &format!("depth={depth}")]);
        textbook().check(&mut *policy(1), "runs: n0:0-1");
        textbook().check(&mut *policy(2), "runs: n0:0-1\nshort: n0:2-3");
    }

    #[test]
    fn a_queue_without_quota_holds_up_only_itself() {
        let queues = [QueueDraft::named("red"), QueueDraft::named("blue")];
        let scenario = Scenario::with_queues("1x4", &queues)
            .budgets(&[4, 2, 2])
            .job("held 2 gpus queue red runs n0:0-1")
            .job("red 2 gpus queue red")
            .job("tiny 1 gpu queue red")
            .job("blue 2 gpus queue blue");
        scenario.check(&mut *strict(), "held: n0:0-1\nblue: n0:2-3");
        let reason = |job| scenario.reason(&mut *strict(), job).unwrap();
        assert_eq!(reason("red"), "WaitingForQuota: queue 1 uses 2 of 2 GPUs");
        assert_eq!(reason("tiny"), "Priority: job 1 comes first");
    }

    #[test]
    fn a_lender_gets_back_what_it_lent_from_the_last_who_came() {
        let queues = [QueueDraft { guarantee: 2.0, ..QueueDraft::named("lender") }, QueueDraft::named("borrower")];
        let scenario = Scenario::with_queues("1x4", &queues)
            .budgets(&[4, 2, 2])
            .job("first 2 gpus queue borrower runs n0:0-1 submitted 1s")
            .job("second 2 gpus queue borrower runs n0:2-3 submitted 2s")
            .job("owner 2 gpus queue lender submitted 3s");
        scenario.check(&mut *strict(), "first: n0:0-1\nowner: n0:2-3");
        let reason = scenario.reason(&mut *strict(), "second").unwrap();
        assert_eq!(reason, "Preempted: queue 2 uses 4 of 2 GPUs");
    }
}
