"""`flatout data pack` on clusters of one machine, Ray Data and Dask, and its files read by Hugging Face `datasets`.

`make integrations` runs these tests in an environment of their own: the packages are large, and not needed elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.packing.images import image_folder
from tests.ray_nodes import started_cluster

from flatout.errors import FlatoutError
from flatout.packing.engines import on_dask, on_processes, on_ray
from flatout.packing.pack import pack
from flatout.packing.request import PackRequest


def packed(source: Path, folder: Path, engine: Callable[..., object]) -> dict[str, bytes]:
    splits = (("train", 0.75), ("val", 0.25))
    request = PackRequest(
        source=source, folder=folder, num_ranks=1, num_workers=2, splits=splits, stratify="label", seed=3
    )
    pack(request, engine)  # type: ignore[arg-type]
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "images", per_class=20)


@pytest.fixture(scope="module")
def usual(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return packed(source, tmp_path_factory.mktemp("usual") / "packed", lambda tasks: on_processes(tasks, 1))


@pytest.fixture(scope="module")
def dask_scheduler() -> Iterator[str]:
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_dask_writes_the_same_bytes(source: Path, usual: dict[str, bytes], tmp_path: Path, dask_scheduler: str) -> None:
    assert packed(source, tmp_path / "packed", lambda tasks: on_dask(tasks, dask_scheduler)) == usual


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    cluster = started_cluster(num_cpus=2)
    yield cluster.address
    cluster.shutdown()


def test_ray_data_writes_the_same_bytes(
    source: Path, usual: dict[str, bytes], tmp_path: Path, ray_cluster: str
) -> None:
    assert packed(source, tmp_path / "packed", lambda tasks: on_ray(tasks, ray_cluster)) == usual


def test_a_damaged_file_is_named_by_a_cluster_too(tmp_path: Path, dask_scheduler: str) -> None:
    source = image_folder(tmp_path / "images", per_class=12)
    (source / "bee" / "2.png").write_bytes(b"")
    with pytest.raises(FlatoutError, match=r"bee/2\.png: it is empty"):
        packed(source, tmp_path / "packed", lambda tasks: on_dask(tasks, dask_scheduler))


def test_a_scheduler_that_does_not_answer_is_said_in_one_line(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match=r"no Dask cluster can be reached at tcp://127\.0\.0\.1:9"):
        packed(source, tmp_path / "packed", lambda tasks: on_dask(tasks, "tcp://127.0.0.1:9"))


SCRIPT = """\
import json, sys
import torch
from datasets import load_dataset

rows = load_dataset("imagefolder", data_dir=sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps([[row["label"], sum(row["image"].tobytes())] for row in rows]))
"""


def test_datasets_read_the_content_of_images_from_a_pack(source: Path, tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", per_class=4)
    request = PackRequest(source=images, folder=tmp_path / "packed", num_ranks=1, num_workers=1)
    pack(request, lambda tasks: on_processes(tasks, 1))
    (tmp_path / "script.py").write_text(SCRIPT)
    script = [sys.executable, str(tmp_path / "script.py"), str(images), str(tmp_path / "cache")]
    usual = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    # The files are still listed, with their size and time, but their content is gone.
    for path in (*images.rglob("*.png"), *images.rglob("*.JPG")):
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    run = [sys.executable, "-m", "flatout", "run", "--packed", str(tmp_path / "packed"), "--", *script]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == usual
    assert len(usual) == 12
