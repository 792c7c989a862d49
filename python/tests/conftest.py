"""The real service for tests: the binary that ``MOIRA_BIN`` names, or the one that ``cargo build`` made."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, TypeVar

import pytest

from moira.client import Client, JobHandle, JobView, ServiceUnavailable

PYTHON_FOLDER = Path(__file__).resolve().parent.parent
T = TypeVar("T")

#: A busy machine is slow; a test that hangs should still end.
PATIENCE = 300.0


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("CI") and _binary() is None:
        pytest.exit(f"no service to test with: {_how_to_get_one()}", returncode=1)


def _binary() -> Optional[Path]:
    said = os.environ.get("MOIRA_BIN")
    built = PYTHON_FOLDER.parent / os.environ.get("CARGO_TARGET_DIR", "target")
    path = Path(said) if said else built / "debug" / "moira"
    return path if path.is_file() else None


def _how_to_get_one() -> str:
    return "build it with `cargo build`, or name it with MOIRA_BIN"


FOUR_DEVICES = """
[[accelerators]]
kind = "virtual"
count = 4
"""


class Service:
    """A service of its own, in a folder of its own, with virtual devices, on a socket and a port."""

    def __init__(self, binary: Path, configuration: str = "", accelerators: str = FOUR_DEVICES) -> None:
        self._binary = binary
        # The path of a socket may have about a hundred bytes, which pytest's own folders exceed.
        self.data_dir = Path(tempfile.mkdtemp(prefix="moira-"))
        # Beside it: a service begins in an empty directory, its configuration aside.
        self._log = self.data_dir.with_suffix(".log")
        self.port = _free_port()
        (self.data_dir / "moira.toml").write_text(
            f'listen = ["127.0.0.1:{self.port}"]\ngrace = "60s"\n{configuration}\n{accelerators}\n'
        )
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.client = Client(self.address)

    @property
    def address(self) -> str:
        return f"unix:{self.data_dir}/moira.sock"

    def start(self) -> Service:
        with self._log.open("ab") as log:
            command = [str(self._binary), "serve", "--data-dir", str(self.data_dir)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(self._is_up, "the service is up")
        return self

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the service has left:\n{self._log.read_text()}")
        try:
            self.client.jobs(limit=1)
        except ServiceUnavailable:
            return False
        return True

    def moira(self, *words: str) -> str:
        """What a command about this service prints."""
        environment = {**os.environ, "MOIRA_SERVER": self.address}
        done = subprocess.run([str(self._binary), *words], env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    def leave(self) -> None:
        """The service goes; its jobs stay."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """Everything ends."""
        if self._process is not None and self._process.poll() is None:
            for job in self.client.jobs(state="live"):
                self.client.cancel(job.id)
            for job in self.client.jobs(state="live"):
                self.client.wait(job.id, PATIENCE)
        self.leave()
        shutil.rmtree(self.data_dir)
        self._log.unlink()

    def submit_python(self, script: str, *arguments: str, **options: Any) -> JobHandle:
        """A job of a script that finds this package and the interpreter of the tests."""
        path = self.data_dir / f"script-{abs(hash(script))}.py"
        path.write_text(script)
        environment = {"PYTHONPATH": str(PYTHON_FOLDER / "src"), "PYTHONUNBUFFERED": "1", **options.pop("env", {})}
        return self.client.submit([sys.executable, str(path), *arguments], env=environment, **options)

    def log_of(self, job: JobHandle, **which: Any) -> str:
        return "\n".join(job.logs(**which))

    def until_job(self, job: JobHandle, state: Callable[[JobView], bool], what: str) -> JobView:
        """The job once it is as it should be; its log if it never is, or ends before."""

        def look() -> Optional[JobView]:
            view = job.view()
            if state(view):
                return view
            assert not view.ended, f"job {job.id} {view.state} ({view.message}) before {what}:\n{self.log_of(job)}"
            return None

        return self.until(look, what)

    @staticmethod
    def until(look: Callable[[], Optional[T]], what: str) -> T:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited {PATIENCE:g} s in vain until {what}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serving(configuration: str = "", accelerators: str = FOUR_DEVICES) -> Iterator[Service]:
    """A service as long as it is needed."""
    binary = _binary()
    if binary is None:
        pytest.skip(f"NO SERVICE TO TEST WITH: {_how_to_get_one()}")
    service = Service(binary, configuration, accelerators)
    try:
        yield service.start()
    finally:
        service.remove()


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A service that all tests share."""
    yield from serving()


@pytest.fixture
def own_service() -> Iterator[Service]:
    """A service for one test, which may end it."""
    yield from serving()
