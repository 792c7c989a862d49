//! `moira explain`: why a job has what it has, what it could have had, and what to do next.

use api::{Explanation, JobId, OptionView};
use clap::Args;

use super::failure;
use crate::command::service::{self, Shape, number, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[arg(value_name = "ID")]
    id: JobId,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            let explanation = client.explain(self.id).await.map_err(of_service)?;
            match self.output {
                Shape::Json => service::json(&explanation),
                Shape::Name => render::line(explanation.reason.as_deref().unwrap_or(explanation.state.as_str())),
                Shape::Table => {
                    print(&explanation)?;
                    // It is explained, whether or not it can be said what the worker wrote that failed.
                    if let Ok(job) = client.job(self.id).await {
                        failure::tell_end_of_log(client, &job).await;
                    }
                    Ok(())
                }
            }
        })
    }
}

fn print(explanation: &Explanation) -> Result<(), Failure> {
    render::line(&verdict(explanation))?;
    if !explanation.options.is_empty() {
        render::line("\nWhat it could have:")?;
        render::table(
            &["", "KIND", "WORKERS", "NODES", "GOODPUT", "IN THE WAY"],
            explanation.options.iter().map(option),
        )?;
    }
    if !explanation.history.is_empty() {
        render::line("\nWhat became of it:")?;
        let row = |line: &api::HistoryLine| {
            let decision = line.decision.map(|decision| format!("decision {decision}"));
            vec![line.at.clone(), line.text.clone(), decision.unwrap_or_default()]
        };
        render::table(&[], explanation.history.iter().map(row))?;
    }
    if !explanation.next_steps.is_empty() {
        render::line("\nWhat to do next:")?;
        explanation.next_steps.iter().try_for_each(|step| render::line(&format!("- {step}")))?;
    }
    Ok(())
}

/// `job 7 is pending (WaitingForResources): needs 2 GPUs, 0 free [decision 12]`.
fn verdict(explanation: &Explanation) -> String {
    let part = |text: &Option<String>, shown: fn(&str) -> String| text.as_deref().map(shown).unwrap_or_default();
    let reason = part(&explanation.reason, |reason| format!(" ({reason})"));
    let message = part(&explanation.message, |message| format!(": {message}"));
    let decision = explanation.decision.map(|decision| format!(" [decision {decision}]")).unwrap_or_default();
    format!("job {} is {}{reason}{message}{decision}", explanation.job, explanation.state)
}

fn option(option: &OptionView) -> Vec<String> {
    vec![
        if option.chosen { "*".into() } else { String::new() },
        or_dash(option.gpu_kind.as_ref()),
        option.workers.to_string(),
        option.nodes.to_string(),
        or_dash(option.goodput.map(number)),
        or_dash(option.obstacle.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_one_sentence() {
        let explanation = Explanation {
            job: "7".into(),
            state: api::JobState::Pending,
            reason: Some("WaitingForResources".into()),
            message: Some("needs 2 GPUs, 0 free".into()),
            options: Vec::new(),
            history: Vec::new(),
            next_steps: Vec::new(),
            decision: Some(12),
        };
        let expected = "job 7 is pending (WaitingForResources): needs 2 GPUs, 0 free [decision 12]";
        assert_eq!(verdict(&explanation), expected);
    }

    #[test]
    fn the_chosen_option_is_marked() {
        let chosen = OptionView {
            gpu_kind: Some("a100".into()),
            workers: 2,
            nodes: 1,
            goodput: Some(1.25),
            chosen: true,
            obstacle: None,
        };
        assert_eq!(option(&chosen), ["*", "a100", "2", "1", "1.25", "-"]);
    }
}
