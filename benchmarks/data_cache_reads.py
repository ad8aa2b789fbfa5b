"""Read files through a node-local cache while faults happen, and check every byte; then the hit rates by size.

    python benchmarks/data_cache_reads.py --reads 100000 --out benchmarks/results/data_cache_reads.json

Two jobs of two processes each share a cache that holds half of the files. Meanwhile files change, writers of copies are
killed, copies are cut or removed, the limit is reached, and the cache's folder loses its permissions for a while. Every
read is compared with the content that its file has, or had at some time during the read. A part of the reads is done
with a cache on a file system that is full before the limit is reached.

Root may write anywhere, so as root the readers run as another user, and the full file system is a tmpfs of its own.
Without root, no disk is filled, and the result says so.
"""

from __future__ import annotations

import argparse
import codecs
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

from flatout.inside.data_cache.reads import CachedReads
from flatout.inside.data_cache.store import CacheStore

NUM_FILES = 400
NUM_READERS = 4
SHARE_ON_FULL_DISK = 0.2
FULL_DISK_BYTES = 200 << 10  # of 800 KB that the cache asks for
READS_PER_STORE = 200  # then a reader begins anew, as the next job does: one that failed to write admits no more files
NOBODY = 65534
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
    source: Path, cache: Path, seed: int, num_reads: int, versions: ctypes.Array[ctypes.c_int], results: str
) -> None:
    if os.getuid() == 0:
        codecs.lookup("ascii")  # Python's own files may be out of that user's reach
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    counts = dict.fromkeys(("num_hits", "num_misses", "num_admitted"), 0)
    draw = random.Random(seed)
    num_wrong = num_failed = 0
    for read in range(num_reads):
        if read % READS_PER_STORE == 0:
            store = CacheStore(cache, NUM_FILES * SIZE // 2, (str(source),))
            reads = CachedReads(cache, store)
        number = draw.randrange(NUM_FILES)
        path = source / f"{number}.bin"
        before = versions[number]
        try:
            with open(path, "rb", opener=reads.opener_of(path)) as file:
                data = file.read()
        except OSError:
            num_failed += 1
        else:
            possible = range(before, versions[number] + 1)
            if not any(data == content(number, version) for version in possible):
                num_wrong += 1
        if (read + 1) % READS_PER_STORE == 0 or read + 1 == num_reads:
            for name in counts:
                counts[name] += getattr(store, name)
    Path(results).write_text(json.dumps(counts | {"num_wrong": num_wrong, "num_failed": num_failed}))


def _disturb(source: Path, cache: Path, versions: ctypes.Array[ctypes.c_int], draw: random.Random) -> str:
    """Do one of the faults, and return its name."""
    fault = draw.choice(["change", "cut", "remove", "permission", "half"])
    copies = [path for path in (cache / "copies").glob("*/*/*") if not path.name.startswith(".")]
    if fault == "change":
        number = draw.randrange(NUM_FILES)
        versions[number] += 1  # readers accept the new version from now on
        write(source / f"{number}.bin", number, versions[number])
    elif fault == "permission":
        for folder in (cache / "copies").glob("*"):
            os.chmod(folder, draw.choice([0o500, 0o000]))
            time.sleep(0.02)
            os.chmod(folder, 0o700)
    elif copies:
        copy = draw.choice(copies)
        if fault == "remove":
            copy.unlink(missing_ok=True)
        elif fault == "cut":
            short = copy.with_suffix(".short")
            with suppress(OSError):  # the disk is full
                short.write_bytes(copy.read_bytes()[: SIZE // 2])
                short.replace(copy)
        else:  # what a writer leaves that was killed half-way
            partial = copy.with_name(f".{copy.name}.part")
            copy.rename(partial)
            os.chmod(partial, 0o600)
            os.truncate(partial, SIZE // 3)
    return fault


def run(num_reads: int, seed: int, folder: Path) -> dict[str, object]:
    """Read from a cache in `folder` while faults happen; return how often each happened, and what the reads gave."""
    source, cache = folder / "source", folder / "cache"
    source.mkdir()
    cache.mkdir(exist_ok=True)
    if os.getuid() == 0:
        for path in (folder, cache):
            os.chown(path, NOBODY, NOBODY)
    context = get_context("fork")
    versions = RawArray("i", NUM_FILES)  # without locks, which a killed reader would keep
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
    ends = [reader.exitcode for reader in readers]
    assert ends == [0] * NUM_READERS, f"readers ended with {ends}"
    counts = [json.loads((folder / f"counts-{n}.json").read_text()) for n in range(NUM_READERS)]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    return {"num_reads": each * NUM_READERS, "faults": faults, **totals}


def run_on_full_disk(num_reads: int, seed: int, folder: Path) -> dict[str, object] | None:
    """Read from a cache whose file system is full long before its limit; None where none can be mounted."""
    cache = folder / "cache"
    cache.mkdir()
    size = f"size={FULL_DISK_BYTES}"
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", cache], check=False).returncode:
        return None
    try:
        result = run(num_reads, seed, folder)
        disk = os.statvfs(cache)
        return result | {"disk_bytes": FULL_DISK_BYTES, "free_bytes_at_the_end": disk.f_bavail * disk.f_frsize}
    finally:
        subprocess.run(["umount", cache], check=True)


def hit_rates(folder: Path) -> dict[str, float]:
    """Return the hit rate of later epochs, in random order, for caches that hold a fraction of the files."""
    source = folder / "rates"
    source.mkdir()
    for number in range(NUM_FILES):
        write(source / f"{number}.bin", number, 0)
    rates = {}
    for fraction in (0.25, 0.5, 0.75):
        store = CacheStore(folder / f"cache-{fraction}", int(fraction * NUM_FILES * SIZE), (str(source),))
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
    num_full = round(arguments.reads * SHARE_ON_FULL_DISK)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "shared").mkdir()
        (folder / "full").mkdir()
        result = {
            "user_of_the_readers": "nobody" if os.getuid() == 0 else "the caller",
            "shared": run(arguments.reads - num_full, arguments.seed, folder / "shared"),
            "full_disk": run_on_full_disk(num_full, arguments.seed + 1, folder / "full"),
            "hit_rates": hit_rates(folder),
        }
    text = json.dumps({"python": sys.version.split()[0], "seed": arguments.seed, **result}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
