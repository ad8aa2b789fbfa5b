"""Send gradients as 8-bit integers: a quarter of the bytes at any number of ranks.

Each block of 256 entries of a parameter has one scale, its largest magnitude / 127. Every rank gets a part of all
ranks' gradients (all-to-all), adds it up in fp32 in the order of the ranks, and sends the rounded mean to all
(all-gather). An all-gather alone, as in torch's quantization hook, sends every rank's whole gradient to every other
one: with 8 ranks or more, these are more bytes than fp32 by a ring. Nothing is kept between steps. The mean of a
parameter does not depend on its bucket, because blocks never span two parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from flatout.inside.gradient_hooks.gradient_hook import Gradient, GradientHook, all_gather, annotate

BLOCK = 256
_LARGEST = 127
_SCALE_BYTES = 4


class Int8Hook(GradientHook):
    kind = "int8"

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        size = self.world_size
        is_aligned = all(gradient.entries.numel() % BLOCK == 0 for gradient in gradients)
        blocks = buffer.view(-1, BLOCK) if is_aligned else torch.cat([_blocks(each.entries) for each in gradients])
        num_blocks = len(blocks)
        per_rank = -(-num_blocks // size)
        if per_rank * size > num_blocks:
            blocks = pad(blocks, (0, 0, 0, per_rank * size - num_blocks))
        sent = pack(blocks.view(size, per_rank, BLOCK))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        mean = unpack(received[0])
        for part in received[1:]:
            mean += unpack(part)
        packed = pack(mean.div_(size).unsqueeze(0))
        gathered = sent  # its bytes have been sent
        all_gather(gathered, packed, group=self.group)
        means = unpack(gathered).view(-1, BLOCK)
        if is_aligned:
            buffer.view(-1, BLOCK).copy_(means[:num_blocks])
            return
        place = 0
        for gradient in gradients:
            count = -(-len(gradient.entries) // BLOCK)
            gradient.entries.copy_(means[place : place + count].view(-1)[: len(gradient.entries)])
            place += count


def _blocks(entries: torch.Tensor) -> torch.Tensor:
    """Return the entries in rows of BLOCK, the last one filled with zeros."""
    return pad(entries, (0, -len(entries) % BLOCK)).view(-1, BLOCK)


def pack(blocks: torch.Tensor) -> torch.Tensor:
    """Return each row of blocks as bytes: integers, then scales. [rows, blocks, BLOCK] -> [rows, bytes].

    A block with an entry that is not finite has a scale that is not finite, so that a gradient scaler sees it.
    """
    rows = blocks.shape[0]
    scales = torch.linalg.vector_norm(blocks, math.inf, dim=-1, keepdim=True).div_(_LARGEST)
    divisors = scales.masked_fill(scales == 0, 1.0)
    integers = (blocks / divisors).round_().to(torch.int8)
    return torch.cat([integers.view(rows, -1).view(torch.uint8), scales.view(rows, -1).view(torch.uint8)], dim=1)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return the blocks of packed bytes: [bytes] or [rows, bytes] -> [.., blocks, BLOCK]."""
    num_blocks = packed.shape[-1] // (BLOCK + _SCALE_BYTES)
    integers = packed[..., : num_blocks * BLOCK].view(torch.int8).to(torch.float32)
    scales = packed[..., num_blocks * BLOCK :].contiguous().view(torch.float32)
    return integers.unflatten(-1, (num_blocks, BLOCK)).mul_(scales.unsqueeze(-1))


@annotate
def int8_hook(state: Int8Hook, bucket: Any) -> Any:
    return state.run(bucket)
