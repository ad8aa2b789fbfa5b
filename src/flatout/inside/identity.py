"""Which rank this process is. In: torch.distributed where it is set up, else the launcher's variables.

A worker process of a DataLoader is no rank, whatever its variables say, and neither is a Python program that a rank
or the script has started. Nothing of torch is imported here: a process may fail before that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# (rank, world size, local rank) as torchrun, Slurm's srun, Open MPI and MPICH name them.
_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    rank: int
    world_size: int
    local_rank: int | None
    backend: str | None  # of the default process group, "nccl" say; None without one
    num_nodes: int | None  # None where no launcher tells


def is_loader_worker() -> bool:
    data = _imported("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def is_helper(environment: Mapping[str, str], folder_name: str) -> bool:
    """Whether a Python program of the same rank has started this one, by whatever is between them.

    A launcher gives its ranks variables that it has not itself. `folder_name`: of a variable that all processes of
    the job have, and nothing around it.
    """
    pid, own = os.getppid(), _of_launcher(environment)
    while pid > 1:
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # another user's, as Slurm's: no process of the job
            return False
        its = dict(pair.partition("=")[::2] for pair in map(os.fsdecode, pairs))
        if its.get(folder_name) != environment.get(folder_name):
            return False
        if program.startswith("python") and _of_launcher(its) == own:
            return True
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def find_identity(environment: Mapping[str, str] = os.environ) -> Identity:
    """A process that nobody gave a number is rank 0 of 1."""
    rank, world_size, local_rank = _from_variables(environment)
    backend = None
    distributed = _imported("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        backend = str(distributed.get_backend())
    return Identity(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        backend=backend,
        num_nodes=_num_nodes(environment, world_size),
    )


def _imported(name: str) -> Any:
    """A module of torch, where torch was imported as a whole: what failed in the middle of that leaves some behind."""
    return sys.modules.get(name) if "torch" in sys.modules else None


def _of_launcher(environment: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(environment.get(name) for names in _VARIABLES for name in names)


def _from_variables(environment: Mapping[str, str]) -> tuple[int, int, int | None]:
    for rank_name, size_name, local_name in _VARIABLES:
        rank, size = _whole(environment.get(rank_name)), _whole(environment.get(size_name))
        if rank is not None and size is not None and rank < size:
            return rank, size, _whole(environment.get(local_name))
    return 0, 1, None


def _num_nodes(environment: Mapping[str, str], world_size: int) -> int | None:
    local_size = _whole(environment.get("LOCAL_WORLD_SIZE"))
    if local_size:
        return -(-world_size // local_size)
    return _whole(environment.get("SLURM_NNODES"))


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
