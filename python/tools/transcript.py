"""Runs the commands of a guide and compares what they print with what the guide says, or writes that down anew.

A guide is its own script: fenced blocks of `console` hold commands behind `$` and below each what it printed; a fenced
block whose first line names a file, like ```toml moira.toml, is that file, in the folder ~/first-hour. All commands run
in one shell, in a home of their own, beginning in what they know of a clone: the folder `python`, and the binary where
Cargo would put it. Environments that they make find PyTorch and what it needs without installing it, and what the SDK
is built with, if it is there; else `pip` fetches that. Times, sizes and the like are compared only as to there being
one.

    python tools/transcript.py ../docs/guides/first-hour.md            # compares
    python tools/transcript.py --record ../docs/guides/first-hour.md   # writes down
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "first-hour"
USER = "you"
# Commands that only look: what they are to show may take a moment.
LOOKS = re.compile(r"moira (ls|show|explain|queue ls|node ls|logs)\b(?!.* (-f|--follow)\b)")
# Variables that are not another user's affair.
KEPT = re.compile(r"LANG|TMPDIR|USER|LOGNAME|PIP_\w+|SSL_CERT_\w+|\w+_(proxy|PROXY)")
PATIENCE = 60.0
LONGEST = 300.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Command:
    line: int
    text: str
    printed: list[str] = field(default_factory=list)


@dataclass
class File:
    line: int
    name: str
    text: str = ""


@dataclass
class Guide:
    lines: list[str]
    files: list[File]
    commands: list[Command]

    @classmethod
    def read(cls, path: Path) -> Guide:
        guide = cls(path.read_text().splitlines(), [], [])
        inside: list[str] | None = None
        for number, line in enumerate(guide.lines):
            if inside is None:
                inside = line[3:].split() if line.startswith("```") else None
                if inside is not None and len(inside) == 2:
                    guide.files.append(File(number, inside[1]))
            elif line == "```":
                inside = None
            elif inside[:1] == ["console"] and line.startswith("$ "):
                guide.commands.append(Command(number, line[2:]))
            elif inside[:1] == ["console"] and guide.commands:
                guide.commands[-1].printed.append(line)
            elif len(inside) == 2:
                guide.files[-1].text += line + "\n"
        return guide

    def write(self, path: Path, printed: list[list[str]]) -> None:
        lines = list(self.lines)
        for command, new in reversed(list(zip(self.commands, printed, strict=True))):
            first = command.line + 1
            lines[first : first + len(command.printed)] = new
        path.write_text("\n".join(lines) + "\n")


class Shell:
    """One shell for all commands, as a user has it."""

    def __init__(self, home: Path, start: Path, environment: dict[str, str]) -> None:
        self.home = home
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=start,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> list[str]:
        assert self.process.stdin
        assert self.process.stdout
        end = f"end-of-command-{time.monotonic_ns()}"
        self.process.stdin.write(f"{{ {command}\n}} < /dev/null\necho; echo {end}\n")
        self.process.stdin.flush()
        lines: list[str] = []

        watchdog = threading.Timer(LONGEST, self.kill)
        watchdog.start()
        for line in self.process.stdout:
            if line.rstrip("\n") == end:
                watchdog.cancel()
                break
            lines.append(self.plain(line.rstrip()))
        else:
            raise RuntimeError(f"`{command}` did not end; it printed\n" + "\n".join(lines))
        return without_user(lines[:-1] if lines[-1:] == [""] else lines)

    def plain(self, line: str) -> str:
        """The same wherever it is run."""
        return line.replace(str(self.home), "~")

    def kill(self) -> None:
        """Ends the shell and whatever it has started, but for jobs, which the service has started."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        with self.process:
            pass


def without_user(lines: list[str]) -> list[str]:
    """The same for whoever runs it: tables have a column for the user."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    column = next((line.index(" USER ") + 1 for line in lines[:1] if " USER " in line), None)
    if column is None:
        return lines
    cut = [(line[:column], line[column:]) for line in lines]
    return [
        head + (tail.replace(user, USER.ljust(len(user)), 1) if tail.startswith(user) else tail) for head, tail in cut
    ]


def shape(line: str) -> str:
    """A line without what is another each time."""
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line)
    line = re.sub(r"\b\d\d:\d\d(:\d\d)?\b", "TIME", line)
    line = re.sub(r"\bdecision \d+", "decision N", line)
    line = re.sub(r"\b\d+(\.\d+)? ?(ms|s|min|h|KiB|MiB|GiB|%|steps|GPU-hours)(?=\W|$)", r"N \2", line)
    line = re.sub(r"\b\d+\.\d+\b", "N", line)
    return " ".join(line.split())


def agree(said: list[str], printed: list[str]) -> bool:
    return len(said) == len(printed) and all(is_as(*both) for both in zip(said, printed))


def is_as(said: str, printed: str) -> bool:
    """Where elastic jobs share, it depends on the moment whether the policy or the rule gave one its minimum."""
    return shape(printed) in (shape(said), shape(said.replace("MinimumFirst", "Admitted")))


def play(guide: Guide, shell: Shell, *, record: bool) -> list[list[str]]:
    """What each command printed. Raises at the first that printed something else than the guide says."""
    printed, files = [], list(guide.files)
    for command in guide.commands:
        while files and files[0].line < command.line:
            file = files.pop(0)
            (shell.home / FOLDER / file.name).write_text(file.text)
        print(f"$ {command.text}", flush=True)
        until = time.monotonic() + (PATIENCE if LOOKS.match(command.text) else 0)
        while True:
            lines = shell.run(command.text)
            is_up = not lines[:1] or not lines[0].startswith("error: no service")
            if (record and is_up) or agree(command.printed, lines) or time.monotonic() > until:
                break
            time.sleep(0.5)
        if not record and not agree(command.printed, lines):
            said, found = "\n".join(command.printed), "\n".join(lines)
            raise AssertionError(
                f"line {command.line + 1}: `{command.text}` printed\n{found}\nand the guide says\n{said}"
            )
        print("\n".join(lines), flush=True)
        printed.append(lines)
    return printed


def run(path: Path, moira: Path, python: Path, *, record: bool) -> None:
    guide = Guide.read(path)
    with a_home() as home:
        clone = home / "moira"
        make_clone(clone, moira)
        make_python(home / "bin", python)
        shell = Shell(home, clone, {**environment(home, home / "bin"), **build(python)})
        try:
            printed = play(guide, shell, record=record)
        finally:
            shell.close()
            end_jobs(home)
    if record:
        guide.write(path, printed)


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moira-hour-") as folder:
        yield Path(folder).resolve()


def environment(home: Path, *places: Path) -> dict[str, str]:
    """Of a user who has just logged in, and how `pip` reaches the package index from here."""
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    pip = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}
    path = ":".join([*map(str, places), "/usr/local/bin", "/usr/bin", "/bin"])
    return {**pip, **kept, "HOME": str(home), "PATH": path, "OMP_NUM_THREADS": "1"}


def build(python: Path) -> dict[str, str]:
    """How `pip` builds the SDK: without the package index, if this Python has what that takes."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('hatchling') is None)"
    has_it = subprocess.run([python, "-c", ask], check=False).returncode == 0
    # Read like the value of an option `--build-isolation`: 0 switches isolation off.
    return {"PIP_NO_BUILD_ISOLATION": "0"} if has_it else {}


def make_clone(clone: Path, moira: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(REPOSITORY / "python", clone / "python", ignore=ignored)
    built = clone / "target" / "release" / "moira"
    built.parent.mkdir(parents=True)
    built.symlink_to(moira.resolve())


def make_python(folder: Path, python: Path) -> None:
    """A `python3` like this one, whose new environments find what this one has, behind what is installed there."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    found = 'for site in "$3"/lib/python3*/site-packages; do echo "$0.packages" > "$site/found.pth"; done'
    folder.mkdir()
    (folder / "python3.packages").symlink_to(packages)
    wrapper = folder / "python3"
    wrapper.write_text(f'#!/bin/sh\n"{python}" "$@" || exit\ncase "$1 $2" in "-m venv") {found} ;; esac\n')
    wrapper.chmod(0o755)


def end_jobs(folder: Path) -> None:
    """Ends what lives on of the service and its jobs after a failure: all have the folder in their environment."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str(folder).encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guide", type=Path)
    parser.add_argument("--record", action="store_true", help="write down what is printed instead of comparing it")
    parser.add_argument(
        "--moira", type=Path, default=os.environ.get("MOIRA_BIN"), required="MOIRA_BIN" not in os.environ
    )
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="one with PyTorch and the SDK")
    arguments = parser.parse_args()
    run(arguments.guide, arguments.moira, arguments.python, record=arguments.record)


if __name__ == "__main__":
    main()
