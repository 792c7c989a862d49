"""The guide for new users is run as it stands."""

import os
import re
import sys
from pathlib import Path

import pytest
import transcript

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "first-hour.md"


TERMINAL = re.compile("moira (run --pty|shell) ")
README = GUIDE.parents[2] / "README.md"


@pytest.mark.alone
def test_a_new_user_sees_what_the_guide_says() -> None:
    transcript.run(GUIDE, Path(os.environ["MOIRA_BIN"]), Path(sys.executable), record=False)


def test_jobs_are_run_as_the_readme_says() -> None:
    (block,) = re.findall(r"^## Run jobs$.*?^```sh$(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)[:1]
    lines = [line.partition(" #")[0].strip() for line in block.strip().splitlines()]
    assert lines[0] == "moira serve --data-dir ~/moira &"
    assert any(line.startswith("moira submit ") for line in lines)
    # All but those that are for terminals.
    commands = [command for line in lines[1:] for command in line.split("; ") if not TERMINAL.match(command)]
    with transcript.a_home() as home:
        places = home / "bin", Path(sys.executable).parent
        places[0].mkdir()
        (places[0] / "moira").symlink_to(Path(os.environ["MOIRA_BIN"]).resolve())
        (home / "train.py").write_text("print('trained')\n")
        shell = transcript.Shell(home, home, transcript.environment(home, *places))
        try:
            shell.run(lines[0].replace("&", "2> serve.log &"))
            up = shell.run("for try in $(seq 600); do moira ls --data-dir ~/moira && break; sleep 0.1; done 2> ls.log")
            assert up, (home / "serve.log").read_text()
            for command in commands:
                printed = shell.run(f"{command}; echo status $?")
                assert printed[-1] == "status 0", (command, printed)
        finally:
            shell.close()
            transcript.end_jobs(home)


def test_what_differs_from_run_to_run_is_not_compared_and_all_else_is() -> None:
    said = " 3   first   you   root   running  1/1..2  virtual  20s  19s   26598 steps"
    assert transcript.agree([said], [" 3 first you root running 1/1..2 virtual 4s 3s 17 steps"])
    assert not transcript.agree([said], [said.replace("1/1..2", "2/1..2")])
    assert not transcript.agree([said], [said, ""])
    assert transcript.shape("[decision 48] about 2026-11-18T18:40:13.296Z") == "[decision N] about TIME"


def test_that_the_policy_and_not_a_rule_gave_the_devices_matters_only_where_the_guide_says_the_rule() -> None:
    ruled, admitted = (f" 4   second  you   running  {reason}  1/1..2" for reason in ("MinimumFirst", "Admitted"))
    assert transcript.agree([ruled], [ruled]) and transcript.agree([ruled], [admitted])
    assert transcript.agree([admitted], [admitted]) and not transcript.agree([admitted], [ruled])


def test_a_guide_says_what_to_run_and_which_files_there_are(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    text = "```toml a.toml\nx = 1\n```\n```console\n$ one\n1\n$ two\n```\n```sh\nnot run\n```\n"
    guide.write_text(text)
    read = transcript.Guide.read(guide)
    assert [(file.name, file.text) for file in read.files] == [("a.toml", "x = 1\n")]
    assert [(command.text, command.printed) for command in read.commands] == [("one", ["1"]), ("two", [])]
    read.write(guide, [["1", "more"], ["2"]])
    assert guide.read_text() == text.replace("1\n$ two\n", "1\nmore\n$ two\n2\n")
