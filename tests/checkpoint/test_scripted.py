"""A script's own torch.save, made safe from outside, and the last whole file found again."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout
from flatout.checkpoint.scripted import damage_of, latest_good
from flatout.inside.checkpoints.safe_save import save_safely

pytestmark = pytest.mark.usefixtures("warm")

STARTUP = Path(flatout.__file__).parent / "inside" / "startup"


@pytest.fixture
def _safe() -> Iterator[None]:
    undo = save_safely({"FLATOUT_SAFE_SAVE": "1"})
    assert undo is not None
    yield
    undo()


def state(number: int) -> dict[str, Any]:
    return {"step": number, "weights": torch.full((100,), float(number))}


def step_of(path: Path | None) -> int:
    assert path is not None
    return torch.load(path)["step"]


def test_without_the_variable_torch_stays_as_it_is() -> None:
    before = torch.save
    assert save_safely({}) is None and torch.save is before


@pytest.mark.usefixtures("_safe")
def test_the_previous_one_is_kept_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    for number in range(4):
        torch.save(state(number), path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ckpt.pt", "ckpt.pt.checksums", "ckpt.pt.previous"]
    assert step_of(path) == 3 and step_of(tmp_path / "ckpt.pt.previous") == 2
    assert damage_of(path) is None and damage_of(tmp_path / "ckpt.pt.previous") is None


def test_the_file_has_the_bytes_that_torch_writes(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / "ckpt.pt")
    expected = (tmp_path / "ckpt.pt").read_bytes()
    undo = save_safely({"FLATOUT_SAFE_SAVE": "1"})
    assert undo is not None
    (tmp_path / "sub").mkdir()
    torch.save(state(1), str(tmp_path / "sub" / "ckpt.pt"))
    undo()
    assert (tmp_path / "sub" / "ckpt.pt").read_bytes() == expected


@pytest.mark.usefixtures("_safe")
def test_links_open_files_and_devices_are_written_as_ever(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / "real.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "real.pt")
    torch.save(state(2), tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink() and step_of(tmp_path / "real.pt") == 2
    with (tmp_path / "open.pt").open("wb") as file:
        torch.save(state(3), file)
    assert step_of(tmp_path / "open.pt") == 3
    torch.save(state(4), "/dev/null")
    assert not Path("/dev/null").is_file()


@pytest.mark.usefixtures("_safe")
def test_an_error_is_the_scripts_and_leaves_the_file_from_before(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save(state(1), path)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        torch.save({"weights": torch.zeros(10), "cannot": lambda: 0}, path)
    with pytest.raises((RuntimeError, OSError)):
        torch.save(state(1), tmp_path / "missing" / "ckpt.pt")
    assert step_of(path) == 1 and latest_good(path) == (path, "")
    assert [one.name for one in tmp_path.glob(".*")] == []


@pytest.mark.usefixtures("_safe")
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "missing"])
def test_a_damaged_file_gives_way_to_the_previous_one(tmp_path: Path, damage: str, is_zip: bool) -> None:
    path = tmp_path / "ckpt.pt"
    for number in (1, 2):
        torch.save(state(number), path, _use_new_zipfile_serialization=is_zip)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        place = data.index(torch.full((100,), 2.0).numpy().tobytes())
        data[place + 8] ^= 16
    cut = {"torn": len(data) // 2, "empty": 0}.get(damage, len(data))
    path.unlink()  # the previous one may be the same file under another name
    if damage != "missing":
        path.write_bytes(data[:cut])
    found, reason = latest_good(path)
    assert found == path and step_of(path) == 1
    assert reason.startswith("ckpt.pt is ") and reason.endswith(": the one before it is used")
    assert damage == "missing" or (tmp_path / "ckpt.pt.damaged").read_bytes() == bytes(data[:cut])
    assert latest_good(path) == (path, "")


def test_a_file_that_was_written_without_flatout_is_checked_by_its_own_checksums(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save(state(1), path)
    assert latest_good(path) == (path, "")
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((100,), 1.0).numpy().tobytes()) + 8] ^= 16
    path.write_bytes(data)
    found, reason = latest_good(path)
    assert found is None and "the checksum of ckpt/data/0 in it differs" in reason and "is missing" in reason
    assert path.read_bytes() == data  # nothing better to put there


def test_one_written_since_without_flatout_counts(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    undo = save_safely({"FLATOUT_SAFE_SAVE": "1"})
    torch.save(state(1), path)
    torch.save(state(2), path)
    assert undo is not None
    undo()
    torch.save(state(3), path)
    assert latest_good(path) == (path, "") and step_of(path) == 3


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"trap": Trap()}, tmp_path / "ckpt.pt")
    assert latest_good(tmp_path / "ckpt.pt") == (tmp_path / "ckpt.pt", "")
    assert not (tmp_path / "sprung").exists()


SCRIPT = """
import sys, torch
assert "flatout" not in sys.modules
for step in range(int(sys.argv[2]), 100_000):
    torch.save({"step": step, "weights": torch.full((200_000,), float(step))}, sys.argv[1])
    print(step, flush=True)
"""


def test_an_unmodified_script_is_killed_and_always_finds_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    path, numbers = tmp_path / "ckpt.pt", random.Random(0)
    environment = os.environ | {"PYTHONPATH": str(STARTUP), "FLATOUT_SAFE_SAVE": "1", "OMP_NUM_THREADS": "1"}
    reached = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(path), str(reached + 1)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(numbers.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].split()
        found, _ = latest_good(path)
        at_least = int(lines[-1]) if lines else reached + 1
        reached = step_of(found)
        assert reached >= at_least
    assert len(list(tmp_path.glob(".ckpt.pt.*.tmp"))) <= 1  # each start clears away what the last one left


def _replace_by(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text('{"files": [' + " " * (1 << 20) + "]}")


@pytest.mark.usefixtures("_safe")
@pytest.mark.parametrize("kind", ["pipe", "device", "file without end"])
def test_checksums_that_are_no_small_file_are_not_waited_for(tmp_path: Path, kind: str) -> None:
    """The archive is checked by its own checksums instead, and the script's next save is not held up either."""
    path = tmp_path / "ckpt.pt"
    for number in (1, 2):
        torch.save(state(number), path)
    _replace_by(tmp_path / "ckpt.pt.checksums", kind)
    with _alarm(10):
        assert latest_good(path) == (path, "")
        torch.save(state(3), path)
    assert step_of(path) == 3 and damage_of(path) is None


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """End the block with an error, should it wait for the other end of a pipe."""

    def stop(*_: object) -> None:
        raise TimeoutError("it waits")

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 93, 99])
@pytest.mark.parametrize("data", [b"\x09\x04\x05\x00" + b"\xff" * 300, b"BZh9" + b"x" * 100, bytes(300)])
def test_a_damaged_method_of_compression_is_damage(tmp_path: Path, method: int, data: bytes) -> None:
    """The decompressors raise errors of their own; torch.load reads parts that are stored or deflated, no others."""
    path = tmp_path / "ckpt.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    assert damage_of(path) is None
    written = bytearray(path.read_bytes())
    written[written.index(b"PK\x01\x02") + 10] = method
    path.write_bytes(written)
    assert damage_of(path) == "is damaged: parts of it are compressed by a method that torch.load cannot read"
    written[written.index(b"PK\x01\x02") + 10] = zipfile.ZIP_DEFLATED
    path.write_bytes(written)
    assert damage_of(path) in ("is torn", "is damaged: the checksum of archive/data.pkl in it differs")
