//! A live history again in the simulator, under the same policy, with the models fitted to what its jobs reported. How
//! long a job ran is not among what the simulator is told.

use anyhow::{Context, Result, anyhow, ensure};
use cluster::Span;
use engine::{Record, Settings};
use policies::PolicyConfig;
use report::{Fold, JobRow};
use sim::{KindSpeeds, Pace, Recording, Setup, simulate};
use world::Circumstances;

use super::apart::{Apart, Side};
use super::live::RESIZE_WITHIN_SECS;
use super::mix::Training;

/// Every job of the mix, live beside simulated.
pub(super) fn beside(records: &[Record], mix: &[Training], policy: &str) -> Result<Vec<Apart>> {
    let mut live = Fold::new();
    records.iter().for_each(|record| live.observe(record.at, &record.event));
    let simulated = replayed(records, policy)?;
    let (live, simulated): (Vec<JobRow>, Vec<JobRow>) = (live.jobs().collect(), simulated.jobs().collect());
    ensure!(live.len() == mix.len(), "expected {} jobs in the history, found {}", mix.len(), live.len());
    mix.iter().zip(live.iter().zip(&simulated)).map(|(training, sides)| apart(training, sides)).collect()
}

fn replayed(records: &[Record], policy: &str) -> Result<Fold> {
    let setup = setup(records)?;
    let mut fold = Fold::new();
    simulate(&setup, policy, PolicyConfig::from_text(policy)?.build()?, |at, event| fold.observe(at, event))
        .map_err(|invalid| anyhow!("cannot simulate the jobs: {invalid}"))?;
    Ok(fold)
}

/// What was there, with the rules that the recording says were kept to around the policy.
fn setup(records: &[Record]) -> Result<Setup> {
    let Recording { cluster, queues, jobs, circumstances, safeguards, .. } =
        Recording::at_pace(records, &KindSpeeds::new(), Pace::Modelled)?;
    let resize_within = Some(Span::from_secs(RESIZE_WITHIN_SECS));
    Ok(Setup {
        circumstances: Circumstances { resize_within, ..circumstances },
        settings: Settings { resize_within, safeguards, ..Settings::default() },
        ..Setup::new(cluster, queues, jobs)
    })
}

fn apart(training: &Training, (live, simulated): (&JobRow, &JobRow)) -> Result<Apart> {
    let side = |job: &JobRow, where_: &str| -> Result<Side> {
        let completion = job.jct.with_context(|| format!("{} never ended {where_}", training.name))?;
        Ok(Side {
            completion_secs: completion.as_secs_f64(),
            waiting_secs: job.waiting.as_secs_f64(),
            restarts: job.restarts,
        })
    };
    Ok(Apart { name: training.name.clone(), live: side(live, "live")?, simulated: side(simulated, "simulated")? })
}

#[cfg(test)]
mod tests {
    use cluster::{ClusterDraft, Time};

    use super::*;

    #[test]
    fn a_recording_is_replayed_with_the_rules_it_had() {
        for safeguards in ["all", "none"] {
            let (cluster, queues) = ClusterDraft::parse_short("1x2").unwrap().build().unwrap();
            let policy = PolicyConfig::named("fifo").build().unwrap();
            let settings = Settings { safeguards: safeguards.parse().unwrap(), ..Settings::default() };
            let (_, beginning) = engine::Engine::new(cluster, queues, "fifo", policy, settings);
            let records: Vec<Record> = beginning.into_iter().map(|event| Record { at: Time::ZERO, event }).collect();
            assert_eq!(Ok(setup(&records).unwrap().settings.safeguards), safeguards.parse());
        }
    }
}
