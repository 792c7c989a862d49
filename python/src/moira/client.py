"""The service from a program: submit jobs, watch them, ask why.

    job = moira.Client().submit(["python", "train.py"], name="resnet", gpus=1, workers="1..4", batch="128..4096")
    for line in job.logs(follow=True):
        print(line)
    assert job.wait().succeeded

``AsyncClient`` has the same methods as coroutines. Neither needs more than the standard library. A refusal is raised as
``Problem``, which names the field that is wrong; a service that is not there as ``ServiceUnavailable``.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Iterable, Iterator, Optional, TypeVar, Union

from moira import _http as http
from moira import _operations as operations
from moira._errors import MoiraError, Problem, ServiceUnavailable
from moira._operations import JobId, LogReader, Operation, Pause
from moira._request import JobLike, JobOptions, encode, job_request
from moira._views import (
    FINAL_STATES,
    ArrayView,
    Explanation,
    HistoryLine,
    JobView,
    OptionView,
    ProgressView,
    UsageView,
    WorkersView,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "FINAL_STATES",
    "ArrayView",
    "AsyncClient",
    "AsyncJobHandle",
    "Client",
    "Explanation",
    "HistoryLine",
    "JobHandle",
    "JobOptions",
    "JobView",
    "MoiraError",
    "OptionView",
    "Problem",
    "ProgressView",
    "ServiceUnavailable",
    "UsageView",
    "WorkersView",
]

T = TypeVar("T")


class Client:
    """A running service. Threads may share one: every request has a connection of its own."""

    def __init__(self, server: Optional[str] = None) -> None:
        """The service at ``unix:/path/to/moira.sock`` or ``http://127.0.0.1:PORT``.

        If nothing is said, it is found as the command line finds it: ``MOIRA_SERVER``, or the socket in
        ``MOIRA_DATA_DIR``, or that of this user's own service.
        """
        self._address = http.Address.find(server)

    @property
    def server(self) -> str:
        return str(self._address)

    def submit(self, job: JobLike, *, key: Optional[str] = None, **options: Unpack[JobOptions]) -> JobHandle:
        """Hands a job over, and returns once it is safe on disk.

        ``job`` is a text for the shell, a list of a program and its arguments, a whole request as the API takes it, or
        the path of a file that holds one (a ``pathlib.Path``, since a text is a command). What the options say (see
        ``JobOptions``) counts more. The job runs in the present folder unless ``workdir`` says otherwise. Of this
        process's environment it has what ``export`` says, by default what an activated environment needs, and what
        ``env`` adds.

        The same ``key`` with the same job is one job, however often it is submitted; without one, a fresh key makes
        sure that asking again after a lost answer makes no second job.
        """
        body = encode(job_request(job, options))
        return JobHandle(self, self._run(operations.submit(body, key or str(uuid.uuid4()))))

    def jobs(
        self,
        *,
        state: Union[str, Iterable[str], None] = None,
        owner: Optional[str] = None,
        queue: Optional[str] = None,
        name: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> list[JobView]:
        """Jobs, the newest first. ``state`` is one or several; ``live`` is all that have not ended."""
        filters = {"state": _comma_separated(state), "owner": owner, "queue": queue, "name": name}
        return self._run(operations.jobs(limit, **filters))

    def job(self, id: JobId) -> JobView:
        """A job as it is now."""
        return self._run(operations.job(id))

    def handle(self, id: JobId) -> JobHandle:
        """A job that was submitted before."""
        return JobHandle(self, self.job(id))

    def cancel(self, id: JobId) -> JobView:
        """Ends a job."""
        return self._run(operations.change(id, "cancel"))

    def hold(self, id: JobId) -> JobView:
        """Lets a job wait; if it runs, it saves its state and stops."""
        return self._run(operations.change(id, "hold"))

    def release(self, id: JobId) -> JobView:
        """Lets a held job go on."""
        return self._run(operations.change(id, "release"))

    def priority(self, id: JobId, priority: int) -> JobView:
        """Another priority for a job, from -1000 to 1000."""
        return self._run(operations.prioritise(id, priority))

    def explain(self, id: JobId) -> Explanation:
        """Why a job has what it has, and what would change it."""
        return self._run(operations.explain(id))

    def wait(self, id: JobId, timeout: Optional[float] = None) -> JobView:
        """The job once it has ended, however it did; ``TimeoutError`` if that takes longer than ``timeout`` seconds.

        A service that is restarted meanwhile is waited for.
        """
        return self._run(operations.wait(id, timeout))

    def logs(
        self,
        id: JobId,
        *,
        follow: bool = False,
        worker: int = 0,
        attempt: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> Iterator[str]:
        """What a worker wrote, line by line: of the latest launch unless ``attempt`` says another, and all of it unless
        ``tail`` says how many bytes from the end.

        ``follow`` goes on until the job has ended, from one launch to the next and over a restart of the service.
        """
        reader = LogReader(id, worker=worker, attempt=attempt, tail=tail, follow=follow)
        ask: Optional[http.Ask] = self._run(reader.begin())
        while ask is not None:
            lost = None
            try:
                with http.Incoming(self._address, ask) as incoming:
                    if incoming.status != 200:
                        raise operations.refusal(http.whole(incoming), ask)
                    while piece := incoming.read():
                        yield from reader.take(piece)
            except ServiceUnavailable as error:
                lost = error
            ask = self._run(reader.go_on(lost))
        yield from reader.last()

    def _run(self, operation: Operation[T]) -> T:
        try:
            act = next(operation)
            while True:
                try:
                    outcome = self._do(act)
                except ServiceUnavailable as error:
                    act = operation.throw(error)
                else:
                    act = operation.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result

    def _do(self, act: operations.Act) -> Optional[http.Reply]:
        if isinstance(act, Pause):
            time.sleep(act.seconds)
            return None
        return http.answer(self._address, act)


class AsyncClient:
    """A running service, without blocking: the methods of ``Client`` as coroutines."""

    def __init__(self, server: Optional[str] = None) -> None:
        self._address = http.Address.find(server)

    @property
    def server(self) -> str:
        return str(self._address)

    async def submit(self, job: JobLike, *, key: Optional[str] = None, **options: Unpack[JobOptions]) -> AsyncJobHandle:
        """See ``Client.submit``."""
        body = encode(job_request(job, options))
        return AsyncJobHandle(self, await self._run(operations.submit(body, key or str(uuid.uuid4()))))

    async def jobs(
        self,
        *,
        state: Union[str, Iterable[str], None] = None,
        owner: Optional[str] = None,
        queue: Optional[str] = None,
        name: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> list[JobView]:
        filters = {"state": _comma_separated(state), "owner": owner, "queue": queue, "name": name}
        return await self._run(operations.jobs(limit, **filters))

    async def job(self, id: JobId) -> JobView:
        return await self._run(operations.job(id))

    async def handle(self, id: JobId) -> AsyncJobHandle:
        return AsyncJobHandle(self, await self.job(id))

    async def cancel(self, id: JobId) -> JobView:
        return await self._run(operations.change(id, "cancel"))

    async def hold(self, id: JobId) -> JobView:
        return await self._run(operations.change(id, "hold"))

    async def release(self, id: JobId) -> JobView:
        return await self._run(operations.change(id, "release"))

    async def priority(self, id: JobId, priority: int) -> JobView:
        return await self._run(operations.prioritise(id, priority))

    async def explain(self, id: JobId) -> Explanation:
        return await self._run(operations.explain(id))

    async def wait(self, id: JobId, timeout: Optional[float] = None) -> JobView:
        return await self._run(operations.wait(id, timeout))

    async def logs(
        self,
        id: JobId,
        *,
        follow: bool = False,
        worker: int = 0,
        attempt: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> AsyncIterator[str]:
        """See ``Client.logs``; to be read with ``async for``."""
        reader = LogReader(id, worker=worker, attempt=attempt, tail=tail, follow=follow)
        ask: Optional[http.Ask] = await self._run(reader.begin())
        while ask is not None:
            lost = None
            try:
                async with http.AsyncIncoming(self._address, ask) as incoming:
                    if incoming.status != 200:
                        raise operations.refusal(await http.whole_async(incoming), ask)
                    while piece := await incoming.read():
                        for line in reader.take(piece):
                            yield line
            except ServiceUnavailable as error:
                lost = error
            ask = await self._run(reader.go_on(lost))
        for line in reader.last():
            yield line

    async def _run(self, operation: Operation[T]) -> T:
        try:
            act = next(operation)
            while True:
                try:
                    outcome = await self._do(act)
                except ServiceUnavailable as error:
                    act = operation.throw(error)
                else:
                    act = operation.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _do(self, act: operations.Act) -> Optional[http.Reply]:
        if isinstance(act, Pause):
            await asyncio.sleep(act.seconds)
            return None
        return await http.answer_async(self._address, act)


@dataclass(frozen=True)
class JobHandle:
    """A job that was submitted; ``submitted`` is how it was shown then."""

    client: Client
    submitted: JobView

    @property
    def id(self) -> str:
        return self.submitted.id

    def task(self, number: int) -> JobHandle:
        """One task of an array."""
        return self.client.handle(f"{self.id}_{number}")

    def view(self) -> JobView:
        return self.client.job(self.id)

    def cancel(self) -> JobView:
        return self.client.cancel(self.id)

    def hold(self) -> JobView:
        return self.client.hold(self.id)

    def release(self) -> JobView:
        return self.client.release(self.id)

    def priority(self, priority: int) -> JobView:
        return self.client.priority(self.id, priority)

    def explain(self) -> Explanation:
        return self.client.explain(self.id)

    def wait(self, timeout: Optional[float] = None) -> JobView:
        return self.client.wait(self.id, timeout)

    def logs(self, **which: Any) -> Iterator[str]:
        """See ``Client.logs``."""
        return self.client.logs(self.id, **which)


@dataclass(frozen=True)
class AsyncJobHandle:
    """A job that was submitted; ``submitted`` is how it was shown then."""

    client: AsyncClient
    submitted: JobView

    @property
    def id(self) -> str:
        return self.submitted.id

    async def task(self, number: int) -> AsyncJobHandle:
        """One task of an array."""
        return await self.client.handle(f"{self.id}_{number}")

    async def view(self) -> JobView:
        return await self.client.job(self.id)

    async def cancel(self) -> JobView:
        return await self.client.cancel(self.id)

    async def hold(self) -> JobView:
        return await self.client.hold(self.id)

    async def release(self) -> JobView:
        return await self.client.release(self.id)

    async def priority(self, priority: int) -> JobView:
        return await self.client.priority(self.id, priority)

    async def explain(self) -> Explanation:
        return await self.client.explain(self.id)

    async def wait(self, timeout: Optional[float] = None) -> JobView:
        return await self.client.wait(self.id, timeout)

    def logs(self, **which: Any) -> AsyncIterator[str]:
        """See ``Client.logs``; to be read with ``async for``."""
        return self.client.logs(self.id, **which)


def _comma_separated(words: Union[str, Iterable[str], None]) -> Optional[str]:
    return words if words is None or isinstance(words, str) else ",".join(words)
