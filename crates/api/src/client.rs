//! The client of the service, over its Unix socket or loopback HTTP. One connection is kept for requests; whatever
//! streams gets a connection of its own.

mod address;
mod connection;
mod credentials;
mod stream;

use std::path::{Path, PathBuf};
use std::time::Duration as Patience;

use hyper::Method;
use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::{NewToken, TokenPage, TokenRequest, TokenView};
use crate::error::Error;
use crate::id::JobId;
use crate::problem::Problem;
use crate::progress::{ProgressReply, ProgressReport};
use crate::shell::{ShellRequest, ShellView};
use crate::spec::{JobRequest, Window};
use crate::view::{
    ConfigView, Explanation, Health, InputReply, JobPage, JobState, JobView, NodePage, PolicyRequest, PolicyView,
    PriorityRequest, QueueChanges, QueuePage, QueuesRequest,
};

use address::Address;
use connection::{Ask, Connection, Reply};
use credentials::{Credentials, UserConfig};

pub use address::{default_data_dir, socket_in};
pub use stream::{Events, Logs};

/// How long an answer may take: a decision may be under way, and nobody is served before it is made.
const PATIENCE: Patience = Patience::from_secs(120);

/// The service, from outside.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
}

/// Which jobs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobQuery {
    /// Any of these; all if none is named.
    pub states: Vec<JobState>,
    pub owner: Option<String>,
    pub queue: Option<String>,
    pub name: Option<String>,
    /// Only those of whoever asks.
    pub mine: bool,
    pub limit: Option<u32>,
    /// What the page before said is next.
    pub after: Option<String>,
}

/// Which part of which log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogQuery {
    /// The first worker's, if nothing is said.
    pub worker: Option<u32>,
    /// The latest attempt's, if nothing is said.
    pub attempt: Option<u32>,
    /// From this byte of all that was written on.
    pub offset: Option<u64>,
    /// Only so many bytes from the end.
    pub tail: Option<u64>,
    /// Go on until the job has ended.
    pub follow: bool,
    /// Of an array: the lines of all tasks, each with its task's number.
    pub all: bool,
}

/// What can be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeChange {
    /// Nothing new starts there, and what runs there moves away.
    Drain,
    /// Nothing new starts there.
    Cordon,
    Uncordon,
}

impl Client {
    /// The service that `MOIRA_SERVER` names, or the one of `MOIRA_DATA_DIR`, or of the user's configuration, or this
    /// user's own. Over the network it is shown the token in `MOIRA_TOKEN_FILE`, or the one that the configuration names.
    pub fn find() -> Result<Client, Error> {
        let variable = |name: &str| std::env::var_os(name);
        let config = UserConfig::read(variable)?;
        let address = Address::find(config.server.as_deref(), variable)?;
        Client::new(address, config)
    }

    /// The service at `unix:/path/to/moira.sock` or `http://127.0.0.1:PORT`, with the same token.
    pub fn at(address: &str) -> Result<Client, Error> {
        let config = UserConfig::read(|name| std::env::var_os(name))?;
        Client::new(Address::parse(address)?, config)
    }

    /// The service whose data is in this folder.
    pub fn in_data_dir(folder: &Path) -> Client {
        Client { connection: Connection::new(Address::Unix(socket_in(folder)), Credentials::default()) }
    }

    fn new(address: Address, config: UserConfig) -> Result<Client, Error> {
        let credentials = Credentials::find(config, |name| std::env::var_os(name))?;
        Ok(Client { connection: Connection::new(address, credentials) })
    }

    pub fn address(&self) -> String {
        self.connection.address().to_string()
    }

    /// The socket, if it is one.
    pub fn socket(&self) -> Option<PathBuf> {
        match self.connection.address() {
            Address::Unix(path) => Some(path.clone()),
            Address::Tcp { .. } => None,
        }
    }

    /// Returns once the job is durable. The same key with the same job gives the same answer, however often it is sent.
    pub async fn submit(&self, job: &JobRequest, idempotency_key: Option<&str>) -> Result<JobView, Error> {
        let mut ask = Ask::new(Method::POST, "/v1/jobs".into()).json(job);
        ask.idempotency_key = idempotency_key.map(Into::into);
        self.ask(ask).await
    }

    pub async fn jobs(&self, query: &JobQuery) -> Result<JobPage, Error> {
        let states: Vec<&str> = query.states.iter().map(|state| state.as_str()).collect();
        let parameters = [
            ("state", (!states.is_empty()).then(|| states.join(","))),
            ("owner", query.owner.clone()),
            ("queue", query.queue.clone()),
            ("name", query.name.clone()),
            ("mine", query.mine.then(|| "true".into())),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("after", query.after.clone()),
        ];
        self.get(format!("/v1/jobs{}", address::query(&parameters))).await
    }

    pub async fn job(&self, id: JobId) -> Result<JobView, Error> {
        self.get(format!("/v1/jobs/{id}")).await
    }

    pub async fn cancel(&self, id: JobId) -> Result<JobView, Error> {
        self.post(format!("/v1/jobs/{id}/cancel")).await
    }

    /// Ends a job at once, without time to save its state; also one that was cancelled and is still saving.
    pub async fn kill(&self, id: JobId) -> Result<JobView, Error> {
        self.post(format!("/v1/jobs/{id}/cancel?now=true")).await
    }

    /// Sends what its first worker reads as standard input, from this byte of it on, and whether it ends there. The same
    /// may be sent twice.
    pub async fn send_input(&self, id: JobId, offset: u64, bytes: &[u8], end: bool) -> Result<InputReply, Error> {
        let parameters = [("offset", Some(offset.to_string())), ("end", end.then(|| "true".into()))];
        let mut ask = Ask::new(Method::POST, format!("/v1/jobs/{id}/input{}", address::query(&parameters)));
        ask.body = Some(Bytes::copy_from_slice(bytes));
        ask.content = "application/octet-stream";
        self.ask(ask).await
    }

    /// Tells the terminal of a job how large it is from now on.
    pub async fn set_window(&self, id: JobId, window: Window) -> Result<Window, Error> {
        self.ask(Ask::new(Method::POST, format!("/v1/jobs/{id}/window")).json(&window)).await
    }

    /// Opens a shell beside a running job of one's own.
    pub async fn open_shell(&self, id: JobId, request: &ShellRequest) -> Result<ShellView, Error> {
        self.ask(Ask::new(Method::POST, format!("/v1/jobs/{id}/shells")).json(request)).await
    }

    pub async fn shell(&self, id: JobId, shell: &str) -> Result<ShellView, Error> {
        self.get(shell_path(id, shell, "")).await
    }

    /// What is to be seen in a shell from this byte on, until it has ended.
    pub async fn shell_output(&self, id: JobId, shell: &str, offset: u64) -> Result<Logs, Error> {
        let path = shell_path(id, shell, &format!("/output?offset={offset}"));
        Ok(Logs::new(self.connection.stream(Ask::new(Method::GET, path)).await?, offset))
    }

    /// Types at a shell, from this byte of all that is typed on. The same may be sent twice.
    pub async fn type_in_shell(&self, id: JobId, shell: &str, offset: u64, keys: &[u8]) -> Result<InputReply, Error> {
        let mut ask = Ask::new(Method::POST, shell_path(id, shell, &format!("/input?offset={offset}")));
        ask.body = Some(Bytes::copy_from_slice(keys));
        ask.content = "application/octet-stream";
        self.ask(ask).await
    }

    pub async fn set_shell_window(&self, id: JobId, shell: &str, window: Window) -> Result<Window, Error> {
        self.ask(Ask::new(Method::POST, shell_path(id, shell, "/window")).json(&window)).await
    }

    /// Hangs up on a shell.
    pub async fn leave_shell(&self, id: JobId, shell: &str) -> Result<ShellView, Error> {
        self.ask(Ask::new(Method::DELETE, shell_path(id, shell, ""))).await
    }

    pub async fn hold(&self, id: JobId) -> Result<JobView, Error> {
        self.post(format!("/v1/jobs/{id}/hold")).await
    }

    pub async fn release(&self, id: JobId) -> Result<JobView, Error> {
        self.post(format!("/v1/jobs/{id}/release")).await
    }

    /// Runs a job that failed once more, as a new job that goes on from its checkpoint. The same key gives the same answer.
    pub async fn requeue(&self, id: JobId, idempotency_key: &str) -> Result<JobView, Error> {
        let mut ask = Ask::new(Method::POST, format!("/v1/jobs/{id}/requeue"));
        ask.idempotency_key = Some(idempotency_key.into());
        self.ask(ask).await
    }

    pub async fn set_priority(&self, id: JobId, priority: i32) -> Result<JobView, Error> {
        self.ask(Ask::new(Method::PATCH, format!("/v1/jobs/{id}")).json(&PriorityRequest { priority })).await
    }

    pub async fn explain(&self, id: JobId) -> Result<Explanation, Error> {
        self.get(format!("/v1/jobs/{id}/explain")).await
    }

    pub async fn report_progress(&self, id: JobId, report: &ProgressReport) -> Result<ProgressReply, Error> {
        self.ask(Ask::new(Method::POST, format!("/v1/jobs/{id}/progress")).json(report)).await
    }

    /// The job once it has ended, or as it is when the time is up.
    pub async fn wait(&self, id: JobId, timeout: Patience) -> Result<JobView, Error> {
        let parameters = [("timeout_seconds", Some(timeout.as_secs_f64().to_string()))];
        let mut ask = Ask::new(Method::GET, format!("/v1/jobs/{id}/wait{}", address::query(&parameters)));
        ask.patience = PATIENCE.saturating_add(timeout);
        self.ask(ask).await
    }

    pub async fn logs(&self, id: JobId, query: &LogQuery) -> Result<Logs, Error> {
        let parameters = [
            ("worker", query.worker.map(|worker| worker.to_string())),
            ("attempt", query.attempt.map(|attempt| attempt.to_string())),
            ("offset", query.offset.map(|offset| offset.to_string())),
            ("tail", query.tail.map(|tail| tail.to_string())),
            ("follow", query.follow.then(|| "true".into())),
            ("all", query.all.then(|| "true".into())),
        ];
        let path = format!("/v1/jobs/{id}/logs{}", address::query(&parameters));
        let streaming = self.connection.stream(Ask::new(Method::GET, path)).await?;
        Ok(Logs::new(streaming, query.offset.unwrap_or(0)))
    }

    /// What happens from now on, or from behind an event that was seen.
    pub async fn events(&self, after: Option<u64>, job: Option<JobId>) -> Result<Events, Error> {
        let parameters = [("after", after.map(|after| after.to_string())), ("job", job.map(|job| job.to_string()))];
        let path = format!("/v1/events{}", address::query(&parameters));
        Ok(Events::new(self.connection.stream(Ask::new(Method::GET, path)).await?))
    }

    pub async fn queues(&self) -> Result<QueuePage, Error> {
        self.get("/v1/queues".into()).await
    }

    /// Makes the queues what these say; a preview only says what would change.
    pub async fn apply_queues(&self, queues: &QueuesRequest, preview: bool) -> Result<QueueChanges, Error> {
        let path = if preview { "/v1/queues?preview=true" } else { "/v1/queues" };
        self.ask(Ask::new(Method::PUT, path.into()).json(queues)).await
    }

    pub async fn nodes(&self) -> Result<NodePage, Error> {
        self.get("/v1/nodes".into()).await
    }

    pub async fn change_node(&self, name: &str, change: NodeChange) -> Result<NodePage, Error> {
        let verb = match change {
            NodeChange::Drain => "drain",
            NodeChange::Cordon => "cordon",
            NodeChange::Uncordon => "uncordon",
        };
        self.post(format!("/v1/nodes/{}/{verb}", address::escaped(name))).await
    }

    pub async fn policy(&self) -> Result<PolicyView, Error> {
        self.get("/v1/policy".into()).await
    }

    /// Another policy from now on: a name, or a name with parameters.
    pub async fn set_policy(&self, policy: &str) -> Result<PolicyView, Error> {
        let body = PolicyRequest { policy: policy.into() };
        self.ask(Ask::new(Method::PUT, "/v1/policy".into()).json(&body)).await
    }

    pub async fn config(&self) -> Result<ConfigView, Error> {
        self.get("/v1/config".into()).await
    }

    /// A new token; its secret is in the answer and cannot be had again.
    pub async fn create_token(&self, request: &TokenRequest) -> Result<NewToken, Error> {
        self.ask(Ask::new(Method::POST, "/v1/tokens".into()).json(request)).await
    }

    pub async fn tokens(&self) -> Result<TokenPage, Error> {
        self.get("/v1/tokens".into()).await
    }

    pub async fn revoke_token(&self, id: u32) -> Result<TokenView, Error> {
        self.ask(Ask::new(Method::DELETE, format!("/v1/tokens/{id}"))).await
    }

    /// How it is: `ok` if it lives.
    pub async fn health(&self) -> Result<Health, Error> {
        self.state_of_health("/healthz").await
    }

    /// How it is: `ok` if it can take jobs.
    pub async fn ready(&self) -> Result<Health, Error> {
        self.state_of_health("/readyz").await
    }

    /// In Prometheus' text form.
    pub async fn metrics(&self) -> Result<String, Error> {
        Ok(self.good(Ask::new(Method::GET, "/metrics".into())).await?.text())
    }

    pub async fn openapi(&self) -> Result<serde_json::Value, Error> {
        self.get("/v1/openapi.json".into()).await
    }

    /// A service that is not well answers 503, and says how it is all the same.
    async fn state_of_health(&self, path: &str) -> Result<Health, Error> {
        let reply = self.connection.ask(Ask::new(Method::GET, path.into())).await?;
        match serde_json::from_slice(&reply.body) {
            Ok(health) => Ok(health),
            Err(error) if reply.is_good() => Err(reply.no_answer(&error.to_string())),
            Err(_) => Err(problem(&reply)),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.ask(Ask::new(Method::GET, path)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.ask(Ask::new(Method::POST, path)).await
    }

    /// An answer that is no refusal.
    async fn good(&self, ask: Ask) -> Result<Reply, Error> {
        let reply = self.connection.ask(ask).await?;
        if reply.is_good() { Ok(reply) } else { Err(problem(&reply)) }
    }

    async fn ask<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Error> {
        let reply = self.good(ask).await?;
        serde_json::from_slice(&reply.body).map_err(|error| reply.no_answer(&error.to_string()))
    }
}

impl Ask {
    fn json(mut self, body: &impl Serialize) -> Ask {
        self.body = Some(serde_json::to_vec(body).expect("what goes over the wire can be written as JSON").into());
        self
    }
}

fn shell_path(id: JobId, shell: &str, rest: &str) -> String {
    format!("/v1/jobs/{id}/shells/{}{rest}", address::escaped(shell))
}

/// What the service said no with; a problem of ours if it is not in that form, as behind a proxy.
fn problem(reply: &Reply) -> Error {
    match serde_json::from_slice::<Problem>(&reply.body) {
        Ok(problem) => Error::Refused(problem),
        Err(_) => reply.no_answer(&reply.text()),
    }
}
