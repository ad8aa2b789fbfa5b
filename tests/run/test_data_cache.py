"""`flatout run --data-cache`: which folders can be a cache, and a job that reads from it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.profile.runs import environment

from flatout.errors import UsageError
from flatout.inside.protocol import CACHE_COPIES, CACHE_MARK, CACHE_USED
from flatout.probe.mounts import MountPoint, read_mounts
from flatout.run.data_cache import CacheRequest, cache_setting, parse_cache, read_cache_use, requested_cache

pytestmark = pytest.mark.usefixtures("warm")
LOCAL = [
    MountPoint("/", "ext4"),
    MountPoint("/data", "nfs4"),
    MountPoint("/data/local", "xfs"),
    MountPoint("/home", "fuse.sshfs"),
]


@pytest.mark.parametrize(
    ("text", "folder", "max_bytes"),
    [
        ("/local/cache:200GiB", "/local/cache", 200 << 30),
        ("cache:1.5TB", "cache", 1_500_000_000_000),
        ("a:b:10m", "a:b", 10_000_000),
        ("/c:4096", "/c", 4096),
    ],
)
def test_a_cache_is_a_folder_and_a_size(text: str, folder: str, max_bytes: int) -> None:
    assert parse_cache(text) == CacheRequest(folder=Path(folder), max_bytes=max_bytes)


@pytest.mark.parametrize("text", ["/local", ":10GiB", "/local:", "/local:0", "/local:-1G", "/local:10 parsecs"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a folder and a size"):
        parse_cache(text)


def test_sources_need_a_cache() -> None:
    assert requested_cache(None, ()) is None
    with pytest.raises(UsageError, match="needs a cache"):
        requested_cache(None, [Path("/data")])


def test_all_network_file_systems_are_cached_by_default(tmp_path: Path) -> None:
    setting = json.loads(cache_setting(CacheRequest(folder=tmp_path / "cache", max_bytes=1000), LOCAL))
    assert setting["sources"] == ["/data", "/home"] and setting["max_bytes"] == 1000


@pytest.mark.parametrize(
    ("folder", "mounts", "words"),
    [
        ("/data/cache", LOCAL, "must be on a disk of this node, but /data/cache is on nfs4"),
        ("/local/cache", LOCAL[:1], "none is mounted here"),
    ],
)
def test_a_cache_on_a_network_or_of_nothing_is_refused(folder: str, mounts: list[MountPoint], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cache_setting(CacheRequest(folder=Path(folder), max_bytes=1000), mounts)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="has other files"):
        cache_setting(CacheRequest(folder=tmp_path, max_bytes=1000), LOCAL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_cache_within_its_source_is_refused(tmp_path: Path) -> None:
    request = CacheRequest(folder=tmp_path / "cache", max_bytes=1000, sources=(tmp_path,))
    with pytest.raises(UsageError, match="must not be within"):
        cache_setting(request, LOCAL)


def test_a_source_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    request = CacheRequest(folder=tmp_path / "cache", max_bytes=1000, sources=(tmp_path / "missing",))
    with pytest.raises(UsageError, match="must be a folder"):
        cache_setting(request, LOCAL)


def test_what_killed_writers_and_earlier_boots_left_is_removed(tmp_path: Path) -> None:
    request = CacheRequest(folder=tmp_path / "cache", max_bytes=1000, sources=(tmp_path.parent,))
    request = CacheRequest(folder=tmp_path / "cache", max_bytes=1000)
    cache_setting(request, LOCAL)
    copies = tmp_path / "cache" / CACHE_COPIES
    (of_boot,) = copies.iterdir()
    (of_boot / "ab").mkdir()
    (of_boot / "ab" / "abcd").write_bytes(b"x" * 70)
    (of_boot / "ab" / ".abce.part").write_bytes(b"x" * 30)
    (of_boot / "ab" / ".abcf.part").write_bytes(b"x" * 20)
    (copies / "earlier" / "cd").mkdir(parents=True)
    descriptor = os.open(of_boot / "ab" / ".abcf.part", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # its writer is alive
    cache_setting(request, LOCAL)
    os.close(descriptor)
    assert [path.name for path in copies.iterdir()] == [of_boot.name]
    assert sorted(path.name for path in (of_boot / "ab").iterdir()) == [".abcf.part", "abcd"]
    assert int((of_boot / CACHE_USED).read_text()) == 90
    assert (tmp_path / "cache" / CACHE_MARK).exists()


JOB = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from pathlib import Path
class Files(Dataset):
    paths = sorted(Path(sys.argv[1]).iterdir())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return torch.tensor(list(file.read()))
for _ in range(4):
    for batch in DataLoader(Files(), batch_size=2, shuffle=True, num_workers=1):
        print(batch.sum().item())
"""


def test_a_job_reads_its_later_epochs_from_the_cache(tmp_path: Path) -> None:
    source, cache, script = tmp_path / "source", tmp_path / "cache", tmp_path / "job.py"
    source.mkdir()
    script.write_text(JOB)
    then = time.time() - 60
    for number in range(8):
        (source / f"{number}.bin").write_bytes(bytes([number]) * 100)
        os.utime(source / f"{number}.bin", (then, then))
    words = ["run", "--data-cache", f"{cache}:400", "--data-from", str(source), "--", sys.executable, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *words, str(source)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sum(map(int, done.stdout.split())) == 4 * 100 * sum(range(8))
    assert f"files of {source} are cached in {cache}, up to 400 B" in done.stderr
    use = read_cache_use(cache)
    assert (use.num_copies, use.copied_bytes) == (4, 400)
    # Half of the files fit: none is read from a copy in the first epoch, and half of them in each of the other three.
    assert (use.counts.num_hits, use.counts.num_misses, use.counts.num_admitted) == (12, 20, 4)


def test_mounts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        "37 35 0:44 / /data\\040sets rw - nfs4 server:/export rw\n"
        "cut 3\n"
    )
    assert read_mounts(tmp_path / "mountinfo") == [MountPoint("/mnt2", "ext3"), MountPoint("/data sets", "nfs4")]
    assert read_mounts(tmp_path / "missing") == []
    assert any(mount.folder == "/proc" and mount.kind == "proc" for mount in read_mounts())
