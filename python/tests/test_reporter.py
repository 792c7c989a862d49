"""Reports reach the service in the end, and never hold up whoever makes them."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Dict, List

import pytest
from workers import whole_lines

from moira import reporter as reporters
from moira.job import Job
from moira.reporter import Reporter


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(reporters, "PATIENCE_SECONDS", 0.05)


def test_figures_are_gathered_into_lines_of_the_progress_file(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.touch()
    job = Job({"MOIRA_JOB_ID": "7", "MOIRA_ATTEMPT": "2", "MOIRA_PROGRESS_FILE": str(path)})
    for step in range(1000):
        job.report(steps=step, metrics={f"m{step % 2}": float(step)})
    job.flush()
    lines = whole_lines(path)
    assert len(lines) < 100, "gathered"
    assert lines[-1] == {"run": "2", "steps": 999, "metrics": {"m0": 998.0, "m1": 999.0}}


def test_only_the_first_worker_reports(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.touch()
    job = Job({"MOIRA_JOB_ID": "7", "RANK": "1", "WORLD_SIZE": "2", "MOIRA_PROGRESS_FILE": str(path)})
    job.report(steps=1)
    job.flush()
    assert path.read_text() == ""


def test_figures_no_training_has_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.touch()
    reporter = Reporter.from_environment({"MOIRA_PROGRESS_FILE": str(path)})
    reporter.put({"steps": 3, "loss": float("nan"), "noise": {"sqr": float("inf")}, "epoch": None})
    reporter.flush()
    assert whole_lines(path) == [{"run": "1", "steps": 3}]


def test_interruptions_are_told_one_by_one() -> None:
    told: List[str] = []
    gate = threading.Event()

    def deliver(line: str) -> None:
        if not gate.is_set():
            raise OSError("away")
        told.append(line)

    reporter = Reporter(deliver, "1")
    for number in range(3):
        reporter.put({"restart": {"kind": "resize", "phases": {"stop": float(number)}}, "steps": number})
        time.sleep(0.08)
    gate.set()
    reporter.flush()
    stops = [json.loads(line)["restart"]["phases"]["stop"] for line in told]
    assert stops == [0.0, 1.0, 2.0]


def test_a_service_that_is_away_holds_nobody_up_and_hears_the_latest_when_it_is_back() -> None:
    heard: List[Dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Not of interest."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_port
    server.server_close()
    reporter = Reporter.from_environment({"MOIRA_JOB_ID": "7", "MOIRA_SERVER_URL": f"http://127.0.0.1:{port}"})
    began = time.monotonic()
    for step in range(100):
        reporter.put({"steps": step})
    assert time.monotonic() - began < 0.5
    time.sleep(0.2)
    server = HTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    reporter.flush(10.0)
    server.shutdown()
    thread.join()
    server.server_close()
    assert heard[-1] == {"run": "1", "steps": 99}


def test_a_flush_in_vain_does_not_make_the_reporter_restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "PATIENCE_SECONDS", 60.0)
    attempts: List[str] = []

    def deliver(line: str) -> None:
        attempts.append(line)
        raise OSError("away")

    reporter = Reporter(deliver, "1")
    reporter.put({"steps": 1})
    reporter.flush(0.1)
    time.sleep(0.3)
    assert len(attempts) <= 2


def test_a_line_that_is_refused_is_dropped_and_the_next_one_comes_through(caplog: pytest.LogCaptureFixture) -> None:
    heard: List[Dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            line = json.loads(self.rfile.read(int(self.headers["content-length"])))
            heard.append(line)
            self.send_response(400 if "odd" in line else 200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Not of interest."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    reporter = Reporter.from_environment({"MOIRA_JOB_ID": "7", "MOIRA_SERVER_URL": url})
    reporter.put({"odd": 1})
    reporter.flush(10.0)
    reporter.put({"steps": 2})
    reporter.flush(10.0)
    server.shutdown()
    thread.join()
    server.server_close()
    assert heard == [{"run": "1", "odd": 1}, {"run": "1", "steps": 2}]
    assert "the service refuses a report: 400" in caplog.text


def test_figures_may_be_numbers_of_any_sort(tmp_path: Path) -> None:
    class Scalar:
        def __float__(self) -> float:
            return 0.5

    path = tmp_path / "progress"
    path.touch()
    reporter = Reporter.from_environment({"MOIRA_PROGRESS_FILE": str(path)})
    reporter.put({"steps": 3, "loss": Scalar(), "epoch": [1, 2]})
    reporter.flush()
    assert whole_lines(path) == [{"run": "1", "steps": 3, "loss": 0.5}]
