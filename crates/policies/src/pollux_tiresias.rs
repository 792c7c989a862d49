//! Tiresias as Pollux was compared with it: two queues, rounds, and the emptiest nodes first.
//!
//! Paper: A. Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section
//! 5.1 (Tiresias+TunedJobs); the rules are those of the simulator that its authors published. The policy of the Tiresias
//! paper itself is `tiresias`.
//!
//! The idea. Every job asks for so many GPUs and gets all of them or none. It starts in the first queue and sinks to the
//! end of the second when it has held 16 GPU hours; it never comes back. Each round, walk along the first queue and then
//! the second: a job that fits into the GPUs left runs, another waits and the walk goes on. Order within a queue never
//! changes, so who runs has no precedence over who waits ahead of it. Who goes on running stays where it is; then each
//! newcomer, in order, fills the node with most free GPUs, the next one, and so on until it has all it asked for.
//!
//! | authors' simulator          | here                                             |
//! |-----------------------------|--------------------------------------------------|
//! | executed × request          | `claim.attained(now)`                            |
//! | threshold of the queue      | `threshold`, 57,600 GPU seconds                  |
//! | order of the second queue   | when a job sank, remembered; then submission     |
//! | placement                   | `Style::Emptiest`                                |
//!
//! Deviations. Whether a job fits is counted in GPUs, as there. Where that is not the whole truth (several kinds, parts of
//! GPUs, cores), a newcomer that finds no place stops those behind it, from the last, until it does; if that does not help
//! either it waits, and those the walk had left out may use what it did not get. Queues with budgets are respected. Jobs
//! that can be cut to size get their least.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, GpuTime, Gpus, Span};
use plan::{Allotment, Claim, Note, Plan, Policy, Reason, Rhythm, Snapshot, Turns};

use crate::blocks::draft::Draft;
use crate::blocks::grant::asked;
use crate::blocks::place::Style;
use crate::blocks::round;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    config.switch("parity")?;
    Ok(Box::new(PolluxTiresias { threshold: config.gpu_time("threshold")?, round: config.round("round")? }))
}

#[derive(Debug)]
struct PolluxTiresias {
    threshold: GpuTime,
    round: Span,
}

impl Policy for PolluxTiresias {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let mut draft = Draft::new(snapshot);
        let line = self.line_up(&mut draft);
        round::release_all(&mut draft, &line);
        let (running, left_out) = walk(&draft, &line);
        for claim in &running {
            if let Some(had) = &claim.target {
                draft.give(claim, had.clone());
            }
        }
        let mut obstacles = BTreeMap::new();
        for (position, claim) in running.iter().enumerate() {
            if draft.holds(claim.id).is_none()
                && let Err(note) = start(&mut draft, claim, &running[position + 1..])
            {
                obstacles.insert(claim.id, note);
            }
        }
        if !obstacles.is_empty() {
            use_the_rest(&mut draft, running.iter().chain(&left_out));
        }
        round::conclude(draft, self.round, &obstacles)
    }

    /// The walk passes over whoever does not fit.
    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        let mut line = self.queues(snapshot);
        line.sort_unstable();
        let waiting = line.into_iter().map(|(_, id)| id).filter(|&id| snapshot.claim(id).target.is_none());
        Turns { order: waiting.collect(), strict: false }
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }

    fn is_stable(&self) -> bool {
        false
    }
}

impl PolluxTiresias {
    /// Everyone who wants GPUs: the first queue, then the second. Whoever sinks now is remembered.
    fn line_up<'a>(&self, draft: &mut Draft<'a>) -> Vec<&'a Claim> {
        let snapshot = draft.snapshot;
        let mut line = self.queues(&snapshot);
        for (sank, id) in &line {
            if let Some(sank) = *sank
                && snapshot.books.memory().of(*id).is_none()
            {
                draft.remember(*id, vec![sank]);
            }
        }
        line.sort_unstable();
        line.into_iter().map(|(_, id)| snapshot.claim(id)).collect()
    }

    /// In order of submission, since when each is in the second queue; nothing if it is in the first.
    fn queues(&self, snapshot: &Snapshot<'_>) -> Vec<(Option<i64>, ClaimId)> {
        let now = snapshot.now.as_millis() as i64;
        let sank = |claim: &Claim| {
            let sinks = || (claim.attained(snapshot.now) >= self.threshold).then_some(now);
            snapshot.books.memory().of(claim.id).map(|memory| memory[0]).or_else(sinks)
        };
        let claims = snapshot.eligible().filter(|claim| claim.spec.uses_gpus());
        claims.map(|claim| (sank(claim), claim.id)).collect()
    }
}

/// Who runs and who waits, by the number of GPUs alone. The draft gives nobody anything yet.
fn walk<'a>(draft: &Draft<'a>, line: &[&'a Claim]) -> (Vec<&'a Claim>, Vec<&'a Claim>) {
    let mut left = draft.snapshot.books.capacity();
    let mut usage = draft.usage().clone();
    line.iter().copied().partition(|claim| {
        let gpus: Gpus = claim.spec.gpus(asked(claim));
        let fits = gpus <= left && usage.admits(claim, gpus).is_ok();
        if fits {
            left -= gpus;
            usage.add(claim, gpus);
        }
        fits
    })
}

/// Starts a claim in free room, or in that of those behind it.
fn start<'a>(draft: &mut Draft<'a>, claim: &'a Claim, behind: &[&'a Claim]) -> Result<(), Note> {
    let find = |draft: &Draft<'a>| draft.find(claim, asked(claim), Style::Emptiest);
    let mut found = find(draft);
    let mut released: Vec<(&Claim, Arc<Allotment>)> = Vec::new();
    let mut holders = behind.iter().rev();
    while found.is_err() {
        let Some(victim) = holders.find(|victim| draft.holds(victim.id).is_some()) else { break };
        released.push((victim, draft.release(victim)));
        found = find(draft);
    }
    let result = found.map(|allotment| draft.admit(claim, allotment, Reason::Admitted));
    draft.keep_where_possible(released);
    result
}

/// What nobody got whom the walk had chosen goes to whoever it fits.
fn use_the_rest<'a, 'c>(draft: &mut Draft<'a>, line: impl Iterator<Item = &'c &'a Claim>)
where
    'a: 'c,
{
    for claim in line {
        if draft.holds(claim.id).is_none()
            && let Ok(allotment) = draft.find(claim, asked(claim), Style::Emptiest)
        {
            draft.admit(claim, allotment, Reason::Admitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn policy() -> Box<dyn Policy> {
        build(&PolicyConfig::named("pollux-tiresias")).unwrap()
    }

    // The moments of the worked example in two nodes of four GPUs: a asks for 8, b for 4, c for 1, d for 6.

    #[test]
    fn behind_one_who_holds_everything_nothing_fits() {
        let scenario = Scenario::new("2x4")
            .at("180s")
            .job("a 8 gpus attained 960 runs n0:0-3 runs n1:0-3")
            .job("b 4 gpus")
            .job("c 1 gpu")
            .job("d 6 gpus");
        scenario.check(&mut *policy(), "a: n0:0-3 n1:0-3");
    }

    #[test]
    fn after_16_gpu_hours_a_job_sinks_behind_those_that_wait() {
        let scenario = |attained: u64| {
            Scenario::new("2x4")
                .at("7260s")
                .job(&format!("a 8 gpus attained {attained} runs n0:0-3 runs n1:0-3"))
                .job("b 4 gpus")
                .job("c 1 gpu")
                .job("d 6 gpus")
        };
        scenario(57_599).check(&mut *policy(), "a: n0:0-3 n1:0-3");
        scenario(57_600).check(&mut *policy(), "b: n0:0-3\nc: n1:0");
        assert_eq!(scenario(57_600).ask(&mut *policy()).memory, [(ClaimId(0), vec![7_260_000])]);
    }

    #[test]
    fn between_rounds_the_first_queue_goes_before_the_second() {
        let scenario =
            Scenario::new("1x4").at("7260s").job("old attained 57600").job("new").job("runs 2 gpus runs n0:0-1");
        let turns = policy().turns(&scenario.snapshot(None));
        assert_eq!(turns.order, [scenario.id("new"), scenario.id("old")]);
        assert!(!turns.strict);
    }

    #[test]
    fn a_gang_is_scattered_rather_than_kept_waiting() {
        let scenario = Scenario::new("2x4").job("b 1 gpu runs n0:3").job("d 6 gpus");
        scenario.check(&mut *policy(), "b: n0:3\nd: n0:0-1 n1:0-3");
    }

    #[test]
    fn who_runs_has_no_precedence_over_who_waits_ahead_of_it() {
        let scenario = Scenario::new("1x4").job("first 3 gpus").job("second 2 gpus runs n0:0-1");
        scenario.check(&mut *policy(), "first: n0:0-2");
        let scenario = Scenario::new("1x4").job("first 3 gpus").job("second 1 gpu runs n0:0");
        scenario.check(&mut *policy(), "first: n0:1-3\nsecond: n0:0");
    }

    #[test]
    fn two_gpus_go_to_the_emptiest_node_even_if_another_fits_exactly() {
        let scenario = Scenario::new("2x4").job("a 2 gpus runs n0:0-1").job("b 2 gpus");
        scenario.check(&mut *policy(), "a: n0:0-1\nb: n1:0-1");
    }

    #[test]
    fn one_who_needs_a_certain_kind_stops_those_behind_it() {
        let scenario = Scenario::new("1x2 t4, 1x2 a100").job("needs 2 gpus on a100").job("has 2 gpus runs b-0:0-1");
        scenario.check(&mut *policy(), "needs: b-0:0-1\nhas: a-0:0-1");
    }
}
