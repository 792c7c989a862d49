//! What `moira serve` would refuse, found without starting or changing anything.

use std::path::Path;

use executors::Checkpoints;
use journal::Reader;
use plan::Claims;

use crate::data_dir::{journal_path, refuse_foreign};
use crate::error::ServerError;
use crate::live::changes_to;
use crate::opening::Past;
use crate::queues::Review;
use crate::service::{build_policy, without_queues};
use crate::settings::{Config, Settings};

/// Whether the service would start with this configuration: on this machine, and where a data directory is named, with
/// what it holds. Returns what the service would go on without.
pub fn rehearse(config: Config, path: &Path, data_dir: Option<&Path>) -> Result<Vec<String>, ServerError> {
    let settings = Settings::new(data_dir.unwrap_or(Path::new("/")).to_path_buf(), config, path)?;
    let Settings { config, machine, .. } = settings;
    let draft = config.draft(&machine);
    let past = data_dir.map(past_in).transpose()?.flatten();
    if let Some(data_dir) = data_dir {
        if past.is_none() {
            refuse_foreign(data_dir)?;
        }
        let checkpoints = match &config.checkpoint_dir {
            None => Checkpoints::in_data_dir(data_dir),
            Some(named) => Checkpoints::at(data_dir, named)?,
        };
        let identity = past.as_ref().and_then(|past| past.ledger.identity()).map(|identity| identity.to_string());
        let claims = past.as_ref().map(|past| past.state.books().claims());
        let launched = claims.into_iter().flat_map(Claims::live).filter(|claim| claim.progress.launches > 0);
        checkpoints.inspect(identity.as_deref(), launched.map(|claim| claim.id))?;
    }
    let Some(past) = past else {
        draft.build()?;
        return Ok(Vec::new());
    };
    let books = past.state.books();
    changes_to(&books.cluster, &without_queues(&draft))?;
    build_policy(config.policy.as_deref().unwrap_or(past.state.policy()))?;
    if config.queues.is_empty() {
        return Ok(Vec::new());
    }
    let stay = |what: String| format!("the queues in force stay as they are: {what}");
    Ok(match Review::of(books, &past.ledger, &config.queues) {
        Ok(review) => review
            .in_words()
            .into_iter()
            .map(|change| {
                stay(format!("only `moira queue apply` or `moira serve --queues-from-file` makes of them: {change}"))
            })
            .collect(),
        Err(problem) => vec![stay(format!("those in the file could not be applied: {}", problem.detail))],
    })
}

/// What the journal says; nothing where there is none yet.
fn past_in(data_dir: &Path) -> Result<Option<Past>, ServerError> {
    let path = journal_path(data_dir);
    if !journal::is_journal(&path)? {
        return Ok(None);
    }
    let reader = Reader::open(&path)?;
    match reader.last()? {
        0 => Ok(None),
        _ => Past::read(&reader).map(Some),
    }
}
