"""Which rank this process is. In: torch.distributed where it is set up, else the launcher's variables.

A worker process of a DataLoader is no rank, whatever its variables say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed
import torch.utils.data

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
    return torch.utils.data.get_worker_info() is not None


def find_identity(environment: Mapping[str, str] = os.environ) -> Identity:
    """A process that nobody gave a number is rank 0 of 1."""
    rank, world_size, local_rank = _from_variables(environment)
    backend = None
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        backend = str(distributed.get_backend())
    return Identity(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        backend=backend,
        num_nodes=_num_nodes(environment, world_size),
    )


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
