"""Start one rank of a script on each of some nodes, as a cluster's launcher does.

Usage: launch.py PID=ADDRESS .. -- SCRIPT ...

Each PID holds a node's namespaces (see `cabled_nodes`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.slow_network.network import LINK
from tests.warm.node import InNamespaces

PORT = 29_657


def main() -> int:
    at = sys.argv.index("--")
    nodes = [word.split("=") for word in sys.argv[1:at]]
    ranks = []
    for rank, (pid, _) in enumerate(nodes):
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(nodes)), "LOCAL_WORLD_SIZE": "1"}
        meeting = {"MASTER_ADDR": nodes[0][1], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": LINK}
        ranks.append(
            subprocess.Popen(
                [sys.executable, *sys.argv[at + 1 :]],
                env={**os.environ, **place, **meeting, "OMP_NUM_THREADS": "1"},
                preexec_fn=InNamespaces(int(pid)),
            )
        )
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
