//! The client against a small hand-made service.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::{Client, JobId, JobQuery, JobRequest, JobState, LogQuery, NodeChange, Problem};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;

/// A service that answers what `answer` says, given `METHOD path body`; returns how many connections were made to it.
fn serve(folder: &Path, answer: fn(&str) -> (u16, String)) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(api::socket_in(folder)).unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let service = service_fn(move |request: Request<Incoming>| async move {
                let key = request.headers().get("idempotency-key").map(|key| format!(" key={}", key.to_str().unwrap()));
                let line = format!("{} {}{}", request.method(), request.uri(), key.unwrap_or_default());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (status, text) = answer(format!("{line} {}", String::from_utf8_lossy(&body)).trim());
                let reply = Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap();
                Ok::<_, Infallible>(reply)
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    connections
}

fn job(id: &str, state: &str) -> String {
    serde_json::json!({
        "id": id, "name": "train", "owner": "ada", "queue": "root", "priority": 0, "state": state, "reason": null,
        "message": null, "exit_code": null, "signal": null, "submitted_at": "2026-11-20T09:00:00Z", "started_at": null,
        "finished_at": null, "workers": { "have": 0, "min": 1, "max": 1 }, "gpus": 0.0, "gpus_per_worker": 1.0, "gpu_kind": null, "nodes": [],
        "attempts": 0, "failures": 0, "preemptions": 0, "gpu_seconds": 0.0, "elapsed_seconds": 0.0, "progress": null,
        "usage": null, "array": null, "deadline": null,
    })
    .to_string()
}

fn answer(asked: &str) -> (u16, String) {
    match asked {
        r#"POST /v1/jobs key=k1 {"command":["true"]}"# => (201, job("7", "pending")),
        "GET /v1/jobs/7" => (200, job("7", "running")),
        "GET /v1/jobs?state=pending%2Cheld&owner=a%26b&limit=2" => {
            (200, format!(r#"{{"jobs":[{}],"next":"7"}}"#, job("7", "pending")))
        }
        "GET /v1/jobs/7/wait?timeout_seconds=0.5" => (200, job("7", "succeeded")),
        "GET /v1/jobs/7/logs?worker=1&follow=true" => (200, "line 1\nline 2\n".into()),
        "GET /v1/events?after=3" => {
            let event =
                r#"{"seq":4,"at":"2026-11-20T09:00:00Z","decision":null,"job":"7","what":"started","text":"x"}"#;
            (200, format!(": hello\n\nid: 4\ndata: {event}\n\n"))
        }
        r#"PATCH /v1/jobs/7 {"priority":5}"# => (200, job("7", "pending")),
        "POST /v1/nodes/a%2Fb/drain" => {
            (200, r#"{"nodes":[{"name":"a/b","kind":null,"gpus":0,"free":0.0,"state":"draining","jobs":[]}]}"#.into())
        }
        "GET /readyz" => {
            (503, r#"{"status":"read_only","version":"1","uptime_seconds":1.5,"message":"the disk is full"}"#.into())
        }
        "GET /v1/policy" => (502, "<html>bad gateway</html>".into()),
        other => {
            let problem = Problem::not_found(format!("there is nothing at {other}"));
            (404, serde_json::to_string(&problem).unwrap())
        }
    }
}

#[tokio::test]
async fn every_sort_of_request_is_understood_over_one_connection() {
    let folder = tempfile::tempdir().unwrap();
    let connections = serve(folder.path(), answer);
    let client = Client::in_data_dir(folder.path());
    let submitted = client.submit(&JobRequest::new(["true"]), Some("k1")).await.unwrap();
    assert_eq!((submitted.id.as_str(), submitted.state), ("7", JobState::Pending));
    assert_eq!(client.job(JobId::job(7)).await.unwrap().state, JobState::Running);
    let query = JobQuery {
        states: vec![JobState::Pending, JobState::Held],
        owner: Some("a&b".into()),
        limit: Some(2),
        ..JobQuery::default()
    };
    let page = client.jobs(&query).await.unwrap();
    assert_eq!((page.jobs.len(), page.next.as_deref()), (1, Some("7")));
    let ended = client.wait(JobId::job(7), Duration::from_millis(500)).await.unwrap();
    assert_eq!(ended.state, JobState::Succeeded);
    client.set_priority(JobId::job(7), 5).await.unwrap();
    assert_eq!(client.change_node("a/b", NodeChange::Drain).await.unwrap().nodes[0].state, "draining");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn streams_are_read_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    serve(folder.path(), answer);
    let client = Client::in_data_dir(folder.path());
    let query = LogQuery { worker: Some(1), follow: true, ..LogQuery::default() };
    let mut logs = client.logs(JobId::job(7), &query).await.unwrap();
    let mut text = Vec::new();
    while let Some(piece) = logs.next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    assert_eq!(text, b"line 1\nline 2\n");
    let mut events = client.events(Some(3), None).await.unwrap();
    assert_eq!(events.next().await.unwrap().map(|event| (event.seq, event.what)), Some((4, "started".into())));
    assert_eq!(events.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_refusal_is_passed_on_in_the_services_words() {
    let folder = tempfile::tempdir().unwrap();
    serve(folder.path(), answer);
    let client = Client::in_data_dir(folder.path());
    let error = client.job(JobId::job(8)).await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "there is nothing at GET /v1/jobs/8");
    assert_eq!(client.ready().await.unwrap().message.as_deref(), Some("the disk is full"));
    let error = client.policy().await.unwrap_err().to_string();
    assert!(error.starts_with("the service answered GET /v1/policy with 502"), "{error}");
}

#[tokio::test]
async fn where_nobody_listens_the_next_step_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let client = Client::in_data_dir(folder.path());
    let error = client.health().await.unwrap_err().to_string();
    let socket = api::socket_in(folder.path());
    assert_eq!(error, format!("no service at unix:{}: start one with `moira serve`", socket.display()));
}

#[tokio::test]
async fn a_connection_that_the_service_closed_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = api::socket_in(folder.path());
    let client = Client::in_data_dir(folder.path());
    // Each connection serves one request and is closed although it was not said to be.
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0);
            let body = job("7", "running");
            let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    });
    for _ in 0..3 {
        assert_eq!(client.cancel(JobId::job(7)).await.unwrap().state, JobState::Running);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
