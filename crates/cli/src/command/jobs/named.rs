//! Jobs as people name them: by their number, or by what they are called.

use std::str::FromStr;

use api::{Client, Error, JobId, JobQuery, JobState, Problem};

/// A job by its number, or your jobs of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Id(JobId),
    Name(String),
}

/// Which of your jobs of a name are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All that have not ended.
    Live,
    /// Those, or the newest if all have ended.
    LiveOrLast,
    /// The newest that has not ended, or the newest.
    Newest,
}

/// The service gives no longer page.
const LONGEST_PAGE: u32 = 1000;

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        match text.parse() {
            Ok(id) => Ok(Named::Id(id)),
            Err(message) if text.is_empty() => Err(message),
            Err(_) => Ok(Named::Name(text.into())),
        }
    }
}

impl Named {
    /// The numbers it stands for, at least one; the newest first.
    pub(crate) async fn numbers(&self, client: &Client, which: Which) -> Result<Vec<JobId>, Error> {
        let name = match self {
            Named::Id(id) => return Ok(vec![*id]),
            Named::Name(name) => name,
        };
        let live = JobState::ALL.into_iter().filter(|state| !state.is_final()).collect();
        let mut found = of_name(client, name, live, LONGEST_PAGE).await?;
        if which == Which::Newest {
            found.truncate(1);
        }
        if found.is_empty() && which != Which::Live {
            found = of_name(client, name, Vec::new(), 1).await?;
        }
        let what = if which == Which::Live { "job that has not ended" } else { "job" };
        let missing = || Error::Refused(Problem::not_found(format!("you have no {what} with the name `{name}`")));
        if found.is_empty() { Err(missing()) } else { Ok(found) }
    }
}

async fn of_name(client: &Client, name: &str, states: Vec<JobState>, limit: u32) -> Result<Vec<JobId>, Error> {
    let query = JobQuery { states, name: Some(name.into()), mine: true, limit: Some(limit), ..JobQuery::default() };
    let page = client.jobs(&query).await?;
    Ok(page.jobs.iter().filter_map(|job| job.id.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_a_name() {
        assert_eq!("7_3".parse(), Ok(Named::Id(JobId::task(7, 3))));
        assert_eq!("3d-unet".parse(), Ok(Named::Name("3d-unet".into())));
        assert!("".parse::<Named>().is_err());
    }
}
