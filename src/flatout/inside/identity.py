"""Find out which rank this process is. In: torch.distributed if it is initialized, else the launcher's variables.

A worker process of a DataLoader is not a rank, whatever its variables say, and neither is a Python program that a rank
or the script has started. This module does not import torch, because a process can fail before it imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    backend: str | None  # backend of the default process group, e.g. "nccl"; None without a process group
    num_nodes: int | None  # None if no launcher reports it


def is_loader_worker() -> bool:
    data = _imported("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def is_helper(environment: Mapping[str, str], folder_name: str) -> bool:
    """Whether this process was started by a Python program of the same rank, directly or through other programs.

    A launcher gives its ranks variables that it does not have itself. `folder_name` is a variable that all processes of
    the job have, and no process outside the job.
    """
    own = _launcher_values(environment)
    pid = os.getppid()
    while pid > 1:
        ancestor = _ancestor(pid)
        if ancestor is None or ancestor.environment.get(folder_name) != environment.get(folder_name):
            return False  # the ancestor is not a process of the job
        if ancestor.program.startswith("python") and _launcher_values(ancestor.environment) == own:
            return True
        pid = ancestor.parent_pid
    return False


class _Ancestor(NamedTuple):
    program: str
    environment: dict[str, str]
    parent_pid: int


def _ancestor(pid: int) -> _Ancestor | None:
    """Return the known facts of a process; None if it belongs to another user, such as Slurm's."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    environment = dict(pair.partition("=")[::2] for pair in map(os.fsdecode, pairs))
    return _Ancestor(program, environment, parent_pid=int(stat.rpartition(")")[2].split()[1]))


def find_identity(environment: Mapping[str, str] = os.environ) -> Identity:
    """Return the rank of this process; without a launcher it is rank 0 of 1."""
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
    """Return a torch module if torch was imported completely; an import that fails midway leaves modules behind."""
    return sys.modules.get(name) if "torch" in sys.modules else None


def _launcher_values(environment: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(environment.get(name) for names in _VARIABLES for name in names)


def _from_variables(environment: Mapping[str, str]) -> tuple[int, int, int | None]:
    for rank_name, size_name, local_name in _VARIABLES:
        rank, size = _whole_number(environment.get(rank_name)), _whole_number(environment.get(size_name))
        if rank is not None and size is not None and rank < size:
            return rank, size, _whole_number(environment.get(local_name))
    return 0, 1, None


def _num_nodes(environment: Mapping[str, str], world_size: int) -> int | None:
    local_size = _whole_number(environment.get("LOCAL_WORLD_SIZE"))
    if local_size:
        return -(-world_size // local_size)
    return _whole_number(environment.get("SLURM_NNODES"))


def _whole_number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return int(text)
