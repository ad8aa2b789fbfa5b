"""Which file systems a process reads from, and how many shards its data set has."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.inside.loader_stages.mounts_read import MAX_FOLDERS, ReadPaths
from flatout.inside.loader_stages.process_state import ProcessState
from flatout.inside.loader_stages.shards import num_shards


def mount_of(path: Path) -> str:
    """Return the folder of the mount, by walking up until the next folder is another mount."""
    while not path.is_mount():
        path = path.parent
    return str(path)


def test_files_are_counted_by_their_mount_and_links_by_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    paths = ReadPaths()
    before = paths.by_mount(with_mapped=False)
    for path in (tmp_path / "a", str(tmp_path / "b"), tmp_path / "link" / "c", 5, b"bytes", None):
        paths.note(path)
    counts = paths.by_mount(with_mapped=False)
    here = mount_of(tmp_path)
    assert counts[here] - before.get(here, 0) == 2
    assert counts["/proc"] - before.get("/proc", 0) == 1
    assert set(counts) - set(before) <= {here, "/proc"}


def test_files_that_are_held_open_or_mapped_count_too(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 4096)
    here = mount_of(tmp_path)
    paths = ReadPaths()

    def held() -> int:
        return paths.by_mount(with_mapped=False).get(here, 0)

    def mapped() -> int:
        return paths.by_mount(with_mapped=True).get(here, 0) - held()

    held_before, mapped_before = held(), mapped()
    with path.open("rb") as file:
        assert held() == held_before + 1
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED):
            assert mapped() == mapped_before + 1
    with path.open("wb"):  # what is written is not read
        assert (held(), mapped()) == (held_before, mapped_before)


def test_a_data_set_of_many_folders_is_known_by_the_first_ones(tmp_path: Path) -> None:
    paths = ReadPaths()
    before = paths.by_mount(with_mapped=False).get(mount_of(tmp_path), 0)
    for number in range(MAX_FOLDERS + 30):
        paths.note(tmp_path / str(number) / "file")
    assert paths.by_mount(with_mapped=False)[mount_of(tmp_path)] - before == MAX_FOLDERS
    paths.forget()
    assert paths.by_mount(with_mapped=False).get(mount_of(tmp_path), 0) == before


@pytest.mark.parametrize(
    ("dataset", "number"),
    [
        (SimpleNamespace(num_shards=12), 12),
        (SimpleNamespace(n_shards=3), 3),
        (SimpleNamespace(urls=["a.tar", "b.tar"]), 2),
        (SimpleNamespace(pipeline=[SimpleNamespace(), SimpleNamespace(urls=["a.tar"] * 5)]), 5),
        (SimpleNamespace(dataset=SimpleNamespace(source=SimpleNamespace(num_shards=7))), 7),
        (SimpleNamespace(num_shards=True, urls=[]), None),
        (SimpleNamespace(), None),
    ],
)
def test_the_number_of_shards_is_that_of_the_innermost_part_that_has_one(dataset: Any, number: int | None) -> None:
    assert num_shards(dataset) == number


def test_a_data_set_that_contains_itself_ends() -> None:
    dataset = SimpleNamespace()
    dataset.dataset = dataset
    assert num_shards(dataset) is None


def test_the_memory_of_this_process_is_known() -> None:
    state = ProcessState()
    state.look()
    first = state.report()["first_own_bytes"]
    # New memory of the kernel: a `bytearray` may get memory that earlier tests freed and that this process still has.
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        state.look()
    report = state.report()
    assert report["first_own_bytes"] == first > 0
    assert report["own_bytes"] >= first + (32 << 20) * 0.9
    assert 0 <= report["shm_used_bytes"] <= report["shm_bytes"]
