"""Does a training with each hook resume bit for bit over an emulated slow network?

    python benchmarks/slow_network_resume.py [--out FILE]

Ranks run in network namespaces of this machine, with links of 100 Mbit/s (`tests/slow_network`), and train 1 MiB of
weights (DiLoCo: 270 KB) for 12 steps: once without an interruption, and once ended after step 7 and resumed from the
checkpoint after step 6. The hooks, and with how many ranks, are those of `tests/checkpoint/test_gradient_hooks.py`. The
losses of all steps, the weights and what the optimizer keeps are compared to the bit. Needs root or user namespaces,
and iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kept_result import keep
from tests.checkpoint.test_gradient_hooks import HOOKS, patch
from tests.slow_network.network import slow_network
from tests.slow_network.resumes import Training, resumed

BITS_PER_S = 1e8
MORE_WORDS = {"diloco": ("--width", "256")}  # with 1 MiB of weights, it diverges


def one(name: str) -> dict[str, Any]:
    parameters, options, num_ranks = HOOKS[name]
    words = ["--patch", patch(parameters), *options, *MORE_WORDS.get(name, ())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with slow_network(path, num_nodes=num_ranks, bits_per_s=BITS_PER_S) as network:
            done = resumed(network, path, words, until=12, interrupted_after=7)
    return {
        "num_ranks": num_ranks,
        "resumed_at_step": done.second.start,
        "has_same_bits": done.has_same_bits,
        "whole": told(done.whole),
        "first": told(done.first),
        "second": told(done.second),
    }


def told(training: Training) -> dict[str, Any]:
    return {
        "digest": training.digest,
        "last_loss": training.losses[max(training.losses)],
        "bytes_sent_by_node_0": training.num_bytes,
        "s": round(training.took_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(HOOKS), help="repeatable")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    result: dict[str, Any] = {"bits_per_s": BITS_PER_S, "hooks": {}}
    for name in given.only or HOOKS:
        result["hooks"][name] = {**one(name), "load_1min": round(os.getloadavg()[0], 1)}
        print(name, json.dumps(result["hooks"][name]), file=sys.stderr)
    keep(result, given.out)


if __name__ == "__main__":
    main()
