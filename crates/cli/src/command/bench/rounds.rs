//! What a step of the live core costs in which the policy is asked, with thousands of jobs and nobody really started:
//! whatever is launched is up at once, and whatever is told to stop has stopped.

use std::time::Duration;

use anyhow::Context;
use api::{BatchRequest, JobRequest, Noise, ProgressReport, Scene, WorkersRequest};
use cluster::{ClusterDraft, Run, Span, Time};
use engine::{Command, Engine, Event, Settings};
use executors::{Ending, Exit, News};
use plan::Safeguards;
use policies::PolicyConfig;
use server::core::{Ask, Core, Submission};
use server::{Caller, Fact, Ledger};

use super::cpu_time;
use crate::failure::Failure;

/// CPU time of the first decision of a policy that has seen nothing, and of those that follow from round to round.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) cold: Duration,
    /// In ascending order.
    pub(super) steady: Vec<Duration>,
    /// Of the steps between them, in which jobs may start at once.
    pub(super) between: Vec<Duration>,
}

/// What a step of the core took.
struct Step {
    took: Duration,
    is_decision: bool,
}

/// Nodes of eight devices, of three kinds.
const CLUSTER: &str = "42x8 small, 42x8 middle, 41x8 large";
/// Rounds are this far apart; the rounds of every measured policy divide it.
const ROUND: Span = Span::from_secs(60);
/// The first rounds after a change of policy move everybody; what is measured is what comes after.
const SETTLING: u32 = 3;
/// Jobs that end in a round, and are followed by as many new ones.
const ENDING: usize = 20;
/// One of so many that run says something new about itself in a round.
const REPORTING: u64 = 20;
/// One job of so many is a gang where rules look at gangs.
const GANGS: u32 = 10;

/// Lets so many jobs compete for a thousand devices under the policy and with the rules around it, for some rounds. Where
/// devices are reserved, some of the jobs are gangs, and all that wait have waited long enough.
pub(super) fn measure(policy: &str, safeguards: Safeguards, jobs: u32, rounds: u32) -> Result<Rounds, Failure> {
    let config = PolicyConfig::from_text(policy).map_err(Failure::usage)?;
    let mut crowd = Crowd::new(safeguards)?;
    let asks = (0..jobs).map(|_| crowd.submission()).collect::<Result<Vec<_>, _>>()?;
    crowd.play(asks, Vec::new());
    crowd.introduce();
    crowd.core.engine.use_safeguards(crowd.now, safeguards);
    crowd.now = crowd.now + safeguards.reserve_after.unwrap_or(Span::ZERO);
    let cold = crowd.play(vec![Ask::UsePolicy(config)], Vec::new());
    let cold = cold.iter().find(|step| step.is_decision).context("the policy was not asked when it was chosen")?.took;
    let mut steps = Vec::new();
    for round in 0..SETTLING + rounds {
        let news = crowd.happenings();
        let asks = (0..ENDING).map(|_| crowd.submission()).collect::<Result<Vec<_>, _>>()?;
        let took = crowd.play(asks, news);
        if round >= SETTLING {
            steps.extend(took);
        }
    }
    steps.sort_unstable_by_key(|step| step.took);
    let (steady, between): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|step| step.is_decision);
    let [steady, between] = [steady, between].map(|steps| steps.into_iter().map(|step| step.took).collect());
    Ok(Rounds { cold, steady, between })
}

/// The core, with everybody around it who would be there in earnest.
struct Crowd {
    core: Core,
    now: Time,
    submitted: u32,
    caller: Caller,
    has_gangs: bool,
}

impl Crowd {
    fn new(safeguards: Safeguards) -> Result<Crowd, Failure> {
        let draft = ClusterDraft::parse_short(CLUSTER).map_err(Failure::usage)?;
        let (cluster, queues) = draft.build().map_err(Failure::usage)?;
        let first = PolicyConfig::named("fifo").build().map_err(Failure::usage)?;
        let (engine, _) = Engine::new(cluster, queues, "fifo", first, Settings::default());
        let caller = Caller::new(0, "bench", api::Role::Admin);
        let has_gangs = safeguards.reserve_after.is_some();
        Ok(Crowd { core: Core::new(engine, Ledger::default()), now: Time::ZERO, submitted: 0, caller, has_gangs })
    }

    /// An adaptive job unlike all others, as it would come in through the door, or a gang.
    fn submission(&mut self) -> Result<Ask, Failure> {
        let number = self.submitted;
        self.submitted += 1;
        let initial = 16 + number % 1009;
        let batch = BatchRequest { initial, max: initial * 32, per_gpu: Some([1, 8 + number % 997]) };
        let request = JobRequest {
            name: Some(format!("job-{number}")),
            workers: WorkersRequest { min: 1, max: 1 << (2 + number % 5), preferred: None },
            batch: Some(batch),
            steps: Some(100_000),
            ..JobRequest::new(["train"])
        };
        let gang = || WorkersRequest::exactly(2 << (number / GANGS % 4));
        let request = match self.has_gangs && number.is_multiple_of(GANGS) {
            true => JobRequest { workers: gang(), batch: None, ..request },
            false => request,
        };
        let books = self.core.engine.state().books();
        let scene = Scene {
            cluster: &books.cluster,
            queues: &books.queues,
            owner: &self.caller.name,
            now: self.now,
            zero_unix_ms: 0,
            expected: None,
            claims_of: &|_| None,
        };
        let submission = Submission::of(request, &scene, None, None).map_err(Failure::usage)?;
        Ok(Ask::Submit(Box::new(submission)))
    }

    /// Everybody runs once, says how fast it is, and makes room for the next: then all have models of their own, as the
    /// jobs of a service that has been up for long.
    fn introduce(&mut self) {
        loop {
            let running = self.running();
            if running.is_empty() {
                break;
            }
            let hold = running.iter().map(|run| Ask::Hold(self.core.ledger.id(run.claim))).collect();
            self.play(hold, running.iter().map(|&run| reported(run, 0)).collect());
        }
        let live = self.core.engine.state().books().claims().live();
        let release = live.map(|claim| Ask::Release(self.core.ledger.id(claim.id))).collect();
        self.play(release, Vec::new());
    }

    fn running(&self) -> Vec<Run> {
        let claims = self.core.engine.state().books().claims();
        claims.live().filter(|claim| claim.holds().is_some()).map(plan::Claim::run).collect()
    }

    /// A round passes: some jobs end, and some of those that go on report how fast they are.
    fn happenings(&self) -> Vec<News> {
        let running = self.running();
        let step = (running.len() / ENDING).max(1);
        let (ends, stays): (Vec<_>, Vec<_>) = running.into_iter().enumerate().partition(|(place, _)| place % step == 0);
        let ends = ends.into_iter().map(|(_, run)| ended(run, 0));
        let round = self.now.as_millis() / ROUND.as_millis();
        let reports = stays.into_iter().filter(|(_, run)| (u64::from(run.claim.0) + round).is_multiple_of(REPORTING));
        ends.chain(reports.map(|(_, run)| reported(run, round))).collect()
    }

    /// Takes a round with everything that follows from it, and says what each step took.
    fn play(&mut self, asks: Vec<Ask>, mut news: Vec<News>) -> Vec<Step> {
        self.now = (self.now + Span::from_millis(1)).round_up(ROUND);
        let mut asks: Vec<(Caller, Ask)> = asks.into_iter().map(|ask| (self.caller.clone(), ask)).collect();
        let mut steps = Vec::new();
        loop {
            let before = cpu_time();
            let step = self.core.step(self.now, std::mem::take(&mut asks), news);
            let took = cpu_time() - before;
            let is_decision = step.facts.iter().any(|fact| matches!(fact, Fact::Core(Event::Planned(_))));
            steps.push(Step { took, is_decision });
            let refused = step.facts.iter().find(|fact| matches!(fact, Fact::Core(Event::PlanRefused { .. })));
            assert!(refused.is_none(), "a plan was refused: {refused:?}");
            news = step.facts.iter().filter_map(obeyed).collect();
            if news.is_empty() {
                return steps;
            }
            self.now = self.now + Span::from_millis(10);
        }
    }
}

/// What comes of an order at once.
fn obeyed(fact: &Fact) -> Option<News> {
    match fact {
        Fact::Core(Event::Issued(Command::Launch { run, .. })) => Some(News::Started { run: *run }),
        Fact::Core(Event::Issued(Command::Stop { run, .. })) => Some(ended(*run, 143)),
        _ => None,
    }
}

fn ended(run: Run, code: i32) -> News {
    let exits = vec![Exit { code: Some(code), signal: None }];
    let failed_first = (code != 0).then_some(0);
    News::Ended {
        run,
        ending: Ending { started: true, told_to_stop: code != 0, exits, failed_first, ..Ending::default() },
    }
}

fn reported(run: Run, round: u64) -> News {
    let (size, noise) = (f64::from(run.claim.0 % 97), f64::from(run.claim.0 % 89));
    let report = ProgressReport {
        steps: Some(round * 100),
        local_batch: Some(8 + run.claim.0 % 8),
        step_seconds: Some(0.2 + size / 100.0),
        compute_seconds: Some(0.1 + size / 200.0),
        noise: Some(Noise { sqr: 1.0, var: 1.0 + noise }),
        ..ProgressReport::default()
    };
    News::Progress { run, lines: vec![serde_json::to_string(&report).expect("a report is made of numbers")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_bench_is_asked_once_a_round_at_least() {
        for policy in ["fifo", "tiresias", server::DEFAULT_POLICY] {
            for safeguards in [Safeguards::NONE, Safeguards::ALL] {
                let rounds = measure(policy, safeguards, 60, 2).unwrap();
                assert!(rounds.steady.len() >= 2, "{policy} was asked {} times in two rounds", rounds.steady.len());
            }
        }
    }
}
