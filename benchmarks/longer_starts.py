"""Check a tuning against longer starts of its job: untouched, then with the accepted changes.

    python benchmarks/longer_starts.py --tuning OUT/JOB --seconds 120 --keep FILE [--copy] [--flatout CMD]
        [--by-hand 'NAME=VALUE NAME=VALUE' ...] [--only-by-hand] -- COMMAND...

COMMAND starts in the current folder, or in a copy of it for each start (--copy), so that the second start cannot resume
what the first one saved. Its output is time-stamped here, and nothing of Flatout measures it: the times are those
between lines that the script itself prints. A line with an epoch and a batch gives one sample when the same batch of
the next epoch is printed, so each sample is one whole epoch with its boundary; a line with only a step gives the time
per step since the last such line, with the evaluations in between. The first sample of each start is left out: it
contains the warm-up. Each --by-hand starts the command once more with environment variables that somebody chose without
Flatout, so that what it found can be held against what can be reached by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

# What public scripts print as they go: nanoGPT, pytorch/examples (imagenet), Lightning's Fabric example, minGPT-ddp.
STEP_LINE = re.compile(r"^iter (?P<step>\d+): loss")
EPOCH_LINES = (
    re.compile(r"^Epoch: \[(?P<epoch>\d+)\]\[\s*(?P<batch>\d+)/"),
    re.compile(r"^Train Epoch: (?P<epoch>\d+) \[(?P<batch>\d+)/"),
    re.compile(r"^\[RANK0\] Epoch (?P<epoch>\d+) \| Iter (?P<batch>\d+) \| Train"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A progress line: seconds since the start, and the epoch and batch, or the step alone."""

    at_s: float
    epoch: int | None
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Seconds per step or per epoch, in the order of the run, and what one sample is."""

    seconds: list[float]
    of: str


def stamp_of(line: str, at_s: float) -> Stamp | None:
    step = STEP_LINE.match(line)
    if step:
        return Stamp(at_s=at_s, epoch=None, batch=int(step["step"]))
    for pattern in EPOCH_LINES:
        epoch_line = pattern.match(line)
        if epoch_line:
            return Stamp(at_s=at_s, epoch=int(epoch_line["epoch"]), batch=int(epoch_line["batch"]))
    return None


def samples_of(stamps: list[Stamp]) -> Samples:
    """Return whole epochs where the script prints epochs, else the time per step between lines."""
    if any(stamp.epoch is not None for stamp in stamps):
        first_seen: dict[tuple[int, int], float] = {}
        for stamp in stamps:
            first_seen.setdefault((stamp.epoch or 0, stamp.batch), stamp.at_s)
        pairs = [
            (first_seen[epoch, batch], first_seen[epoch + 1, batch])
            for epoch, batch in first_seen
            if (epoch + 1, batch) in first_seen
        ]
        return Samples(seconds=[end - begin for begin, end in pairs][1:], of="epoch")
    steps = [stamp for stamp in stamps if stamp.batch > 0]
    per_step = [
        (later.at_s - earlier.at_s) / (later.batch - earlier.batch)
        for earlier, later in pairwise(steps)
        if later.batch > earlier.batch
    ]
    return Samples(seconds=per_step[1:], of="step")


def stamped(command: list[str], folder: Path, seconds: float, log: Path) -> list[Stamp]:
    """Start the command, stamp its progress lines for so long, and end its process group."""
    began = time.monotonic()
    stamps: list[Stamp] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ender = threading.Timer(seconds, end_group, (process.pid,))
    ender.start()
    assert process.stdout is not None
    with log.open("w") as kept:
        for line in process.stdout:
            at_s = time.monotonic() - began
            kept.write(f"{at_s:9.3f} {line}")
            stamp = stamp_of(line, at_s)
            if stamp is not None:
                stamps.append(stamp)
    process.wait()
    ender.cancel()
    return stamps


def end_group(group: int) -> None:
    """Ask the group to end, and end it after five seconds, with the ranks that a launcher started in other groups."""
    try:
        descendants = psutil.Process(group).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for number, patience_s in ((signal.SIGINT, 5.0), (signal.SIGKILL, 0.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        time.sleep(patience_s)
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def one_start(command: list[str], seconds: float, log: Path, *, copies: bool) -> Samples:
    if not copies:
        return samples_of(stamped(command, Path.cwd(), seconds, log))
    with tempfile.TemporaryDirectory(prefix="longer-start-") as parent:
        copy = Path(parent) / Path.cwd().name
        shutil.copytree(Path.cwd(), copy, symlinks=True)
        return samples_of(stamped(command, copy, seconds, log))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuning", type=Path, required=True, help="folder of the tuning")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each start may take")
    parser.add_argument("--keep", type=Path, required=True, help="file for the result, as JSON")
    parser.add_argument("--copy", action="store_true", help="start in a copy of the current folder")
    parser.add_argument("--flatout", default="flatout", help="command that starts Flatout")
    parser.add_argument("--by-hand", action="append", default=[], help="environment variables of one more start")
    parser.add_argument("--only-by-hand", action="store_true", help="leave out the untouched and the tuned start")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    tuning = json.loads((arguments.tuning / "tuning.json").read_text())
    config = arguments.tuning / "tuned.toml"
    arms = {} if arguments.only_by_hand else {"untouched": arguments.command}
    if config.exists() and tuning["changes"] and not arguments.only_by_hand:
        prefix = [*shlex.split(arguments.flatout), "run", "--on-regression", "off", "--config", str(config.resolve())]
        arms["tuned"] = [*prefix, "--", *arguments.command]
    for variables in arguments.by_hand:
        arms[variables] = ["env", *variables.split(), *arguments.command]
    result: dict[str, object] = {
        "changes": tuning["changes"],
        "verdict": tuning["verdict"],
        "claimed": tuning["speedup"],
        "claimed_interval": tuning["interval"],
    }
    medians = {}
    for number, (arm, command) in enumerate(arms.items()):
        log = arguments.keep.with_suffix(f".{number}.log")
        samples = one_start(command, arguments.seconds, log, copies=arguments.copy)
        result[arm] = {"of": samples.of, "seconds": [round(sample, 4) for sample in samples.seconds]}
        if samples.seconds:
            medians[arm] = statistics.median(samples.seconds)
    if "untouched" in medians:
        result["measured"] = {arm: medians["untouched"] / median for arm, median in medians.items()}
    arguments.keep.write_text(json.dumps(result, indent=1, default=str) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name not in arms}, default=str))


if __name__ == "__main__":
    main()
