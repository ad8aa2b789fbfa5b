"""What `flatout profile --light` costs a training step: hooks in and out, in alternating blocks within one process.

    python benchmarks/profile_overhead.py [--device cpu|cuda] [--pairs 1000] [--out FILE]

Needs torch and the standard library only; `src/` of the version to measure comes first on PYTHONPATH.

Between two processes the noise is larger than what is measured, so one process trains, and every other block of steps
has the hooks of `inside/` installed (order: off on, on off, ...). A step is a small model's, from a loader's batch to
the optimizer, and a fixed amount of work that fills it up to `--step-ms`: matrix products on the CPU, or on a GPU that
the step then waits for. The training thread is pinned to one core, and the garbage collector is off within a block.

Blocks are short, as the machine's clock drifts. A block's first step is not counted, with hooks or without: hooks
that come or go make Python adapt the bytecode around them anew, which in a training happens once. Of the steps that
count, none is left out for what the recorder does in it: the work that it does twice a second comes in some of them,
and is in the mean; its clock stands still while the hooks are out, so that it is not due in each first step. Only
steps half as long again as the median of the pair's are left out, of both blocks alike: another process ran; their
number is told, and no work of the recorder's is as long. Each pair of blocks gives one difference, as a share of the
step asked for. Where the core is shared or changes its clock, some pairs differ by tens of a percent either way, a
hundred times what is looked for: so the verdict is on the mean without the highest and the lowest tenth (Yuen, 1974),
and the recorder's periodic work, too small to lead there, stays in it. The plain mean and the median are printed too,
each with a 95 % interval, for the wall time and for the training thread's CPU time.

And, free of the machine's noise, the hooks alone: each calls what it wraps, which is here replaced by nothing, right
after a whole step, so that caches are as cold as in training; the time of the replaced calls alone is taken off.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure

LIMIT = 0.005
BLOCK_S = 0.05
TOO_LONG = 1.5  # times the median
WARMUP, FIRST_STEPS = 20, 64  # of these the recorder keeps every loss, of short steps later every eighth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=1000, help="steps after which the hooks are called alone")
    parser.add_argument("--pin", type=int, help="the core to train on (default: the last one allowed; -1: none)")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".state").mkdir()
        (Path(folder) / f"host-{os.uname().nodename}.json").touch()  # as from a parent, which samples
        os.environ |= {"FLATOUT_RECORDING": folder, "FLATOUT_LIGHT": "1", "FLATOUT_WARMUP": "5"}
        result = run(arguments)
    text = json.dumps(result, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    print(text if arguments.json else told(result))
    return int(result["hooks_alone"]["share_of_step"] > LIMIT)


def told(result: dict[str, Any]) -> str:
    lines = [
        f"{result['device']}, torch {result['torch']}, {result['num_pairs']} pairs of {result['block']}-step blocks",
        f"step:            {result['step_ms']:.3f} ms; {result['share_left_out']:.2%} of the steps left out",
    ]
    for clock in ("wall", "thread_cpu"):
        found = result[clock]
        low, high = found["interval_95"]
        low_mean, high_mean = found["mean_interval_95"]
        low_median, high_median = found["median_interval_95"]
        lines.append(
            f"{clock + ':':<16} {found['share']:+.3%} of the step, 95 % interval {low:+.3%} to {high:+.3%}: "
            f"{found['verdict']}; plain mean {found['mean']:+.3%}, {low_mean:+.3%} to {high_mean:+.3%}; "
            f"median {found['median']:+.3%}, {low_median:+.3%} to {high_median:+.3%}"
        )
    for name, when in (("hooks_alone_first_steps", "first 64 steps"), ("hooks_alone", "later steps")):
        alone = result[name]
        low, high = alone["interval_95_us"]
        lines.append(
            f"hooks alone, {when}: {alone['mean_us']:.1f} us a step, 95 % interval {low:.1f} to {high:.1f}, "
            f"{alone['share_of_step']:.3%}; median {alone['median_us']:.1f} us"
        )
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    job = Job(arguments.device, arguments.step_ms)
    hooks = Hooks()
    hooks.put_in()
    for _ in range(WARMUP):  # the warm-up and the FLOPs step
        job.step()
    hooks.take_out()
    core = pin(arguments.pin)
    job.fill_up()
    step_s = arguments.step_ms / 1e3
    first_alone = hooks_alone(job, hooks, FIRST_STEPS - WARMUP, step_s)
    load = os.getloadavg()
    gc.freeze()  # what torch is made of need not be looked through before each block
    block = max(round(BLOCK_S / job.step_s), 3)
    pairs = [measure_pair(job, hooks, block, is_on_first=bool(number % 2)) for number in range(arguments.pairs)]
    kept = [kept_means(pair) for pair in pairs]
    off_s = statistics.fmean(pair["wall"][0] for pair in kept)
    num_steps = 2 * block * len(pairs)
    num_kept = sum(pair["num_kept"] for pair in kept)
    return {
        "schema": "flatout/benchmark-profile-overhead",
        "version": 3,
        "machine": measure.machine(),
        "device": torch.cuda.get_device_name() if job.is_gpu else "CPU",
        "torch": torch.__version__,
        "load_average": [load, os.getloadavg()],
        "pinned_to_core": core,
        "order": "off on, on off, ...",
        "step_ms": off_s * 1e3,
        "num_pairs": len(pairs),
        "block": block,
        "share_left_out": 1 - num_kept / num_steps,
        "wall": compared([pair["wall"] for pair in kept], step_s),
        "thread_cpu": compared([pair["thread_cpu"] for pair in kept], step_s),
        "hooks_alone_first_steps": first_alone,
        "hooks_alone": hooks_alone(job, hooks, arguments.calls, step_s),
        "limit_share": LIMIT,
    }


class Job:
    """Trains a small model; a step is filled up to the time asked for."""

    def __init__(self, device: str, step_ms: float) -> None:
        import torch

        self.is_gpu = device.startswith("cuda")
        self.device = device
        self.model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batches = forever(torch.randn(32 * 512, 64))
        size = 2048 if self.is_gpu else 128
        self.left = torch.randn(size, size, device=device)
        self.product = torch.empty_like(self.left)
        self.target_s = step_ms / 1e3
        self.num_products = 1
        self.step_s = 0.0
        self.fill_up()

    def step(self) -> None:
        import torch

        loss = self.model(next(self.batches).to(self.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for _ in range(self.num_products):
            torch.mm(self.left, self.left, out=self.product)
        if self.is_gpu:
            torch.cuda.synchronize()

    def fill_up(self) -> None:
        """Find the number of products that makes a step as long as asked for."""
        for _ in range(20):
            self.step_s = statistics.median(timed(self.step) for _ in range(20))
            if abs(self.step_s / self.target_s - 1) < 0.05:
                break
            self.num_products = max(round(self.num_products * min(self.target_s / self.step_s, 10)), 1)


def forever(data: Any) -> Iterator[Any]:
    """Whole batches that are ready at once: what is measured is the hook, not the collating."""
    import torch

    chunks = data.split(32)
    while True:
        yield from torch.utils.data.DataLoader(chunks, batch_size=None)


class Hooks:
    """The hooks of `inside/`, put into torch and taken out again."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._out_since_ns: int | None = None

    def put_in(self) -> None:
        from flatout.inside.install import PROCESS, install

        if not self._undo:
            self._undo = install()
            if PROCESS.active is not None and self._out_since_ns is not None:
                PROCESS.active._next_work_ns += time.perf_counter_ns() - self._out_since_ns

    def take_out(self) -> None:
        for undo in self._undo:
            undo()
        if self._undo:
            self._out_since_ns = time.perf_counter_ns()
        self._undo = []


def pin(core: int | None) -> int | None:
    """Keep this thread, and none that is there already, on one core."""
    if core == -1:
        return None
    chosen = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {chosen})
    return chosen


def timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def measure_pair(job: Job, hooks: Hooks, block: int, *, is_on_first: bool) -> dict[bool, list[tuple[float, float]]]:
    """For off (False) and on: wall and CPU seconds of each step but the first."""
    times = {}
    for is_on in (True, False) if is_on_first else (False, True):
        if is_on:
            hooks.put_in()
        gc.collect()
        gc.disable()
        job.step()
        times[is_on] = [both_clocks(job.step) for _ in range(block)]
        gc.enable()
        hooks.take_out()
    return times


def both_clocks(step: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = time.thread_time(), time.perf_counter()
    step()
    return time.perf_counter() - wall, time.thread_time() - cpu


def kept_means(pair: dict[bool, list[tuple[float, float]]]) -> dict[str, Any]:
    """The means (off, on) of the steps that no other process made longer."""
    longest = TOO_LONG * statistics.median(wall for times in pair.values() for wall, _ in times)
    kept = {is_on: [one for one in times if one[0] <= longest] for is_on, times in pair.items()}
    return {
        "num_kept": sum(map(len, kept.values())),
        "wall": tuple(statistics.fmean(wall for wall, _ in kept[is_on]) for is_on in (False, True)),
        "thread_cpu": tuple(statistics.fmean(cpu for _, cpu in kept[is_on]) for is_on in (False, True)),
    }


def compared(pairs: list[tuple[float, float]], step_s: float) -> dict[str, Any]:
    """The differences of pairs as shares of the step, and whether they decide the limit."""
    shares = [(on - off) / step_s for off, on in pairs]
    low, high = t_interval(shares)
    trimmed, (low_trimmed, high_trimmed) = trimmed_mean(sorted(shares))
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(shares, k=len(shares))) for _ in range(1000))
    return {
        "share": trimmed,
        "us": trimmed * step_s * 1e6,
        "interval_95": [low_trimmed, high_trimmed],
        "mean": statistics.fmean(shares),
        "mean_interval_95": [low, high],
        "median": statistics.median(shares),
        "median_interval_95": [medians[25], medians[974]],
        "verdict": "below the limit"
        if high_trimmed <= LIMIT
        else "above the limit"
        if low_trimmed > LIMIT
        else "undecided",
        "shares": [round(share, 6) for share in shares],
    }


def trimmed_mean(ordered: list[float]) -> tuple[float, tuple[float, float]]:
    """Without a tenth at either end, and 95 % of it by the winsorized variance (Yuen, 1974, Biometrika 61)."""
    number = len(ordered)
    cut = number // 10
    kept = ordered[cut : number - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = statistics.fmean(kept)
    error = statistics.stdev(winsorized) * ((number - 1) / (len(kept) * (len(kept) - 1))) ** 0.5
    half = student(len(kept) - 1) * error
    return mean, (mean - half, mean + half)


def t_interval(values: list[float]) -> tuple[float, float]:
    """95 % of the mean."""
    mean = statistics.fmean(values)
    half = student(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def student(degrees: int) -> float:
    """The 97.5 % quantile, by its expansion in 1/degrees of freedom (Abramowitz & Stegun 26.7.5)."""
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def hooks_alone(job: Job, hooks: Hooks, num_calls: int, step_s: float) -> dict[str, Any]:
    """What the hooks add to calls that do nothing, of one step each, after a whole step without hooks."""
    import torch
    from torch.optim.optimizer import _global_optimizer_post_hooks

    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    batch = torch.zeros(32, 64)
    loss = job.model(torch.zeros(32, 64, device=job.device)).mean()
    originals = iterator.__next__, torch.autograd.backward
    iterator.__next__ = empty_next = lambda _: batch
    torch.autograd.backward = empty_backward = lambda *_, **__: None
    hooks.put_in()
    hooked_next, hooked_backward = iterator.__next__, torch.autograd.backward
    hooked_step = next(reversed(_global_optimizer_post_hooks.values()))
    hooks.take_out()
    iterator.__next__, torch.autograd.backward = originals
    empty_step = lambda *_: None  # noqa: E731

    def events(next_batch: Any, backward: Any, stepped: Any) -> float:
        job.step()
        began = time.perf_counter()
        next_batch(None)
        backward(loss, None, None, False, inputs=None)
        stepped(job.optimizer, (), {})
        return time.perf_counter() - began

    with_hooks, without = [], []
    for number in range(num_calls):
        with_hooks.append(events(hooked_next, hooked_backward, hooked_step))
        if number % 8 == 0:
            without.append(events(empty_next, empty_backward, empty_step))
    preempted = 100 * statistics.median(with_hooks)  # longer than any work of the recorder: another process ran
    empty_s = statistics.median(without)
    costs = [cost - empty_s for cost in with_hooks if cost < preempted]
    mean, (low, high) = statistics.fmean(costs), t_interval(costs)
    return {
        "mean_us": mean * 1e6,
        "interval_95_us": [low * 1e6, high * 1e6],
        "median_us": statistics.median(costs) * 1e6,
        "share_of_step": mean / step_s,
        "num_calls": len(costs),
    }


if __name__ == "__main__":
    sys.exit(main())
