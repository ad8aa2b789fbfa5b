"""Compare the model of the loader with 36 measured settings: workers x decode cost x limit of a real slow file system.

    sudo python benchmarks/loader_model.py --out benchmarks/results/loader_model.json

A loop device with ext4 is mounted, and the control group of the jobs limits what they read from it, in requests or in
bytes per second (version 1: `blkio.throttle.*`, version 2: `io.max`). For each decode cost and limit,
one recording with one worker (`flatout data profile`) predicts the rate with 0, 1, 2 and 4 workers; then each of them
is measured without Flatout. The result has the error of each prediction, and how often the number of workers that the
model advises comes within 5 % of the best measured rate, compared with "always the most workers". It needs root, and
must run on idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORKERS = (0, 1, 2, 4)
DECODE_MS = (0.5, 2.0, 8.0)
LIMITS = ("none", "200 requests/s", "20 MB/s")
NUM_FILES, FILE_BYTES = 1500, 65536
IMAGE_BYTES = 256 << 20
SECONDS, PROFILE_SECONDS = 5.0, 8.0
NEAR_BEST = 0.95
JOB = Path(__file__).with_name("loader_model_job.py")
GROUP = "flatout-loader-model"


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def slow_storage(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield a folder with files on a loop device, and the number of the device."""
    image, mounted = folder / "image", folder / "mounted"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    device = run("losetup", "--direct-io=on", "--find", "--show", str(image))
    try:
        run("mkfs.ext4", "-q", "-F", device)
        mounted.mkdir()
        run("mount", device, str(mounted))
        try:
            for number in range(NUM_FILES):
                (mounted / f"{number:05}.bin").write_bytes(os.urandom(FILE_BYTES))
            run("sync")
            run("umount", str(mounted))
            run("mount", "-o", "noatime", device, str(mounted))
            status = os.stat(device)
            yield mounted, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        finally:
            run("umount", str(mounted))
    finally:
        run("losetup", "--detach", device)


class Group:
    """A control group whose processes read at most so much from a device."""

    def __init__(self, device: str) -> None:
        self._device = device
        old = Path("/sys/fs/cgroup/blkio")
        self._is_old = old.is_dir()
        self.folder = (old if self._is_old else Path("/sys/fs/cgroup")) / GROUP
        if not self._is_old:
            Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+io")
        self.folder.mkdir(exist_ok=True)

    def limit(self, limit: str) -> None:
        requests = 200 if limit == "200 requests/s" else 0
        size = 20_000_000 if limit == "20 MB/s" else 0
        if self._is_old:
            (self.folder / "blkio.throttle.read_iops_device").write_text(f"{self._device} {requests}")
            (self.folder / "blkio.throttle.read_bps_device").write_text(f"{self._device} {size}")
        else:
            (self.folder / "io.max").write_text(f"{self._device} riops={requests or 'max'} rbps={size or 'max'}")

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        inside = 'echo $$ > "$0"/cgroup.procs; exec "$@"'
        return subprocess.run(
            ["/bin/sh", "-c", inside, str(self.folder), *words], check=True, capture_output=True, text=True
        )


def job(files: Path, workers: int, decode_ms: float, seconds: float) -> list[str]:
    words = [sys.executable, str(JOB), str(files), "--workers", str(workers)]
    return [*words, "--decode-ms", str(decode_ms), "--seconds", str(seconds)]


def predicted(group: Group, files: Path, decode_ms: float, out: Path) -> dict[str, Any]:
    """Return what a recording with one worker predicts: the rates by number of workers, the advice, the causes."""
    command = job(files, 1, decode_ms, PROFILE_SECONDS)
    done = group.run([sys.executable, "-m", "flatout", "data", "profile", "--json", "--out", str(out), "--", *command])
    profile = json.loads(done.stdout.splitlines()[-1])
    (rank,) = profile["ranks"]
    rates = {speed["num_workers"]: speed["training_samples_per_s"] for speed in rank["speeds"]}
    largest = max(rates)
    return {
        "rates": {count: rates[min(count, largest)] for count in WORKERS},
        "causes": [cause["name"] for cause in profile["causes"]],
        "workers": next((cause["workers"] for cause in profile["causes"]), None),
    }


def measure(folder: Path) -> list[dict[str, Any]]:
    rows = []
    with slow_storage(folder) as (files, device):
        group = Group(device)
        for limit in LIMITS:
            for decode_ms in DECODE_MS:
                group.limit(limit)
                model = predicted(group, files, decode_ms, folder / f"{limit}-{decode_ms}".replace("/", "-"))
                for workers in WORKERS:
                    rate = float(group.run(job(files, workers, decode_ms, SECONDS)).stdout.split()[-1])
                    row = {"workers": workers, "decode_ms": decode_ms, "limit": limit}
                    row |= {"measured": rate, "predicted": model["rates"][workers], "causes": model["causes"]}
                    row |= {"advised": model["workers"] if model["workers"] is not None else 1}
                    rows.append(row | {"error": abs(model["rates"][workers] / rate - 1)})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        group.folder.rmdir()
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_pair: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        by_pair.setdefault((row["limit"], row["decode_ms"]), []).append(row)
    near = {"advised": 0, "most workers": 0}
    for pair in by_pair.values():
        rates = {row["workers"]: row["measured"] for row in pair}
        best = max(rates.values())
        advised = max((count for count in WORKERS if count <= pair[0]["advised"]), default=0)
        near["advised"] += rates[advised] >= NEAR_BEST * best
        near["most workers"] += rates[max(WORKERS)] >= NEAR_BEST * best
    worst = max(rows, key=lambda row: row["error"])
    return {
        "num_settings": len(rows),
        "median_error": statistics.median(row["error"] for row in rows),
        "worst": {name: worst[name] for name in ("workers", "decode_ms", "limit", "error", "measured", "predicted")},
        "num_pairs": len(by_pair),
        "num_near_best": near,
        "load_average": os.getloadavg()[1],
        "num_cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    result = summary(rows) | {"settings": rows}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
