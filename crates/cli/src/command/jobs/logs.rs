//! `moira logs`: what a job's workers wrote.

use api::{JobId, LogQuery};
use clap::Args;

use crate::command::service::{self, LogOutput, of_service};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[arg(value_name = "ID")]
    id: JobId,
    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,
    /// Which process of the run: its rank at launch; those that joined later go on counting
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: u32,
    /// Of which launch, from 1 [default: the latest]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only so many bytes from the end
    #[arg(long, value_name = "BYTES")]
    tail: Option<u64>,
}

impl Logs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query = LogQuery {
            worker: Some(self.worker),
            attempt: self.attempt,
            offset: None,
            tail: self.tail,
            follow: self.follow,
        };
        service::ask(async |client| {
            let mut output = LogOutput::new();
            let mut logs = client.logs(self.id, &query).await.map_err(of_service)?;
            while let Some(piece) = logs.next().await.map_err(of_service)? {
                if !output.pass_on(&piece)? {
                    break;
                }
            }
            Ok(())
        })
    }
}
