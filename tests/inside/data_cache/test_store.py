"""Copies of files: never a wrong byte, never a failed read, and the hit rate of the closed form."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.data_cache import store as module
from flatout.inside.data_cache.store import RECENT_S, CacheStore

SIZE = 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with 40 files of 1,000 bytes, which did not change lately."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(40):
        write(folder / f"{number}.bin", bytes([number]) * SIZE)
    return folder


def write(path: Path, content: bytes, age_s: float = 60.0) -> None:
    path.write_bytes(content)
    then = time.time() - age_s
    os.utime(path, (then, then))


def a_store(tmp_path: Path, num_files: float) -> CacheStore:
    return CacheStore(tmp_path / "cache", int(num_files * SIZE), (str(tmp_path / "source"),))


def read(store: CacheStore, path: Path) -> bytes:
    """What a read of the file gives with the cache."""
    copy = store.copy_of(str(path))
    return Path(copy.path if copy is not None else path).read_bytes()


def copied(tmp_path: Path, path: Path) -> Path:
    """The copy of a file, made now."""
    copy = a_store(tmp_path, 40).copy_of(str(path))
    assert copy is not None
    return Path(copy.path)


def copies(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != "used"]


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_the_hit_rate_of_later_epochs_is_the_fraction_that_fits(tmp_path: Path, source: Path, fraction: float) -> None:
    store = a_store(tmp_path, fraction * 40)
    paths = sorted(source.iterdir())
    draw = random.Random(0)
    for epoch in range(4):
        if epoch == 1:
            store.num_hits = store.num_misses = 0
        draw.shuffle(paths)
        assert all(read(store, path) == bytes([int(path.stem)]) * SIZE for path in paths)
    assert store.num_hits / (store.num_hits + store.num_misses) == pytest.approx(fraction)
    assert sum(path.stat().st_size for path in copies(tmp_path)) == fraction * 40 * SIZE


def test_two_processes_share_the_copies_and_their_size(tmp_path: Path, source: Path) -> None:
    one, other = a_store(tmp_path, 10), a_store(tmp_path, 10)
    paths = sorted(source.iterdir())
    for path in paths[:10]:
        read(one, path)
    for path in paths:
        read(other, path)
    assert (other.num_hits, other.num_admitted) == (10, 0)
    assert len(copies(tmp_path)) == 10


def test_a_file_that_changed_is_read_anew(tmp_path: Path, source: Path) -> None:
    store = a_store(tmp_path, 40)
    path = source / "0.bin"
    read(store, path)
    write(path, b"x" * SIZE, age_s=30)  # as many bytes as before
    assert read(store, path) == b"x" * SIZE == read(store, path)
    assert (store.num_hits, store.num_misses) == (1, 2)


@pytest.mark.parametrize(("age_s", "is_admitted"), [(RECENT_S + 0.5, True), (RECENT_S - 1.5, False)])
def test_a_file_that_may_still_be_written_is_not_admitted(tmp_path: Path, age_s: float, is_admitted: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write(source / "new.bin", b"abc", age_s=age_s)
    store = a_store(tmp_path, 40)
    read(store, source / "new.bin")
    assert store.num_admitted == is_admitted


def test_a_file_that_changes_while_it_is_copied_is_not_admitted(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source / "0.bin"
    plain_read = os.read

    def changing(descriptor: int, size: int) -> bytes:
        content = plain_read(descriptor, size)
        if content and content[:1] == b"\0":
            os.utime(path, (1.0, 1.0))
        return content

    store = a_store(tmp_path, 40)
    monkeypatch.setattr(module.os, "read", changing)
    assert store.copy_of(str(path)) is None
    assert copies(tmp_path) == [] and store.num_admitted == 0
    monkeypatch.undo()
    assert read(store, path) == bytes(SIZE)


@pytest.mark.parametrize("name", ["write", "rename", "mkdir"])
def test_a_full_or_read_only_disk_costs_no_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = a_store(tmp_path, 40)
    kept = source / "1.bin"
    if name != "mkdir":
        read(store, kept)

    def fails(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    owner = module.os if name == "write" else module.Path
    monkeypatch.setattr(owner, name, fails)
    assert store.copy_of(str(source / "0.bin")) is None
    monkeypatch.undo()
    assert store.copy_of(str(source / "2.bin")) is None  # nothing more is admitted
    assert (store.copy_of(str(kept)) is not None) == (name != "mkdir")
    assert not [path for path in copies(tmp_path) if path.name.startswith(".")]


def test_what_a_killed_writer_left_is_written_again(tmp_path: Path, source: Path) -> None:
    path = source / "7.bin"
    copy = copied(tmp_path, path)
    partial = copy.with_name(f".{copy.name}.part")
    copy.rename(partial)
    os.chmod(partial, 0o600)
    partial.write_bytes(b"half" * 500)
    store = a_store(tmp_path, 40)
    assert read(store, path) == bytes([7]) * SIZE
    assert store.num_admitted == 1 and not partial.exists()


@pytest.fixture
def locked(tmp_path: Path, source: Path) -> Iterator[Path]:
    """A file whose copy another process is making at this moment."""
    path = source / "7.bin"
    copy = copied(tmp_path, path)
    partial = copy.with_name(f".{copy.name}.part")
    copy.rename(partial)
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield path
    os.close(descriptor)


def test_a_copy_that_another_process_is_making_is_left_to_it(tmp_path: Path, locked: Path) -> None:
    store = a_store(tmp_path, 40)
    assert store.copy_of(str(locked)) is None and store.num_admitted == 0
    assert store.copy_of(str(locked.with_name("8.bin"))) is not None


def test_a_copy_of_another_size_is_not_used(tmp_path: Path, source: Path) -> None:
    copy = copied(tmp_path, source / "3.bin")
    os.chmod(copy, 0o600)
    copy.write_bytes(b"short")
    assert read(a_store(tmp_path, 40), source / "3.bin") == bytes([3]) * SIZE


def test_a_copy_of_an_earlier_boot_is_not_used(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(a_store(tmp_path, 40), source / "3.bin")
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    later = a_store(tmp_path, 40)
    read(later, source / "3.bin")
    assert (later.num_hits, later.num_admitted) == (0, 1)


def test_only_files_below_the_sources_are_covered(tmp_path: Path) -> None:
    store = a_store(tmp_path, 40)
    source = str(tmp_path / "source")
    assert store.covers(f"{source}/a") and not store.covers(source) and not store.covers(f"{source}-2/a")


def test_a_copy_that_is_replaced_after_it_was_found_is_not_opened(tmp_path: Path, source: Path) -> None:
    copy = a_store(tmp_path, 40).copy_of(str(source / "3.bin"))
    assert copy is not None
    Path(copy.path).unlink()
    assert copy.open(os.O_RDONLY) is None
    Path(copy.path).write_bytes(b"short")
    assert copy.open(os.O_RDONLY) is None
    Path(copy.path).write_bytes(b"x" * SIZE)
    descriptor = copy.open(os.O_RDONLY)
    assert descriptor is not None
    os.close(descriptor)
