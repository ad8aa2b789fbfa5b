"""Compare loaders of the same JPEG files in one run: torch's DataLoader, Flatout's packs, WebDataset and SPDL.

    PYTHONPATH=src:. python benchmarks/loaders_side_by_side.py [--rounds 3] [--slow-storage] [--out FILE]

Contenders (`other_loaders.py`) take turns in each round, in an order that is turned by one from round to round. Each
runs in a process of its own, forked from one that has imported torch, and is measured for some seconds after its first
batches. Its first batch is compared with the files, pixel by pixel. All files are in the page cache. With
`--slow-storage` (needs root), some contenders are then measured on a loop device that gives 200 requests per second,
mounted anew for each of them, so that every file is read cold.

SPDL (`pip install spdl`) and WebDataset are left out if they are not installed, and the result says so; SPDL's own
decoder needs the libraries of FFmpeg 4 to 9 (in LD_LIBRARY_PATH, if the system has none).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from benchmarks.kept_result import keep
from benchmarks.loader_model import Group, SlowStorage
from benchmarks.other_loaders import (
    BASE,
    CONTENDERS,
    CROP,
    ON_SLOW_STORAGE,
    OTHER_PIXELS,
    Batches,
    Files,
    decoded,
    read,
)
from benchmarks.public_script_data import write_image

NUM_CLASSES = 10
WARM_S = 0.7  # after the first batch
END_S = 30.0  # for a contender that does not end
LIMIT = "200 requests/s"
PACKAGES = ("torch", "pillow", "webdataset", "spdl")


def write_files(folder: Path, num_images: int) -> None:
    numbers = range(num_images)
    paths = [folder / f"class{number % NUM_CLASSES}" / f"{number:05}.jpeg" for number in numbers]
    for path in paths[:NUM_CLASSES]:
        path.parent.mkdir(parents=True)
    with multiprocessing.Pool() as pool:
        pool.starmap(write_image, zip(paths, numbers, strict=True), chunksize=16)


def files_in(folder: Path) -> Files:
    paths = sorted((folder / "files").glob("*/*.jpeg"))  # as ImageFolder sorts them
    return Files(folder / "files", paths, folder / "pack", folder / "shrunk")


def pack(source: Path, target: Path, *options: str) -> None:
    words = [
        sys.executable,
        "-m",
        "flatout",
        "data",
        "pack",
        str(source),
        str(target),
        "--ranks",
        "1",
        "--workers",
        "2",
    ]
    subprocess.run([*words, *options], check=True, capture_output=True)


class Measure(NamedTuple):
    """How contenders are measured."""

    seconds: float
    once: bool = False  # until all files were read, at the latest
    enter: Callable[[], None] = lambda: None  # called in the process of each contender


def measured(name: str, files: Files, how: Measure) -> dict[str, Any]:
    """Return the contender's samples per second in a forked process, or why there is none."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_contend, args=(name, files, how, sender))
    process.start()
    sender.close()
    try:
        result: dict[str, Any] = (
            receiver.recv() if receiver.poll(END_S + how.seconds) else {"problem": "it did not end"}
        )
    except EOFError:
        result = {"problem": "its process was killed"}
    if "rate" in result:  # what a contender leaves running must not slow the next one down
        process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join()
    return result


def _contend(name: str, files: Files, how: Measure, sender: Connection) -> None:
    torch.set_num_threads(1)
    how.enter()
    try:
        batches = CONTENDERS[name](files)
        indices, pixels = next(batches)
        if name not in OTHER_PIXELS:
            check(files, indices, pixels)
        most = len(files.paths) - len(indices) if how.once else sys.maxsize
        sender.send({"rate": rate_of(batches, how.seconds, most)})
        batches.close()
    except Exception as error:  # noqa: BLE001 - the others are still compared
        sender.send({"problem": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
    sender.close()
    os._exit(0)


def rate_of(batches: Batches, seconds: float, most: int) -> float:
    """Return the samples per second after the first moments, of at most so many samples."""
    began = time.perf_counter()
    counted_from, num_before, num_samples = began, 0, 0
    for indices, _ in batches:
        now = time.perf_counter()
        num_samples += len(indices)
        if now - began < WARM_S:
            counted_from, num_before = now, num_samples
        elif now - began >= WARM_S + seconds or num_samples >= most:
            break
    return (num_samples - num_before) / (now - counted_from)


def check(files: Files, indices: Iterable[Any], pixels: torch.Tensor) -> None:
    for index, image in zip(indices, pixels, strict=True):
        if not torch.equal(decoded(read(files.paths[int(index)])), image):
            raise ValueError(f"the pixels of {files.paths[int(index)].name} are not those of the file")


def rounds(names: Iterable[str], num_rounds: int, measure: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return the results by contender, each contender once a round."""
    waiting = list(names)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in waiting}
    for number in range(num_rounds):
        for name in waiting:
            results[name].append(measure(name))
            print(number, name, results[name][-1], file=sys.stderr, flush=True)
        waiting = waiting[1:] + waiting[:1]
    return {name: summary(each, results[BASE]) for name, each in results.items()}


def summary(results: list[dict[str, Any]], of_base: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [result["rate"] for result in results if "rate" in result]
    pairs = zip(results, of_base, strict=True)
    ratios = [result["rate"] / base["rate"] for result, base in pairs if "rate" in result and "rate" in base]
    problems = sorted({result["problem"] for result in results if "problem" in result})
    if not rates or not ratios:
        return {"problems": problems}
    return {
        "samples_per_s": median(rates),
        "rates": rates,
        "times_the_base": median(ratios),
        "least_times": min(ratios),
        "most_times": max(ratios),
        **({"problems": problems} if problems else {}),
    }


def on_slow_storage(source: Path, folder: Path, seconds: float, num_rounds: int) -> dict[str, Any]:
    """Measure contenders whose files are read cold from storage that allows so many requests per second."""

    def fill(mounted: Path) -> None:
        for name in ("files", "pack"):
            shutil.copytree(source / name, mounted / name)

    with SlowStorage(folder, fill) as storage, Group(storage.number) as group:
        group.limit(LIMIT)

        def measure(name: str) -> dict[str, Any]:
            storage.mount_again()
            return measured(name, files_in(storage.folder), Measure(seconds, once=True, enter=group.join))

        return rounds(ON_SLOW_STORAGE, num_rounds, measure)


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--slow-storage", action="store_true")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "files", given.images)
        pack(folder / "files", folder / "pack")
        pack(folder / "files", folder / "shrunk", "--resize-for", str(CROP))
        files = files_in(folder)
        result: dict[str, Any] = {
            "conditions": {
                "images": len(files.paths),
                "bytes_per_image": sum(path.stat().st_size for path in files.paths) / len(files.paths),
                "crop": CROP,
                "rounds": given.rounds,
                "seconds": given.seconds,
                "cores": len(os.sched_getaffinity(0)),
                "versions": versions(),
            },
            "page_cache": rounds(CONTENDERS, given.rounds, partial(measured, files=files, how=Measure(given.seconds))),
        }
        if given.slow_storage:
            slow = folder / "slow"
            slow.mkdir()
            result["slow_storage"] = {"limit": LIMIT} | on_slow_storage(folder, slow, given.seconds, given.rounds)
    result["conditions"]["load_average_after"] = os.getloadavg()[0]
    keep(result, given.out)


if __name__ == "__main__":
    main()
