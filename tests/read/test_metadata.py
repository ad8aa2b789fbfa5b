"""What a trace says of itself, in all the shapes it is said in, and what the profiler's log admits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.read.samples import kernel, problems, small_trace

from flatout.records.events import EventTable

Read = Callable[..., EventTable]


@pytest.mark.parametrize(
    ("info", "rank", "world_size"),
    [
        ({"backend": "nccl", "rank": 3, "world_size": 8}, 3, 8),
        ({"backend": "cuda:gloo", "rank": "3", "world_size": "8"}, 3, 8),
        ({"backend": "nccl", "world_size": 8}, None, 8),
        ({"rank": 3}, 3, None),
        ({"rank": -1, "world_size": 0}, None, None),
        ({"rank": None}, None, None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_distributed_info_may_lack_anything(read: Read, info: Any, rank: int | None, world_size: int | None) -> None:
    meta = read(small_trace(distributedInfo=info)).meta
    assert (meta.rank, meta.world_size) == (rank, world_size)


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ([{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": 7, "ranks": "[4, 5, 6]"}, "garbage"], (4, 5, 6)),
        ([{"pg_name": "7", "ranks": [4, 5]}], None),  # not the size that the event has
        ([{"pg_name": "7", "ranks": "[4, 5, ...]"}], None),
        ("garbage", None),
    ],
)
def test_ranks_that_an_event_has_cut_short_are_those_of_its_group_in_the_metadata(
    read: Read, config: object, ranks: tuple[int, ...] | None
) -> None:
    arguments = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 3}
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": start,
            "dur": 1,
            "args": arguments | {"Process Group Ranks": shown},
        }
        for start, shown in ((1, "[4, 5, ...]"), (2, "[1, 2, 3]"))
    ]
    table = read({"distributedInfo": {"rank": 0, "pg_config": config}, "traceEvents": events})
    assert [collective.group_ranks for collective in table.collectives] == [ranks, (1, 2, 3)]


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "B"}], "B"),
        ([{"name": "A"}, {"name": "B"}], "B"),
        ({"0": {"id": 0, "name": "A"}, "1": {"id": 1, "name": "B"}}, "B"),
        ({"id": 1, "name": "B"}, "B"),
        ([{"id": 1, "name": ""}], None),
        ([], None),
        ("garbage", None),
        (None, None),
    ],
)
def test_the_device_is_the_one_of_the_gpu_events(read: Read, properties: Any, name: str | None) -> None:
    table = read(small_trace([kernel("gemm", 1, 2, device=1)], deviceProperties=properties))
    assert table.meta.device_name == name


def test_host_name_and_base_time(read: Read) -> None:
    meta = read(small_trace(host_name="node7", baseTimeNanoseconds="1000")).meta
    assert meta.hostname == "node7" and meta.base_ns == 1000
    assert read(small_trace(baseTimeNanoseconds=None)).meta.base_ns == 0


def test_rank_from_the_file_name_where_the_file_has_none(read: Read) -> None:
    assert read(small_trace(distributedInfo=None), "rank-12.json").meta.rank == 12
    assert read(small_trace(), "rank-12.json").meta.rank == 3


def test_the_log_of_the_profiler(read: Read) -> None:
    log = [
        "INFO:... Record counts: Out-of-range = 4181, Blocklisted runtime = 5, GPU stopped early? = 0",
        "INFO:... nothing",
    ]
    assert problems(read(small_trace(INFO=log))) == "the profiler excluded 4,181 events outside its recording window"
    log = ["WARNING:... Dropped 12 activity records", "WARNING:... Dropped 3 activity records"]
    assert "dropped 15 GPU records" in problems(read(small_trace(WARNING=log)))
    log = ["INFO:... Out-of-range = 0, Blocklisted runtime = 5, GPU stopped early? = 1"]
    assert "stopped recording the GPU early" in problems(read(small_trace(INFO=log)))
    assert not read(small_trace(INFO=["Out-of-range = 0, GPU stopped early? = 0"], ERROR="x")).quality


def test_damaged_metadata_costs_no_event_and_as_little_else_as_possible(read: Read) -> None:
    text = json.dumps(small_trace()).replace('"schemaVersion": 1', '"schemaVersion": inf, "host_name": "no"de"')
    table = read(text)
    assert table.num_events == 12
    assert table.meta.rank == 3 and table.meta.world_size == 4 and table.meta.device_name == "NVIDIA H200"
    assert table.meta.base_ns == small_trace()["baseTimeNanoseconds"]
    assert "metadata around the events is damaged" in problems(table)


def test_metadata_cut_off_behind_the_events(read: Read) -> None:
    trace = small_trace()
    events = trace.pop("traceEvents")
    text = json.dumps({"traceEvents": events, **trace})
    table = read(text[:-60])
    assert table.num_events == 12 and table.meta.rank == 3


@pytest.mark.parametrize("value", [2_000_000_000, "2000000000", 10**30])
@pytest.mark.parametrize("key", ["rank", "world_size"])
def test_a_rank_or_world_size_that_no_job_has_counts_as_absent(read: Read, key: str, value: Any) -> None:
    table = read(small_trace(distributedInfo={"rank": 3, "world_size": 8, key: value}))
    assert (table.meta.rank, table.meta.world_size) == {"rank": (None, 8), "world_size": (3, None)}[key]
    assert f"`distributedInfo.{key}` must be at most" in problems(table)


@pytest.mark.parametrize("name", [[], {}, ["allreduce"], 7])
def test_the_name_of_a_collective_may_be_anything(read: Read, name: Any) -> None:
    table = read(small_trace([kernel("ncclDevKernel_AllReduce", 1, 2, **{"Collective name": name})]))
    assert [args.operation for args in table.collectives] == [str(name)]


def test_a_bare_list_of_events_has_no_metadata_and_says_so(read: Read) -> None:
    assert "bare list of events" in problems(read([kernel("gemm", 1, 2)]))
