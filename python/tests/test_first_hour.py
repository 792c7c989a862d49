"""The guide for new users is run as it stands."""

import os
import sys
from pathlib import Path

import pytest
import transcript

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "first-hour.md"


@pytest.mark.alone
def test_a_new_user_sees_what_the_guide_says() -> None:
    transcript.run(GUIDE, Path(os.environ["MOIRA_BIN"]), Path(sys.executable), record=False)


def test_what_differs_from_run_to_run_is_not_compared_and_all_else_is() -> None:
    said = " 3   first   you   root   running  1/1..2  virtual  20s  19s   26598 steps"
    assert transcript.agree([said], [" 3 first you root running 1/1..2 virtual 4s 3s 17 steps"])
    assert not transcript.agree([said], [said.replace("1/1..2", "2/1..2")])
    assert not transcript.agree([said], [said, ""])
    assert transcript.shape("[decision 48] about 2026-11-18T18:40:13.296Z") == "[decision N] about TIME"


def test_a_guide_says_what_to_run_and_which_files_there_are(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    text = "```toml a.toml\nx = 1\n```\n```console\n$ one\n1\n$ two\n```\n```sh\nnot run\n```\n"
    guide.write_text(text)
    read = transcript.Guide.read(guide)
    assert read.files == {"a.toml": "x = 1\n"}
    assert [(command.text, command.printed) for command in read.commands] == [("one", ["1"]), ("two", [])]
    read.write(guide, [["1", "more"], ["2"]])
    assert guide.read_text() == text.replace("1\n$ two\n", "1\nmore\n$ two\n2\n")
