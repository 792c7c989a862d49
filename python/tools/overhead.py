"""What the SDK adds to the steps of the language-model example: plain PyTorch, the SDK, and the SDK measuring noise.

    python tools/overhead.py [--rounds N]

The three train copies of the same model in one process and thread, some steps each in turn. What is compared is the
processor time of a step, which other load on the machine touches little: the median over all turns of their means.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import torch
from torch import nn
from torch.utils.data import DataLoader

from moira.job import Job
from moira.training.session import Training

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from language_model import Sentences, Transformer, surprise

BATCH, STEPS_IN_TURN = 16, 16
#: Turns that are not counted: at first the noise is measured in every step.
BEGINNING = 5


def plain(passes: int) -> Iterator[None]:
    """The loop as it is without Moira, with as many passes a step."""
    torch.manual_seed(0)
    model, data = Transformer(64, 2), DataLoader(Sentences(2000, seed=1), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    number = 0
    while True:
        for text in data:
            if len(text) < BATCH:
                continue
            if number % passes == 0:
                optimizer.zero_grad()
            loss = surprise(model, text) / passes
            loss.backward()
            number += 1
            if number % passes == 0:
                optimizer.step()
                yield


def managed(passes: int, measures: bool, directory: Path) -> Iterator[None]:
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
    data = DataLoader(Sentences(2000, seed=1), batch_size=BATCH, shuffle=True)
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
            if made % passes == 0 and len(text) == BATCH:
                yield


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=30)
    rounds = arguments.parse_args().rounds
    torch.set_num_threads(1)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}; {rounds} rounds of {STEPS_IN_TURN} steps each")
    print(f"{'passes':>6}  {'plain':>9}  {'SDK':>17}  {'SDK with noise':>17}")
    with tempfile.TemporaryDirectory() as directory:
        for passes in (1, 2):
            folder = Path(directory, str(passes))
            folder.mkdir()
            ways: Dict[str, Callable[[], Iterator[None]]] = {
                "plain": lambda passes=passes: plain(passes),  # type: ignore[misc]
                "SDK": lambda passes=passes, folder=folder: managed(passes, False, folder),  # type: ignore[misc]
                "noise": lambda passes=passes, folder=folder: managed(passes, True, folder),  # type: ignore[misc]
            }
            with contextlib.ExitStack() as stack:
                running = {name: stack.enter_context(contextlib.closing(way())) for name, way in ways.items()}  # type: ignore[type-var]
                times: Dict[str, List[float]] = {name: [] for name in ways}
                for turn in range(BEGINNING + rounds):
                    for name, steps in running.items():
                        began = time.process_time()
                        for _ in range(STEPS_IN_TURN):
                            next(steps)
                        if turn >= BEGINNING:
                            times[name].append((time.process_time() - began) / STEPS_IN_TURN)
            medians = {name: statistics.median(taken) for name, taken in times.items()}
            shown = [
                f"{1e3 * medians[name]:6.2f} ms ({100 * (medians[name] / medians['plain'] - 1):+.1f} %)"
                for name in ("SDK", "noise")
            ]
            print(f"{passes:>6}  {1e3 * medians['plain']:6.2f} ms  {shown[0]:>17}  {shown[1]:>17}")


if __name__ == "__main__":
    main()
