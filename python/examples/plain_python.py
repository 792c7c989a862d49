"""Moira's protocol with nothing but the standard library: no SDK, no framework.

A line is learnt by gradient descent. The job reports how it goes, takes the batch it is told, saves every second, and
can be stopped and moved at any moment. Outside Moira it runs just the same.

    moira submit --name line --batch 64..1024 -- python3 examples/plain_python.py
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: The batch the training was designed for: what was said as --batch, and the unit in which progress is counted.
DESIGNED = 64
DIMENSIONS = 8
RATE = 0.01

told: set[int] = set()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=30_000, help="steps of 64 examples [default: 30000]")
    steps = options.parse_args().steps
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: told.add(number))
    state = load()
    train(state, steps)
    if signal.SIGTERM in told:
        sys.exit(143)  # Stopped, not failed.
    save(state)
    print("finished with", [round(weight, 2) for weight in state["weights"]])


def train(state: dict[str, Any], steps: int) -> None:
    reported = time.monotonic()
    while state["examples"] < steps * DESIGNED:
        (local_batch, accumulation), began = tuning(), time.monotonic()
        passes = [gradient(state["weights"], local_batch) for _ in range(accumulation + 1)]
        for each in range(DIMENSIONS):
            state["weights"][each] -= RATE * sum(slope[each] for slope, _ in passes) / len(passes)
        state["examples"] += local_batch * len(passes)
        ended = time.monotonic()
        if ended - reported > 1 or told:
            reported = ended
            report(
                steps=state["examples"] // DESIGNED,
                step_seconds=ended - began,
                compute_seconds=(ended - began) / len(passes),
                local_batch=local_batch,
                accumulation=accumulation,
                loss=passes[-1][1],
            )
            save(state)
            if signal.SIGTERM in told:
                return
            # A notice is answered with one save; what comes next is the stop itself.
            told.discard(signal.SIGUSR1)


def gradient(weights: list[float], examples: int) -> tuple[list[float], float]:
    """The mean slope and the mean loss over some examples of a line whose weights are all 1."""
    total, loss = [0.0] * DIMENSIONS, 0.0
    for _ in range(examples):
        inputs = [random.gauss(0, 1) for _ in range(DIMENSIONS)]
        error = sum((weight - 1) * value for weight, value in zip(weights, inputs)) + random.gauss(0, 0.5)
        loss += error * error / examples
        for each in range(DIMENSIONS):
            total[each] += error * inputs[each] / examples
    return total, loss


def tuning() -> tuple[int, int]:
    """Examples of one pass, and passes before the last one of a step, as the scheduler wants them at this moment."""
    try:
        said = json.loads(Path(os.environ["MOIRA_TUNING_FILE"]).read_text())
        return said["local_batch"], said["accumulation"]
    except (KeyError, FileNotFoundError):
        local_batch = int(os.environ.get("MOIRA_LOCAL_BATCH") or DESIGNED)
        return local_batch, int(os.environ.get("MOIRA_ACCUMULATION") or 0)


def report(**figures: object) -> None:
    if "MOIRA_PROGRESS_FILE" in os.environ:
        with Path(os.environ["MOIRA_PROGRESS_FILE"]).open("a") as file:
            file.write(json.dumps({"run": os.environ["MOIRA_ATTEMPT"], **figures}) + "\n")


def load() -> dict[str, Any]:
    """What an earlier run has saved, or the beginning. The folder is the same in every run of a job, wherever it is."""
    if "MOIRA_CHECKPOINT_DIR" in os.environ:
        path = Path(os.environ["MOIRA_CHECKPOINT_DIR"]) / "state.json"
        if path.exists():
            state: dict[str, Any] = json.loads(path.read_text())
            print("going on after", state["examples"] // DESIGNED, "steps", flush=True)
            return state
    return {"weights": [0.0] * DIMENSIONS, "examples": 0}


def save(state: dict[str, Any]) -> None:
    if "MOIRA_CHECKPOINT_DIR" not in os.environ:
        return
    folder = Path(os.environ["MOIRA_CHECKPOINT_DIR"])
    began = time.monotonic()
    (folder / "state.new").write_text(json.dumps(state))
    (folder / "state.new").replace(folder / "state.json")  # Whole or not at all.
    steps = state["examples"] // DESIGNED
    report(steps=steps, checkpoint={"steps": steps, "seconds": time.monotonic() - began})


if __name__ == "__main__":
    main()
