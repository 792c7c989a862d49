//! What `moira serve` would refuse, found without starting or changing anything.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use executors::{Checkpoints, CpuLimit, probe_devices};

use crate::data_dir::{journal_path, refuse_foreign};
use crate::error::ServerError;
use crate::http;
use crate::live::changes_to;
use crate::opening::inspect;
use crate::queues::Review;
use crate::retention::keepers;
use crate::service::{build_policy, open_queues, without_queues};
use crate::settings::{Config, Settings};

/// Whether the service would start with this configuration on this machine, in this data directory, which need not be
/// there yet. Returns what the service would go on without.
pub fn rehearse(config: Config, path: &Path, data_dir: &Path) -> Result<Vec<String>, ServerError> {
    let settings = Settings::new(data_dir.to_path_buf(), config, path)?;
    let Settings { config, machine, .. } = settings;
    CpuLimit::from_env()?;
    let draft = config.draft(&machine);
    // What a service has that runs there already cannot be had a second time.
    if !journal::is_in_use(&journal_path(data_dir))? {
        config.listen.iter().try_for_each(|&address| can_be_bound(address))?;
        probe_devices(&machine, data_dir)?;
    }
    http::check_socket_path(&api::socket_in(data_dir))?;
    if !journal::is_journal(&journal_path(data_dir))? {
        refuse_foreign(data_dir)?;
    }
    let checkpoints = match &config.checkpoint_dir {
        None => Checkpoints::in_data_dir(data_dir),
        Some(named) => Checkpoints::at(data_dir, named)?,
    };
    let past = inspect(data_dir, &checkpoints)?;
    let identity = past.as_ref().and_then(|past| past.ledger.identity()).map(|identity| identity.to_string());
    let keepers = past.as_ref().map(|past| keepers(&past.state, &past.ledger)).unwrap_or_default();
    checkpoints.inspect(identity.as_deref(), &keepers)?;
    let Some(past) = past else {
        draft.build()?;
        return Ok(Vec::new());
    };
    let books = past.state.books();
    changes_to(&books.cluster, &without_queues(&draft))?;
    build_policy(config.policy.as_deref().unwrap_or(past.state.policy()))?;
    let stay = |what: String| format!("the queues in force stay as they are: {what}");
    let Some(drafts) = &config.queues else {
        let open = open_queues(&past.state);
        let remark = || stay(format!("the file does not say any, and those in force are {}", open.join(", ")));
        return Ok((!open.is_empty()).then(remark).into_iter().collect());
    };
    Ok(match Review::of(&past.state, &past.ledger, drafts) {
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

/// Whether the service could listen there: it is tried, and let go at once.
fn can_be_bound(address: SocketAddr) -> Result<(), ServerError> {
    let bound = TcpListener::bind(address);
    bound.map(drop).map_err(|error| ServerError::Listen { address: address.to_string(), message: error.to_string() })
}
