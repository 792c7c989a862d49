"""The client against the real service, and against one that breaks off."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import pickle
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from conftest import PATIENCE, PYTHON_FOLDER, Service

from moira import _credentials as credentials
from moira import _operations as operations
from moira._http import Address, Parser
from moira._request import encode, job_request
from moira.client import AsyncClient, Client, JobView, MoiraError, Problem, ServiceUnavailable

# What a job is


def test_a_text_is_for_the_shell_and_a_list_is_not() -> None:
    assert job_request("echo $HOME", {})["command"] == "echo $HOME"
    assert job_request(["echo", "$HOME"], {})["command"] == ["echo", "$HOME"]


def test_options_go_where_the_api_wants_them() -> None:
    options = {"gpus": "a100:2", "workers": "1..4", "batch": (64, 1024), "after": [7, "8_1"], "retries": 3}
    options.update(max_runtime="1h", cpus=2, env={"A": "b"}, checkpoint={"notice": "5s"}, workdir=Path("/w"))
    options.update(umask="0027")
    assert job_request(["true"], options, {}) == {
        "command": ["true"],
        "resources": {"gpus": "a100:2", "cpus": 2},
        "workers": {"min": 1, "max": 4},
        "batch": {"initial": 64, "max": 1024},
        "depends_on": [7, "8_1"],
        "retry": {"max_failures": 3},
        "limits": {"max_runtime": "1h"},
        "env": {"A": "b"},
        "checkpoint": {"notice": "5s"},
        "workdir": "/w",
        "umask": "0027",
    }


def test_options_count_more_than_the_request_and_leave_it_as_it_is() -> None:
    request = {"command": "a", "name": "x", "env": {"A": "1"}, "resources": {"gpus": 2}}
    made = job_request(request, {"name": "y", "env": {"B": "2"}, "cpus": 1}, {})
    assert (made["name"], made["env"], made["resources"]) == ("y", {"A": "1", "B": "2"}, {"gpus": 2, "cpus": 1})
    assert request == {"command": "a", "name": "x", "env": {"A": "1"}, "resources": {"gpus": 2}}


def test_a_job_runs_here_and_in_the_queue_of_the_environment() -> None:
    made = job_request("true", {}, {"MOIRA_QUEUE": "research"})
    assert (made["workdir"], made["queue"]) == (os.getcwd(), "research")
    assert job_request("true", {"queue": None}, {"MOIRA_QUEUE": "research"})["queue"] == "research"
    assert job_request("true", {"queue": "vision"}, {"MOIRA_QUEUE": "research"})["queue"] == "vision"


def test_a_job_has_what_an_activated_environment_needs_and_what_export_says() -> None:
    shell = dict.fromkeys(("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LC_ALL", "WANDB_KEY", "RANK", "MOIRA_JOB_ID"), "v")

    def names(**options: object) -> str:
        return " ".join(sorted(job_request("true", options, {**shell, "OMP_NUM_THREADS": "7"}).get("env", {})))

    assert names() == "CONDA_PREFIX LC_ALL PATH VIRTUAL_ENV"
    assert names(export="NONE") == ""
    assert names(export="WANDB_*,PATH") == names(export=["WANDB_*", "PATH"]) == "PATH WANDB_KEY"
    assert names(export="ALL") == "CONDA_PREFIX LC_ALL PATH VIRTUAL_ENV WANDB_KEY"
    assert job_request("true", {"env": {"PATH": "/mine"}}, shell)["env"]["PATH"] == "/mine"
    refusals = {"HF_HOME": "has no value here", "RANK": "is set for each worker", "A=b": "expected ALL, NONE"}
    for wrong, why in refusals.items():
        with pytest.raises(ValueError, match=why):
            job_request("true", {"export": wrong}, shell)


def test_every_variable_is_passed_on_by_itself_or_not() -> None:
    by_default = "PATH VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_LIBRARY_PATH PYTHONPATH LANG LC_ALL LC_CTYPE TZ"
    if_asked = "HOME USER PYTHONHOME LD_PRELOAD LANGUAGE HF_HOME OMP_NUM_THREADS RANKS"
    never = (
        "MOIRA_SERVER MOIRA_JOB_NAME PET_NNODES PET_MASTER_ADDR TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
        " MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME"
        " ROLE_RANK ROLE_WORLD_SIZE CUDA_VISIBLE_DEVICES"
    )

    def is_passed_on(name: str, **options: object) -> bool:
        return name in job_request("true", options, {name: "v"}).get("env", {})

    for name in by_default.split():
        assert (is_passed_on(name), is_passed_on(name, export="ALL")) == (True, True), name
    for name in if_asked.split():
        assert (is_passed_on(name), is_passed_on(name, export="ALL")) == (False, True), name
        assert is_passed_on(name, export=name), name
    for name in never.split():
        assert (is_passed_on(name), is_passed_on(name, export="ALL")) == (False, False), name
        with pytest.raises(ValueError, match="is set for each worker"):
            job_request("true", {"export": name}, {name: "v"})


def test_a_job_has_the_umask_of_its_caller() -> None:
    script = "import sys; from moira._request import job_request; print(job_request('true', {}, {})['umask'])"
    command = f"umask 0031; exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output(["sh", "-c", command], env=environ, text=True).strip() == "0031"


@pytest.mark.parametrize("value", ["many", "1..2..3", (1, 2, 3), (), 1.5])
def test_a_range_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"workers: expected a number or a range like 1\.\.8"):
        job_request("true", {"workers": value})


def test_a_mistyped_option_is_recognised() -> None:
    with pytest.raises(TypeError, match="a job has no option `gpu`; did you mean `gpus`"):
        job_request("true", {"gpu": 1})


def test_a_moment_needs_its_time_zone() -> None:
    at = datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.timezone.utc)
    assert json.loads(encode({"at": at})) == {"at": "2026-11-20T09:00:00+00:00"}
    with pytest.raises(TypeError, match="with its time zone"):
        encode({"at": at.replace(tzinfo=None)})


def test_a_job_is_read_from_a_file(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    said = {"command": ["sleep", 1], "limits": {"deadline": "2026-11-20T09:00:00Z"}}
    (tmp_path / "job.json").write_text(json.dumps(said))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(said).replace("'2026-11-20T09:00:00Z'", "2026-11-20T09:00:00Z"))
    for name in ("job.json", "job.yaml"):
        assert job_request(tmp_path / name, {"workdir": "/w", "umask": "0027"}, {}) == {
            **said,
            "workdir": "/w",
            "umask": "0027",
        }


def test_a_file_that_is_no_job_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.txt").write_text("true")
    (tmp_path / "job.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"job\.txt: expected a file that ends in \.yaml, \.toml or \.json"):
        job_request(tmp_path / "job.txt", {})
    with pytest.raises(ValueError, match=r"cannot read .*job\.json"):
        job_request(tmp_path / "job.json", {})
    with pytest.raises(ValueError, match=r"list\.json: expected a job, found list"):
        job_request(tmp_path / "list.json", {})


# Where the service is


def test_the_service_is_found_by_the_environment() -> None:
    def found(**environ: str) -> str:
        return str(Address.find(environ=environ))

    assert found(MOIRA_SERVER="http://127.0.0.1:7070", HOME="/h") == "http://127.0.0.1:7070"
    assert found(MOIRA_DATA_DIR="/data", HOME="/h") == "unix:/data/moira.sock"
    assert found(XDG_STATE_HOME="/s", HOME="/h") == "unix:/s/moira/moira.sock"
    assert found(HOME="/h", MOIRA_SERVER="") == "unix:/h/.local/state/moira/moira.sock"
    assert str(Address.find("unix:///a", {"MOIRA_SERVER": "http://b:1"})) == "unix:/a"
    with pytest.raises(MoiraError, match="cannot tell where the service's socket is"):
        found()


@pytest.mark.parametrize(
    "text", ["localhost", "https://a:1", "http://a", "http://:1", "http://a:b", "unix:", "http://u@h:1"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no address of a service"):
        Client(text)


def test_a_service_that_is_not_there_is_said_to_be_started(tmp_path: Path) -> None:
    missing = f"unix:{tmp_path}/moira.sock"
    with pytest.raises(ServiceUnavailable, match=r"no service at unix:.*: start one with `moira serve`"):
        Client(missing).submit("true")
    with pytest.raises(ServiceUnavailable, match="no service at"):
        asyncio.run(AsyncClient(missing).jobs())
    with pytest.raises(ServiceUnavailable, match="path too long"):
        Client("unix:/" + "a" * 200).jobs()


# How an answer is read

ANSWERS = {
    "of known length": b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\n\r\n",
    "until the end": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nServer: x\r\n\r\nhello world",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_answer_may_arrive_in_pieces(answer: bytes, size: int) -> None:
    parser, body = Parser(), b""
    for start in range(0, len(answer), size):
        body += parser.feed(answer[start : start + size])
    if not parser.ended:
        parser.feed(b"")
    assert (parser.status, body, parser.ended) == (200, b"hello world", True)


@pytest.mark.parametrize("answer", [ANSWERS["of known length"], ANSWERS["in chunks"]])
def test_an_answer_that_breaks_off_is_no_answer(answer: bytes) -> None:
    for end in range(len(answer) - 5):
        parser = Parser()
        if end:
            parser.feed(answer[:end])
        with pytest.raises(EOFError):
            parser.feed(b"")


def test_what_is_not_http_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin an answer"):
        Parser().feed(b"SSH-2.0-x\r\n\r\n")


# The service itself


def test_a_job_is_submitted_waited_for_and_read(service: Service) -> None:
    job = service.client.submit("echo hello; echo wörld; printf end", name="greeting", gpus=1, labels={"team": "a"})
    assert job.submitted.name == "greeting"
    view = job.wait(PATIENCE)
    assert (view.state, view.ended, view.succeeded, view.exit_code) == ("succeeded", True, True, 0)
    assert view.labels == {"team": "a"}
    assert view.spec is not None and view.spec["command"] == "echo hello; echo wörld; printf end"
    assert list(job.logs()) == ["hello", "wörld", "end"]
    assert list(job.logs(tail=4)) == ["", "end"]


def test_what_a_later_service_adds_is_kept(service: Service) -> None:
    job = service.client.submit("true")
    raw = {**job.wait(PATIENCE).raw, "moods": ["fine"]}
    assert JobView.of(raw).raw["moods"] == ["fine"]
    with pytest.raises(MoiraError, match="no JobView: id, name, state, workers, attempts is missing"):
        JobView.of({})


def test_the_environment_and_the_folder_are_what_is_said(service: Service, tmp_path: Path) -> None:
    script = "import os; print(os.getcwd(), os.environ['COLOUR'], 'SECRET' in os.environ)"
    job = service.client.submit([sys.executable, "-c", script], env={"COLOUR": "red"}, workdir=tmp_path)
    assert job.wait(PATIENCE).succeeded
    assert list(job.logs()) == [f"{tmp_path} red False"]


def test_a_log_is_followed_while_it_is_written(service: Service) -> None:
    job = service.client.submit("for i in 1 2 3; do echo $i; sleep 0.3; done")
    lines = job.logs(follow=True)
    assert next(lines) == "1"
    assert not job.view().ended
    assert list(lines) == ["2", "3"]


def test_a_failure_is_told_from_success(service: Service) -> None:
    view = service.client.submit("exit 3").wait(PATIENCE)
    assert (view.state, view.exit_code, view.succeeded) == ("failed", 3, False)


def test_a_wait_that_is_too_long_is_given_up(service: Service) -> None:
    job = service.client.submit("sleep 600")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"job {job.id} is .* and has not ended within 0.5 s"):
        job.wait(0.5)
    assert 0.5 <= time.monotonic() - began < 10
    assert job.cancel().id == job.id
    assert job.wait(PATIENCE).state == "cancelled"


def test_a_job_is_held_released_and_moved_ahead(service: Service) -> None:
    job = service.client.submit("true", hold=True)
    assert job.view().state == "held"
    assert job.priority(5).priority == 5
    job.release()
    assert job.wait(PATIENCE).succeeded
    second = service.client.submit("sleep 600")
    second.hold()
    assert service.until(lambda: second.view().state == "held", "the job is held")
    second.cancel()


def test_a_waiting_job_says_why(service: Service) -> None:
    job = service.client.submit("true", hold=True, name="asked")
    explanation = job.explain()
    assert (explanation.job, explanation.state) == (job.id, "held")
    assert [line.text for line in explanation.history][:1] == ["submitted"]
    assert any(f"moira release {job.id}" in step for step in explanation.next_steps)
    job.cancel()


def test_an_array_is_one_job_of_many_tasks(service: Service) -> None:
    job = service.client.submit("echo task $MOIRA_ARRAY_TASK_ID", array="0-2")
    view = job.wait(PATIENCE)
    assert view.succeeded and view.array is not None
    assert (view.array.count, view.array.succeeded) == (3, 3)
    assert list(job.task(2).logs()) == ["task 2"]
    with pytest.raises(Problem, match="is an array: say which task") as refused:
        list(job.logs())
    assert refused.value.status == 409


def test_jobs_are_listed_page_by_page(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [service.client.submit("true", name="listed", hold=True).id for _ in range(5)]
    monkeypatch.setattr(operations, "_LONGEST_PAGE", 2)
    assert [view.id for view in service.client.jobs(name="listed", state=["held", "running"])] == ids[::-1]
    assert [view.id for view in service.client.jobs(name="listed", limit=3)] == ids[:1:-1]
    for each in ids:
        service.client.cancel(each)
    assert service.client.jobs(name="listed", state="live") == []


@pytest.mark.parametrize(
    ("options", "field"),
    [({"gpus": -1}, "resources.gpus"), ({"queue": "nowhere"}, "queue"), ({"batch": "64..32"}, "batch.max")],
)
def test_a_bad_job_names_the_field(service: Service, options: Any, field: str) -> None:
    with pytest.raises(Problem) as refused:
        service.client.submit("true", **options)
    problem = refused.value
    assert (problem.status, problem.field, problem.title) == (422, field, "The request is invalid")
    assert problem.kind == "urn:moira:problem:invalid-field"
    assert problem.detail.startswith(field)
    again = pickle.loads(pickle.dumps(problem))
    assert (again.field, again.status, str(again)) == (field, 422, str(problem))


def test_a_job_that_is_not_there_is_a_problem(service: Service) -> None:
    for ask in (service.client.job, service.client.cancel, service.client.explain, service.client.wait):
        with pytest.raises(Problem, match="there is no job 99999") as refused:
            ask(99999)
        assert refused.value.status == 404
    with pytest.raises(Problem, match="expected the number of a job"):
        service.client.job("../nodes")


def test_the_same_key_is_one_job(service: Service) -> None:
    first = service.client.submit("true", name="once", key="the-same")
    assert service.client.submit("true", name="once", key="the-same").id == first.id
    assert service.client.submit("true", name="once").id != first.id


def test_a_port_is_as_good_as_a_socket_with_a_token(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = Client(f"http://127.0.0.1:{service.port}")
    with pytest.raises(Problem, match="a token is needed"):
        client.submit("echo nobody")
    token = tmp_path / "token"
    service.moira("token", "create", "--file", str(token))
    monkeypatch.setenv("MOIRA_TOKEN_FILE", str(token))
    monkeypatch.setenv("MOIRA_DATA_DIR", str(service.data_dir))
    job = client.submit("echo by port")
    assert job.wait(PATIENCE).succeeded
    assert list(job.logs()) == ["by port"]
    token.chmod(0o644)
    with pytest.raises(MoiraError, match="chmod 600"):
        client.jobs()
    token.chmod(0o600)
    with pytest.raises(MoiraError, match="it is not this machine"):
        Client("http://example.org:80").jobs()


@pytest.mark.parametrize("place", ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::"])
def test_whoever_takes_connections_to_a_port_is_found_whatever_the_address_is_bound_as(place: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in place else socket.AF_INET) as thief:
        if ":" in place:
            thief.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        thief.bind((place, 0))
        thief.listen()
        port = thief.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        assert credentials._listeners(["127.0.0.1"], port) == [os.geteuid()]


def test_a_token_goes_over_no_connection_of_which_nobody_knows_who_accepted_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("moira_0123")
    token.chmod(0o600)
    monkeypatch.setenv("MOIRA_TOKEN_FILE", str(token))
    monkeypatch.setattr(credentials, "_listeners", lambda addresses, port: [])

    with socket.create_server(("127.0.0.1", 0)) as thief:
        server = f"http://127.0.0.1:{thief.getsockname()[1]}"
        asks: list[Callable[[], object]] = [Client(server).jobs, lambda: asyncio.run(AsyncClient(server).jobs())]
        for ask in asks:
            with pytest.raises(MoiraError, match="whose process listens"):
                ask()
            with thief.accept()[0] as connection:
                assert connection.recv(100) == b""


def test_a_token_is_not_sent_where_the_kernels_tables_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setenv("MOIRA_TOKEN_FILE", "/nowhere")
    with pytest.raises(MoiraError, match="cannot see whose process listens there"):
        Address.parse("http://127.0.0.1:1").bearer()


def test_a_job_reports_over_the_port_by_the_token_of_its_run(service: Service) -> None:
    script = """
import os, urllib.request
url = f"{os.environ['MOIRA_SERVER_URL']}/v1/jobs/{os.environ['MOIRA_JOB_ID']}/progress"
headers = {"content-type": "application/json"}
headers["authorization"] = "Bearer " + open(os.environ["MOIRA_TOKEN_FILE"]).read()
request = urllib.request.Request(url, data=b'{"steps": 12}', headers=headers)
print(urllib.request.urlopen(request).status)
"""
    job = service.submit_python(script)
    assert job.wait(PATIENCE).succeeded, service.log_of(job)
    progress = job.view().progress
    assert progress is not None and progress.steps == 12


def test_coroutines_do_the_same(service: Service) -> None:
    async def everything() -> None:
        client = AsyncClient(service.address)
        job, other = await asyncio.gather(
            client.submit("for i in 1 2 3; do echo $i; sleep 0.2; done", name="async"), client.submit("sleep 600")
        )
        assert [line async for line in job.logs(follow=True)] == ["1", "2", "3"]
        assert (await job.wait(PATIENCE)).succeeded
        with pytest.raises(TimeoutError):
            await other.wait(0.2)
        assert (await other.explain()).job == other.id
        await other.priority(1)
        assert other.id in [view.id for view in await client.jobs(state="live")]
        await other.cancel()
        assert (await other.wait(PATIENCE)).state == "cancelled"
        with pytest.raises(Problem, match="there is no job 99999"):
            await client.job(99999)
        held = await client.submit("true", hold=True, array="0-1")
        await held.release()
        assert (await held.wait(PATIENCE)).succeeded
        assert (await (await held.task(1)).view()).state == "succeeded"
        with pytest.raises(Problem, match="is an array"):
            [line async for line in held.logs()]

    asyncio.run(everything())


# A service that breaks off, or goes away


class Proxy:
    """Stands between a client and the service, and loses the first answers, of what the service has heard."""

    def __init__(self, target: str, path: Path, lose: int) -> None:
        self.address = f"unix:{path}"
        self.requests: list[bytes] = []
        self._target = target
        self._lose = lose
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone would not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.socket(socket.AF_UNIX) as service:
                request = client.recv(1 << 20)
                self.requests.append(request)
                service.connect(self._target)
                service.sendall(request)
                answer = b"".join(iter(lambda: service.recv(1 << 16), b""))
                if self._lose > 0:
                    self._lose -= 1
                else:
                    client.sendall(answer)


@pytest.fixture
def losing(service: Service) -> Iterator[Callable[[int], Proxy]]:
    proxies: list[Proxy] = []

    def make(lose: int) -> Proxy:
        path = service.data_dir / f"proxy{len(proxies)}.sock"
        path.unlink(missing_ok=True)
        proxies.append(Proxy(str(service.data_dir / "moira.sock"), path, lose))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_lost_answer_makes_no_second_job(service: Service, losing: Callable[[int], Proxy], kind: str) -> None:
    proxy = losing(2)
    name = f"lost-{kind}"
    if kind == "sync":
        job = Client(proxy.address).submit("true", name=name).id
    else:
        job = asyncio.run(AsyncClient(proxy.address).submit("true", name=name)).id
    assert len(proxy.requests) == 3
    assert len(set(proxy.requests)) == 1
    assert [view.id for view in service.client.jobs(name=name)] == [job]


def test_what_changes_a_job_is_not_repeated_behind_ones_back(service: Service, losing: Callable[[int], Proxy]) -> None:
    proxy = losing(1)
    job = service.client.submit("true", hold=True)
    with pytest.raises(ServiceUnavailable, match=r"broke while asking for POST /v1/jobs/\d+/cancel") as lost:
        Client(proxy.address).cancel(job.id)
    assert lost.value.asked
    assert len(proxy.requests) == 1


def test_waits_and_logs_outlive_a_restart_of_the_service(own_service: Service) -> None:
    service = own_service
    job = service.client.submit("for i in $(seq 20); do echo $i; sleep 0.25; done")
    service.until_job(job, lambda view: view.state == "running", "it runs")
    seen: dict[str, Any] = {}
    watchers = [
        threading.Thread(target=lambda: seen.update(wait=job.wait(PATIENCE))),
        threading.Thread(target=lambda: seen.update(logs=list(job.logs(follow=True)))),
    ]
    for watcher in watchers:
        watcher.start()
    time.sleep(1)
    service.leave()
    with pytest.raises(ServiceUnavailable):
        job.view()
    service.start()
    for watcher in watchers:
        watcher.join(PATIENCE)
    assert seen["wait"].succeeded
    assert seen["logs"] == [str(number) for number in range(1, 21)]


# The protocol without any of this


def test_the_plain_example_is_stopped_and_goes_on(service: Service) -> None:
    script = (PYTHON_FOLDER / "examples" / "plain_python.py").read_text()
    job = service.submit_python(script, "--steps", "8000", batch="64..256", workdir=service.data_dir)
    service.until_job(job, lambda view: view.progress is not None and bool(view.progress.steps), "it has reported")
    job.hold()
    service.until_job(job, lambda view: view.state == "held", "it is held")
    job.release()
    view = job.wait(PATIENCE)
    assert view.succeeded and view.attempts == 2
    assert view.progress is not None and view.progress.steps is not None and view.progress.steps >= 8000
    going_on, finished = job.logs(attempt=2)
    assert int(going_on.split()[-2]) > 0
    weights = json.loads(finished[len("finished with ") :])
    assert weights == pytest.approx([1.0] * 8, abs=0.2)
