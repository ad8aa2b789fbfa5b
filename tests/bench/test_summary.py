"""Raw times -> ceilings: rates by hand, peers, what was wrong, and what is saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.doctor.peers import MIN_PEERS, outliers
from flatout.errors import InputError
from flatout.probe.ceilings.raw import Raw, RawBenchmark
from flatout.probe.ceilings.saved import known_ceilings, load_ceilings, saved_path
from flatout.probe.ceilings.summary import ceilings_of
from flatout.records.ceilings import Ceilings
from flatout.report.json import enveloped_json


def ceilings(*ranks: list[RawBenchmark], is_gpu: bool = True) -> Ceilings:
    raw = Raw(
        benchmarks=tuple(tuple(cases) for cases in ranks),
        devices=("NVIDIA H100 80GB HBM3" if is_gpu else "a CPU",) * len(ranks),
        hosts=("h1",) * len(ranks),
        is_gpu=is_gpu,
        backend="nccl",
        software="torch 2",
        not_measured={},
    )
    return ceilings_of(
        raw, took_s=1.0, outliers=lambda values, share: outliers(values, share=share), min_peers=MIN_PEERS
    )  # fmt: skip


def product(*seconds: float, wrong: str | None = None, dtype: str = "bf16", size: int = 4096) -> RawBenchmark:
    labels = {"dtype": dtype, "shape": (size, size, size), "backend": "torch"}
    return RawBenchmark(
        name="matmul",
        unit="FLOP/s",
        work=2.0 * size**3,
        checked="entries",
        labels=labels,
        seconds=list(seconds),
        wrong=wrong,
    )


def test_a_rate_is_the_median_with_the_quartiles_between_its_repetitions() -> None:
    (one,) = ceilings([product(0.001, 0.002, 0.004)]).measurements
    assert one.value == pytest.approx(2 * 4096**3 / 0.002)
    assert one.seconds == 0.002
    assert one.n == 3
    # Rates are 4, 2 and 1 in units of 2 * 4096^3 / 0.004: quartiles 3 and 1.5.
    assert one.spread == pytest.approx(1.5 * 2 * 4096**3 / 0.004)


def test_the_bus_bandwidth_of_eight_ranks_is_nccl_tests_number() -> None:
    """1 GiB in 4 ms among 8: algbw 268.4 GB/s, busbw 1.75 times it; a repetition is the mean of its ranks."""
    from flatout.probe.ceilings.bus import bus_factor

    labels = {"group": "all", "size": 1 << 30, "members": list(range(8))}
    work = (1 << 30) * bus_factor("all_reduce", 8)
    ranks = [
        [
            RawBenchmark(
                name="all_reduce",
                unit="B/s",
                work=work,
                checked="all",
                labels=labels,
                seconds=[0.003 + 0.002 * (rank > 3)],
            )
        ]
        for rank in range(8)
    ]
    (one,) = ceilings(*ranks).measurements
    assert one.value == pytest.approx(1.75 * (1 << 30) / 0.004)
    assert one.value == pytest.approx(469.8e9, rel=1e-3)
    assert one.ranks == tuple(range(8))


def test_a_slow_gpu_is_named_and_healthy_ones_are_not() -> None:
    times = [0.0100, 0.0101, 0.0099, 0.0100, 0.0102, 0.0100, 0.0099, 0.0101]
    assert ceilings(*[[product(time)] for time in times]).peers == ()
    times[5] = 0.0125
    (odd,) = ceilings(*[[product(time)] for time in times]).peers
    assert (odd.peer, odd.name) == ("rank 5", "matmul bf16")
    assert odd.by == pytest.approx(-0.2, abs=0.02)


def test_a_slow_pair_is_named() -> None:
    def pair(first: int, seconds: float) -> list[list[RawBenchmark]]:
        members = [first, first + 1]
        labels = {"group": "pairs", "size": 1 << 20, "members": members}
        return [
            [RawBenchmark(name="send_recv", unit="B/s", work=1e6, checked="all", labels=labels, seconds=[seconds])]
            for _ in members
        ]

    found = ceilings(*[rank for first in range(0, 8, 2) for rank in pair(first, 0.1 if first == 4 else 0.01)])
    assert [(one.peer, one.name) for one in found.peers] == [("ranks 4, 5", "send_recv pairs")]


def test_too_few_peers_are_not_compared_and_that_is_said() -> None:
    found = ceilings([product(0.01)], [product(0.09)])
    assert found.peers == ()
    assert found.peers_compared == {"matmul bf16": "2 peers, but 4 are needed"}
    assert found.num_peers == {}
    compared = ceilings(*[[product(0.01)] for _ in range(4)])
    assert compared.num_peers == {"matmul bf16": 4}


def test_what_is_wrong_has_no_speed() -> None:
    found = ceilings([product(0.001, wrong="3 of 256 entries are wrong"), product(0.01, dtype="fp16")])
    assert [one.dtype for one in found.measurements] == ["fp16"]
    assert [(one.name, one.what, one.ranks) for one in found.wrong] == [("matmul", "bf16 4096 x 4096 x 4096", (0,))]


def test_a_ceiling_of_products_is_the_best_shape_of_the_median_gpu() -> None:
    ranks = [[product(0.01), product(0.05, size=8192)], [product(0.02), product(0.1, size=8192)], [product(0.01)]]
    ranks[2].append(product(0.04, size=8192))
    assert ceilings(*ranks).matmul_flops_per_s() == {"bf16": pytest.approx(2 * 8192**3 / 0.05)}


def saved(found: Ceilings, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(enveloped_json("flatout/ceilings", 1, ["flatout", "bench"], found))
    return path


def test_ceilings_are_read_back_as_they_were(tmp_path: Path) -> None:
    found = ceilings([product(0.01)])
    assert load_ceilings(saved(found, tmp_path / "c.json")) == found
    place = {"XDG_STATE_HOME": str(tmp_path)}
    assert known_ceilings({"h1"}, place) == {}
    saved(found, saved_path("h1", place))
    assert known_ceilings({"h1", "h2"}, place) == {"h1": found}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "flatout/plan", "version": 1}', "\x00"])
def test_what_holds_no_ceilings_is_one_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError):
        load_ceilings(path)
    saved_path("h", {"XDG_STATE_HOME": str(tmp_path)}).parent.mkdir(parents=True)
    saved_path("h", {"XDG_STATE_HOME": str(tmp_path)}).write_text(text)
    assert known_ceilings({"h"}, {"XDG_STATE_HOME": str(tmp_path)}) == {}


def test_copies_of_one_gpu_and_of_all_at_once_are_told_apart_in_the_text() -> None:
    from flatout.report.ceilings_text import ceilings_text
    from flatout.report.terminal import TextStyle

    def copied(note: str, seconds: float) -> RawBenchmark:
        return RawBenchmark(
            name="host_to_device_pinned",
            unit="B/s",
            work=1e9,
            checked="every element",
            labels={"size": 1 << 28, "note": note},
            seconds=[seconds] * 3,
        )

    found = ceilings([copied("one GPU at a time", 0.02), copied("all GPUs at once", 0.04)])
    lines = ceilings_text(found, style=TextStyle()).splitlines()
    (alone,) = (line for line in lines if "one GPU at a time" in line)
    (together,) = (line for line in lines if "all GPUs at once" in line)
    assert "50.0 GB/s" in alone
    assert "25.0 GB/s" in together
