//! What a comparison with the authors of Pollux needs: when each job of a workload is done and how often it was restarted,
//! and how good a matrix each search finds on the same moments of a history.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

use cluster::{Cluster, QueueTree};
use plan::{Knowledge, Phase, Plan, Policy, Rhythm, Snapshot};
use policies::PolicyConfig;
use policies::pollux::Pollux;
use world::Circumstances;

use crate::experiment::{ExperimentError, circumstances, settings};
use crate::simulate::{Setup, simulate};

/// How a job fared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fared {
    /// Seconds from its submission to its end.
    pub completion_s: f64,
    pub restarts: u32,
}

/// One moment at which searches were compared by their objective.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub jobs: usize,
    pub fast: f64,
    /// By seed.
    pub plain: Vec<f64>,
}

/// A workload on a cluster, in circumstances as the policy asks for them.
pub fn setup_for(
    cluster: &Cluster,
    queues: &QueueTree,
    workload: &str,
    config: &PolicyConfig,
) -> Result<Setup, ExperimentError> {
    let jobs = trace::load_workload(workload, cluster, queues, 1)?.jobs;
    let circumstances = circumstances(config, &Circumstances::default());
    Ok(Setup { circumstances, settings: settings(config), ..Setup::new(cluster.clone(), queues.clone(), jobs) })
}

/// How each job of a setup fared under a policy, by its name.
pub fn fared(setup: &Setup, config: &PolicyConfig) -> Result<BTreeMap<String, Fared>, ExperimentError> {
    let state = simulate(setup, &config.label(), config.build()?, |_, _| {})?;
    let claims = state.books().claims().iter();
    let fared = claims.filter_map(|claim| match claim.phase {
        Phase::Ended { at, .. } => {
            let restarts = claim.progress.launches.saturating_sub(1);
            let completion_s = at.since(claim.submitted).as_secs_f64();
            Some((claim.spec.name.to_string(), Fared { completion_s, restarts }))
        }
        _ => None,
    });
    Ok(fared.collect())
}

/// Plays a setup under Pollux; at every so manieth decision the plain search is asked too, with each of these seeds.
pub fn compare_searches(setup: &Setup, every: usize, seeds: &[u64]) -> Result<Vec<Compared>, ExperimentError> {
    let pollux = |pairs: &[String]| Pollux::new(&PolicyConfig::from_pairs("pollux", pairs)?);
    let plain = seeds.iter().map(|seed| pollux(&["search=plain".into(), format!("seed={seed}")]));
    let (found, moments) = channel();
    let examined = Examined { fast: pollux(&[])?, plain: plain.collect::<Result<_, _>>()?, every, asked: 0, found };
    simulate(setup, "pollux", Box::new(examined), |_, _| {})?;
    Ok(moments.try_iter().collect())
}

/// Pollux, looked at now and then.
struct Examined {
    fast: Pollux,
    plain: Vec<Pollux>,
    every: usize,
    asked: usize,
    found: Sender<Compared>,
}

impl Policy for Examined {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.asked += 1;
        if self.asked.is_multiple_of(self.every) {
            let fast = self.fast.weigh(snapshot);
            let plain = self.plain.iter_mut().map(|plain| plain.weigh(snapshot).objective).collect();
            let compared = Compared { jobs: fast.claims.len(), fast: fast.objective, plain };
            self.found.send(compared).expect("whoever compares is still there");
        }
        self.fast.plan(snapshot)
    }

    fn rhythm(&self) -> Rhythm {
        self.fast.rhythm()
    }

    fn is_stable(&self) -> bool {
        self.fast.is_stable()
    }

    fn knows(&self) -> &'static [Knowledge] {
        self.fast.knows()
    }
}
