"""A job for srun as users write them, which sets up its process group from Slurm's variables.

`srun_job.py STEPS [SECONDS]`: with a pause of so many seconds in each step, for which a test need not pay with a core.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import time

import torch
import torch.distributed
from torch import nn


def main() -> None:
    torch.set_num_threads(1)
    nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    os.environ["MASTER_ADDR"] = subprocess.run(nodes, capture_output=True, text=True, check=True).stdout.split()[0]
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))  # never freed, see jobs/ends_later.py
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(int(sys.argv[1]) * 4, 64), batch_size=4)
    pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    for batch in loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)
    torch.distributed.destroy_process_group()
    print("trained", rank, os.uname().nodename, flush=True)


if __name__ == "__main__":
    main()
