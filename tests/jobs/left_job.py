"""Two gloo ranks; after three steps rank 1 does what `--fault` names, and rank 0 goes on."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault")
fault = parser.parse_args().fault
dist.init_process_group("gloo")
layers = torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))  # rank 0 broadcasts the statistics in each step
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(8):
    if step == 3 and dist.get_rank() == 1:
        if fault == "exit0":
            sys.exit(0)
        if fault == "osexit0":
            os._exit(0)
        if fault == "osexit3":
            os._exit(3)
        if fault == "nan":
            print("Loss is nan, stopping training", file=sys.stderr)
            sys.exit(1)
        if fault == "order":
            dist.broadcast(torch.zeros(3), 0)
    optimizer.zero_grad()
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
