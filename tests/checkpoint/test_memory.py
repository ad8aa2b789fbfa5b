"""Memory for copies: what the system says of it. Pinning needs a GPU; here its calls are those of a stand-in."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.test_checkpointer import running, steps

from flatout.checkpoint import host_buffer as memory_module
from flatout.checkpoint.host_buffer import HostBuffer

pytestmark = pytest.mark.usefixtures("warm")

NUM_BYTES = 40_000_001  # torch's allocator of pinned memory would take 67 million


def mapped_bytes(address: int) -> int:
    """How large the mapping at this address is; 0 where there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return end - address
    return 0


class Cudart:
    """cudaHostRegister and its counterpart, which say what was mapped when they were called."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[str, int, bool]] = []

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802 - CUDA's names
        assert flags == 1
        self.calls.append(("register", num_bytes, mapped_bytes(address) >= num_bytes))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", NUM_BYTES, mapped_bytes(address) >= NUM_BYTES))
        return 0


def test_it_takes_what_is_needed_and_gives_it_back() -> None:
    memory = HostBuffer(NUM_BYTES, is_pinned=False)
    memory.tensor.fill_(7)
    assert memory.tensor.numel() == NUM_BYTES and int(memory.tensor.sum()) == 7 * NUM_BYTES
    address = memory.tensor.data_ptr()
    assert mapped_bytes(address) >= NUM_BYTES
    del memory
    gc.collect()
    assert mapped_bytes(address) < NUM_BYTES
    assert HostBuffer(0, is_pinned=False).tensor.numel() == 0


FORKED = """
import os, sys
from flatout.checkpoint.host_buffer import HostBuffer
from tests.checkpoint.test_memory import NUM_BYTES, mapped_bytes
memory = HostBuffer(NUM_BYTES, is_pinned=False)
memory.tensor.fill_(1)
assert mapped_bytes(memory.tensor.data_ptr()) >= NUM_BYTES
if os.fork() == 0:
    os._exit(3 if mapped_bytes(memory.tensor.data_ptr()) == 0 else 4)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs MADV_DONTFORK")
def test_a_forked_worker_does_not_get_it() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED], check=False).returncode == 3


def test_it_is_unpinned_before_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    memory = HostBuffer(NUM_BYTES, is_pinned=True)
    assert cudart.calls == [("register", NUM_BYTES, True)]
    view = memory.tensor[5:9]  # as each tensor's place in it is
    address = memory.tensor.data_ptr()
    del memory
    gc.collect()
    assert cudart.calls[1:] == [("unregister", NUM_BYTES, True)]
    assert view.fill_(2).tolist() == [2, 2, 2, 2]
    del view
    gc.collect()
    assert mapped_bytes(address) < NUM_BYTES


def test_memory_that_cannot_be_pinned_will_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cudart = Cudart(code=2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)

    def fail(*_: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    for function in ("empty", "ones"):  # the second reports the error of the one before, as a GPU does
        monkeypatch.setattr(memory_module.torch, function, fail)
    memory = HostBuffer(NUM_BYTES, is_pinned=True)
    monkeypatch.undo()
    assert int(memory.tensor.fill_(1).sum()) == NUM_BYTES
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "0.04 GB of host memory cannot be pinned" in record.message
    assert "\n" not in record.message
    del memory
    gc.collect()
    assert [call[0] for call in cudart.calls] == ["register"]


def test_without_memory_a_checkpoint_is_left_out_and_the_next_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, os.strerror(12))

    with running(tmp_path / "ckpt") as run:
        with monkeypatch.context() as patch:
            patch.setattr(memory_module.mmap, "mmap", refuse)
            assert not run.checkpointer.save(1)
        assert "step 1 was not saved" in caplog.text and "Cannot allocate memory" in caplog.text
        assert run.checkpointer.save(2)
    assert steps(tmp_path / "ckpt") == [2] and not list((tmp_path / "ckpt").glob(".partial-*"))


def test_memory_is_taken_for_a_second_copy_only_while_the_first_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(HostBuffer):
        def __init__(self, num_bytes: int, *, is_pinned: bool) -> None:
            super().__init__(num_bytes, is_pinned=is_pinned)
            made.append(num_bytes)

    monkeypatch.setattr("flatout.checkpoint.snapshot.HostBuffer", Counted)
    with running(tmp_path / "ckpt") as run:
        run.train(0, 4)  # each is waited for
    assert len(made) == 1
