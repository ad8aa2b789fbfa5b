"""What each category of each vendor and age becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.read.samples import BASE_NS, COLLECTIVE, Event, event, kernel, problems, small_events, small_trace, to_ns

from flatout.errors import InputError
from flatout.records.events import NULL, EventTable, Kind

Read = Callable[..., EventTable]


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", Kind.CPU_OP),
        ("Operator", Kind.CPU_OP),
        ("hpu_op", Kind.CPU_OP),
        ("user_annotation", Kind.USER_ANNOTATION),
        ("gpu_user_annotation", Kind.GPU_ANNOTATION),
        ("cuda_runtime", Kind.RUNTIME),
        ("cuda_driver", Kind.RUNTIME),
        ("Runtime", Kind.RUNTIME),
        ("xpu_runtime", Kind.RUNTIME),
        ("xpu_driver", Kind.RUNTIME),
        ("mtia_runtime", Kind.RUNTIME),
        ("glow_runtime", Kind.RUNTIME),
        ("privateuse1_runtime", Kind.RUNTIME),
        ("privateuse1_driver", Kind.RUNTIME),
        ("vendor_of_next_year_runtime", Kind.RUNTIME),
        ("runtime", Kind.RUNTIME),
        ("kernel", Kind.KERNEL),
        ("Kernel", Kind.KERNEL),
        ("mtia_ccp_events", Kind.KERNEL),
        ("gpu_memcpy", Kind.MEMCPY),
        ("Memcpy", Kind.MEMCPY),
        ("gpu_memset", Kind.MEMSET),
        ("Memset", Kind.MEMSET),
        ("cuda_sync", Kind.SYNC),
        ("xpu_sync", Kind.SYNC),
        ("overhead", Kind.OVERHEAD),
    ],
)
def test_category_becomes_kind(read: Read, category: str, kind: Kind) -> None:
    table = read(small_trace([event(category, "an event", 1.0, 2.0, device=1, stream=5, bytes=8)]))
    assert table.kind.tolist() == [kind]
    on_device = kind in (Kind.GPU_ANNOTATION, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
    assert table.device.tolist() == [1 if on_device else NULL]
    assert table.stream.tolist() == [5 if on_device else NULL]
    assert table.num_bytes.tolist() == [8 if kind in (Kind.MEMCPY, Kind.MEMSET) else NULL]


def test_all_fields_of_a_small_trace(read: Read) -> None:
    table = read(small_trace())
    assert (table.meta.rank, table.meta.world_size, table.meta.backend) == (3, 4, "nccl")
    assert table.meta.base_ns == BASE_NS and table.meta.device_name == "NVIDIA H200"
    complete = sorted((e for e in small_events() if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
    assert table.num_events == len(complete)
    for row, e in enumerate(complete):
        args = e["args"]
        on_device = "device" in args
        assert table.names[table.name[row]] == e["name"]
        assert table.start_ns[row] == BASE_NS + to_ns(e["ts"]) and table.duration_ns[row] == to_ns(e["dur"])
        assert table.threads[table.thread[row]] == (str(e["pid"]), str(e["tid"]))
        assert table.device[row] == (args["device"] if on_device else NULL)
        assert table.stream[row] == (args["stream"] if on_device else NULL)
        assert table.correlation[row] == args.get("correlation", NULL)
        assert table.external_id[row] == args.get("External id", NULL)
        assert table.num_bytes[row] == args.get("bytes", NULL)
        assert (table.shape[row] != NULL) == ("Input Dims" in args)
        assert (table.collective[row] != NULL) == ("Collective name" in args)
        assert table.sequence[row] == args.get("Seq", NULL)
    assert table.shapes == ("[[8,1024],[]]",)
    assert not table.quality
    assert dict(table.dropped) == {"other phases": len(small_events()) - len(complete)}


def test_collective_arguments(read: Read) -> None:
    (collective,) = read(small_trace()).collectives
    assert collective.operation == "allreduce" and collective.dtype == "Float"
    assert (collective.group_name, collective.group_description) == ("0", "default_pg")
    assert collective.group_ranks == (0, 1, 2, 3) and collective.group_size == 4
    assert (collective.num_input_elements, collective.num_output_elements) == (1024, 1024)
    assert collective.src_rank is None and collective.dst_rank is None


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ("[0, 1, 2, 3]", (0, 1, 2, 3)),
        ([0, 1], (0, 1)),
        ("[0, 1, 2, ...]", None),
        ("[]", None),
        ("", None),
        (None, None),
        ({"a": 1}, None),
    ],
)
def test_group_ranks_may_be_text_a_list_cut_short_or_absent(read: Read, ranks: Any, expected: Any) -> None:
    table = read([kernel("nccl", 1.0, 2.0, **{**COLLECTIVE, "Process Group Ranks": ranks})])
    assert table.collectives[0].group_ranks == expected


def test_numbers_of_a_collective_may_be_texts(read: Read) -> None:
    args = {key: str(value) for key, value in COLLECTIVE.items()} | {"Src Rank": "2", "Dst Rank": 3}
    (collective,) = read([kernel("nccl", 1.0, 2.0, **args)]).collectives
    assert collective.group_size == 4 and collective.num_input_elements == 1024
    assert (collective.src_rank, collective.dst_rank) == (2, 3)


@pytest.mark.parametrize(
    ("name", "number"),
    [("stream 7", 7), ("stream 007", 7), ("stream 99999999999", NULL), ("stream " + 5000 * "1", NULL)],
)
def test_the_number_of_a_stream_is_in_its_name(read: Read, name: str, number: int) -> None:
    """A number beyond 31 bits is none, and Python does not convert one of more than 4,300 digits."""
    table = read({"traceEvents": [event("Kernel", "add", 9, 5, pid=0, tid=name, correlation=9)]})
    assert table.stream.tolist() == [number]


def test_names_of_2021(read: Read) -> None:
    events = [
        event("Operator", "ProfilerStep#1", 1, 100, tid="123", **{"External id": 1}),
        event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2, 3, tid="123"),
        event("Operator", "aten::add", 6, 3, tid="123", **{"External id": 7}),
        event("Runtime", "cudaLaunchKernel", 7, 1, tid="123", **{"external id": 0, "correlation": 9}),
        event("Kernel", "add", 9, 5, pid=0, tid="stream 7", **{"external id": 7, "correlation": 9}),
    ]
    table = read({"traceEvents": events})
    assert table.kind.tolist() == [
        Kind.USER_ANNOTATION,
        Kind.USER_ANNOTATION,
        Kind.CPU_OP,
        Kind.RUNTIME,
        Kind.KERNEL,
    ]
    assert table.external_id.tolist() == [1, NULL, 7, NULL, 7]
    assert (table.device[4], table.stream[4]) == (0, 7)  # from the row: pid 0, tid "stream 7"
    assert table.meta.rank is None and table.meta.base_ns == 0


def test_before_categories_existed(read: Read) -> None:
    events: list[Event] = [
        {"ph": "X", "name": "add", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}},
        {"ph": "X", "name": "add_kernel", "ts": 2.5, "dur": 2, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    table = read(events)
    assert table.kind.tolist() == [Kind.CPU_OP, Kind.KERNEL]


def test_annotations_on_the_mtia_timeline_are_no_work(read: Read) -> None:
    events = [
        event("user_annotation", "## forward ##", 1, 9),
        event("mtia_ccp_events", "## forward ##", 2, 9, pid=0, tid=3),
        event("mtia_ccp_events", "ProfilerStep#7", 2, 9, pid=0, tid=3),
        event("mtia_ccp_events", "fba_kernel", 3, 4, pid=0, tid=3, correlation=5),
    ]
    table = read(events)
    assert sorted(table.kind.tolist()) == [
        Kind.USER_ANNOTATION,
        Kind.GPU_ANNOTATION,
        Kind.GPU_ANNOTATION,
        Kind.KERNEL,
    ]


def test_stream_zero_is_a_stream_and_a_stream_on_the_host_is_none(read: Read) -> None:
    events = [
        event("cpu_op", "triton_poi_fused", 1, 9, stream=0),
        event("cuda_runtime", "hipLaunchKernel", 2, 1, stream="0x7f1ab4243200", bytes="256"),
        kernel("triton_poi_fused", 3, 4, stream=0),
    ]
    table = read(events)
    assert table.stream.tolist() == [NULL, NULL, 0]


def test_python_functions_are_dropped_but_for_data_loading_and_checkpoints(read: Read) -> None:
    kept = [
        "torch/utils/data/dataloader.py(701): __next__",
        "torch/serialization.py(850): save",
        "torch/distributed/checkpoint/state_dict_saver.py(60): save",
        "train.py(12): save_checkpoint",
    ]
    dropped = [
        "torch/nn/modules/linear.py(100): forward",
        "torch/utils/checkpoint.py(20): checkpoint",  # recomputes activations
        "nn.Module: CheckpointWrapper_3",
        "<built-in method matmul>",
    ]
    events = [event("python_function", name, number, 1) for number, name in enumerate(kept + dropped)]
    table = read(events)
    assert [table.names[n] for n in table.name] == kept
    assert dict(table.dropped) == {"python_function": len(dropped)}
    assert set(table.names) == set(kept)


def test_an_unknown_category_is_counted(read: Read) -> None:
    table = read([*small_events(), event("flux", "capacitor", 1, 2), event("flux", "capacitor", 1, 2)])
    assert "2 events of the category 'flux'" in problems(table)
    assert dict(table.dropped)["flux"] == 2


def test_only_unknown_categories_are_an_error(read: Read) -> None:
    with pytest.raises(InputError, match="2 events, but none of an operator") as error:
        read([event("flux", "capacitor", 1, 2), event("flux", "capacitor", 1, 2)])
    assert error.value.hint
