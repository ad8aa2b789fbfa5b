"""Ranks compare their tables for NCCL before their first collective; they end, and never wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.slurm import free_port

import flatout
from flatout.inside.equal_tables import UnequalTablesError, compare, facts_of
from flatout.inside.protocol import Variable

STARTUP = Path(flatout.__file__).parent / "inside" / "startup"
TABLE = b"flatout-collective-table 1\nall_reduce 0 65536 2 1 ring ll 4\n"
FACTS = {"table": "aa", "plugin": "bb", "nccl": "2.29.7"}


def outcomes(of_ranks: Sequence[dict[str, str] | None], limit_s: float = 30.0) -> list[str]:
    """What each rank raises, "" if nothing; None is a rank that does not compare."""
    store = dist.HashStore()
    said = [""] * len(of_ranks)

    def run(rank: int, facts: dict[str, str]) -> None:
        try:
            compare(store, rank, len(of_ranks), facts, limit_s, meeting=1)
        except UnequalTablesError as error:
            said[rank] = str(error)

    threads = [
        threading.Thread(target=run, args=(rank, facts), daemon=True)
        for rank, facts in enumerate(of_ranks)
        if facts is not None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return said


def test_equal_tables_pass() -> None:
    assert outcomes([FACTS] * 5) == [""] * 5
    assert outcomes([FACTS]) == [""]


@pytest.mark.parametrize(
    ("name", "words"), [("table", "tables for NCCL"), ("plugin", "tuner plugins"), ("nccl", "versions of NCCL")]
)
def test_what_differs_is_refused_on_all_ranks_with_one_line_that_names_the_ranks(name: str, words: str) -> None:
    other = FACTS | {name: "other"}
    said = outcomes([FACTS, FACTS, FACTS, other, FACTS, other])
    assert len(set(said)) == 1
    assert words in said[0]
    assert f"{FACTS[name]} on ranks 0-2, 4, other on ranks 3, 5" in said[0]
    assert "\n" not in said[0]


def test_one_rank_that_differs_is_named_in_the_singular() -> None:
    assert "aa on rank 0, zz on rank 1" in outcomes([FACTS, FACTS | {"table": "zz"}])[0]


def test_a_rank_without_a_table_is_named_after_the_limit() -> None:
    began = time.monotonic()
    said = outcomes([FACTS, FACTS, None], limit_s=0.5)
    assert said[0] == said[1]
    assert said[0].startswith("rank 2 reported no table for NCCL within 0 s")
    assert time.monotonic() - began < 30


def test_without_rank_0_the_others_end_too() -> None:
    assert outcomes([None, FACTS], limit_s=0.3)[1].startswith("rank 0 has not compared")


def test_a_table_with_other_line_ends_is_the_same_table(tmp_path: Path) -> None:
    environment = {"NCCL_TUNER_PLUGIN": "/x/libnccl-tuner-flatout-0123456789abcdef.so"}
    facts = facts_of(TABLE, environment)
    assert facts == facts_of(TABLE.replace(b"\n", b"\r\n"), environment)
    assert facts["plugin"] == "0123456789abcdef"
    assert facts["table"] != facts_of(TABLE.replace(b"4\n", b"5\n"), environment)["table"]
    other = tmp_path / "libnccl-tuner-other.so"
    other.write_bytes(b"one")
    first = facts_of(TABLE, {"NCCL_TUNER_PLUGIN": str(other)})["plugin"]
    other.write_bytes(b"two")
    assert first != facts_of(TABLE, {"NCCL_TUNER_PLUGIN": str(other)})["plugin"]
    assert facts_of(TABLE, {"NCCL_TUNER_PLUGIN": "ofi"})["plugin"] == "ofi"
    assert facts_of(TABLE, {})["plugin"] == "none"


JOB = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print("reduced", int(x), os.environ.get("FLATOUT_NCCL_TABLE_COMPARED"), flush=True)
time.sleep(0.1)
os._exit(0)
"""


def run_ranks(tmp_path: Path, tables: Sequence[Path | None]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank of a job with these tables."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    port = str(free_port())
    ranks = []
    for rank, table in enumerate(tables):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(len(tables)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables |= {"PYTHONPATH": str(STARTUP), Variable.NCCL_TABLE_COMPARED: "of another process"}
        if table is not None:
            variables[Variable.NCCL_TABLE] = str(table)
        files = (tmp_path / f"{rank}.out", tmp_path / f"{rank}.err")
        with files[0].open("w") as output, files[1].open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(script)],
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        ranks.append((process, files))
    done = []
    try:
        for process, _ in ranks:
            process.wait(120)
    finally:
        for process, (output_file, error_file) in ranks:
            process.kill()
            done.append((process.wait(), output_file.read_text(), error_file.read_text()))
    return done


@pytest.mark.usefixtures("warm")
def test_a_job_whose_ranks_have_equal_tables_runs_and_the_plugin_may_act(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(TABLE)
    second.write_bytes(TABLE.replace(b"\n", b"\r\n"))
    done = run_ranks(tmp_path, [first, second])
    assert [code for code, _, _ in done] == [0, 0], done
    for (_, output, _), table in zip(done, (first, second), strict=True):
        assert output == f"reduced 2 {zlib.crc32(table.read_bytes()):08x}\n"


@pytest.mark.usefixtures("warm")
def test_a_job_whose_ranks_have_different_tables_ends_before_its_first_collective(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(TABLE)
    second.write_bytes(TABLE.replace(b"ring", b"tree"))
    for code, output, errors in run_ranks(tmp_path, [first, second]):
        assert code == 1
        assert output == ""
        assert "Traceback" not in errors
        [line] = [line for line in errors.splitlines() if line.startswith("flatout: ")]
        assert "the ranks have different tables for NCCL" in line
        assert "on rank 0, " in line and "on rank 1" in line


@pytest.mark.usefixtures("warm")
def test_a_job_without_a_table_is_not_touched(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, [None, None])
    assert [code for code, _, _ in done] == [0, 0]


class _SlowStore:
    """A rank's view of the store, in which its last read takes a while."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        time.sleep(0.3)
        return bytes(self._store.get(key))


def test_rank_0_whose_process_holds_the_store_ends_after_the_others_have_heard() -> None:
    store = dist.HashStore()

    def second() -> None:
        with suppress(UnequalTablesError):
            compare(_SlowStore(store), 1, 2, FACTS | {"table": "other"}, meeting=1)

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    with pytest.raises(UnequalTablesError):
        compare(store, 0, 2, FACTS, meeting=1)
    assert store.check(["flatout/nccl-table/1/heard/1"])
    thread.join(10)
