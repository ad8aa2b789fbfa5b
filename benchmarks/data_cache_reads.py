"""Read files through a node-local cache while faults happen, and check every byte; then the hit rates by size.

    python benchmarks/data_cache_reads.py --reads 100000 --out benchmarks/results/data_cache_reads.json

Four processes share a cache that holds half of the files. Meanwhile files change, writers of copies are killed, copies
are cut or removed, the limit is reached, and the cache's folder loses its write permission for a while. Every read is
compared with the content that its file has, or had at some time during the read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from flatout.inside.data_cache.reads import CachedReads
from flatout.inside.data_cache.store import Store

NUM_FILES = 400
NUM_READERS = 4
SIZE = 4000


def content(number: int, version: int) -> bytes:
    """Return what a version of a file holds: each byte depends on the number and the version."""
    return random.Random(number * 1_000_003 + version).randbytes(SIZE)


def write(path: Path, number: int, version: int) -> None:
    """Replace a file, as a data set's owner does: a complete file under a new inode, old enough to be admitted."""
    partial = path.with_suffix(".new")
    partial.write_bytes(content(number, version))
    then = time.time() - 60 + version * 0.001
    os.utime(partial, (then, then))
    partial.replace(path)


def read_checked(
    source: Path, cache: Path, seed: int, num_reads: int, versions: list[Synchronized[int]], results: str
) -> None:
    store = Store(cache, NUM_FILES * SIZE // 2, (str(source),))
    reads = CachedReads(cache, store)
    draw = random.Random(seed)
    num_wrong = num_failed = 0
    for _ in range(num_reads):
        number = draw.randrange(NUM_FILES)
        path = source / f"{number}.bin"
        before = versions[number].value
        try:
            with open(path, "rb", opener=reads.opener_of(path)) as file:
                data = file.read()
        except OSError:
            num_failed += 1
            continue
        possible = range(before, versions[number].value + 1)
        if not any(data == content(number, version) for version in possible):
            num_wrong += 1
    counts = {"num_hits": store.num_hits, "num_misses": store.num_misses, "num_admitted": store.num_admitted}
    Path(results).write_text(json.dumps(counts | {"num_wrong": num_wrong, "num_failed": num_failed}))


def _disturb(source: Path, cache: Path, versions: list[Synchronized[int]], draw: random.Random) -> str:
    """Do one of the faults, and return its name."""
    fault = draw.choice(["change", "cut", "remove", "permission", "half"])
    copies = [path for path in (cache / "copies").glob("*/*/*") if not path.name.startswith(".")]
    if fault == "change":
        number = draw.randrange(NUM_FILES)
        with versions[number].get_lock():
            versions[number].value += 1  # readers accept the new version from now on
        write(source / f"{number}.bin", number, versions[number].value)
    elif fault == "permission":
        for folder in (cache / "copies").glob("*"):
            os.chmod(folder, 0o500)
            time.sleep(0.02)
            os.chmod(folder, 0o700)
    elif copies:
        copy = draw.choice(copies)
        if fault == "remove":
            copy.unlink(missing_ok=True)
        elif fault == "cut":
            short = copy.with_suffix(".short")
            short.write_bytes(copy.read_bytes()[: SIZE // 2])
            short.replace(copy)
        else:  # what a writer leaves that was killed half-way
            partial = copy.with_name(f".{copy.name}.part")
            copy.rename(partial)
            os.chmod(partial, 0o600)
            os.truncate(partial, SIZE // 3)
    return fault


def run(num_reads: int, seed: int, folder: Path) -> dict[str, object]:
    source, cache = folder / "source", folder / "cache"
    source.mkdir()
    context = get_context("fork")
    versions = [context.Value("i", 0) for _ in range(NUM_FILES)]
    for number in range(NUM_FILES):
        write(source / f"{number}.bin", number, 0)
    draw = random.Random(seed)
    faults: dict[str, int] = {}
    each = num_reads // NUM_READERS
    readers = [
        context.Process(
            target=read_checked, args=(source, cache, seed + n, each, versions, str(folder / f"counts-{n}.json"))
        )
        for n in range(NUM_READERS)
    ]
    for reader in readers:
        reader.start()
    # A fifth reader is started and killed again and again, also while it writes copies.
    while any(reader.is_alive() for reader in readers):
        fault = _disturb(source, cache, versions, draw)
        faults[fault] = faults.get(fault, 0) + 1
        victim = context.Process(
            target=read_checked, args=(source, cache, draw.random(), each, versions, str(folder / "victim.json"))
        )
        victim.start()
        time.sleep(draw.uniform(0.001, 0.03))
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        faults["kill"] = faults.get("kill", 0) + 1
    counts = [json.loads((folder / f"counts-{n}.json").read_text()) for n in range(NUM_READERS)]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    return {"num_reads": each * NUM_READERS, "faults": faults, **totals}


def hit_rates(folder: Path) -> dict[str, float]:
    """Return the hit rate of later epochs, in random order, for caches that hold a fraction of the files."""
    source = folder / "rates"
    source.mkdir()
    for number in range(NUM_FILES):
        write(source / f"{number}.bin", number, 0)
    rates = {}
    for fraction in (0.25, 0.5, 0.75):
        store = Store(folder / f"cache-{fraction}", int(fraction * NUM_FILES * SIZE), (str(source),))
        paths = list(source.iterdir())
        for epoch in range(6):
            if epoch == 1:
                store.num_hits = store.num_misses = 0
            random.Random(epoch).shuffle(paths)
            for path in paths:
                store.copy_of(str(path))
        rates[str(fraction)] = store.num_hits / (store.num_hits + store.num_misses)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.reads, arguments.seed, Path(folder)) | {"hit_rates": hit_rates(Path(folder))}
    text = json.dumps({"python": sys.version.split()[0], "seed": arguments.seed, **result}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
