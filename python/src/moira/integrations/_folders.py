"""Folders of checkpoints that frameworks write, and a seal that tells a whole one from one that was never finished.

Frameworks write many files one after the other. When all are there, they are brought to the disk, and their names and
sizes are written into one more file, which appears as a whole. A folder whose files are not as its seal says is passed
over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from moira.checkpoint import to_disk

__all__ = [
    "begin",
    "end",
    "extra",
    "has_room",
    "newest",
    "prune",
    "read_seal",
    "remove_unfinished",
    "rename",
    "seal",
]

log = logging.getLogger(__name__)

_SEAL = "moira.json"
#: A file beside a folder that is being written without the user having asked for it.
_NOTE = "moira-unfinished-"
#: One is to be written, and the next one that the user asks for must fit in as well.
_ROOM = 2

Accept = Callable[[Path, int], bool]


def seal(folder: Path, figures: Mapping[str, Any]) -> None:
    """Says that a folder is whole, and how far training was."""
    files = [each for each in sorted(folder.rglob("*")) if each.is_file() and each.name != _SEAL]
    for each in files:
        to_disk(each)
    sizes = {str(each.relative_to(folder)): each.stat().st_size for each in files}
    fresh = folder / f"{_SEAL}.new"
    fresh.write_text(json.dumps({**figures, "files": sizes}))
    to_disk(fresh)
    fresh.replace(folder / _SEAL)
    to_disk(folder)
    to_disk(folder.parent)


def read_seal(folder: Path) -> Optional[Mapping[str, Any]]:
    """What was said when the folder was sealed; nothing if it was not, or if it is no longer what it was then."""
    try:
        said: Mapping[str, Any] = json.loads((folder / _SEAL).read_text())
        for name, size in said["files"].items():
            found = (folder / name).stat().st_size
            if found != size:
                log.warning("passing over %s: %s has %d bytes instead of %d", folder, name, found, size)
                return None
    except FileNotFoundError as error:
        if (folder / _SEAL).exists():
            log.warning("passing over %s: %s is missing", folder, error.filename)
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("passing over %s: its seal cannot be read: %s", folder, error)
        return None
    return said


def newest(root: Union[str, Path], prefix: str, accept: Optional[Accept] = None) -> Optional[Path]:
    """The whole checkpoint of most steps. ``accept`` may vouch for folders that nobody sealed."""
    for steps, folder in reversed(_numbered(Path(root), prefix)):
        sealed = (folder / _SEAL).exists()
        if read_seal(folder) is not None if sealed else accept is not None and accept(folder, steps):
            return folder
        if not sealed:
            log.warning("passing over %s: it was not finished", folder)
    return None


def prune(root: Path, prefix: str, keep: int) -> None:
    """Removes all but the newest whole ones, and what was never finished."""
    whole = [folder for _, folder in _numbered(root, prefix) if read_seal(folder) is not None][-keep:]
    for _, folder in _numbered(root, prefix):
        if folder not in whole:
            shutil.rmtree(folder, ignore_errors=True)


def extra(root: Path, prefix: str) -> list[Path]:
    """The whole ones whose seal says that they were written between those that the user asked the framework for."""
    found = []
    for _, folder in _numbered(root, prefix):
        said = read_seal(folder) if (folder / _SEAL).exists() else None
        if said is not None and said.get("extra"):
            found.append(folder)
    return found


def begin(folder: Path) -> None:
    """Notes that a folder is about to be written that the user did not ask for. One that is there may be the user's."""
    if folder.exists():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _note(folder).touch()
    except OSError as error:
        log.warning("cannot note that %s is being written: %s", folder, error)


def end(folder: Path) -> None:
    """It is sealed, or not written after all."""
    with contextlib.suppress(OSError):
        _note(folder).unlink()


def remove_unfinished(root: Path, prefix: str, *, keep: Optional[Path]) -> None:
    """Removes folders that were begun and never sealed, but for the one that training goes on from."""
    for note in root.glob(f"{_NOTE}{prefix}*"):
        folder = root / note.name[len(_NOTE) :]
        if not (folder / _SEAL).exists():
            if folder == keep:
                continue
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or (folder / _SEAL).exists():
            end(folder)


def has_room(root: Path, prefixes: Sequence[str]) -> bool:
    """Whether the disk has room for one more folder like the newest, and for another one after it."""
    newest = max((each for prefix in prefixes for each in _numbered(root, prefix)), default=None)
    if newest is None:
        return True
    try:
        size = sum(each.stat().st_size for each in newest[1].rglob("*") if each.is_file())
        free = shutil.disk_usage(root).free
    except OSError as error:
        log.warning("cannot find out whether %s has room for a checkpoint: %s", root, error)
        return False
    if free < _ROOM * size:
        log.warning("no checkpoint is added to %s: %d bytes are free, and one takes about %d", root, free, size)
    return free >= _ROOM * size


def rename(folder: Path, name: str) -> None:
    """Calls a folder something else, for good. One of that name gives way: it was written after as many steps."""
    target = folder.parent / name
    if target.exists():
        shutil.rmtree(target)
    folder.rename(target)
    to_disk(folder.parent)


def _note(folder: Path) -> Path:
    return folder.parent / f"{_NOTE}{folder.name}"


def _numbered(root: Path, prefix: str) -> list[tuple[int, Path]]:
    """Folders called by a number of steps, the fewest first."""
    if not root.is_dir():
        return []
    named = [(each.name[len(prefix) :], each) for each in root.iterdir() if each.name.startswith(prefix)]
    return sorted((int(number), each) for number, each in named if number.isdecimal() and each.is_dir())
