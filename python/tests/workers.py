"""Starts a script as the workers of a run, the way a supervisor does, for tests that need no service."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

PATIENCE_SECONDS = 300.0


class Run:
    """One run of a script: its workers, and the files they share with whoever started them."""

    def __init__(self, directory: Path, script: Path, environ: Optional[Dict[str, str]] = None) -> None:
        self.directory = directory
        self._script = script
        self._environ = environ or {}
        self._attempt = 0
        self.gang = 1
        self.members: Dict[int, subprocess.Popen[bytes]] = {}
        self._next_member = 0
        (directory / "gang").mkdir(parents=True, exist_ok=True)
        (directory / "checkpoints").mkdir(exist_ok=True)
        (directory / "progress.jsonl").touch()

    def start(self, workers: int, **environ: str) -> Run:
        """A new attempt with so many workers."""
        self._attempt += 1
        self.gang, self._next_member, self.members = 1, 0, {}
        (self.directory / "resize.json").unlink(missing_ok=True)
        for path in (self.directory / "gang").iterdir():
            path.unlink()
        port = free_port()
        for rank in range(workers):
            self._spawn(rank, workers, port, environ)
        return self

    def pace(self, seconds: float, each: float = 0.0) -> Run:
        """From now on each batch takes at least so long, and so much longer for each of its examples."""
        fresh = self.directory / "pace.new"
        fresh.write_text(f"{seconds} {each}")
        fresh.replace(self.directory / "pace")
        return self

    def resize(self, stay: List[int], join: int, **environ: str) -> None:
        """Orders other workers: these members stay, so many join."""
        self.gang += 1
        port = free_port()
        newcomers = list(range(self._next_member, self._next_member + join))
        members = stay + newcomers
        for rank in range(len(stay), len(members)):
            self._spawn(rank, len(members), port, {**environ, "MOIRA_JOINS": "1"})
        note = {
            "gang": self.gang,
            "members": [{"member": member, "local_rank": rank} for rank, member in enumerate(members)],
            "master_addr": "127.0.0.1",
            "master_port": port,
        }
        fresh = self.directory / "resize.new"
        fresh.write_text(json.dumps(note))
        fresh.replace(self.directory / "resize.json")

    def await_ready(self, newcomers: List[int]) -> None:
        """Until these could join at any moment."""
        files = [self.directory / "gang" / f"ready.{self.gang}.{member}" for member in newcomers]
        wait_for(lambda: all(path.exists() for path in files), "newcomers are ready")

    def await_done(self) -> None:
        """Until the new gang has made its first step."""
        wait_for((self.directory / "gang" / f"done.{self.gang}").exists, "the new gang makes a step")

    def wait(self) -> List[int]:
        """The exit codes of all members, in order of their numbers."""
        return [self.members[member].wait(PATIENCE_SECONDS) for member in sorted(self.members)]

    def signal(self, number: signal.Signals, members: Optional[List[int]] = None) -> None:
        """Sends a signal to all members, or to these."""
        for member in self.members if members is None else members:
            self.members[member].send_signal(number)

    def kill(self) -> None:
        """Ends whatever is left."""
        for process in self.members.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def reports(self) -> List[Dict[str, Any]]:
        """What the run has reported so far."""
        return whole_lines(self.directory / "progress.jsonl")

    def records(self, name: str = "steps.jsonl") -> List[Dict[str, Any]]:
        """What the script has written down itself."""
        path = self.directory / name
        return whole_lines(path) if path.exists() else []

    def await_records(self, count: int, name: str = "steps.jsonl") -> None:
        """Until the script has written so many lines."""
        wait_for(lambda: len(self.records(name)) >= count or self._has_ended(), f"{count} lines of {name}")

    def output(self) -> str:
        """What the workers printed, for messages of failed tests."""
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("worker-*.log")))

    def _has_ended(self) -> bool:
        return bool(self.members) and all(process.poll() is not None for process in self.members.values())

    def _spawn(self, rank: int, workers: int, port: int, environ: Dict[str, str]) -> None:
        member = self._next_member
        self._next_member += 1
        own = {
            "MOIRA_JOB_ID": "1",
            "MOIRA_ATTEMPT": str(self._attempt),
            "MOIRA_MEMBER": str(member),
            "MOIRA_GANG": str(self.gang),
            "MOIRA_MAX_WORKERS": "4",
            "MOIRA_GANG_DIR": str(self.directory / "gang"),
            "MOIRA_RESIZE_FILE": str(self.directory / "resize.json"),
            "MOIRA_CHECKPOINT_DIR": str(self.directory / "checkpoints"),
            "MOIRA_PROGRESS_FILE": str(self.directory / "progress.jsonl"),
            "MOIRA_TUNING_FILE": str(self.directory / "tuning.json"),
            "MOIRA_LAUNCHED_AT": str(time.time()),
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "TEST_DIRECTORY": str(self.directory),
        }
        with open(self.directory / f"worker-{self._attempt}-{member}.log", "wb") as log:
            self.members[member] = subprocess.Popen(
                [sys.executable, str(self._script)],
                env={**os.environ, **self._environ, **own, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def whole_lines(path: Path) -> List[Dict[str, Any]]:
    """The lines of a file of JSON to which somebody may be adding one at this moment."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(condition: Any, what: str, patience: float = PATIENCE_SECONDS) -> None:
    """Until the condition holds; a test that waits in vain fails."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:.0f} s in vain: {what}")
        time.sleep(0.02)
