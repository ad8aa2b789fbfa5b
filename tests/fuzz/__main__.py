"""Fuzz all readers with new seeds, as `make fuzz` does. The exit code is 1 if anything is found."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.fuzzer import Tally, fuzz
from tests.fuzz.readers import READERS


def main() -> int:
    options = _options()
    chosen = [reader for reader in READERS if options.only in reader.name]
    tallies = []
    for reader in chosen:
        first = options.seed * options.inputs
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.monotonic()
            tally = fuzz(reader, range(first, first + options.inputs), Path(folder))
        tallies.append(tally)
        print(f"{_row(tally)}   in {time.monotonic() - began_s:.0f} s", flush=True)
        _print_findings(tally)
        if options.table is not None:  # after each reader, so that a run that is stopped keeps what it found
            _write_table(options.table, options.seed, tallies)
    return int(any(tally.findings for tally in tallies))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=500, help="inputs per reader")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same inputs")
    parser.add_argument("--only", default="", help="readers with this text in their name")
    parser.add_argument("--table", type=Path, help="write the totals of each reader to this JSON file")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    return options


def _write_table(path: Path, seed: int, tallies: list[Tally]) -> None:
    table = {
        "seed": seed,
        "inputs": sum(tally.num_inputs for tally in tallies),
        "findings": sum(len(tally.findings) for tally in tallies),
        "readers": [_record(tally) for tally in tallies],
    }
    path.write_text(json.dumps(table, indent=1) + "\n")


def _record(tally: Tally) -> dict[str, object]:
    return {
        "reader": tally.reader,
        "inputs": tally.num_inputs,
        "refused": tally.num_refused,
        "worst_cpu_s": round(tally.worst_cpu_s, 3),
        "worst_mib": round(tally.worst_bytes / 2**20, 1),
        "findings": len(tally.findings),
    }


def _row(tally: Tally) -> str:
    return (
        f"{tally.reader:34s} {tally.num_inputs:6d} inputs, {tally.num_refused:6d} refused, "
        f"at most {tally.worst_cpu_s:6.2f} s and {tally.worst_bytes / 2**20:6.1f} MiB, {len(tally.findings)} findings"
    )


def _print_findings(tally: Tally) -> None:
    counts = Counter((finding.what[:60], finding.where) for finding in tally.findings)
    examples = {(finding.what[:60], finding.where): finding for finding in tally.findings}
    for key, count in counts.most_common():
        finding = examples[key]
        print(f"    {count:5d} x {finding.what} at {finding.where} (number {finding.number})")


if __name__ == "__main__":
    sys.exit(main())
