"""Damaged files are read as far as they can be, each loss or repair is named with its number, and nothing raises."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.read.conftest import source_of
from tests.read.samples import (
    BASE_NS,
    assert_same_table,
    event,
    kernel,
    problems,
    small_events,
    small_trace,
    to_ns,
)

from flatout.attribute.steps import host_steps
from flatout.errors import InputError
from flatout.read import event_text, lenient, read_trace
from flatout.read.table import NO_NAME
from flatout.records.events import NULL, EventTable, Kind

Read = Callable[..., EventTable]
Write = Callable[..., Path]

PRETTY = json.dumps(small_trace(small_events(40)), indent=2)
COMPACT = json.dumps(small_trace(small_events(40)), separators=(",", ":"))
NUM_X = sum(e["ph"] == "X" for e in small_events(40))


def edited(text: str, *changes: tuple[str, str], count: int = 1) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, count)
    return text


@pytest.mark.parametrize("text", [PRETTY, COMPACT], ids=["pretty", "compact"])
class TestOneBadEvent:
    """One of the many events is damaged; all others are read, and so is the one where that is possible."""

    def test_control_character_in_a_name(self, read: Read, text: str) -> None:
        table = read(edited(text, ("gemm", "ge\x01mm")))
        assert table.num_events == NUM_X and "ge mm" in table.names
        assert problems(table) == "1 control character in texts was replaced by spaces"

    def test_newline_in_a_name(self, read: Read, text: str) -> None:
        table = read(edited(text, ("gemm", "ge\nmm")))
        assert table.num_events == NUM_X and "ge mm" in table.names

    def test_bad_utf8_in_a_name(self, read: Read, text: str) -> None:
        table = read(text.encode().replace(b"gemm", b"ge\xff\xfemm", 1))
        assert table.num_events == NUM_X and "ge\ufffd\ufffdmm" in table.names
        assert problems(table) == "2 bytes that are not UTF-8 were replaced"

    def test_unescaped_quotes_in_a_name(self, read: Read, text: str) -> None:
        table = read(edited(text, ("gemm", 'ge{"device": "cpu"}mm')))
        assert table.num_events == NUM_X and 'ge{"device": "cpu"}mm' in table.names
        assert problems(table) == "1 event of broken JSON was repaired"
        row = table.names.index('ge{"device": "cpu"}mm')
        (at,) = (table.name == row).nonzero()[0]
        assert table.kind[at] == Kind.KERNEL and table.correlation[at] == 1 and table.stream[at] == 7

    def test_backslash_that_escapes_nothing(self, read: Read, text: str) -> None:
        table = read(edited(text, ("gemm", r"C:\gemm")))
        assert table.num_events == NUM_X and r"C:\gemm" in table.names

    @pytest.mark.parametrize("value", ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity"])
    def test_no_number_in_an_argument(self, read: Read, text: str, value: str) -> None:
        table = read(edited(text, ("4096", value)))
        assert table.num_events == NUM_X
        assert "1 value is infinite or not a number" in problems(table)
        assert sum(table.num_bytes == NULL) == NUM_X - 39

    def test_no_number_as_start(self, read: Read, text: str) -> None:
        start = str(small_events(1)[2]["ts"])
        table = read(text.replace(start, "nan", 1))
        assert table.num_events == NUM_X - 1
        assert "1 event has no usable start time" in problems(table)

    def test_number_as_text(self, read: Read, text: str) -> None:
        start = str(small_events(1)[2]["ts"])
        assert_same_table(read(text.replace(start, f'"{start}"', 1)), read(text))

    def test_missing_comma_between_events(self, read: Read, text: str) -> None:
        at = text.index("},", text.index("gemm")) + 1
        table = read(text[:at] + text[at + 1 :])
        assert table.num_events >= NUM_X - 1

    def test_garbage_between_events(self, read: Read, text: str) -> None:
        at = text.index("},", text.index("gemm")) + 2
        table = read(text[:at] + "\x00\x00!!garbage" + text[at:])
        assert table.num_events >= NUM_X - 2

    def test_a_hole_in_the_middle(self, read: Read, text: str) -> None:
        at = text.index("gemm")
        table = read(text[:at] + text[at + 3000 :])
        lost = NUM_X - table.num_events
        assert 1 <= lost < 20 and table.quality


def test_all_times_as_text(read: Read) -> None:
    events = [{**e, "ts": str(e["ts"]), "dur": str(e.get("dur", 0))} for e in small_events()]
    good = read(small_trace())
    table = read(small_trace(events))
    assert_same_table(table, good)


def test_trailing_commas(read: Read) -> None:
    text = json.dumps(small_trace())
    good = read(small_trace())
    at = text.index('], "traceName"')
    assert_same_table(read(text[:at] + "," + text[at:]), good)
    assert_same_table(read(text[:-1] + ",}"), good)
    assert_same_table(read(text.replace('"grid": [1, 1, 1]}', '"grid": [1, 1, 1,],}')), good)


def test_thousands_of_bad_events_do_not_take_forever(read: Read) -> None:
    text = json.dumps(small_trace(small_events(3000)))
    table = read(text.replace('"gemm"', '"ge"mm"'))
    assert table.num_events == 6 * 3000
    assert problems(table) == "3,000 events of broken JSON were repaired"


@pytest.mark.parametrize(("digits", "is_mark"), [(18, True), (19, False), (30, False), (5000, False)])
def test_a_mark_of_a_step_has_a_number_of_at_most_18_digits(read: Read, digits: int, is_mark: bool) -> None:
    """A longer one does not fit into 64 bits, and Python does not convert one of more than 4,300 digits."""
    number = "1" * digits
    marks = [event("user_annotation", f"ProfilerStep#{number}", 10.0 + 100 * place, 50.0) for place in range(2)]
    steps = host_steps(read(small_trace([*small_events(), *marks])))
    assert (number in map(str, steps.number)) == is_mark
    assert {1, 2} <= set(steps.number)


def test_entries_that_are_no_events(read: Read) -> None:
    table = read(small_trace([*small_events(), None, 7, "text", [], {}, {"a": 1}]))  # type: ignore[list-item]
    assert "4 entries of" in problems(table)
    assert table.num_events == sum(e["ph"] == "X" for e in small_events())


def test_missing_fields(read: Read) -> None:
    def without(*keys: str) -> dict[str, Any]:
        return {key: value for key, value in kernel("gemm", 50.5, 3, correlation=9).items() if key not in keys}

    assert NO_NAME in (table := read([*small_events(), without("name")])).names
    assert "1 event has no name" in problems(table)
    assert "1 event has no usable start" in problems(read([*small_events(), without("ts")]))
    table = read([*small_events(), without("dur")])
    assert "1 event has a negative or no duration" in problems(table)
    assert table.duration_ns[table.start_ns == 50_500].tolist() == [0]
    table = read([without("args")])
    assert (table.device.tolist(), table.stream.tolist(), table.correlation.tolist()) == ([0], [7], [NULL])
    assert read([without("pid", "tid")]).threads == (("0", "0"),)
    assert "1 event of no category" in problems(read([*small_events(), without("cat")]))
    assert read([{**without(), "args": None}]).num_events == 1
    assert read([without("ph")]).num_events == 1  # a duration makes it a complete event


def test_odd_types(read: Read) -> None:
    odd = {**kernel("gemm", 1, 2), "pid": None, "tid": 7.0, "name": 5}
    assert read([odd]).num_events == 1
    assert read([kernel("gemm", 1, 2, correlation="12", device="1")]).correlation.tolist() == [12]
    assert read([kernel("gemm", 1, 2, correlation=None)]).correlation.tolist() == [NULL]


def test_numbers_beyond_64_bits(read: Read) -> None:
    table = read([kernel("gemm", 1, 2, correlation=2**64 - 1), kernel("gemm", 1, 2, correlation=10**40)])
    assert table.correlation.tolist() == [NULL, NULL]
    assert "2 ids do not fit into 64 bits" in problems(table)
    table = read([kernel("gemm", 1, 2), kernel("late", 1e300, 2), kernel("later", 10**30, 2)])
    assert table.num_events == 1 and "2 events have no usable start" in problems(table)
    huge = read([kernel("gemm", 1, 10**30), kernel("gemm", 5, 1)])
    assert huge.duration_ns.tolist() == [4000, 1000] and "impossible duration" in problems(huge)


@pytest.mark.parametrize(
    "number", ["1e30000", "-1e30000", "1e999999999", "1e99999999999999999999", "1e-30000", "9" * 5000]
)
@pytest.mark.parametrize("field", ['"ts": 1.5', '"dur": 2.5', '"correlation": 7', '"stream": 3', '"tid": 3'])
def test_absurd_numbers_anywhere(read: Read, number: str, field: str) -> None:
    text = json.dumps([kernel("good", 5, 2), kernel("gemm", 1.5, 2.5, correlation=7, stream=3)])
    assert field in text
    table = read(text.replace(field, field.partition(":")[0] + ": " + number))
    assert "good" in table.names and (table.end_ns >= table.start_ns).all()


@pytest.mark.parametrize("text", [PRETTY, COMPACT], ids=["pretty", "compact"])
@pytest.mark.parametrize("compress", [False, True])
def test_truncated_anywhere(write: Write, text: str, compress: bool) -> None:
    """Every event that is whole in what is left is read."""
    generator = random.Random(0)
    good = read_trace(source_of(write(text)))
    for _ in range(40):
        length = generator.randrange(text.index("gemm") + 400, len(text) - 40)
        table = read_trace(source_of(write(text[:length], "cut.json.gz" if compress else "cut.json")))
        num_whole = text[:length].count('"ph": "X"' if text is PRETTY else '"ph":"X"')
        assert num_whole - 1 <= table.num_events <= num_whole
        assert "truncated" in problems(table)
        assert set(table.start_ns.tolist()) <= set(good.start_ns.tolist())
        assert set(table.duration_ns.tolist()) <= set(good.duration_ns.tolist())


def test_truncated_gzip(write: Write) -> None:
    data = gzip.compress(PRETTY.encode(), mtime=0)
    for share in (0.5, 0.9, 0.999):
        table = read_trace(source_of(write(data[: int(len(data) * share)], "trace.json")))
        assert 0 < table.num_events <= NUM_X
        assert "is truncated" in problems(table)


def test_damaged_gzip(write: Write) -> None:
    noise = random.Random(1)
    text = json.dumps(small_trace([{**e, "noise": noise.random()} for e in small_events(2000)]))
    data = bytearray(gzip.compress(text.encode(), mtime=0))
    data[len(data) // 2] ^= 0xFF
    table = read_trace(source_of(write(bytes(data), "trace.json")))
    assert 1000 < table.num_events <= 12_000
    assert "the compressed data is damaged" in problems(table)


def test_wrong_checksum_and_padding_and_members(write: Write) -> None:
    data = gzip.compress(PRETTY.encode(), mtime=0)
    good = read_trace(source_of(write(PRETTY)))
    wrong = read_trace(source_of(write(data[:-8] + b"\0\0\0\0" + data[-4:], "a.json")))
    assert_same_table(wrong, good)
    assert "incorrect data check" in problems(wrong)
    assert_same_table(read_trace(source_of(write(data + b"\0" * 1000, "b.json"))), good)
    parts = gzip.compress(PRETTY[:5000].encode(), mtime=0) + gzip.compress(PRETTY[5000:].encode(), mtime=0)
    assert_same_table(read_trace(source_of(write(parts, "c.json"))), good)


def test_a_top_level_list_without_its_end(read: Read) -> None:
    text = json.dumps(small_events())
    table = read(text[:-1])  # the Trace Event Format allows it
    assert table.num_events == sum(e["ph"] == "X" for e in small_events())
    assert "truncated" in problems(table)
    assert _limits(table) == {None}


def test_a_truncated_trace_allows_no_confident_finding(read: Read, write: Write) -> None:
    """Events are not in order of time: half a file has all operators, and half of the kernels of each step."""
    assert _limits(read(COMPACT)) == set()
    assert "inconclusive" in _limits(read(COMPACT[: len(COMPACT) // 2]))
    packed = gzip.compress(json.dumps(small_events(40)).encode(), mtime=0)
    path = write("", "cut.json.gz")
    path.write_bytes(packed[: len(packed) // 2])  # a bare list, whose end is missing for certain
    assert "inconclusive" in _limits(read_trace(source_of(path)))


def _limits(table: EventTable) -> set[str | None]:
    return {note.max_confidence for note in table.quality}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n ", "is not a JSON trace"),
        (b"hello", "is not a JSON trace"),
        (b"\x7fELF\x02\x01", "is not a JSON trace"),
        (b'{"a": 1}', 'no list "traceEvents"'),
        (b'{"traceEvents": null}', 'no list "traceEvents"'),
        (b'{"traceEvents": []}', "has no events"),
        (b'{"traceEvents": [', "has no events"),
        (b"[]", "has no events"),
        (b"[1, 2, 3]", "has no events"),
        (b'{"traceEvents": [{]}', "has no events"),
        (b"[" * 100_000, "has no events"),
        (b'{"traceEvents": ' + b"[" * 100_000, "has no events"),
        (b'{"schema": "flatout/diagnosis", "version": 1}', "is a Flatout report"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"{", mtime=0)[:8], "has no readable events"),
        (b"\x1f\x8b", "has no readable events"),
        (json.dumps(small_trace([{"ph": "M", "name": "process_name", "args": {}}])).encode(), "none of an operator"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_a_hint(write: Write, content: bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(InputError) as error:
        read_trace(source_of(path))
    assert str(error.value).startswith("trace.json ") and message in str(error.value)
    assert "\n" not in str(error.value) and error.value.hint


def test_random_damage_never_raises_anything_else(write: Write) -> None:
    generator = random.Random(2)
    original = PRETTY.encode()
    for _ in range(150):
        data = bytearray(original)
        for _ in range(generator.randrange(1, 30)):
            at = generator.randrange(len(data))
            what = generator.randrange(3)
            if what == 0:
                data[at] = generator.randrange(256)
            elif what == 1:
                del data[at : at + generator.randrange(1, 200)]
            else:
                data[at:at] = generator.choice([b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\x00", b"\xff"])
        try:
            table = read_trace(source_of(write(bytes(data))))
        except InputError:
            continue
        assert table.num_events <= NUM_X + 30


def test_metadata_may_come_before_or_after_the_events(read: Read) -> None:
    trace = small_trace()
    events = trace.pop("traceEvents")
    before = read({**trace, "traceEvents": events})
    after = read({"traceEvents": events, **trace})
    assert_same_table(before, after)
    assert before.meta == after.meta and after.meta.base_ns == BASE_NS and after.meta.rank == 3


def test_lists_of_objects_in_arguments_are_no_events(read: Read) -> None:
    frames = [{"name": "f", "line": 1}, {"name": "g", "line": 2}]
    events = [{**e, "args": {**e.get("args", {}), "frames": frames}} for e in small_events(40)]
    good = read(small_trace(small_events(40)))
    for text in (json.dumps(small_trace(events)), json.dumps(small_trace(events), indent=1)):
        assert_same_table(read(text), good)
        broken = read(text.replace("gemm", 'ge"mm', 1))
        assert broken.num_events == good.num_events


def test_an_event_of_many_megabytes(read: Read) -> None:
    events = small_events()
    events[3] = {**events[3], "args": {**events[3]["args"], "Call stack": "x" * (3 << 20)}}
    table = read(small_trace(events))
    assert table.num_events == sum(e["ph"] == "X" for e in events) and not table.quality


def test_a_text_of_many_megabytes_in_broken_json_takes_little_more_memory() -> None:
    """A pattern that can go back notes each character: hundreds of megabytes for these four."""
    text = b'{"ph": "X", "ts": 1, "dur": 2, "name": "' + b"x\\n" * (4 << 20 >> 1) + b'", "args": {"a" 1}}'
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")
    assert len(lenient.objects(text, Counter())) == 1
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    assert (int(peak.split()[1]) << 10) - before_bytes < 128 << 20


def test_a_file_without_the_end_of_an_event_is_not_read_into_memory(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_text, "_MAX_EVENT_BYTES", 1 << 20)
    path = write('{"traceEvents": [{"ph": "X", "name": "' + "x" * (4 << 20))
    with pytest.raises(InputError, match=r"more than 1\.00 MiB without the end of an event"):
        read_trace(source_of(path))


def test_keys_in_any_order(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    good = read(small_trace(small_events(100)))
    monkeypatch.setattr(event_text, "BLOCK_BYTES", 2000)
    assert_same_table(read(json.dumps(small_trace(small_events(100)), sort_keys=True)), good)
    backwards = [dict(reversed(e.items())) for e in small_events(100)]
    assert_same_table(read(small_trace(backwards)), good)
    broken = json.dumps(small_trace(backwards)).replace('"gemm"', '"ge"mm"', 1)
    assert read(broken).num_events == good.num_events


def test_times_of_a_damaged_file_are_those_of_the_good_one(read: Read) -> None:
    text = json.dumps(small_trace()).replace('"gemm"', '"ge"mm"')
    table = read(text)
    starts = {to_ns(e["ts"]) + BASE_NS for e in small_events() if e["ph"] == "X"}
    assert set(table.start_ns.tolist()) == starts


def test_base_time_and_absolute_times_together_do_not_overflow(read: Read) -> None:
    table = read(small_trace([event("cpu_op", "a", 4e15, 1)]))
    assert table.meta.base_ns == 0 and table.start_ns.tolist() == [4 * 10**18]


def test_a_time_of_zero_among_later_ones_is_no_time(read: Read) -> None:
    table = read(small_trace([*small_events(), kernel("lost", 0, 5), kernel("lost", 0.0, 5)]))
    assert "lost" not in table.names and "2 events have no usable start time" in problems(table)
    assert read([kernel("first", 0, 5), kernel("second", 10, 5)]).num_events == 2
    assert read(small_trace([kernel("first", 0, 5)])).num_events == 1


def test_device_numbers_of_any_size(read: Read) -> None:
    table = read([kernel("a", 1, 2, device=2**31 - 1), kernel("b", 2, 2, device=2**31), kernel("c", 3, 2, device=-1)])
    assert table.device.tolist() == [2**31 - 1, 0, 0]  # else from the row


def test_types_with_bad_utf8(read: Read) -> None:
    text = json.dumps(small_trace()).encode().replace(b'"Scalar"', b'"Scal\xffar"')
    assert read(text).num_events == 12


def test_a_table_can_be_sent_to_another_process(read: Read) -> None:
    table = read(small_trace())
    assert_same_table(pickle.loads(pickle.dumps(table)), table)


def test_a_comma_behind_the_last_event_is_told(read: Read) -> None:
    text = json.dumps(small_trace())
    table = read(text.replace('}], "traceName"', '},], "traceName"'))
    assert table.num_events == 12 and problems(table) == "a comma follows the last event, which JSON does not allow"


def test_times_written_as_text_are_told(read: Read) -> None:
    events = [
        kernel("a", 1, 2),
        kernel("b", 3, 2),
        {**kernel("c", 5, 2), "ts": "5.5"},
        {**kernel("d", 9, 2), "dur": "2"},
    ]
    table = read({"traceEvents": events})
    assert table.start_ns.tolist() == [1000, 3000, 5500, 9000] and table.duration_ns.tolist() == [2000] * 4
    assert problems(table) == "2 events have their times written as text"
    assert problems(read({"traceEvents": events[:3]})) == "1 event has its times written as text"


@pytest.mark.parametrize("end", ["", "]", "x]", ",", ", ,]"])
def test_white_space_after_the_last_event_takes_no_time(read: Read, end: str) -> None:
    """A pattern that tries each division of the white space needs hours for this file."""
    text = COMPACT[: COMPACT.rindex("]")] + " " * 400_000 + end
    began_s = time.process_time()
    table = read(text)
    assert time.process_time() - began_s < 2.0
    assert table.num_events == NUM_X
