"""When a compression pays: bytes and times worked out by hand, and both sides of where each stops to pay."""

from __future__ import annotations

import pytest

from flatout.predict.collective_time import Link, bytes_sent, collective_s, link_of, num_messages
from flatout.predict.gradient_exchange import (
    COMPRESSIONS,
    MIN_GAIN,
    PLAIN,
    exchange_of,
    gain,
    int8_by_all_gather,
    paying,
)

MIB = 1 << 20
GBIT = Link(latency_s=1e-4, bytes_per_s=125e6)
NVLINK = Link(latency_s=5e-6, bytes_per_s=400e9)
TUNED_SOCKETS = Link(latency_s=3e-5, bytes_per_s=17e9)


def wire(name: str, num_ranks: int) -> float:
    """Return the bytes on the wire as a multiple of those of fp32."""
    plain = exchange_of(PLAIN, 1.0, num_ranks).wire_bytes(num_ranks)
    return exchange_of(name, 1.0, num_ranks).wire_bytes(num_ranks) / plain


def test_a_ring_sends_each_byte_nearly_twice_in_messages_that_follow_each_other() -> None:
    assert bytes_sent("all_reduce", 800.0, 8) == 2 * 7 / 8 * 800
    assert bytes_sent("all_gather", 800.0, 8) == bytes_sent("all_to_all", 800.0, 8) == 700
    assert (num_messages("all_reduce", 8), num_messages("all_gather", 8)) == (14, 7)
    assert collective_s(GBIT, "all_reduce", 125e6, 2) == pytest.approx(1.0 + 2e-4)
    assert collective_s(GBIT, "all_reduce", 125e6, 1) == 0


def test_the_link_of_a_measured_collective_gives_its_time_again() -> None:
    link = link_of("all_reduce", 1.4e-3, 1e9, 8)
    assert collective_s(link, "all_reduce", 1e9, 8) == pytest.approx(1.4e-3 + 2 * 7 / 8)


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 64, 512])
def test_bytes_by_ranks(num_ranks: int) -> None:
    assert wire("bf16", num_ranks) == wire("fp16", num_ranks) == pytest.approx(1 / 2)
    assert wire("int8", num_ranks) == pytest.approx(1 / 4, rel=0.02)
    assert wire("topk-1%", num_ranks) == pytest.approx(num_ranks / 100)
    assert wire("topk-10%", num_ranks) == pytest.approx(num_ranks / 10)
    by_all_gather = int8_by_all_gather(1.0, num_ranks).wire_bytes(num_ranks)
    plain = exchange_of(PLAIN, 1.0, num_ranks).wire_bytes(num_ranks)
    assert by_all_gather / plain == pytest.approx(num_ranks / 8, rel=0.02)


def test_compression_loses_on_nvlink_and_on_tuned_sockets() -> None:
    """DDP's buckets of 25 MiB. Only halving and low rank are left on sockets, and nothing that selects or quantizes."""
    assert paying(NVLINK, 25 * MIB, 8) == [] or all(times < 2 for _, times in paying(NVLINK, 25 * MIB, 8))
    for name in ("topk-1%", "topk-10%"):
        assert gain(name, NVLINK, 25 * MIB, 8) < 1


@pytest.mark.parametrize(("name", "last", "first_loss"), [("topk-1%", 80, 100), ("topk-10%", 8, 10)])
def test_top_k_stops_to_pay_with_many_ranks(name: str, last: int, first_loss: int) -> None:
    link = Link(latency_s=0.0, bytes_per_s=125e6)
    assert gain(name, link, 25 * MIB, last) > 1
    assert gain(name, link, 25 * MIB, first_loss) < 1


def test_on_one_gbit_bf16_brings_two_and_the_slow_codec_of_a_cpu_takes_int8_back() -> None:
    assert gain("bf16", GBIT, 25 * MIB, 2) == pytest.approx(2, rel=0.02)
    assert gain("int8", GBIT, 25 * MIB, 2) == pytest.approx(4, rel=0.1)
    assert gain("int8", GBIT, 25 * MIB, 2, device="cpu") < gain("bf16", GBIT, 25 * MIB, 2, device="cpu")


def test_compressing_takes_as_long_as_it_was_measured_to_take() -> None:
    exchange = exchange_of("int8", 1e9, 2, "cpu", {"int8": 2.5})
    assert exchange.codec_s == pytest.approx(2.5)
    assert exchange.calls == exchange_of("int8", 1e9, 2, "cpu").calls
    assert exchange_of("bf16", 1e9, 2, "cpu", {"int8": 2.5}) == exchange_of("bf16", 1e9, 2, "cpu")
    assert exchange_of(PLAIN, 1e9, 2, "cpu", {"int8": 2.5}).codec_s == 0


def test_what_is_hidden_cannot_be_gained() -> None:
    """A tenth of the exchange is exposed: half of the bytes hide all of it, and only compressing takes time."""
    plain_s = exchange_of(PLAIN, 25 * MIB, 2).link_s(GBIT, 2)
    codec_s = exchange_of("bf16", 25 * MIB, 2).codec_s
    assert gain("bf16", GBIT, 25 * MIB, 2, exposed_share=0.1) == pytest.approx(0.1 * plain_s / codec_s)
    assert gain("topk-1%", NVLINK, 25 * MIB, 8, exposed_share=0.0) == 0


def test_small_messages_cost_their_latency_however_few_bytes_they_have() -> None:
    distant = Link(latency_s=0.05, bytes_per_s=125e6)
    assert gain("bf16", distant, 64 * 1024, 8) < MIN_GAIN
    assert gain("int8", distant, 64 * 1024, 8) == pytest.approx(1.0, rel=0.01)  # as many messages as a ring
    assert gain("topk-1%", distant, 64 * 1024, 8) == pytest.approx(2.0, rel=0.01)  # one all-gather has half


@pytest.mark.parametrize(("factor", "is_paying"), [(1.02, True), (0.98, False)])
def test_a_gain_below_the_models_error_is_none(factor: float, is_paying: bool) -> None:
    """A link on which bf16 gains MIN_GAIN, and one a little faster or slower."""
    num_bytes, num_ranks = 25 * MIB, 8
    codec_s = exchange_of("bf16", num_bytes, num_ranks).codec_s
    plain_s = codec_s / (1 / MIN_GAIN - 1 / 2) * factor
    sent = exchange_of(PLAIN, num_bytes, num_ranks).wire_bytes(num_ranks)
    link = Link(latency_s=0.0, bytes_per_s=sent / plain_s)
    assert ("bf16" in dict(paying(link, num_bytes, num_ranks))) == is_paying


def test_every_compression_of_the_catalogue_has_a_rule() -> None:
    from flatout.change.ddp import COMPRESSION

    assert set(COMPRESSION.valid.choices) == set(COMPRESSIONS)
