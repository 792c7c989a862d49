"""Workers that meet and part. The last of them takes its time, and says so in the file `slow`, or leaves without a word
(TEST_SILENT); the first writes into the file `parted` whether the last had said so when it was done waiting."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch

from moira.training import group as groups

directory = Path(os.environ["TEST_DIRECTORY"])
rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
group = groups.Group("gloo", torch.device("cpu"))
group.meet(groups.Place(rank, workers, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
if rank == workers - 1:
    if "TEST_SILENT" in os.environ:
        os._exit(0)
    time.sleep(1.0)
    (directory / "slow").touch()
elif "TEST_SILENT" in os.environ:
    groups.PART_WITHIN = timedelta(seconds=0.5)
group.say_goodbye()
if rank == 0:
    (directory / "parted").write_text(str((directory / "slow").exists()))
group.part()
