"""Start the sampler on a node without a `flatout profile` process, e.g. if `srun` has started the ranks.

In: this rank. Out: a separate process that writes `host-<hostname>.samples.jsonl` and ends when this rank ends, in
whatever way. The sampler is not a child of the job and holds none of its streams. It runs with the job's Python. If
that Python lacks psutil, there is no file, and the recording says that the node was not sampled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flatout.inside.identity import Identity
from flatout.inside.protocol import File, Variable

_SOURCES = Path(__file__).resolve().parents[3]
_RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('flatout.probe.sampler', None, '__main__')"
)
_IN_THE_BACKGROUND = '"$@" </dev/null >/dev/null 2>&1 &'
_TIMEOUT_S = 5.0


def start_sampler(recording: Path, identity: Identity) -> bool:
    """Start the sampler if this is the node's first rank and the host is not sampled yet; return whether it started."""
    is_first_of_node = identity.rank == 0 if identity.local_rank is None else identity.local_rank == 0
    if not is_first_of_node or not sys.executable:
        return False
    hostname = os.uname().nodename
    samples = recording / File.SAMPLES.of(hostname)
    if samples.exists() or (recording / File.HOST.of(hostname)).exists():
        return False
    environment = {name: value for name, value in os.environ.items() if name != Variable.RECORDING}
    command = [sys.executable, "-c", _RUN, str(_SOURCES), str(samples), "--watch", str(os.getpid())]
    if os.environ.get(Variable.LOADER_STAGES) == "1":
        command += ["--storage", str(recording / File.STORAGE.of(hostname))]
    subprocess.run(
        ["/bin/sh", "-c", _IN_THE_BACKGROUND, "sh", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return True
