from __future__ import annotations

import gzip
import json
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths, origin_ns, perfetto_ranks
from flatout.errors import OutputError
from flatout.read.originals import Originals
from flatout.read.sources import TraceSource
from flatout.records.diagnosis import Part
from flatout.records.job import BlameSlice
from flatout.records.timeline import Segments
from flatout.report.perfetto import PerfettoRank, write_perfetto

TRACES = Path(__file__).parents[2] / "examples/traces/healthy_fsdp.tar.xz"
BASE_NS = 1_764_000_000_123_456_789
ORIGIN_NS = BASE_NS - 10**9


def us(ns: int) -> Decimal:
    return Decimal(ns) / 1000


def kernel(start_ns: int, duration_ns: int, **fields: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": us(start_ns),
        "dur": us(duration_ns),
        "args": {"device": 0, "stream": 7},
    } | fields


def host(start_ns: int, duration_ns: int, **fields: Any) -> dict[str, Any]:
    return kernel(start_ns, duration_ns, cat="cpu_op", name="aten::mm", pid=4711, tid=4712, args={}) | fields


def flow(phase: str, start_ns: int, number: int | str, **fields: Any) -> dict[str, Any]:
    event = {"ph": phase, "cat": "ac2g", "name": "ac2g", "pid": 4711, "tid": 4712, "ts": us(start_ns), "id": number}
    return event | ({"bp": "e"} if phase == "f" else {}) | fields


def originals(tmp_path: Path, events: list[dict[str, Any]], text: str | None = None, **around: Any) -> Originals:
    """The events as a file that Flatout reads them from, with times as decimals of microseconds."""
    path = tmp_path / f"original{len(list(tmp_path.iterdir()))}.json"
    path.write_text(text or as_json(around | {"traceEvents": events}))
    source = TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size)
    return Originals(source, base_ns=BASE_NS, earliest_ns=BASE_NS - 10**8)


def as_json(value: Any) -> str:
    """JSON with exact decimals, which the standard library does not write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{as_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def segments(*pieces: tuple[int, int, Part]) -> Segments:
    columns = list(zip(*pieces, strict=True)) or [(), (), ()]
    return Segments(
        start_ns=np.array(columns[0], dtype=np.int64) + BASE_NS,
        end_ns=np.array(columns[1], dtype=np.int64) + BASE_NS,
        part=np.array(columns[2], dtype=np.uint8),
    )


def drawn(tmp_path: Path, *events: dict[str, Any], **fields: Any) -> PerfettoRank:
    return PerfettoRank(**{"rank": 0, "originals": originals(tmp_path, list(events)), "segments": segments()} | fields)


def written(tmp_path: Path, *ranks: PerfettoRank, name: str = "trace.json") -> list[dict[str, Any]]:
    """The events as they are in the file, with exact times."""
    path = tmp_path / name
    write_perfetto(path, ranks, origin_ns=ORIGIN_NS)
    data = path.read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    found = json.loads(data, parse_float=Decimal)
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents", "ranks"}
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def ns(value: Decimal) -> int:
    assert -value.as_tuple().exponent == 3  # type: ignore[operator]
    return int(value * 1000)


def start(event: dict[str, Any]) -> int:
    return ns(event["ts"]) + ORIGIN_NS - BASE_NS


def track_names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events: list[dict[str, Any]], track: str) -> list[tuple[str, int, int]]:
    tracks = {key for key, name in track_names(events).items() if name == track}
    return [(e["name"], start(e), ns(e["dur"])) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks]


def random_events(seed: int, num_events: int) -> list[dict[str, Any]]:
    noise = random.Random(seed)
    events = []
    for number in range(num_events):
        start_ns, duration_ns = noise.randrange(10**7), noise.randrange(10**5)
        arguments = {"correlation": number, "Input Dims": [[number, 3], []], "note": noise.choice(["a", "\u001b", "я"])}
        if noise.random() < 0.5:
            fields: dict[str, Any] = {
                "cat": noise.choice(["kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"])
            }
            fields |= {"tid": noise.choice([7, 20, 2**40]), "pid": noise.choice([0, 1])}
        else:
            fields = {"cat": noise.choice(["cpu_op", "cuda_runtime", "cuda_driver", "python_function", "new_category"])}
            fields |= {"pid": 1, "tid": noise.choice(["a", "b"])}
        events.append(kernel(start_ns, duration_ns, name=f"e{number % 9}", args=arguments, **fields))
    return events


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_every_original_event_is_found_again_with_all_that_it_says(tmp_path: Path, name: str) -> None:
    of_rank = [random_events(seed, 3000) for seed in (1, 2)]
    ranks = [drawn(tmp_path, *events, rank=rank) for rank, events in enumerate(of_rank)]
    found = written(tmp_path, *ranks, name=name)
    for rank, events in enumerate(of_rank):
        expected = Counter(as_json({**e, "pid": 0, "tid": 0, "args": spelled_out(e["args"])}) for e in events)
        again = Counter(
            as_json(
                {**{key: e[key] for key in events[0]}, "pid": 0, "tid": 0, "ts": us(start(e)), "dur": us(ns(e["dur"]))}
            )
            for e in found
            if e["ph"] == "X" and e["pid"] == rank + 1
        )
        assert again == expected


def spelled_out(arguments: dict[str, Any]) -> dict[str, Any]:
    """Perfetto refuses control characters, even escaped."""
    return arguments | {"note": arguments["note"].replace("\x1b", "\\u001b")}


def test_events_of_other_phases_are_kept_and_told_apart_between_ranks(tmp_path: Path) -> None:
    events = [
        host(0, 10, cat="cuda_driver", name="cuLaunchKernel", args={"correlation": 9}),
        flow("s", 0, 9),
        kernel(30, 10, args={"correlation": 9, "grid": [1, 2, 3]}),
        flow("f", 30, 9, pid=0, tid=7),
        {"ph": "i", "name": "[memory]", "s": "t", "pid": 4711, "tid": 4712, "ts": us(5), "args": {"Bytes": 512}},
        {"ph": "C", "name": "power", "pid": 0, "tid": 7, "ts": us(6), "args": {"W": 300}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 4711, "tid": 4712, "args": {"name": "thread 4712 (python)"}},
    ]
    found = written(tmp_path, *(drawn(tmp_path, *events, rank=rank) for rank in (0, 1)))
    for process in (1, 2):
        mine = {e["name"]: e for e in found if e["pid"] == process and e["ph"] in "XiC"}
        assert mine["cuLaunchKernel"]["cat"] == "cuda_driver"
        assert mine["gemm"]["args"] == {"correlation": 9, "grid": [1, 2, 3]}
        assert (start(mine["[memory]"]), mine["[memory]"]["args"], mine["[memory]"]["s"]) == (5, {"Bytes": 512}, "t")
        assert mine["power"]["args"] == {"W": 300}
        arrows = [e for e in found if e["pid"] == process and e["ph"] in "sf"]
        assert [(e["ph"], e["tid"]) for e in arrows] == [
            ("s", mine["cuLaunchKernel"]["tid"]),
            ("f", mine["gemm"]["tid"]),
        ]
        assert arrows[0]["id"] == arrows[1]["id"]
    assert len({e["id"] for e in found if e["ph"] in "sf"}) == 2
    assert "thread 4712 (python), process 4711" in track_names(found).values()


def test_what_stands_around_the_events_is_kept_for_each_rank(tmp_path: Path) -> None:
    around = {"distributedInfo": {"rank": 3, "backend": "nccl"}, "host_name": "node-7"}
    rank = PerfettoRank(rank=3, originals=originals(tmp_path, [kernel(0, 1)], **around), segments=segments())
    written(tmp_path, rank)
    assert json.loads((tmp_path / "trace.json").read_bytes())["ranks"] == {"3": around}


def test_no_track_has_a_partial_overlap(tmp_path: Path) -> None:
    events = written(tmp_path, drawn(tmp_path, *random_events(5, 3000)))
    open_ends: dict[int, list[int]] = {}
    labels = {tid: label for (_, tid), label in track_names(events).items()}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):  # stable, as Perfetto's own
        stack = open_ends.setdefault(event["tid"], [])
        while stack and stack[-1] <= start(event):
            stack.pop()
        if stack:
            label = labels[event["tid"]]
            assert not label.startswith("GPU") or "annotations" in label, "kernels of one lane do not even nest"
            assert start(event) + ns(event["dur"]) <= stack[-1]
        stack.append(start(event) + ns(event["dur"]))


def test_overlapping_kernels_of_a_stream_get_a_second_lane_and_take_their_arrows_along(tmp_path: Path) -> None:
    rank = drawn(
        tmp_path, kernel(0, 1000), kernel(400, 1000, name="pdl"), flow("f", 400, 1, pid=0, tid=7), kernel(1000, 100)
    )
    events = written(tmp_path, rank)
    assert slices(events, "GPU 0 stream 7") == [("gemm", 0, 1000), ("gemm", 1000, 100)]
    assert slices(events, "GPU 0 stream 7, overlapping 2") == [("pdl", 400, 1000)]
    assert track_names(events)[1, next(e["tid"] for e in events if e["ph"] == "f")] == "GPU 0 stream 7, overlapping 2"


def test_nested_host_events_stay_on_one_track_and_the_outer_is_written_first(tmp_path: Path) -> None:
    nested = [
        flow("s", 0, 1),
        host(0, 500, name="inner"),
        host(0, 1000),
        host(100, 900 - 500, name="inmost"),
        host(1000, 5, name="next"),
    ]
    events = written(tmp_path, drawn(tmp_path, *nested))
    names = ["aten::mm", "inner", "ac2g", "inmost", "next"]
    assert [e["name"] for e in events if e["ph"] in "Xs"] == names
    assert len(slices(events, "thread 4712, process 4711")) == 4


def test_annotations_of_the_device_have_a_track_beside_its_work(tmp_path: Path) -> None:
    notes = [kernel(0, 1000, cat="gpu_user_annotation", name="step"), kernel(500, 1000), flow("f", 0, 2, pid=0, tid=7)]
    events = written(tmp_path, drawn(tmp_path, *notes))
    assert slices(events, "GPU 0 stream 7") == [("gemm", 500, 1000)]
    assert slices(events, "GPU 0 stream 7, annotations") == [("step", 0, 1000)]
    assert track_names(events)[1, next(e["tid"] for e in events if e["ph"] == "f")] == "GPU 0 stream 7, annotations"


def test_flatouts_tracks_come_first_and_each_rank_is_a_process(tmp_path: Path) -> None:
    ranks = [
        drawn(
            tmp_path,
            kernel(5, 10),
            host(0, 10),
            rank=rank,
            segments=segments((0, 10, Part.COMPUTE), (10, 15, Part.WAIT)),
            slices=(wait(rank, 2, "compute", 10, 5.0),),
        )
        for rank in (0, 3)
    ]
    found = written(tmp_path, *ranks)
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 3"]
    labels = ["Flatout parts", "Flatout blame", "thread 4712, process 4711", "GPU 0 stream 7"]
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == labels * 2
    orders = [e["args"]["sort_index"] for e in found if e["name"] == "thread_sort_index"]
    assert orders == sorted(orders)
    tracks = set(track_names(found))
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert not {tid for _, tid in tracks} & {pid for pid, _ in tracks}
    assert 0 not in {pid for pid, _ in tracks}


def test_parts_are_the_segments_with_neighbours_joined(tmp_path: Path) -> None:
    pieces = segments((0, 10, Part.COMPUTE), (10, 25, Part.COMPUTE), (25, 1030, Part.WAIT), (1030, 1031, Part.COMPUTE))
    events = written(tmp_path, drawn(tmp_path, segments=pieces))
    assert slices(events, "Flatout parts") == [("compute", 0, 25), ("wait", 25, 1005), ("compute", 1030, 1)]


def wait(waiting: int, blamed: int, part: str, start_ns: int, wait_ns: float) -> BlameSlice:
    return BlameSlice(
        waiting_rank=waiting,
        blamed_rank=blamed,
        part=part,
        start_ns=BASE_NS + start_ns,
        wait_ns=wait_ns,
        step=1,
        match=0,
    )


def test_blame_lies_on_the_waiting_that_follows_its_start(tmp_path: Path) -> None:
    pieces = segments(
        (0, 100, Part.COMPUTE),
        (100, 150, Part.WAIT),
        (150, 200, Part.COMPUTE),
        (200, 400, Part.WAIT),
        (400, 500, Part.TRANSFER),
    )
    charged = (
        wait(0, 2, "compute", 80, 72.0),
        wait(0, 2, "memory_copy", 80, 18.0),
        wait(0, 1, "before_window", 240, 160.0),
    )
    events = written(tmp_path, drawn(tmp_path, segments=pieces, slices=charged))
    both = "waits for rank 2: compute 80 %, rank 2: memory copy 20 %"
    assert slices(events, "Flatout blame") == [
        (both, 100, 50),
        (both, 200, 40),
        ("waits for rank 1: late before the recording", 240, 160),
    ]


def test_the_clock_offset_moves_the_events_onto_the_segments(tmp_path: Path) -> None:
    rank = drawn(tmp_path, kernel(0, 10), segments=segments((-500, -490, Part.COMPUTE)), clock_offset_ns=-500)
    events = written(tmp_path, rank)
    assert slices(events, "GPU 0 stream 7") == [("gemm", -500, 10)]
    assert slices(events, "Flatout parts") == [("compute", -500, 10)]


def test_ranks_are_taken_one_by_one(tmp_path: Path) -> None:
    taken = []

    def ranks() -> Iterator[PerfettoRank]:
        for rank in range(3):
            taken.append(rank)
            yield drawn(tmp_path, kernel(rank * 5, 10), rank=rank)

    write_perfetto(tmp_path / "trace.json", ranks(), origin_ns=BASE_NS + 7)
    found = json.loads((tmp_path / "trace.json").read_bytes(), parse_float=str)["traceEvents"]
    assert [e["ts"] for e in found if e["ph"] == "X"] == ["-0.007", "-0.002", "0.003"]
    assert taken == [0, 1, 2]


def test_texts_that_perfetto_refuses_keep_the_file_readable(tmp_path: Path) -> None:
    name = 'a"b\\c\x00\x1b[31m\n</script>\ud800 \U0001f600 кернел \\u0001'
    events = written(tmp_path, drawn(tmp_path, kernel(0, 1, name=name)))
    shown = 'a"b\\c\\u0000\\u001b[31m\n</script>\\ud800 \U0001f600 кернел \\u0001'
    assert slices(events, "GPU 0 stream 7") == [(shown, 0, 1)]


def test_a_damaged_file_gives_the_events_that_can_be_read(tmp_path: Path) -> None:
    events = [kernel(number * 10, 5, name=f"k{number}", args={"grid": [number]}) for number in range(40)]
    text = as_json({"traceEvents": events})
    text = text.replace('"name":"k7"', '"name":"k\x01"').replace('"grid":[9]', '"grid":[9')
    text = text[: text.index('"k38"') + 20]  # the file ends in the middle of an event
    rank = PerfettoRank(rank=0, originals=originals(tmp_path, [], text=text), segments=segments())
    found = [e for e in written(tmp_path, rank) if e["ph"] == "X"]
    assert [e["name"] for e in found] == ["k " if number == 7 else f"k{number}" for number in range(38)]
    assert [e["args"] for e in found if e["name"] != "k9"] == [{"grid": [n]} for n in range(38) if n != 9]


def test_events_without_a_time_that_can_be_used_are_left_out_and_counted(tmp_path: Path) -> None:
    broken = [
        {**kernel(5, 1), "ts": "soon"},
        kernel(0, 1),
        kernel(9, 1, ts=-(10**12)),
        {"ph": "i", "name": "x", "pid": 1},
    ]
    assert write_perfetto(tmp_path / "a.json", [drawn(tmp_path, *broken)], origin_ns=ORIGIN_NS) == {0: 3}
    found = json.loads((tmp_path / "a.json").read_bytes())["traceEvents"]
    assert len([e for e in found if e["ph"] != "M"]) == 1
    assert write_perfetto(tmp_path / "b.json", [drawn(tmp_path, kernel(0, 1))], origin_ns=ORIGIN_NS) == {}


@pytest.mark.parametrize("duration", [{"dur": -1}, {"dur": None}, {"dur": "2.5"}, {}])
def test_every_complete_event_has_a_duration(tmp_path: Path, duration: dict[str, Any]) -> None:
    event = {key: value for key, value in kernel(0, 1).items() if key != "dur"} | duration
    assert slices(written(tmp_path, drawn(tmp_path, event)), "GPU 0 stream 7") == [
        ("gemm", 0, 2500 if duration.get("dur") == "2.5" else 0)
    ]


def test_a_real_job_is_written_back_whole(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    diagnose_paths([TRACES], engine="serial", then=lambda done: write_done(done, out))
    found = json.loads(out.read_bytes(), parse_float=Decimal)["traceEvents"]
    with tarfile.open(TRACES) as archive:
        for rank in (0, 1):
            file = archive.extractfile(next(name for name in archive.getnames() if name.endswith(f"rank{rank}.json")))
            assert file is not None
            events = [e for e in json.loads(file.read(), parse_float=Decimal)["traceEvents"] if e["ph"] != "M"]
            again = [e for e in found if e["pid"] == rank + 1 and e["ph"] != "M" and e.get("cat") != "flatout"]
            assert Counter(map(said, again)) == Counter(map(said, events))
            shifts = {Decimal(a) - b for a, b in zip(times(events), times(again), strict=True)}
            assert len(shifts) == 1


def write_done(done: Diagnosed, out: Path) -> None:
    assert write_perfetto(out, perfetto_ranks(done), origin_ns=origin_ns(done)) == {}


def said(event: dict[str, Any]) -> str:
    duration = None if "dur" not in event else Decimal(event["dur"]).quantize(Decimal("0.001"))
    return repr([event["ph"], event["name"], event.get("cat"), event.get("args"), event.get("bp"), str(duration)])


def times(events: list[dict[str, Any]]) -> list[Decimal]:
    return sorted(Decimal(event["ts"]) for event in events)


def test_a_job_without_ranks_or_events_is_a_valid_file(tmp_path: Path) -> None:
    assert written(tmp_path) == []
    assert {e["ph"] for e in written(tmp_path, drawn(tmp_path), name="b.json")} == {"M"}


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("old")
    with pytest.raises(OutputError, match="already exists"):
        write_perfetto(tmp_path / "trace.json", [], origin_ns=0)
    write_perfetto(tmp_path / "trace.json", [], origin_ns=0, force=True)
    assert json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"] == []
