"""Runs the commands of a guide and compares what they print with what the guide says, or writes that down anew.

A guide is its own script: fenced blocks of `console` hold commands behind `$` and below each what it printed; a fenced
block whose first line names a file, like ```toml moira.toml, is that file. All commands run in one shell, in a folder
of their own. Times, sizes and the like are compared only as to there being one.

    python tools/transcript.py ../docs/guides/first-hour.md            # compares
    python tools/transcript.py --record ../docs/guides/first-hour.md   # writes down
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "~/first-hour"
USER = "you"
# Commands that only look: what they are to show may take a moment.
LOOKS = re.compile(r"moira (ls|show|explain|queue ls|node ls|logs)\b(?!.* (-f|--follow)\b)")
PATIENCE = 60.0
LONGEST = 120.0


@dataclass
class Command:
    line: int
    text: str
    printed: list[str] = field(default_factory=list)


@dataclass
class Guide:
    lines: list[str]
    files: dict[str, str]
    commands: list[Command]

    @classmethod
    def read(cls, path: Path) -> Guide:
        guide = cls(path.read_text().splitlines(), {}, [])
        inside: list[str] | None = None
        for number, line in enumerate(guide.lines):
            if inside is None:
                inside = line[3:].split() if line.startswith("```") else None
            elif line == "```":
                inside = None
            elif inside[:1] == ["console"] and line.startswith("$ "):
                guide.commands.append(Command(number, line[2:]))
            elif inside[:1] == ["console"] and guide.commands:
                guide.commands[-1].printed.append(line)
            elif len(inside) == 2:
                guide.files[inside[1]] = guide.files.get(inside[1], "") + line + "\n"
        return guide

    def write(self, path: Path, printed: list[list[str]]) -> None:
        lines = list(self.lines)
        for command, new in reversed(list(zip(self.commands, printed, strict=True))):
            first = command.line + 1
            lines[first : first + len(command.printed)] = new
        path.write_text("\n".join(lines) + "\n")


class Shell:
    """One shell for all commands, as a user has it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.venv = (folder / "venv").resolve()
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
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
        return line.replace(str(self.venv), f"{FOLDER}/venv").replace(str(self.folder), FOLDER)

    def kill(self) -> None:
        """Ends the shell and whatever it has started, but for jobs, which the service has started."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        with self.process:
            pass


def without_user(lines: list[str]) -> list[str]:
    """The same for whoever runs it: tables have a column for the user."""
    user = getpass.getuser()
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
    # Who gave a job its devices, the policy or a rule around it, depends on the moment at which it came.
    line = re.sub(r"\b(Admitted|MinimumFirst)\b", "REASON", line)
    line = re.sub(r"\b\d+(\.\d+)? ?(ms|s|min|h|KiB|MiB|GiB|%|steps|GPU-hours)(?=\W|$)", r"N \2", line)
    line = re.sub(r"\b\d+\.\d+\b", "N", line)
    return " ".join(line.split())


def agree(said: list[str], printed: list[str]) -> bool:
    return [shape(line) for line in said] == [shape(line) for line in printed]


def play(guide: Guide, shell: Shell, *, record: bool) -> list[list[str]]:
    """What each command printed. Raises at the first that printed something else than the guide says."""
    for name, text in guide.files.items():
        (shell.folder / name).write_text(text)
    printed = []
    for command in guide.commands:
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
    with tempfile.TemporaryDirectory(prefix="moira-hour-") as folder:
        names = ("HOME", "LANG", "TMPDIR", "USER", "LOGNAME")
        kept = {name: value for name, value in os.environ.items() if name in names}
        (Path(folder) / "venv").symlink_to(python.parent.parent)
        places = [str(moira.resolve().parent), "/usr/local/bin", "/usr/bin", "/bin"]
        shell = Shell(Path(folder), {**kept, "PATH": ":".join(places), "OMP_NUM_THREADS": "1"})
        try:
            printed = play(guide, shell, record=record)
        finally:
            shell.close()
            end_jobs(Path(folder))
    if record:
        guide.write(path, printed)


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
