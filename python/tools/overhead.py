"""What the SDK adds to the steps of the language-model example: plain PyTorch, the SDK, and the SDK measuring noise.

    python tools/overhead.py [--rounds N]

The three train copies of the same model in one process and thread, some steps each in turn, in another order each time.
What is compared is the processor time of a step, within a turn, since the speed of a machine changes: the median over
all turns, and between which ratios the middle half of them lies.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Generator, List

import torch
from torch import nn
from torch.utils.data import DataLoader

from moira.job import Job
from moira.training.session import Training

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from language_model import Sentences, Transformer, surprise

#: Whole steps make a pass over the data, whichever number of passes they have.
BATCH, SENTENCES = 16, 2048
#: As many as there are from one measurement of noise to the next, once training has gone on for a while.
STEPS_IN_TURN = 8
#: Turns that are not counted: at first the noise is measured in every step.
BEGINNING = 10


def plain(passes: int) -> Generator[None, None, None]:
    """The loop as it is without Moira, with as many passes a step."""
    torch.manual_seed(0)
    model, data = Transformer(64, 2), DataLoader(Sentences(SENTENCES, seed=1), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    number = 0
    while True:
        for text in data:
            if number % passes == 0:
                optimizer.zero_grad()
            loss = surprise(model, text) / passes
            loss.backward()
            number += 1
            if number % passes == 0:
                optimizer.step()
                yield


def managed(passes: int, measures: bool, directory: Path) -> Generator[None, None, None]:
    """The same under the SDK."""
    torch.manual_seed(0)
    progress = directory / f"progress-{measures}"
    progress.touch()
    said = {
        "MOIRA_JOB_ID": "1",
        "MOIRA_BATCH": str(BATCH),
        "MOIRA_BATCH_MAX": "1024",
        "MOIRA_LOCAL_BATCH": str(BATCH),
        "MOIRA_ACCUMULATION": str(passes - 1),
        "MOIRA_PROGRESS_FILE": str(progress),
    }
    training = Training(Job(said), None, 0)
    model: nn.Module = Transformer(64, 2)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = DataLoader(Sentences(SENTENCES, seed=1), batch_size=BATCH, shuffle=True)
    model, optimizer, data = training.wrap(model, optimizer, data, measure_noise=measures)
    made = 0
    for _ in training.epochs(1_000_000):
        for text in data:
            optimizer.zero_grad()
            loss = surprise(model, text)
            loss.backward()
            optimizer.step()
            training.report(loss=loss)
            made += 1
            if made % passes == 0:
                yield


def compared(passes: int, rounds: int, folder: Path) -> Dict[str, List[float]]:
    """Seconds of a step of each way, turn by turn."""
    ways = {"plain": plain(passes), "SDK": managed(passes, False, folder), "noise": managed(passes, True, folder)}
    times: Dict[str, List[float]] = {name: [] for name in ways}
    order = list(ways)
    for turn in range(BEGINNING + rounds):
        order.append(order.pop(0))
        for name in order:
            began = time.process_time()
            for _ in range(STEPS_IN_TURN):
                next(ways[name])
            if turn >= BEGINNING:
                times[name].append((time.process_time() - began) / STEPS_IN_TURN)
    for steps in ways.values():
        steps.close()
    return times


def overhead(times: Dict[str, List[float]], name: str) -> str:
    ratios = [100 * (mine / plain - 1) for mine, plain in zip(times[name], times["plain"])]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:+.1f} % ({low:+.1f} … {high:+.1f})"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=60)
    rounds = arguments.parse_args().rounds
    torch.set_num_threads(1)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}; {rounds} rounds of {STEPS_IN_TURN} steps each")
    print(f"{'passes':>6}  {'plain':>9}  {'SDK':>26}  {'SDK with noise':>26}")
    for passes in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            times = compared(passes, rounds, Path(folder))
        plain_ms = 1e3 * statistics.median(times["plain"])
        print(f"{passes:>6}  {plain_ms:6.2f} ms  {overhead(times, 'SDK'):>26}  {overhead(times, 'noise'):>26}")


if __name__ == "__main__":
    main()
