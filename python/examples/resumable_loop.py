"""A plain PyTorch loop made resumable, and nothing else: its own batches, one worker, its own loop over steps.

    python examples/resumable_loop.py
    moira submit --gpus 1 -- python examples/resumable_loop.py

For loops that do not want their data or optimiser touched. The job saves every few seconds and when it is told to stop,
and goes on where it was. Under Moira it takes about a minute; elsewhere it is the same loop without a place to save.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Dict, Optional

import torch
from torch import nn

import moira


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--save-every", type=float, default=5.0, help="seconds")
    chosen = arguments.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    teacher = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    job = moira.Job.from_environment()
    states = moira.Checkpoints(job.checkpoint_dir) if job is not None and job.checkpoint_dir is not None else None
    begin = 0
    if job is not None:
        job.watch_signals()
    if states is not None:
        found: Optional[Any] = states.load_newest(torch.load)
        if found is not None:
            begin, state = found
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            print(f"going on at step {begin}", flush=True)

    def save(step: int) -> None:
        if states is not None and job is not None:
            state: Dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saved = states.save(step, lambda file: torch.save(state, file))
            job.report(checkpoint={"steps": step, "seconds": saved.seconds})

    saved_at = time.monotonic()
    for step in range(begin, chosen.steps):
        began = time.monotonic()
        inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            wanted = teacher(inputs)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        now = time.monotonic()
        if job is not None:
            job.report(steps=step + 1, loss=loss.item(), step_seconds=now - began)
            if job.stop_requested:
                save(step + 1)
                job.flush()
                sys.exit(moira.STOPPED)
        if now - saved_at > chosen.save_every:
            save(step + 1)
            saved_at = now
    save(chosen.steps)
    print(f"finished with loss {loss.item() if chosen.steps > begin else float('nan'):.5f}")


if __name__ == "__main__":
    main()
