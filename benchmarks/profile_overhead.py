"""What `flatout profile --light` costs a training step: hooks in and out, in alternating blocks within one process.

    python benchmarks/profile_overhead.py [--device cpu|cuda] [--step-ms 10] [--pairs 40] [--json]

Between two processes the noise is larger than what is measured, so one process trains, and every other block of steps
has the hooks of `inside/` installed (order: off on on off). A block's time is the median of its steps; each pair of
neighbouring blocks gives one difference. Printed: the mean difference as a share of the step with the 95 % interval
of a paired t test, and, free of the machine's noise, the time that the hooks themselves take when called alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Two-sided 95 % of Student's t; beyond the last entry the normal distribution is near enough.
T_95 = {9: 2.262, 14: 2.145, 19: 2.093, 29: 2.045, 39: 2.023, 59: 2.001}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--block", type=int, default=20, help="steps a block")
    parser.add_argument(
        "--clock", choices=["wall", "thread"], default="wall", help="thread: CPU time, on a busy machine"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".state").mkdir()
        os.environ |= {"FLATOUT_RECORDING": folder, "FLATOUT_LIGHT": "1", "FLATOUT_WARMUP": "5"}
        result = measure(arguments)
    if arguments.json:
        print(json.dumps(result))
    else:
        low, high = result["interval"]
        print(f"{result['device']}, torch {result['torch']}, {result['pairs']} pairs of blocks")
        print(f"step:             {result['step_ms']:.2f} ms")
        print(f"hooks in and out: {result['overhead']:+.3%} of the step, 95 % interval {low:+.3%} to {high:+.3%}")
        share, target = result["hooks_share"], f"{arguments.step_ms:g} ms"
        print(f"hooks alone:      {result['hooks_us']:.1f} us, {share:.3%} of {target}")
    return int(result["hooks_share"] > 0.005)


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    import torch

    torch.set_num_threads(1)
    step, optimizer = training_step(arguments)
    for _ in range(10):
        step()
    blocks: dict[bool, list[float]] = {False: [], True: []}
    with Hooks() as hooks:
        hooks.put_in()
        for _ in range(20):  # warm-up and the FLOPs step
            step()
        for pair in range(arguments.pairs):
            for is_on in (False, True) if pair % 2 == 0 else (True, False):
                hooks.put_in() if is_on else hooks.take_out()
                blocks[is_on].append(block_time(step, arguments))
        hooks.take_out()
        hooks_s = hooks_alone(step, optimizer, arguments)
    off = statistics.median(blocks[False])
    shares = [(on - before) / off for before, on in zip(blocks[False], blocks[True], strict=True)]
    spread = statistics.stdev(shares) / len(shares) ** 0.5
    t = T_95.get(len(shares) - 1, 1.96 if len(shares) > 60 else 2.1)
    mean = statistics.fmean(shares)
    return {
        "schema": "flatout/benchmark-profile-overhead",
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "step_ms": off * 1e3,
        "pairs": arguments.pairs,
        "overhead": mean,
        "interval": [mean - t * spread, mean + t * spread],
        "hooks_us": hooks_s * 1e6,
        "hooks_share": hooks_s / (arguments.step_ms / 1e3),
    }


class Hooks:
    """The hooks of `inside/`, put into torch and taken out again."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Hooks:
        return self

    def put_in(self) -> None:
        from flatout.inside.install import install

        if not self._undo:
            self._undo = install()

    def take_out(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def __exit__(self, *_: object) -> None:
        self.take_out()


def training_step(arguments: argparse.Namespace) -> tuple[Callable[[], None], object]:
    """A step of about `--step-ms` (a batch from a loader, forward, backward, optimizer), and the optimizer."""
    import torch

    width = 256
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).to(arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def make(batch_size: int) -> Callable[[], None]:
        data = torch.randn(max(batch_size * 64, 64), width)
        batches = forever(data, batch_size)

        def step() -> None:
            loss = model(next(batches).to(arguments.device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if arguments.device == "cuda":
                torch.cuda.synchronize()

        return step

    batch_size = 32
    while batch_size < 1 << 18:
        step = make(batch_size)
        times = [timed(step) for _ in range(8)]
        if statistics.median(times) >= arguments.step_ms / 1e3 * 0.8:
            break
        batch_size = int(batch_size * min(4.0, max(1.2, arguments.step_ms / 1e3 / statistics.median(times))))
    return make(batch_size), optimizer


def forever(data: object, batch_size: int):  # type: ignore[no-untyped-def]
    """Whole batches that are ready at once: what is measured is the hook, not the collating."""
    import torch

    chunks = data.split(batch_size)  # type: ignore[attr-defined]
    while True:
        yield from torch.utils.data.DataLoader(chunks, batch_size=None)


def timed(step: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    step()
    return clock() - began


def block_time(step: Callable[[], None], arguments: argparse.Namespace) -> float:
    step()  # the first one also pays for what was changed
    clock = time.thread_time if arguments.clock == "thread" else time.perf_counter
    return statistics.median(timed(step, clock) for _ in range(arguments.block))


def hooks_alone(step: Callable[[], None], optimizer: object, arguments: argparse.Namespace) -> float:
    """Seconds that the recorder takes for one step's events, with its lines written every second as ever."""
    import torch

    from flatout.inside.install import PROCESS

    active = PROCESS.active or PROCESS.begin()
    assert active is not None
    batch = torch.zeros(32, 256)
    loss = torch.zeros((), device=arguments.device)
    clock = time.perf_counter
    costs = []
    for _ in range(600):
        step()  # so that caches are as cold, and lines as due to be written, as in training
        began = clock()
        active.loader_begins()
        active.loader_ends(batch)
        active.backward_begins((loss,))
        active.optimizer_stepped(optimizer, is_skipped=None)
        costs.append(clock() - began)
    preempted = 100 * statistics.median(costs)  # longer than any work of the recorder: another process ran
    return statistics.fmean(cost for cost in costs if cost < preempted)


if __name__ == "__main__":
    sys.exit(main())
