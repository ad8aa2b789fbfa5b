"""Run JAX jobs of two processes, over gloo or NCCL, with planted causes, and keep their profiles as small archives.

    python benchmarks/jax_labelled_jobs.py --python VENV/bin/python     # an interpreter with jax

Each job is `jax_labelled_job.py` with one cause: slow compute, slow input or a late start on rank 1, or nothing. The
archives in `tests/read/golden/` are what the suite diagnoses: `tests/read/test_labelled_jax.py`.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CAUSES = ("slow-compute", "slow-input", "late-start", "healthy")
GOLDEN = Path(__file__).parents[1] / "tests" / "read" / "golden"
JOB = Path(__file__).parent / "jax_labelled_job.py"
WORLD = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="the folder of the archives")
    parser.add_argument("--cuda", action="store_true", help="on one GPU per process instead of CPUs")
    parser.add_argument("--cause", action="append", choices=CAUSES, help="run only this cause; may be repeated")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for cause in options.cause or CAUSES:
        with tempfile.TemporaryDirectory() as folder:
            run_job(options.python, cause, Path(folder), is_on_gpu=options.cuda)
            archive = options.out / f"jax_{'cuda_' if options.cuda else ''}{cause.replace('-', '_')}.tar.xz"
            pack(Path(folder), archive)
            print(f"{archive}: {archive.stat().st_size:,} bytes")


def run_job(python: str, cause: str, folder: Path, *, is_on_gpu: bool) -> None:
    """Run the processes of one job to their end, one core each."""
    environment = os.environ | {"JAX_PLATFORMS": "cuda" if is_on_gpu else "cpu"}
    if not is_on_gpu:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    port = str(free_port())
    processes = [
        subprocess.Popen(
            ["taskset", "-c", str(rank), python, str(JOB), str(rank), str(WORLD), port, cause, str(folder)],
            env=environment,
        )
        for rank in range(WORLD)
    ]
    codes = [process.wait(timeout=300) for process in processes]
    if any(codes):
        raise SystemExit(f"the job {cause} ended with {codes}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def pack(folder: Path, archive: Path) -> None:
    """Pack the profiles; the rank is in the name of the folder of each."""
    with tarfile.open(archive, "w:xz") as packed:
        for path in sorted(folder.glob("rank*/plugins/profile/*/*.xplane.pb")):
            member = tarfile.TarInfo(f"{path.relative_to(folder).parts[0]}/host.xplane.pb")
            member.size = path.stat().st_size
            with path.open("rb") as file:
                packed.addfile(member, file)


if __name__ == "__main__":
    main()
