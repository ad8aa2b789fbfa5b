"""What the heartbeat of `flatout run` costs a training step: as `profile_overhead.py`, which does the measuring.

    python benchmarks/run_overhead.py [--device cpu|cuda] [--pairs 1000] [--out FILE]

The hooks in and out, in alternating blocks within one process, and the hooks alone after whole steps. The keeper is
a process of its own, which reads the ranks' files four times a second on whatever core is free: of that, the CPU time
of a look at eight ranks is told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from profile_overhead import LIMIT, run, told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=1000, help="steps after which the hooks are called alone")
    parser.add_argument("--pin", type=int, help="the core to train on (default: the last one allowed; -1: none)")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLATOUT_HEARTBEAT"] = folder
        result = run(arguments)
        beats = list(Path(folder).glob("beat-*"))
        assert len(beats) == 1, "the heartbeat did not beat"
        result["keeper_us_per_look_of_8_ranks"] = look_us(Path(folder), beats[0])
    result["schema"] = "flatout/benchmark-run-overhead"
    text = json.dumps(result, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    print(text if arguments.json else told(result))
    if not arguments.json:
        share = result["keeper_us_per_look_of_8_ranks"] * 4 / 1e6
        print(f"keeper, 8 ranks: {result['keeper_us_per_look_of_8_ranks']:.0f} us of CPU a look, {share:.2%} of a core")
    return int(result["hooks_alone"]["share_of_step"] > LIMIT)


def look_us(folder: Path, beat: Path) -> float:
    """CPU microseconds of one look: read, account for, look for a hang; the median of 200."""
    from flatout.keep.account import Account
    from flatout.keep.busy import work_of
    from flatout.keep.hang_timeout import HangTimeout
    from flatout.keep.hang_watch import HangWatch
    from flatout.keep.heartbeats import HeartbeatReader, ranks_of

    for number in range(1, 8):
        (folder / f"{beat.name}{number}").write_bytes(beat.read_bytes())
    beats, account = HeartbeatReader(folder), Account(0, 8)
    account.attempt_begins(0, is_first=True, farthest=0)
    watch = HangWatch(HangTimeout(), lambda pulses: {}, work_of)
    costs = []
    for number in range(200):
        began = time.process_time()
        pulses = beats.read()
        assert len(pulses) == 8
        account.look(number, ranks_of(pulses), lambda pulse: 0)
        watch.look(number / 4, pulses)
        costs.append(time.process_time() - began)
    return statistics.median(costs) * 1e6


if __name__ == "__main__":
    sys.exit(main())
