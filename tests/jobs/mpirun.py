"""Start a command once for each rank, with the variables that Open MPI's or MPICH's mpirun sets.

Usage: mpirun.py (ompi | pmi) NUM_RANKS COMMAND...
"""

from __future__ import annotations

import os
import subprocess
import sys

NAMES = {
    "ompi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "pmi": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}


def main() -> None:
    names, count, command = NAMES[sys.argv[1]], int(sys.argv[2]), sys.argv[3:]
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, **dict(zip(names, (f"{rank}", f"{count}", f"{rank}"), strict=True))}
        )
        for rank in range(count)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
