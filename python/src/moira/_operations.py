"""What can be asked of the service, said once for the client that blocks and the one that does not.

An operation is a generator: it yields what is to be done, is sent what came of it, and returns its result. Whoever
drives it decides how the bytes are moved and how time passes.
"""

from __future__ import annotations

import codecs
import json
import time
from dataclasses import dataclass
from typing import Any, Generator, Optional, TypeVar, Union

from moira._errors import MoiraError, Problem, ServiceUnavailable
from moira._http import PATIENCE, Ask, Reply, path
from moira._views import Explanation, JobView

__all__ = [
    "JobId",
    "LogReader",
    "Operation",
    "Pause",
    "change",
    "explain",
    "job",
    "jobs",
    "prioritise",
    "refusal",
    "submit",
    "wait",
]

JobId = Union[int, str]


@dataclass(frozen=True)
class Pause:
    """Nothing is done for so long."""

    seconds: float


T = TypeVar("T")
Act = Union[Ask, Pause]
Operation = Generator[Act, Optional[Reply], T]

#: How long one question for the end of a job waits for its answer.
TURN = 30.0
#: How long a service that has gone is waited for, and how often it is looked for.
ABSENCE = 60.0
BREATH = 0.5

_LONGEST_PAGE = 1000


def submit(body: bytes, key: str) -> Operation[JobView]:
    """Answered once the job is durable.

    If the answer is lost, the same is asked again: under the same key it remains one job.
    """
    ask = Ask("POST", path("jobs"), body, {"Idempotency-Key": key})
    return JobView.of((yield from _while_away(ask)))


def jobs(limit: Optional[int], **filters: Optional[str]) -> Operation[list[JobView]]:
    """The newest first, page by page until there are enough."""
    found: list[JobView] = []
    after: Optional[str] = None
    while limit is None or len(found) < limit:
        size = _LONGEST_PAGE if limit is None else min(_LONGEST_PAGE, limit - len(found))
        page = yield from _answered(Ask("GET", path("jobs", limit=size, after=after, **filters)))
        found += [JobView.of(each) for each in page["jobs"]]
        after = page.get("next")
        if after is None:
            break
    return found


def job(id: JobId, *, patient: bool = False) -> Operation[JobView]:
    """A job as it is. Whoever is patient waits for a service that is away."""
    ask = Ask("GET", path("jobs", id))
    return JobView.of((yield from (_while_away(ask, patient=True) if patient else _answered(ask))))


def change(id: JobId, verb: str) -> Operation[JobView]:
    """``cancel``, ``hold`` or ``release``."""
    return JobView.of((yield from _answered(Ask("POST", path("jobs", id, verb)))))


def prioritise(id: JobId, priority: int) -> Operation[JobView]:
    body = json.dumps({"priority": priority}).encode()
    return JobView.of((yield from _answered(Ask("PATCH", path("jobs", id), body))))


def explain(id: JobId) -> Operation[Explanation]:
    return Explanation.of((yield from _answered(Ask("GET", path("jobs", id, "explain")))))


def wait(id: JobId, timeout: Optional[float]) -> Operation[JobView]:
    """The job once it has ended. The service holds the answer back until then, so nothing is asked in vain.

    A service that was there is waited for if it is restarted meanwhile.
    """
    until = None if timeout is None else time.monotonic() + timeout
    seen = False
    while True:
        asked = time.monotonic()
        turn = TURN if until is None else min(TURN, max(0.0, until - asked))
        ask = Ask("GET", path("jobs", id, "wait", timeout_seconds=turn), patience=PATIENCE + turn)
        view = JobView.of((yield from _while_away(ask, patient=seen, until=until)))
        if view.ended:
            return view
        seen, now = True, time.monotonic()
        if until is not None and now >= until:
            raise TimeoutError(f"job {view.id} is {view.state} and has not ended within {timeout:g} s")
        if now - asked < turn:
            # A service that is about to leave answers before its time.
            yield Pause(BREATH)


class LogReader:
    """Reads the lines of a log, and knows how to go on when a stream ends before the job does."""

    def __init__(self, id: JobId, *, worker: int, attempt: Optional[int], tail: Optional[int], follow: bool) -> None:
        self._id = id
        self._query = {"worker": worker, "attempt": attempt, "follow": follow or None}
        self._follow = follow
        self._tail = tail
        self._attempts = 1
        self._offset = 0
        self._received = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def begin(self) -> Operation[Ask]:
        """What opens the first stream."""
        if self._follow:
            self._attempts = max(1, (yield from job(self._id)).attempts)
        return self._ask()

    def go_on(self, lost: Optional[ServiceUnavailable]) -> Operation[Optional[Ask]]:
        """What opens the stream after one that has ended or was lost; nothing if there is no more to come.

        After another launch the log is another one: its beginning is rather shown twice than missed.
        """
        if lost is not None and (not self._follow or not lost.asked or self._tail is not None):
            raise lost
        if not self._follow:
            return None
        view = yield from job(self._id, patient=True)
        if view.ended and lost is None:
            return None
        yield Pause(BREATH)
        attempts = max(1, view.attempts)
        self._offset = self._offset + self._received if attempts == self._attempts else 0
        self._attempts, self._received = attempts, 0
        return self._ask()

    def take(self, piece: bytes) -> list[str]:
        """The lines that are whole with this piece."""
        self._received += len(piece)
        *lines, self._rest = (self._rest + self._decoder.decode(piece)).split("\n")
        return lines

    def last(self) -> list[str]:
        """What stands behind the last line break."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        return [rest] if rest else []

    def _ask(self) -> Ask:
        where = {"tail": self._tail} if self._tail is not None else {"offset": self._offset}
        return Ask("GET", path("jobs", self._id, "logs", **where, **self._query), patience=None)


def refusal(reply: Reply, ask: Ask) -> MoiraError:
    """What the service said no with; if it is not in that form, as behind a proxy, what it said instead."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "title" in document:
        return Problem(reply.status, document)
    found = reply.body[:200].decode("utf-8", "replace")
    return MoiraError(f"the service answered {ask} with {reply.status} and what is no answer: {found}")


def _answered(ask: Ask) -> Operation[Any]:
    reply = yield ask
    assert reply is not None
    if not reply.good:
        raise refusal(reply, ask)
    try:
        return json.loads(reply.body)
    except ValueError:
        raise refusal(reply, ask) from None


def _while_away(ask: Ask, *, patient: bool = False, until: Optional[float] = None) -> Operation[Any]:
    """Asks again while the service is away: after a connection that broke, and from the start if one is patient."""
    gone: Optional[float] = None
    while True:
        try:
            return (yield from _answered(ask))
        except ServiceUnavailable as error:
            now = time.monotonic()
            if gone is None:
                patient, gone = patient or error.asked, now
            if not patient or now - gone > ABSENCE or (until is not None and now >= until):
                raise
            yield Pause(BREATH)
