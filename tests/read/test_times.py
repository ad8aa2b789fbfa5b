"""Every timestamp is read to the nanosecond that the text says."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.read.conftest import source_of

from flatout.read import read_trace
from flatout.records.events import EventTable

_3_MONTHS_NS = 7_889_238 * 10**9


def table_of_times(folder: Path, times: list[tuple[str, str]]) -> EventTable:
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"op{number}","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}'
        for number, (ts, dur) in enumerate(times)
    )
    path = folder / "trace.json"
    path.write_text(f'{{"traceEvents":[{events}]}}')
    return read_trace(source_of(path))


def ns(text: str) -> int:
    return round(Decimal(text) * 1000)


def us_text(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


relative_ns = st.integers(1, _3_MONTHS_NS)  # a lone 0 a day before all others is a time that was not recorded
absolute_ns = st.integers(1_400_000_000 * 10**9, 2_200_000_000 * 10**9)


@pytest.mark.parametrize("kind", ["relative", "absolute", "whole"])
@given(data=st.data())
def test_times_are_exact(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    starts = data.draw(st.lists(absolute_ns if kind != "relative" else relative_ns, min_size=1, max_size=30))
    durations = data.draw(st.lists(st.integers(0, 10**10), min_size=len(starts), max_size=len(starts)))
    texts = [
        (str(s // 1000), str(d // 1000)) if kind == "whole" else (us_text(s), us_text(d))
        for s, d in zip(starts, durations, strict=True)
    ]
    table = table_of_times(tmp_path_factory.mktemp("times"), texts)
    found = {table.names[n]: (s, d) for n, s, d in zip(table.name, table.start_ns, table.duration_ns, strict=True)}
    assert found == {f"op{number}": (ns(ts), ns(dur)) for number, (ts, dur) in enumerate(texts)}


@pytest.mark.parametrize(
    "text",
    [
        "4959906370831.761",
        "4398046511104.001",  # just above 2^42, where value * 1000 rounds twice
        "4450000000000.999",
        "7889238000000.001",
        "1623142623460111.123",
        "1623142623460111.001",
        "1623142623460111",
        "0.001",
        "1e3",
        "123.4567",  # finer than a nanosecond
        "-12.5",
    ],
)
def test_known_texts(tmp_path: Path, text: str) -> None:
    table = table_of_times(tmp_path, [(text, "1")])
    assert table.start_ns.tolist() == [ns(text)]


def test_events_are_sorted_by_start_then_longest_first(tmp_path: Path) -> None:
    table = table_of_times(tmp_path, [("5", "1"), ("3", "1"), ("5", "9"), ("5", "9"), ("1", "2")])
    assert [table.names[n] for n in table.name] == ["op4", "op1", "op2", "op3", "op0"]
