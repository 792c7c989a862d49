"""Saved states of a training: written whole or not at all, found again newest first, torn ones passed over.

A state is a file and a note beside it. The note holds length and checksum of the file and is written last, so a state
without its note, or one that does not agree with it, does not count.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable, List, Optional, Tuple

log = logging.getLogger("moira")

#: So many whole states are kept; older ones are removed once a newer one is whole.
KEPT = 2

_NAME = re.compile(r"^state-(\d+)\.json$")

Write = Callable[[IO[bytes]], object]
Read = Callable[[IO[bytes]], Any]


class CheckpointError(RuntimeError):
    """A state could not be saved or read; the message says what to do about it."""


@dataclass(frozen=True)
class Saved:
    """A state that is whole on disk."""

    step: int
    path: Path
    seconds: float


class Checkpoints:
    """The saved states in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thread: Optional[threading.Thread] = None
        self._outcome: Optional[Tuple[Optional[Saved], Optional[CheckpointError]]] = None

    def save(self, step: int, write: Write) -> Saved:
        """Writes a state and makes it durable. If that fails, all that was there before is as it was."""
        began = time.monotonic()
        data, note = self._data(step), self._note(step)
        fresh = [data.with_suffix(f".{os.getpid()}.tmp"), note.with_suffix(f".json.{os.getpid()}.tmp")]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            digest, length = _write_durably(fresh[0], write)
            note_text = json.dumps({"step": step, "bytes": length, "sha256": digest}).encode()
            _write_durably(fresh[1], lambda file: file.write(note_text))
            # The note of an older state of the same number must not vouch for the new data.
            if note.exists():
                note.unlink()
            os.replace(fresh[0], data)
            os.replace(fresh[1], note)
            to_disk(self.directory)
        except OSError as error:
            raise CheckpointError(self._advice(error)) from error
        except Exception as error:
            raise CheckpointError(f"cannot save the state in {self.directory}: {error}") from error
        finally:
            for path in fresh:
                _remove(path)
        self._remove_older()
        return Saved(step, data, time.monotonic() - began)

    def is_busy(self) -> bool:
        """Whether a state is being written in the background."""
        return self._thread is not None and self._thread.is_alive()

    def save_in_background(self, step: int, write: Write) -> bool:
        """The same while training goes on. False if the state before is still being written. What ``write`` writes must
        not change meanwhile."""
        if self.is_busy():
            return False
        self._thread = threading.Thread(target=self._save_aside, args=(step, write), name="moira-checkpoint")
        self._thread.start()
        return True

    def outcome(self) -> Optional[Tuple[Optional[Saved], Optional[CheckpointError]]]:
        """What came of the last save in the background; told once."""
        if self.is_busy():
            return None
        outcome, self._outcome = self._outcome, None
        return outcome

    def wait(self) -> None:
        """Until nothing is being written any more."""
        if self._thread is not None:
            self._thread.join()

    def remove_unfinished(self) -> None:
        """Removes what was left by a process that was killed while it wrote. Nobody may be writing."""
        for path in self.directory.glob("state-*.tmp"):
            _remove(path)

    def load_newest(self, read: Read) -> Optional[Tuple[int, Any]]:
        """The newest state that is whole, with its step; nothing if nothing was ever saved. States that are there but
        all broken are an error: to begin anew without a word would throw work away."""
        steps = self.steps()
        broken: List[str] = []
        for step in reversed(steps):
            try:
                return step, self._load(step, read)
            except (OSError, ValueError, EOFError, RuntimeError, KeyError) as error:
                log.warning("passing over the state %s: %s", self._data(step), error)
                broken.append(f"{self._data(step).name} ({error})")
        if broken:
            raise CheckpointError(
                f"none of the saved states in {self.directory} can be read: {', '.join(broken)}. "
                "Restore one from a backup, or empty the directory to begin anew"
            )
        return None

    def steps(self) -> List[int]:
        """The steps of the states that have a note, in order."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot list the saved states in {self.directory}: {error.strerror}") from error
        return sorted(int(found.group(1)) for found in map(_NAME.match, names) if found)

    def _load(self, step: int, read: Read) -> Any:
        note = json.loads(self._note(step).read_text())
        path = self._data(step)
        if path.stat().st_size != note["bytes"]:
            raise ValueError(f"it has {path.stat().st_size} bytes instead of {note['bytes']}")
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            if digest.hexdigest() != note["sha256"]:
                raise ValueError("its checksum is not the one in its note")
            file.seek(0)
            return read(file)

    def _save_aside(self, step: int, write: Write) -> None:
        try:
            self._outcome = (self.save(step, write), None)
        except CheckpointError as error:
            self._outcome = (None, error)

    def _remove_older(self) -> None:
        for step in self.steps()[:-KEPT]:
            _remove(self._note(step))
            _remove(self._data(step))

    def _advice(self, error: OSError) -> str:
        newest = self.steps_or_none()
        kept = f"the newest whole state is of step {newest}" if newest is not None else "there is no whole state yet"
        return (
            f"cannot save the state in {self.directory}: {error.strerror or error}. "
            f"Make room or make it writable; {kept}"
        )

    def steps_or_none(self) -> Optional[int]:
        """The step of the newest state, as far as the directory can be read."""
        try:
            return (self.steps() or [None])[-1]  # type: ignore[list-item]
        except CheckpointError:
            return None

    def _data(self, step: int) -> Path:
        return self.directory / f"state-{step:012d}.pt"

    def _note(self, step: int) -> Path:
        return self.directory / f"state-{step:012d}.json"


class _Counting:
    """A file that knows the checksum of what went into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.length = 0
        #: What went wrong first; a writer that meets an error may cover it with another.
        self.error: Optional[OSError] = None

    def write(self, block: Any) -> int:
        view = memoryview(block).cast("B")
        try:
            written = 0
            while written < len(view):
                written += self._file.write(view[written:])
        except OSError as error:
            self.error = self.error or error
            raise
        self.digest.update(view)
        self.length += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def _write_durably(path: Path, write: Write) -> Tuple[str, int]:
    # Without a buffer, whose rest would fail once more when the file is closed.
    with open(path, "wb", buffering=0) as file:
        counting = _Counting(file)
        try:
            write(counting)  # type: ignore[arg-type]
        except Exception:
            if counting.error is not None:
                raise counting.error from None
            raise
        os.fsync(file.fileno())
    return counting.digest.hexdigest(), counting.length


def to_disk(path: Path) -> None:
    """Makes a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        # Gone already, or it stays: it takes space and does no harm.
        pass
