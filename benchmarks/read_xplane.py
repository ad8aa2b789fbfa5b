"""Read a large XPlane with Flatout and with `jax.profiler.ProfileData`.

    python benchmarks/read_xplane.py --python VENV/bin/python     # an interpreter with jax, for the peer

The profile is a recorded one of `tests/read/golden` whose events are repeated, each time later, to about a million: of
a GPU, with a dozen stats each. Flatout reads it into an event table, which includes sorting and classifying; the peer's
loop takes name, start, duration and stats of each event, which is the least that a tool needs. Each reads in a fresh
process, in turn, ROUNDS times. The seconds are those of the processor, after the imports: other work does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from measure import machine, repository

from flatout.read import wire

ARCHIVE = "tests/read/golden/jax_cuda_slow_input.tar.xz"
EVENTS = 1_000_000
PROFILE_PS = 10**12  # longer than the recorded profile
OURS = """
import sys, time
from pathlib import Path
from flatout.read import open_sources, read_trace, xplane
begin = time.process_time()
with open_sources([Path(sys.argv[1])]) as sources:
    table = read_trace(sources[0])
print(time.process_time() - begin, table.num_events)
"""
PEER = """
import sys, time
from jax.profiler import ProfileData
begin = time.process_time()
count = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            event.name, event.start_ns, event.duration_ns, list(event.stats)
            count += 1
print(time.process_time() - begin, count)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has jax")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=repository() / "benchmarks/results/read_xplane.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.xplane.pb"
        num_events = write_large(path)
        seconds: dict[str, list[float]] = {"flatout": [], "ProfileData": []}
        for _ in range(options.rounds):
            for name, python, code in (("flatout", sys.executable, OURS), ("ProfileData", options.python, PEER)):
                output = subprocess.run([python, "-c", code, str(path)], check=True, capture_output=True, text=True)
                seconds[name].append(float(output.stdout.split()[0]))
        result = {
            "machine": machine(),
            "events": num_events,
            "bytes": path.stat().st_size,
            "rounds": options.rounds,
            "seconds": seconds,
            "events_per_s": {name: round(num_events / statistics.median(of_name)) for name, of_name in seconds.items()},
        }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["events_per_s"]))


def write_large(path: Path) -> int:
    """Write the profile with the events of its lines repeated; return their number."""
    with tarfile.open(repository() / ARCHIVE) as archive:
        file = archive.extractfile("rank0/host.xplane.pb")
        assert file is not None
        data = file.read()
    padded = data + wire.PADDING
    planes = [value for field, value in wire.fields(padded, (0, len(data))) if field == 1 and isinstance(value, tuple)]
    events_of = [
        (span, len(wire.spans_of_field(padded, line, 4)[0])) for span in planes for line in lines(padded, span)
    ]
    repetitions = EVENTS // sum(count for _, count in events_of)
    path.write_bytes(b"".join(message(1, repeated(padded, span, repetitions)) for span in planes))
    return repetitions * sum(count for _, count in events_of)


def lines(data: bytes, plane: wire.Span) -> list[wire.Span]:
    return [value for field, value in wire.fields(data, plane) if field == 3 and isinstance(value, tuple)]


def repeated(data: bytes, plane: wire.Span, repetitions: int) -> bytes:
    """Return the plane, with the events of each of its lines repeated."""
    body = b""
    for field, value in wire.fields(data, plane):
        if isinstance(value, int):
            body += varint(field << 3) + varint(value)
            continue
        text = data[slice(*value)]
        if field == 3:
            start, end, _ = wire.spans_of_field(data, value, 4)
            events = [split_event(data, span) for span in zip(start.tolist(), end.tolist(), strict=True)]
            for shift in range(1, repetitions):
                text += b"".join(message(4, rest + later(offset, shift)) for offset, rest in events)
        body += message(field, text)
    return body


def split_event(data: bytes, span: wire.Span) -> tuple[int, bytes]:
    """Return the offset of an event, and its other fields."""
    offset, rest = 0, b""
    for field, value in wire.fields(data, span):
        if field == 2 and isinstance(value, int):
            offset = value
        elif isinstance(value, int):
            rest += varint(field << 3) + varint(value)
        else:
            rest += message(field, data[slice(*value)])
    return offset, rest


def later(offset_ps: int, shift: int) -> bytes:
    """Return the field with the offset of a repetition of an event, after all earlier ones."""
    return varint(2 << 3) + varint(offset_ps + shift * PROFILE_PS)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


if __name__ == "__main__":
    main()
