"""The way of reports from a job to its service: gathered, written by a thread of its own, never in the way.

A line goes into the progress file, which needs no service to be there; where there is no such file, it is posted. What
cannot be delivered is kept, newer figures in place of older ones, and tried again.
"""

from __future__ import annotations

import atexit
import http.client
import json
import logging
import math
import os
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, Mapping, Optional

from moira._credentials import read_token

log = logging.getLogger("moira")

#: Reports are gathered for so long.
INTERVAL_SECONDS = 1.0
#: A service that does not answer is left alone for so long.
PATIENCE_SECONDS = 5.0

#: More than this is not kept for a service that stays away.
MOST_LINES = 100

Deliver = Callable[[str], None]


class Reporter:
    """Gathers figures and delivers them about once a second."""

    def __init__(self, deliver: Optional[Deliver], run: str) -> None:
        self._deliver = deliver
        self._run = run
        #: Lines to come; the last one still gathers.
        self._pending: List[Dict[str, Any]] = []
        self._changed = threading.Condition()
        self._delivered = 0
        self._put = 0
        self._is_urgent = False
        self._thread: Optional[threading.Thread] = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Reporter:
        """As the environment of a run says; one that delivers nowhere if it says nothing."""
        run = environ.get("MOIRA_ATTEMPT", "1")
        path = environ.get("MOIRA_PROGRESS_FILE")
        url = environ.get("MOIRA_SERVER_URL")
        if path:
            return cls(_to_file(path), run)
        if url:
            to = f"{url}/v1/jobs/{environ['MOIRA_JOB_ID']}/progress"
            return cls(_to_url(to, environ.get("MOIRA_TOKEN_FILE")), run)
        return cls(None, run)

    def put(self, figures: Mapping[str, Any]) -> None:
        """Takes figures for the next line. Those no training has are left out rather than refused later."""
        sound = _sound(figures)
        if self._deliver is None or not sound:
            return
        with self._changed:
            # An interruption is told once, so a newer one must not take its place.
            is_told_of_one = bool(self._pending) and "restart" in self._pending[-1] and "restart" in sound
            if not self._pending or is_told_of_one:
                self._pending.append({})
            self._pending[-1] = _merged(self._pending[-1], sound)
            self._put += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_delivering, name="moira-reports", daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._changed.notify_all()

    def flush(self, timeout: float = 2.0) -> None:
        """Waits until everything put so far is delivered, or the time is over."""
        deadline = time.monotonic() + timeout
        with self._changed:
            wanted = self._put
            self._is_urgent = True
            self._changed.notify_all()
            while self._delivered < wanted:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return

    def _keep_delivering(self) -> None:
        while True:
            with self._changed:
                while not self._pending:
                    self._changed.wait()
                lines, self._pending = self._pending, []
                upto, wait = self._put, INTERVAL_SECONDS
                # Whoever is in a hurry has one attempt at once; if it fails, it waits like everybody else.
                self._is_urgent = False
            try:
                while lines:
                    self._write(lines[0])
                    del lines[0]
            except (OSError, http.client.HTTPException):
                self._keep(lines)
                upto, wait = -1, PATIENCE_SECONDS
            with self._changed:
                self._delivered = max(self._delivered, upto)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_urgent, wait)

    def _write(self, figures: Dict[str, Any]) -> None:
        """Delivers a line. One that is no good will be no better next time, so it is dropped."""
        assert self._deliver is not None, "nothing is put otherwise"
        try:
            self._deliver(json.dumps({"run": self._run, **figures}))
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise
            log.warning("the service refuses a report: %s %s", error.code, error.read(500).decode(errors="replace"))
        except (TypeError, ValueError) as error:
            log.warning("a report cannot be written: %s", error)

    def _keep(self, lines: List[Dict[str, Any]]) -> None:
        """What could not be delivered goes with the next line, unless something newer was said meanwhile."""
        with self._changed:
            for figures in reversed(lines):
                newer = self._pending[0] if self._pending else {}
                if "restart" in figures and "restart" in newer:
                    self._pending.insert(0, figures)
                else:
                    self._pending[:1] = [_merged(figures, newer)]
            del self._pending[MOST_LINES:]


def _to_file(path: str) -> Deliver:
    def deliver(line: str) -> None:
        # One write of a whole line: readers never see half of one.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, (line + "\n").encode())
        finally:
            os.close(descriptor)

    return deliver


def _to_url(url: str, token_file: Optional[str]) -> Deliver:
    headers = {"content-type": "application/json"}
    if token_file:
        # It is good for reports on this run only, and as long as the run lasts.
        headers["authorization"] = f"Bearer {read_token(token_file)}"

    def deliver(line: str) -> None:
        request = urllib.request.Request(url, data=line.encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            answer.read()

    return deliver


def _merged(older: Mapping[str, Any], newer: Mapping[str, Any]) -> Dict[str, Any]:
    merged = {**older, **newer}
    metrics = {**older.get("metrics", {}), **newer.get("metrics", {})}
    if metrics:
        merged["metrics"] = metrics
    return merged


def _sound(figures: Mapping[str, Any]) -> Dict[str, Any]:
    """The figures without those that are missing, infinite or not a number."""
    kept: Dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            inner = _sound(value)
            if inner:
                kept[name] = inner
        elif isinstance(value, (bool, int, str)):
            kept[name] = value
        elif value is not None:
            number = _number(value)
            if math.isfinite(number):
                kept[name] = number
    return kept


def _number(value: Any) -> float:
    """A number of whatever sort: Python's, NumPy's, a tensor of one. What is none is not finite either."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        log.warning("a figure that should be a number is none: %s", error)
        return math.nan
