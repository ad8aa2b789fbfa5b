"""The shortest job of several ranks, as torchrun starts them: each says where it ran and what all together made."""

from __future__ import annotations

import atexit
import os
import time

import torch
import torch.distributed


def main() -> None:
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
    torch.distributed.init_process_group("gloo")
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.distributed.destroy_process_group()
    print(f"rank {rank} of {world_size} on {os.uname().nodename}: {int(total)}", flush=True)


if __name__ == "__main__":
    main()
