"""What the process has imported that the ranks are forked from, see `ranks`: else seconds of the time of each."""

from __future__ import annotations

import gc

import numpy.random  # noqa: F401 - numpy imports it when it is first used; each rank sets the seed
import tests.checkpoint.order_job
import tests.checkpoint.training  # noqa: F401
import torch._dynamo  # else imported by the first optimizer
import torch.distributed.fsdp  # noqa: F401

gc.freeze()  # ranks need not look through torch's own objects, again and again
