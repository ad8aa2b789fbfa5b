from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.errors import OutputError
from flatout.records.diagnosis import Part
from flatout.records.events import COLUMNS, NULL, EventTable, Kind, TraceMeta
from flatout.records.job import BlameSlice
from flatout.records.timeline import Segments
from flatout.report.perfetto import PerfettoRank, write_perfetto

BASE_NS = 1_764_000_000_123_456_789


def table(events: Sequence[dict[str, Any]]) -> EventTable:
    """An event table of plain rows; `name` and `thread` are texts here."""
    events = sorted(events, key=lambda event: (event["start_ns"], -event["duration_ns"]))
    names = tuple(dict.fromkeys(event["name"] for event in events))
    threads = tuple(dict.fromkeys(event["thread"] for event in events))
    rows = [event | {"name": names.index(event["name"]), "thread": threads.index(event["thread"])} for event in events]
    columns = {
        column: np.array([row.get(column, NULL) for row in rows], dtype=dtype) for column, dtype in COLUMNS.items()
    }
    made = EventTable(
        meta=TraceMeta(path="trace"),
        names=names,
        threads=threads,
        shapes=(),
        types=(),
        collectives=(),
        **columns,
    )
    made.check()
    return made


def kernel(start_ns: int, duration_ns: int, **fields: Any) -> dict[str, Any]:
    return {
        "kind": Kind.KERNEL,
        "name": "gemm",
        "start_ns": BASE_NS + start_ns,
        "duration_ns": duration_ns,
        "thread": ("0", "7"),
        "device": 0,
        "stream": 7,
    } | fields


def host(start_ns: int, duration_ns: int, **fields: Any) -> dict[str, Any]:
    return {
        "kind": Kind.CPU_OP,
        "name": "aten::mm",
        "start_ns": BASE_NS + start_ns,
        "duration_ns": duration_ns,
        "thread": ("4711", "4712"),
    } | fields


def segments(*pieces: tuple[int, int, Part]) -> Segments:
    columns = list(zip(*pieces, strict=True)) or [(), (), ()]
    return Segments(
        start_ns=np.array(columns[0], dtype=np.int64) + BASE_NS,
        end_ns=np.array(columns[1], dtype=np.int64) + BASE_NS,
        part=np.array(columns[2], dtype=np.uint8),
    )


def written(tmp_path: Path, *ranks: PerfettoRank, name: str = "trace.json") -> list[dict[str, Any]]:
    """The events as they are in the file; times stay texts, so that no float rounds them."""
    path = tmp_path / name
    write_perfetto(path, ranks)
    data = path.read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    found = json.loads(data, parse_float=str)
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def ns(text: str) -> int:
    whole, decimals = text.split(".")
    assert len(decimals) == 3
    return int(whole) * 1000 + int(decimals)


def track_names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events: list[dict[str, Any]], track: str) -> list[tuple[str, int, int]]:
    tracks = {key for key, name in track_names(events).items() if name == track}
    return [(e["name"], ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks]


def random_table(seed: int, num_events: int) -> EventTable:
    noise = random.Random(seed)
    rows = []
    for number in range(num_events):
        start_ns, duration_ns = noise.randrange(10**7), noise.randrange(10**5)
        if noise.random() < 0.5:
            kind = noise.choice([Kind.KERNEL, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET])
            stream = noise.choice([7, 20, 2**40])
            rows.append(
                kernel(
                    start_ns,
                    duration_ns,
                    kind=kind,
                    name=f"k{number % 9}",
                    stream=stream,
                    thread=("0", str(stream)),
                    device=noise.choice([0, 1]),
                    correlation=number,
                    num_bytes=noise.choice([NULL, 4096]),
                )
            )
        else:
            kind = noise.choice([Kind.CPU_OP, Kind.RUNTIME, Kind.USER_ANNOTATION, Kind.OVERHEAD, Kind.PYTHON])
            thread = ("1", noise.choice("ab"))
            rows.append(host(start_ns, duration_ns, kind=kind, name=f"h{number % 5}", thread=thread))
    return table(rows)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_every_original_event_is_found_again_to_the_nanosecond(tmp_path: Path, name: str) -> None:
    tables = [random_table(seed, 10_000) for seed in (1, 2)]
    ranks = [PerfettoRank(rank=rank, events=events, segments=segments()) for rank, events in enumerate(tables)]
    events = written(tmp_path, *ranks, name=name)
    origin_ns = min(int(events.start_ns[0]) for events in tables)
    for rank, original in enumerate(tables):
        expected = sorted(
            (original.names[name], start - origin_ns, duration)
            for name, start, duration in zip(
                original.name.tolist(), original.start_ns.tolist(), original.duration_ns.tolist(), strict=True
            )
        )
        found = sorted(
            (e["name"], ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and e["pid"] == rank + 1
        )
        assert found == expected


def test_no_track_has_a_partial_overlap(tmp_path: Path) -> None:
    events = written(tmp_path, PerfettoRank(rank=0, events=random_table(5, 3000), segments=segments()))
    for (pid, tid), label in track_names(events).items():
        spans = sorted(
            ((ns(e["ts"]), -ns(e["dur"])) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)),
        )
        stack: list[int] = []
        for start_ns, minus_duration_ns in spans:
            while stack and stack[-1] <= start_ns:
                stack.pop()
            if stack:
                assert not label.startswith("GPU"), "kernels of one lane do not even nest"
                assert start_ns - minus_duration_ns <= stack[-1]
            stack.append(start_ns - minus_duration_ns)


def test_overlapping_kernels_of_a_stream_get_a_second_lane(tmp_path: Path) -> None:
    overlapping = table([kernel(0, 1000), kernel(400, 1000, name="pdl"), kernel(1000, 100)])
    events = written(tmp_path, PerfettoRank(rank=0, events=overlapping, segments=segments()))
    assert slices(events, "GPU 0 stream 7") == [("gemm", 0, 1000), ("gemm", 1000, 100)]
    assert slices(events, "GPU 0 stream 7, overlapping 2") == [("pdl", 400, 1000)]


def test_nested_host_events_stay_on_one_track(tmp_path: Path) -> None:
    nested = table([host(0, 1000), host(0, 1000, name="inner"), host(100, 900, name="inmost"), host(1000, 5)])
    events = written(tmp_path, PerfettoRank(rank=0, events=nested, segments=segments()))
    assert len(slices(events, "thread 4712 (process 4711)")) == 4


def test_flatouts_tracks_come_first_and_each_rank_is_a_process(tmp_path: Path) -> None:
    events = table([host(0, 10), kernel(5, 10)])
    ranks = [
        PerfettoRank(
            rank=rank,
            events=events,
            segments=segments((0, 10, Part.COMPUTE), (10, 15, Part.WAIT)),
            slices=(wait(rank, 2, "compute", 10, 5.0),),
        )
        for rank in (0, 3)
    ]
    found = written(tmp_path, *ranks)
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 3"]
    labels = ["Flatout parts", "Flatout blame", "thread 4712 (process 4711)", "GPU 0 stream 7"]
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == labels * 2
    orders = [e["args"]["sort_index"] for e in found if e["name"] == "thread_sort_index"]
    assert orders == sorted(orders)
    tracks = set(track_names(found))
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert not {tid for _, tid in tracks} & {pid for pid, _ in tracks}
    assert 0 not in {pid for pid, _ in tracks}


def test_parts_are_the_segments_with_neighbours_joined(tmp_path: Path) -> None:
    pieces = segments((0, 10, Part.COMPUTE), (10, 25, Part.COMPUTE), (25, 1030, Part.WAIT), (1030, 1031, Part.COMPUTE))
    events = written(tmp_path, PerfettoRank(rank=0, events=table([]), segments=pieces))
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
    events = written(tmp_path, PerfettoRank(rank=0, events=table([]), segments=pieces, slices=charged))
    both = "waits for rank 2: compute 80 %, rank 2: memory copy 20 %"
    assert slices(events, "Flatout blame") == [
        (both, 100, 50),
        (both, 200, 40),
        ("waits for rank 1: late before the recording", 240, 160),
    ]


def test_an_arrow_leads_from_the_call_to_the_first_kernel_it_launched(tmp_path: Path) -> None:
    events = table(
        [
            host(0, 10, kind=Kind.RUNTIME, name="cudaGraphLaunch", correlation=9),
            host(0, 20, correlation=77),
            kernel(30, 10, correlation=9),
            kernel(50, 10, correlation=9),
            kernel(70, 10, correlation=5),
        ]
    )
    found = written(tmp_path, PerfettoRank(rank=1, events=events, segments=segments()))
    arrows = [(e["ph"], ns(e["ts"]), e["id"]) for e in found if e["ph"] in "sf"]
    assert arrows == [("s", 0, 2**32), ("f", 30, 2**32)]


def test_the_clock_offset_moves_the_events_onto_the_segments(tmp_path: Path) -> None:
    rank = PerfettoRank(
        rank=0, events=table([kernel(0, 10)]), segments=segments((-500, -490, Part.COMPUTE)), clock_offset_ns=-500
    )
    events = written(tmp_path, rank)
    assert slices(events, "GPU 0 stream 7") == [("gemm", 0, 10)]
    assert slices(events, "Flatout parts") == [("compute", 0, 10)]


def test_with_a_given_origin_ranks_are_taken_one_by_one(tmp_path: Path) -> None:
    taken = []

    def ranks() -> Iterator[PerfettoRank]:
        for rank in range(3):
            taken.append(rank)
            yield PerfettoRank(rank=rank, events=table([kernel(rank * 5, 10)]), segments=segments())

    write_perfetto(tmp_path / "trace.json", ranks(), origin_ns=BASE_NS + 7)
    found = json.loads((tmp_path / "trace.json").read_bytes(), parse_float=str)["traceEvents"]
    assert [e["ts"] for e in found if e["ph"] == "X"] == ["-0.007", "-0.002", "0.003"]
    assert taken == [0, 1, 2]


def test_hostile_names_keep_the_file_readable(tmp_path: Path) -> None:
    name = 'a"b\\c\x00\x1b[31m\n</script>\ud800 кернел'
    events = written(tmp_path, PerfettoRank(rank=0, events=table([kernel(0, 1, name=name)]), segments=segments()))
    shown = 'a"b\\c\\x00\\x1b[31m\\x0a</script>\\ud800 кернел'
    assert slices(events, "GPU 0 stream 7") == [(shown, 0, 1)]


def test_a_job_without_events_is_a_valid_file(tmp_path: Path) -> None:
    assert written(tmp_path) == []
    events = written(tmp_path, PerfettoRank(rank=0, events=table([]), segments=segments()), name="b.json")
    assert {e["ph"] for e in events} == {"M"}


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("old")
    with pytest.raises(OutputError, match="exists already"):
        write_perfetto(tmp_path / "trace.json", [])
    write_perfetto(tmp_path / "trace.json", [], force=True)
    assert json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"] == []
