"""Compare the model of the loader with 36 measured settings: workers x decode cost x limit of a real slow file system.

    sudo env PYTHONPATH=src:. python benchmarks/loader_model.py --rows rows.jsonl --out result.json

A loop device with ext4 is mounted, and the control group of the jobs limits what they read from it, in requests or in
bytes per second (version 1: `blkio.throttle.*`, version 2: `io.max`). For each decode cost and limit,
one recording with one worker (`flatout data profile`) predicts the rate with 0, 1, 2 and 4 workers; then each of them
is measured without Flatout. The result has the error of each prediction, and how often the number of workers that the
model advises comes within 5 % of the best measured rate, compared with "always the most workers"; and the error of the
rule that each worker adds the rate of the first. It needs root and idle cores, and takes nine minutes on two of them.

Each recording and each measured rate is a line of `--rows`. What is there already is not run again: start the same
command once more after it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.kept_result import keep

WORKERS = (0, 1, 2, 4)
DECODE_MS = (0.5, 2.0, 8.0)
LIMITS = ("none", "200 requests/s", "20 MB/s")
NUM_FILES, FILE_BYTES = 1500, 65536
IMAGE_BYTES = 256 << 20
SECONDS, PROFILE_SECONDS = 7.0, 10.0
NEAR_BEST = 0.95
JOB = Path(__file__).with_name("loader_model_job.py")
GROUP = "flatout-loader-model"
END_S = 5.0


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


class SlowStorage:
    """A folder on a loop device of its own, which `fill` fills, mounted anew so that nothing of it is in memory."""

    def __init__(self, folder: Path, fill: Callable[[Path], object]) -> None:
        self.folder = folder / "mounted"
        self._image = folder / "image"
        self._fill = fill
        self._device = ""

    def __enter__(self) -> SlowStorage:
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        self._device = run("losetup", "--direct-io=on", "--find", "--show", str(self._image))
        try:
            run("mkfs.ext4", "-q", "-F", self._device)
            self.folder.mkdir()
            run("mount", self._device, str(self.folder))
            self._fill(self.folder)
            run("sync")
            self.mount_again()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)
        run("losetup", "--detach", self._device)

    @property
    def number(self) -> str:
        """The number of the device, as control groups name it."""
        status = os.stat(self._device)
        return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"

    def mount_again(self) -> None:
        run("umount", str(self.folder))
        run("mount", "-o", "noatime", self._device, str(self.folder))


def write_files(folder: Path) -> None:
    for number in range(NUM_FILES):
        (folder / f"{number:05}.bin").write_bytes(os.urandom(FILE_BYTES))


class Group:
    """A control group whose processes read at most so much from a device."""

    def __init__(self, device: str) -> None:
        self._device = device
        old = Path("/sys/fs/cgroup/blkio")
        self._is_old = old.is_dir()
        self._folder = (old if self._is_old else Path("/sys/fs/cgroup")) / GROUP
        if not self._is_old:
            Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+io")
        self._folder.mkdir(exist_ok=True)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs in the group, e.g. after an interrupt, and remove it."""
        until = time.monotonic() + END_S
        while (pids := self._pids()) and time.monotonic() < until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self._folder.rmdir()

    def limit(self, limit: str) -> None:
        requests = 200 if limit == "200 requests/s" else 0
        size = 20_000_000 if limit == "20 MB/s" else 0
        if self._is_old:
            (self._folder / "blkio.throttle.read_iops_device").write_text(f"{self._device} {requests}")
            (self._folder / "blkio.throttle.read_bps_device").write_text(f"{self._device} {size}")
        else:
            (self._folder / "io.max").write_text(f"{self._device} riops={requests or 'max'} rbps={size or 'max'}")

    def join(self) -> None:
        """Put this process into the group."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def run(self, words: list[str]) -> str:
        """Run a command in the group and return the last line of its output."""
        inside = 'echo $$ > "$0"/cgroup.procs; exec "$@"'
        command = ["/bin/sh", "-c", inside, str(self._folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{words} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout.splitlines()[-1]

    def _pids(self) -> list[int]:
        return [int(word) for word in (self._folder / "cgroup.procs").read_text().split()]


def job(files: Path, workers: int, decode_ms: float, seconds: float) -> list[str]:
    words = [sys.executable, str(JOB), str(files), "--workers", str(workers)]
    return [*words, "--decode-ms", str(decode_ms), "--seconds", str(seconds)]


def predicted(group: Group, files: Path, decode_ms: float, out: Path) -> dict[str, Any]:
    """Return what a recording with one worker predicts: the rates by number of workers, the advice, the causes."""
    command = job(files, 1, decode_ms, PROFILE_SECONDS)
    words = [sys.executable, "-m", "flatout", "data", "profile", "--json", "--out", str(out), "--", *command]
    profile = json.loads(group.run(words))
    (rank,) = profile["ranks"]
    rates = {speed["num_workers"]: speed["training_samples_per_s"] for speed in rank["speeds"]}
    largest = max(rates)
    return {
        "rates": {str(count): rates[min(count, largest)] for count in WORKERS},
        "causes": [cause["name"] for cause in profile["causes"]],
        "workers": next((cause["workers"] for cause in profile["causes"]), None),
        "loader": rank,
    }


class Rows:
    """The lines of a file, by what they are of; each is written as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            with suppress(ValueError):  # the last line of a run that was killed can be cut
                row = json.loads(line)
                self._rows[tuple(row["of"])] = row

    def get(self, *of: Any) -> dict[str, Any] | None:
        return self._rows.get(of)

    def add(self, *of: Any, **values: Any) -> dict[str, Any]:
        row = {"of": of, **values, "load_average": os.getloadavg()[0]}
        self._rows[of] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row


def measure(folder: Path, rows: Rows) -> list[dict[str, Any]]:
    settings = []
    with SlowStorage(folder, write_files) as storage, Group(storage.number) as group:
        files = storage.folder
        for limit in LIMITS:
            group.limit(limit)
            for decode_ms in DECODE_MS:
                model = rows.get(limit, decode_ms)
                if model is None:
                    out = folder / f"{limit}-{decode_ms}".replace("/", "-")
                    model = rows.add(limit, decode_ms, **predicted(group, files, decode_ms, out))
                for workers in WORKERS:
                    row = rows.get(limit, decode_ms, workers)
                    if row is None:
                        rate = float(group.run(job(files, workers, decode_ms, SECONDS)).split()[-1])
                        row = rows.add(limit, decode_ms, workers, measured=rate)
                    settings.append(_setting(limit, decode_ms, workers, row, model))
    return settings


def _setting(limit: str, decode_ms: float, workers: int, row: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    predicted_rate = model["rates"][str(workers)]
    return {
        "limit": limit,
        "decode_ms": decode_ms,
        "workers": workers,
        "measured": row["measured"],
        "predicted": predicted_rate,
        "error": abs(predicted_rate / row["measured"] - 1),
        "advised": 1 if model["workers"] is None else model["workers"],
        "causes": model["causes"],
        "load_average": row["load_average"],
    }


def summary(settings: list[dict[str, Any]]) -> dict[str, Any]:
    by_pair: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for setting in settings:
        by_pair.setdefault((setting["limit"], setting["decode_ms"]), []).append(setting)
    near = {"advised": 0, "most workers": 0}
    started = {"advised": 0, "most workers": 0}
    added_errors = []
    for pair in by_pair.values():
        rates = {setting["workers"]: setting["measured"] for setting in pair}
        best = max(rates.values())
        advised = max((count for count in WORKERS if count <= pair[0]["advised"]), default=0)
        near["advised"] += rates[advised] >= NEAR_BEST * best
        near["most workers"] += rates[max(WORKERS)] >= NEAR_BEST * best
        started["advised"] += advised
        started["most workers"] += max(WORKERS)
        added_errors += [abs(count * rates[1] / rates[count] - 1) for count in WORKERS if count > 1]
    errors = [setting["error"] for setting in settings]
    of_more = [setting["error"] for setting in settings if setting["workers"] > 1]
    worst = max(settings, key=lambda setting: setting["error"])
    return {
        "num_settings": len(settings),
        "median_error": statistics.median(errors),
        "num_within_10_percent": sum(error <= 0.1 for error in errors),
        "worst": {name: worst[name] for name in ("workers", "decode_ms", "limit", "error", "measured", "predicted")},
        "median_error_of_2_and_4_workers": statistics.median(of_more),
        "median_error_if_each_worker_adds_the_same": statistics.median(added_errors),
        "num_pairs": len(by_pair),
        "num_near_best": near,
        "num_workers_started": started,
        "num_cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _end(*_: object) -> None:
    raise SystemExit("ended; the same command goes on from the last row")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="lines of what is known; continued if it exists")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory() as folder:
        settings = measure(Path(folder), Rows(arguments.rows))
    keep(summary(settings) | {"settings": settings}, arguments.out)


if __name__ == "__main__":
    main()
