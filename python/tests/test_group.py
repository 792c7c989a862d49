"""Workers that part wait for each other, but not for those who are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from workers import Run

pytest.importorskip("torch")

PARTING = Path(__file__).with_name("parting.py")


def test_nobody_parts_before_all_have_said_goodbye(tmp_path: Path) -> None:
    run = Run(tmp_path, PARTING).start(3)
    assert run.wait() == [0, 0, 0], run.output()
    assert (tmp_path / "parted").read_text() == "True"


def test_a_worker_that_is_gone_keeps_nobody_from_parting(tmp_path: Path) -> None:
    run = Run(tmp_path, PARTING).start(3, TEST_SILENT="yes")
    assert run.wait() == [0, 0, 0], run.output()
    assert (tmp_path / "parted").read_text() == "False"
