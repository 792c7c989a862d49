"""How the workers of a run change without a restart: the files through which they and their supervisor agree.

The supervisor starts newcomers and writes a note; newcomers say when they are ready; the first worker gives the word,
and all change after the same step. Whoever creates the verdict first decides, so a change that came too late is never
half made.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from moira.job import Job, Tuning, _tuning_of


@dataclass(frozen=True)
class Resize:
    """The workers a run is to have."""

    gang: int
    #: By rank.
    members: List[int]
    local_ranks: List[int]
    master_addr: str
    master_port: int
    tuning: Optional[Tuning]

    def rank_of(self, member: int) -> Optional[int]:
        """The rank of a process among them; nothing if it is to leave."""
        return self.members.index(member) if member in self.members else None


class GangFiles:
    """The files of one run's changes."""

    def __init__(self, job: Job) -> None:
        self._note = job.resize_file
        self._dir = job.gang_dir

    @property
    def can_resize(self) -> bool:
        """Whether whoever started this process can change the workers around it."""
        return self._note is not None and self._dir is not None

    def wanted(self, gang: int) -> Optional[Resize]:
        """The change that is wanted, if it is a later one than this."""
        if self._note is None:
            return None
        try:
            said = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return None
        if said["gang"] <= gang or self._verdict(said["gang"]) not in (None, "go"):
            return None
        return Resize(
            gang=said["gang"],
            members=[member["member"] for member in said["members"]],
            local_ranks=[member["local_rank"] for member in said["members"]],
            master_addr=said["master_addr"],
            master_port=said["master_port"],
            tuning=_tuning_of(said.get("local_batch"), said.get("accumulation")),
        )

    def say_ready(self, gang: int, member: int) -> None:
        """Called by a newcomer when it could join at any moment."""
        self._touch(f"ready.{gang}.{member}")

    def are_ready(self, resize: Resize, newcomers: List[int]) -> bool:
        """Whether all that are to join could do so now."""
        return all(self._path(f"ready.{resize.gang}.{member}").exists() for member in newcomers)

    def give_the_word(self, gang: int) -> bool:
        """Decides for the change. False if it was withdrawn before."""
        try:
            descriptor = os.open(self._path(f"verdict.{gang}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return self._verdict(gang) == "go"
        with os.fdopen(descriptor, "w") as file:
            file.write("go")
        return True

    def say_done(self, gang: int) -> None:
        """Called by the first worker after the first step of the new gang."""
        self._touch(f"done.{gang}")

    def _verdict(self, gang: int) -> Optional[str]:
        try:
            return self._path(f"verdict.{gang}").read_text().strip() or None
        except OSError:
            return None

    def _touch(self, name: str) -> None:
        with open(self._path(name), "w"):
            pass

    def _path(self, name: str) -> Path:
        assert self._dir is not None, "only called where can_resize holds"
        return self._dir / name
