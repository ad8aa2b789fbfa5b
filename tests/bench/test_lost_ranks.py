"""A rank that fails in one measurement, or dies in it, takes that measurement with it and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bench.bench_command import SMALL, bench, content, small

from flatout.probe.ceilings import start
from flatout.probe.ceilings.current_benchmark import CurrentBenchmark, read_current_benchmark
from flatout.probe.ceilings.raw import BenchSettings, Raw, RawBenchmark

pytestmark = pytest.mark.usefixtures("warm")

# In rank 1 alone, `torch.add` (of the triad) or `all_reduce` fails where `in_function` calls it, after `after` samples.
INJECT = """\
import os, signal, sys
if os.environ.get("RANK") == "1":
    import torch, torch.distributed as d
    real_add, real_reduce = torch.add, d.all_reduce
    def is_due():
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == {in_function!r}:
                own = frame.f_locals
                return len(own["self"].found[own["index"]].seconds) >= {after}
            frame = frame.f_back
        return False
    def failing(real):
        def call(*a, **k):
            if is_due():
                sys.modules["flatout.probe.ceilings.rounds"]._PEERS_PATIENCE_S = 1.0
                {fails}
            return real(*a, **k)
        return call
    if {what!r} == "add":
        torch.add = failing(real_add)
    else:
        d.all_reduce = failing(real_reduce)
"""
KILLED, FULL = "os.kill(os.getpid(), signal.SIGKILL)", "raise MemoryError('cannot allocate 9 GB')"


def measured(what: str, in_function: str, fails: str, *, after: int = 0) -> tuple[dict[str, set[int]], dict[str, str]]:
    """Name -> ranks of what was measured, and what was not, with the reason."""
    inject = small(num_rounds=3 + after) + INJECT.format(what=what, in_function=in_function, fails=fails, after=after)
    names = [f"--only={name}" for name in ("memory_triad", "memory_copy", "all_reduce", "broadcast")]
    done = bench("--ranks", "2", "--time", "40s", "--json", *names, inject=inject)
    assert done.returncode == 0, done.stderr
    found = content(done)
    ranks: dict[str, set[int]] = {}
    for one in found["measurements"]:
        assert one["n"] >= 3
        ranks.setdefault(one["name"], set()).update(one["ranks"])
    return ranks, found["not_measured"]


OTHERS = {"memory_copy", "broadcast"}


def test_a_rank_that_is_killed_in_a_measurement_loses_that_one_only() -> None:
    ranks, missing = measured("add", "_first_call", KILLED)
    assert ranks.keys() >= {*OTHERS, "all_reduce"}
    assert all(ranks[name] == {0, 1} for name in ("memory_copy", "all_reduce", "broadcast"))
    lost = {what: why for what, why in missing.items() if "SIGKILL" in why}
    assert {what.split()[0] for what in lost} == {"memory_triad"}
    assert set(lost.values()) == {"rank 1 was ended by SIGKILL: it printed nothing"}


def test_what_was_measured_before_a_rank_is_killed_is_kept() -> None:
    """In the repetition after the third, when there is a result."""
    ranks, missing = measured("all_reduce", "_repeat", KILLED, after=3)
    assert ranks.keys() >= {*OTHERS, "memory_triad", "all_reduce"}  # the other sizes of it
    lost = [what for what, why in missing.items() if why == "rank 1 was ended by SIGKILL: it printed nothing"]
    assert len(lost) == 2 and "a second check of the results" in lost
    assert any(what.startswith("all_reduce fp32 all ") and what.endswith(" B") for what in lost)


def test_a_rank_without_memory_for_a_repetition_goes_on_with_the_others() -> None:
    ranks, missing = measured("add", "_repeat", FULL, after=1)
    assert ranks.keys() >= {*OTHERS, "all_reduce"}
    lost = {what: why for what, why in missing.items() if "cannot allocate" in why}
    assert {what.split()[0] for what in lost} == {"memory_triad"}
    assert set(lost.values()) == {"rank 1 failed in it: cannot allocate 9 GB"}


def test_ranks_that_wait_in_a_collective_for_one_without_memory_are_freed() -> None:
    ranks, missing = measured("all_reduce", "_first_call", FULL)
    assert ranks.keys() == {*OTHERS, "memory_triad"}
    assert missing["all_reduce all"] == "rank 1 ended with code 1: it failed: cannot allocate 9 GB"


def raw() -> Raw:
    ranks = [
        tuple(RawBenchmark(name=name, unit="B/s", work=1.0, checked="", seconds=[1.0] * 3) for name in ("one", "two"))
        for _ in range(2)
    ]
    return Raw(
        benchmarks=tuple(ranks),
        devices=("", ""),
        hosts=("a", "a"),
        is_gpu=False,
        backend="gloo",
        software="",
        not_measured={"three": "no"},
    )


def losing(monkeypatch: pytest.MonkeyPatch, losses: Sequence[tuple[str | None, Raw | None]]) -> list[dict[str, str]]:
    """Sets of ranks, each of which ends so; the last one well. What each was to leave out."""
    seen: list[dict[str, str]] = []

    def run_set(settings: BenchSettings, *_: Any) -> Raw:
        seen.append(dict(settings.without))
        if len(seen) <= len(losses):
            key, partial = losses[len(seen) - 1]
            raise start._RankLostError(f"loss {len(seen)}", key=key, raw=partial)
        return raw()

    monkeypatch.setattr(start, "_run_set", run_set)
    return seen


def run(time_s: float = 60.0) -> Raw | None:
    return start.run_workers(BenchSettings(time_s=time_s), 2, {}, lambda *_: None)


def test_each_set_leaves_out_what_the_ones_before_were_lost_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = losing(monkeypatch, [("a", None), ("b", None)])
    assert run() == raw()
    assert seen == [{}, {"a": "loss 1"}, {"a": "loss 1", "b": "loss 2"}]


def test_there_are_four_sets_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = losing(monkeypatch, [(name, None) for name in "abcdef"])
    with pytest.raises(start._RankLostError, match="loss 4"):
        run()
    assert len(seen) == 4


@pytest.mark.parametrize(("time_s", "key"), [(4.0, "a"), (60.0, None)])
def test_without_time_or_a_measurement_to_blame_there_is_no_other_set(
    monkeypatch: pytest.MonkeyPatch, time_s: float, key: str | None
) -> None:
    seen = losing(monkeypatch, [(key, None)])
    with pytest.raises(start._RankLostError, match="loss 1"):
        run(time_s)
    assert len(seen) == 1


def test_a_result_that_was_there_is_the_result_but_for_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = losing(monkeypatch, [("two", raw())])
    found = run()
    assert found is not None and len(seen) == 1
    assert [[one.seconds for one in cases] for cases in found.benchmarks] == [[[1.0] * 3, []]] * 2
    assert found.not_measured == {"three": "no", "two": "loss 1", "a second check of the results": "loss 1"}


def test_a_result_stays_where_a_rank_is_lost_at_its_end() -> None:
    """As where a library crashes while it is unloaded."""
    inject = SMALL + "import atexit\nif os.environ.get('RANK') == '1':\n    atexit.register(os.abort)\n"
    done = bench("--ranks", "2", "--time", "60s", "--json", "--only=memory_copy", inject=inject)
    assert done.returncode == 0, done.stderr
    found = content(done)
    assert {one["name"] for one in found["measurements"]} == {"memory_copy"}
    assert "rank 1 was ended by SIGABRT" in found["not_measured"]["the end of the ranks"]


def test_where_a_rank_is_is_known_without_its_help(tmp_path: Path) -> None:
    where = CurrentBenchmark(tmp_path, 3)
    assert read_current_benchmark(tmp_path, 3) is None
    where.at("matmul bf16 1024 x 1024 x 1024")
    where.at("matmul fp32")
    assert read_current_benchmark(tmp_path, 3) == "matmul fp32"
    where.at(None)
    assert read_current_benchmark(tmp_path, 3) is None
    assert read_current_benchmark(tmp_path, 4) is None
