"""What the service shows of jobs. Durations are seconds, moments are RFC 3339 in UTC.

The service only ever adds fields; what this version does not know is kept in ``raw``.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Mapping, Optional, TypeVar

from moira._errors import MoiraError

__all__ = [
    "FINAL_STATES",
    "ArrayView",
    "Explanation",
    "HistoryLine",
    "JobView",
    "OptionView",
    "ProgressView",
    "UsageView",
    "View",
    "WorkersView",
]

#: States in which nothing more will happen to a job.
FINAL_STATES = frozenset({"succeeded", "failed", "timed_out", "cancelled", "refused"})

SomeView = TypeVar("SomeView", bound="View")


@dataclass(frozen=True)
class View:
    """An object of the API; ``raw`` is all of it as it came."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)

    #: Fields that are views themselves, or lists of them.
    inner: ClassVar[Mapping[str, type[View]]] = {}

    @classmethod
    def of(cls: type[SomeView], raw: Mapping[str, Any]) -> SomeView:
        known = [each for each in fields(cls) if each.name != "raw"]
        missing = [each.name for each in known if each.name not in raw and not _has_default(each)]
        if missing:
            raise MoiraError(f"the service answered with no {cls.__name__}: {', '.join(missing)} is missing")
        return cls(raw=raw, **{each.name: cls._value(each.name, raw[each.name]) for each in known if each.name in raw})

    @classmethod
    def _value(cls, name: str, value: Any) -> Any:
        view = cls.inner.get(name)
        if view is None or value is None:
            return value
        return [view.of(each) for each in value] if isinstance(value, list) else view.of(value)


def _has_default(each: Any) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


@dataclass(frozen=True)
class WorkersView(View):
    have: int
    min: int
    max: int


@dataclass(frozen=True)
class ProgressView(View):
    """What a job has last reported of itself."""

    steps: Optional[int] = None
    total_steps: Optional[int] = None
    #: From 0 to 1.
    fraction: Optional[float] = None
    epoch: Optional[float] = None
    loss: Optional[float] = None
    step_seconds: Optional[float] = None
    #: Examples in one step over all workers.
    batch_size: Optional[int] = None
    accumulation: Optional[int] = None
    reported_at: Optional[str] = None


@dataclass(frozen=True)
class UsageView(View):
    """What a job's processes use, summed over its workers."""

    cpu_seconds: float
    memory_bytes: int
    peak_memory_bytes: int
    gpu_utilisation: Optional[float] = None
    gpu_memory_bytes: Optional[int] = None


@dataclass(frozen=True)
class ArrayView(View):
    """How the tasks of an array are doing."""

    first: int
    count: int
    at_once: Optional[int] = None
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True)
class JobView(View):
    """A job, or an array of jobs as one, at the moment of the answer."""

    inner: ClassVar[Mapping[str, type[View]]] = {
        "workers": WorkersView,
        "progress": ProgressView,
        "usage": UsageView,
        "array": ArrayView,
    }

    #: ``7``, or ``7_3`` for a task of an array.
    id: str
    name: str
    #: ``pending``, ``held``, ``starting``, ``running``, ``stopping``, or one of ``FINAL_STATES``.
    state: str
    workers: WorkersView
    #: Launches so far.
    attempts: int
    owner: str = ""
    queue: str = ""
    priority: int = 0
    #: Why it is in this state: a stable word.
    reason: Optional[str] = None
    #: The same for people.
    message: Optional[str] = None
    #: Of the worker that failed first, or 0.
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    submitted_at: Optional[str] = None
    started_at: Optional[str] = None
    finished_at: Optional[str] = None
    #: GPUs held now.
    gpus: float = 0.0
    gpus_per_worker: float = 0.0
    gpu_kind: Optional[str] = None
    nodes: list[str] = field(default_factory=list)
    failures: int = 0
    preemptions: int = 0
    gpu_seconds: float = 0.0
    #: Time it has held devices so far.
    elapsed_seconds: float = 0.0
    progress: Optional[ProgressView] = None
    usage: Optional[UsageView] = None
    array: Optional[ArrayView] = None
    labels: Mapping[str, str] = field(default_factory=dict)
    depends_on: list[str] = field(default_factory=list)
    deadline: Optional[str] = None
    #: As submitted; left out of lists.
    spec: Optional[Mapping[str, Any]] = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL_STATES

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"


@dataclass(frozen=True)
class OptionView(View):
    """Something that the latest decision could have given a job."""

    workers: int
    nodes: int
    chosen: bool
    gpu_kind: Optional[str] = None
    goodput: Optional[float] = None
    #: What stood in the way.
    obstacle: Optional[str] = None


@dataclass(frozen=True)
class HistoryLine(View):
    at: str
    text: str
    decision: Optional[int] = None


@dataclass(frozen=True)
class Explanation(View):
    """Why a job has what it has, and what would change it."""

    inner: ClassVar[Mapping[str, type[View]]] = {"options": OptionView, "history": HistoryLine}

    job: str
    state: str
    reason: Optional[str] = None
    message: Optional[str] = None
    options: list[OptionView] = field(default_factory=list)
    #: What became of it so far, the oldest first.
    history: list[HistoryLine] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    #: The decision that settled this.
    decision: Optional[int] = None
