"""Send gradients as 8-bit integers: a quarter of the bytes at any number of ranks.

Each block of 256 entries of a parameter has one scale, its largest magnitude / 127. Every rank gets a part of all
ranks' gradients (all-to-all), adds it up in fp32 in the order of the ranks, and sends the rounded mean to all
(all-gather). An all-gather alone, as in torch's quantization hook, sends every rank's whole gradient to every other
one: more than fp32 by a ring from 8 ranks on. Nothing is kept between steps. The mean of a parameter does not depend on
its bucket, because blocks never span two parameters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from flatout.inside.gradient_hooks.gradient_hook import Gradient, GradientHook, annotate

BLOCK = 256
_LARGEST = 127
_SCALE_BYTES = 4


class Int8Hook(GradientHook):
    kind = "int8"

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        del buffer
        size = self.world_size
        blocks = torch.cat([_blocks(gradient.values) for gradient in gradients])
        num_blocks = len(blocks)
        per_rank = -(-num_blocks // size)
        blocks = pad(blocks, (0, 0, 0, per_rank * size - num_blocks)).view(size, per_rank, BLOCK)
        sent = pack(blocks)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        mean = torch.zeros(per_rank, BLOCK, device=blocks.device)
        for part in received:
            mean += unpack(part)
        packed = pack(mean.div_(size).unsqueeze(0))
        gathered = torch.empty_like(sent)
        dist.all_gather_into_tensor(gathered, packed, group=self.group)
        means = unpack(gathered).view(-1, BLOCK)
        place = 0
        for gradient in gradients:
            count = -(-gradient.values.numel() // BLOCK)
            own = means[place : place + count].view(-1)[: gradient.values.numel()]
            gradient.values.copy_(own.view_as(gradient.values))
            place += count


def _blocks(values: torch.Tensor) -> torch.Tensor:
    """Return the entries in rows of BLOCK, the last one filled with zeros."""
    flat = values.reshape(-1)
    return pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)


def pack(blocks: torch.Tensor) -> torch.Tensor:
    """Return each row of blocks as bytes: integers, then scales. [rows, blocks, BLOCK] -> [rows, bytes].

    A block with an entry that is not finite becomes NaN, so that a gradient scaler sees it.
    """
    scales = blocks.abs().amax(dim=-1, keepdim=True) / _LARGEST
    safe = torch.where(scales > 0, scales, torch.ones_like(scales))
    integers = (blocks / safe).round_().nan_to_num_(nan=_LARGEST).clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    rows = blocks.shape[0]
    as_bytes = [integers.reshape(rows, -1).view(torch.uint8), scales.reshape(rows, -1).view(torch.uint8)]
    return torch.cat(as_bytes, dim=1)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return the blocks of packed bytes: [bytes] or [rows, bytes] -> [.., blocks, BLOCK]."""
    num_blocks = packed.shape[-1] // (BLOCK + _SCALE_BYTES)
    integers = packed[..., : num_blocks * BLOCK].view(torch.int8).to(torch.float32)
    scales = packed[..., num_blocks * BLOCK :].contiguous().view(torch.float32)
    return integers.unflatten(-1, (num_blocks, BLOCK)) * scales.unsqueeze(-1)


@annotate
def int8_hook(state: Int8Hook, bucket: Any) -> Any:
    return state.run(bucket)
