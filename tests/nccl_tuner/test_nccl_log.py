"""NCCL's own log says what took effect. The lines are NCCL's, of 2.28.9 on two H200, shortened."""

from __future__ import annotations

import pytest

from flatout.nccl_tuner.nccl_log import (
    algorithms_by_size,
    options_problems,
    parse_log,
    setting_problems,
    table_problems,
)
from flatout.nccl_tuner.table_file import parse_table

START = "h200-1:4711:4780 [0] NCCL INFO "
LOG = "\n".join(
    START + line
    for line in (
        "NCCL version 2.28.9+cuda12.9",
        "NCCL_SOCKET_NTHREADS set by environment to 2.",
        "NCCL_NSOCKS_PERTHREAD set by environment to 2",
        "TUNER/Plugin: Using flatout (v5)",
        "flatout tuner: 2 rows for 2 ranks on 1 nodes, checksum 9337cee7",
        "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        "AllReduce: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        "AllReduce: 1048576 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..7}",
        "AllGather: 268435456 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..23}",
        "Broadcast: 4 Bytes -> Algo RING proto LL128",
        "Something: 4 Bytes -> Algo NEW proto OTHER channel{Lo..Hi}={0..0}",
    )
)


def test_the_log_is_read() -> None:
    log = parse_log(LOG)
    assert (log.tuner, log.tuner_version, log.num_channels) == ("flatout", 5, 24)
    assert log.variables == {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2"}
    calls = [(call.collective, call.num_bytes, call.algorithm, call.protocol, call.num_channels) for call in log.calls]
    assert calls == [
        ("all_reduce", 16384, "ring", "ll", 2),
        ("all_reduce", 1048576, "tree", "simple", 8),
        ("all_gather", 268435456, "nvls_tree", "simple", 24),
        ("broadcast", 4, "ring", "ll128", None),
        ("Something", 4, "NEW", "OTHER", 1),
    ]
    assert algorithms_by_size(log.calls)["all_reduce"] == {16384: "ring, ll", 1048576: "tree, simple"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("all_reduce 0 65536 2 1 ring ll 2", None),
        ("all_reduce 0 65536 2 1 ring ll 1", "all_reduce of 16384 bytes used 2 channels, more than 1"),
        ("all_reduce 0 65536 2 1 tree * *", "all_reduce of 16384 bytes used ring and ll, not tree and ll"),
        ("all_reduce 1048576 * 2 1 * ll *", "all_reduce of 1048576 bytes used tree and simple, not tree and ll"),
        ("all_reduce 0 65536 4 1 tree * *", None),  # of another group
        ("reduce 0 * * * ring ll 1", None),  # not called
        ("broadcast 0 * * * ring ll128 1", None),  # its channels are not in the log
    ],
)
def test_a_table_that_did_not_take_effect_is_seen(row: str, problem: str | None) -> None:
    table = parse_table(f"flatout-collective-table 1\n{row}\n", "table")
    assert table_problems(parse_log(LOG), table, 2, 1) == ([] if problem is None else [problem])


def test_another_tuner_a_refused_table_and_no_tuner_are_seen() -> None:
    table = parse_table("flatout-collective-table 1\nall_reduce 0 * * * ring * *\n", "table")
    other = LOG.replace("Using flatout (v5)", "Using ofi (v3)")
    assert table_problems(parse_log(other), table, 2, 1) == ["NCCL asked the tuner ofi instead of Flatout's"]
    refused = LOG + f"\n{START}flatout tuner: /t is not used: the ranks have not compared it"
    assert table_problems(parse_log(refused), table, 2, 1) == ["/t is not used: the ranks have not compared it"]
    assert table_problems(parse_log(""), table, 2, 1) == ["NCCL's log names no tuner plugin"]


def test_variables_are_compared_with_what_nccl_read() -> None:
    wanted = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_BUFFSIZE": "1", "OTHER": "1"}
    assert setting_problems(parse_log(LOG), wanted) == [
        "NCCL read NCCL_NSOCKS_PERTHREAD as 2, not 4",
        "NCCL read NCCL_BUFFSIZE as unset, not 1",
    ]


@pytest.mark.parametrize(("low", "high", "is_right"), [(24, 24, True), (1, 24, True), (25, 32, False), (8, 23, False)])
def test_the_channels_of_a_communicator_are_within_its_options(low: int, high: int, is_right: bool) -> None:
    assert (options_problems(parse_log(LOG), low, high) == []) == is_right


def test_the_tuner_of_a_network_plugin_is_not_taken_for_the_network_plugin() -> None:
    log = parse_log(f"{START}NET/Plugin: Using IBext_v8 (v8)\n{START}TUNER/Plugin: Using ofi (v3)\n")
    assert (log.tuner, log.tuner_version) == ("ofi", 3)
    assert parse_log(f"{START}NET/Plugin: Using IBext_v8 (v8)\n").tuner is None
