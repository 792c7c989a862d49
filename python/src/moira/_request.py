"""A job as it is said in Python, made into the one object that the service takes."""

from __future__ import annotations

import copy
import datetime
import difflib
import importlib
import json
import os
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence, TypedDict, Union

from moira._errors import MoiraError

__all__ = ["JobLike", "JobOptions", "encode", "job_request"]

#: A command for the shell, a program and its arguments, a whole request, or a file that holds one.
JobLike = Union[str, Sequence[str], Mapping[str, Any], "os.PathLike[str]"]

#: ``4``, ``"1..8"``, ``(1, 8)``, or the object of the API.
Range = Union[int, str, "tuple[int, int]", Mapping[str, Any]]


class JobOptions(TypedDict, total=False):
    """What can be said of a job by name; it counts more than what the request or its file says. ``None`` is nothing."""

    name: str
    #: GPUs of each worker: ``1``, ``0.5``, ``0`` for none, or with a kind like ``"a100:8"``.
    gpus: Union[int, float, str]
    gpu_kinds: Sequence[str]
    #: ``2``, or a range in which the scheduler chooses: ``"1..8"`` or ``(1, 8)``.
    workers: Range
    cpus: float
    memory: Union[int, str]
    #: Examples in one step, and how far that may grow: ``"64..1024"`` or ``(64, 1024)``. Makes the job adaptive.
    batch: Range
    #: Steps of the designed batch after which it is done, if known.
    steps: int
    max_runtime: Union[int, float, str]
    expected_runtime: Union[int, float, str]
    deadline: Union[str, datetime.datetime]
    #: The queue it waits in; that of ``MOIRA_QUEUE`` if nothing is said.
    queue: str
    priority: int
    weight: float
    #: Jobs that must have succeeded before.
    after: Sequence[Union[int, str]]
    #: ``"0-99"``, ``"0-99:2"``, ``"0-99%10"``.
    array: str
    #: How often it may fail and is started again.
    retries: int
    #: Which variables of this process the job gets: ``"ALL"``, ``"NONE"``, or names like ``["PATH", "WANDB_*"]``. If
    #: nothing is said: ``PATH``, ``VIRTUAL_ENV``, ``CONDA_*``, ``LD_LIBRARY_PATH``, ``PYTHONPATH``, ``LANG``, ``LC_*``
    #: and ``TZ``. Never ``MOIRA_*``, torchrun's and ``CUDA_VISIBLE_DEVICES``.
    export: Union[str, Sequence[str]]
    #: Further variables, which count more.
    env: Mapping[str, str]
    #: Which rights its new files do not get, in octal digits like ``"0027"``; as of this process if nothing is said.
    umask: str
    labels: Mapping[str, str]
    #: ``grace``, ``notice``, ``every``, ``cost``, ``restart_cost``.
    checkpoint: Mapping[str, Union[int, float, str]]
    #: Who is told of it: ``{"command": ...}`` or ``{"url": ...}``, each perhaps with ``events``.
    notify: Sequence[Mapping[str, Union[str, Sequence[str]]]]
    #: Let it wait until it is released.
    hold: bool
    #: Where it runs; here if nothing is said.
    workdir: Union[str, os.PathLike[str]]


#: Where an option goes that is not a field of the request by its own name.
_PLACES = {
    "gpus": ("resources", "gpus"),
    "gpu_kinds": ("resources", "gpu_kinds"),
    "cpus": ("resources", "cpus"),
    "memory": ("resources", "memory"),
    "max_runtime": ("limits", "max_runtime"),
    "expected_runtime": ("limits", "expected_runtime"),
    "deadline": ("limits", "deadline"),
    "after": ("depends_on",),
    "retries": ("retry", "max_failures"),
}

#: What is said of these is added to what the request says.
_ADDED = frozenset({"env", "labels", "checkpoint", "depends_on"})


def job_request(job: JobLike, options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The object that the service takes. It is the service that examines it."""
    request = _written(job)
    for name, value in options.items():
        if name != "export":
            _set(request, name, value)
    if exported := exported_variables(options.get("export"), environ):
        request["env"] = {**exported, **(request.get("env") or {})}
    if "umask" not in request and (umask := _umask()) is not None:
        request["umask"] = umask
    if "queue" not in request and environ.get("MOIRA_QUEUE"):
        request["queue"] = environ["MOIRA_QUEUE"]
    request["workdir"] = os.path.abspath(request.get("workdir") or os.curdir)
    return request


#: What a job gets of the caller's environment if nothing is said.
_USUAL = ("PATH", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_*", "TZ")

#: What Moira and torchrun tell each worker, and what a job that submits another has from them itself.
_NEVER = (
    *("MOIRA_*", "PET_*", "TORCHELASTIC_*", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    "CUDA_VISIBLE_DEVICES",
)


def exported_variables(export: Union[str, Sequence[str], None], environ: Mapping[str, str]) -> dict[str, str]:
    """What of this environment a job gets. A name that is asked for must have a value."""
    never: Sequence[str] = _NEVER
    if export is None:
        wanted: Sequence[str] = _USUAL
    elif export == "ALL":
        # In a job this was set for the cores of that job's worker.
        wanted, never = ("*",), (*_NEVER, *(("OMP_NUM_THREADS",) if "MOIRA_JOB_ID" in environ else ()))
    elif export == "NONE":
        wanted = ()
    else:
        wanted = [name.strip() for name in export.split(",")] if isinstance(export, str) else list(export)
        for name in wanted:
            if not _is_name(name[:-1] if name.endswith("*") else name) or name in ("ALL", "NONE"):
                raise ValueError(f"export: expected ALL, NONE, or names like PATH and WANDB_*, found {name!r}")
            if _is_among(name, _NEVER):
                raise ValueError(f"export: {name} is set for each worker, and not passed on")
            if not name.endswith("*") and name not in environ:
                raise ValueError(f"export: {name} has no value here")
    return {
        name: value
        for name, value in environ.items()
        if _is_name(name) and _is_text(value) and _is_among(name, wanted) and not _is_among(name, never)
    }


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(it[:-1]) if it.endswith("*") else name == it for it in patterns)


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _is_text(value: str) -> bool:
    """Whether it can be sent: bytes that are no UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _umask() -> Optional[str]:
    """The umask of this process, without changing it for a moment as ``os.umask`` would; none where it is not told."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next((line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), None)


def encode(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, default=_moment).encode()


def _moment(value: object) -> str:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.isoformat()
    raise TypeError(f"a job cannot hold {value!r}: expected text, numbers, lists, maps, or a moment with its time zone")


def _written(job: JobLike) -> dict[str, Any]:
    if isinstance(job, Mapping):
        return copy.deepcopy(dict(job))
    if isinstance(job, os.PathLike):
        return _read(Path(job))
    return {"command": job if isinstance(job, str) else list(job)}


def _read(path: Path) -> dict[str, Any]:
    readers = {".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    reader = readers.get(path.suffix)
    if reader is None:
        raise ValueError(f"{path}: expected a file that ends in .yaml, .toml or .json")
    text = path.read_text(encoding="utf-8")
    try:
        request = reader(text)
    except MoiraError as error:
        raise MoiraError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(request, dict):
        raise ValueError(f"{path}: expected a job, found {type(request).__name__}")
    return request


def _json(text: str) -> Any:
    return json.loads(text)


def _toml(text: str) -> Any:
    return _module(("tomllib", "tomli"), "TOML needs Python 3.11 or the package tomli").loads(text)


def _yaml(text: str) -> Any:
    yaml = _module(("yaml",), "YAML needs the package PyYAML")

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined]
        """Moments stay text, which is what the service reads."""

        yaml_implicit_resolvers = {  # noqa: RUF012 (the name and form are the parent's)
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _module(names: Iterable[str], need: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MoiraError(f"{need}; JSON can always be read")


def _set(request: dict[str, Any], option: str, value: Any) -> None:
    if option not in JobOptions.__annotations__:
        near = difflib.get_close_matches(option, JobOptions.__annotations__, 1)
        raise TypeError(f"a job has no option `{option}`" + (f"; did you mean `{near[0]}`?" if near else ""))
    if value is None:
        return
    *outer, name = _PLACES.get(option, (option,))
    for part in outer:
        request = request.setdefault(part, {})
    value = _plain(option, value)
    if name in _ADDED and name in request:
        value = [*request[name], *value] if isinstance(value, list) else {**request[name], **value}
    request[name] = value


def _plain(option: str, value: Any) -> Any:
    if option == "batch":
        return _range(option, value, "initial")
    if option == "workers":
        return value if isinstance(value, int) else _range(option, value, "min")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (tuple, list)) else value


def _range(option: str, value: Any, lower: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    ends = value.split("..") if isinstance(value, str) else value if isinstance(value, (tuple, list)) else [value]
    try:
        numbers = [int(end) for end in ends if not isinstance(end, float)]
        first, last = numbers * 2 if len(numbers) == 1 else numbers
    except ValueError:
        raise ValueError(f"{option}: expected a number or a range like 1..8, found {value!r}") from None
    return {lower: first, "max": last}
