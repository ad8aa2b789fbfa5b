"""Decide which rank writes which tensors: each byte is written once, spread over the ranks, sharded or replicated.

In: this rank's tensors. Out: its `Item`s, and which of them it writes. A sharded tensor (DTensor) knows which part is
local; one of its replicas writes it. A plain tensor that several ranks have is written by the least loaded of them, if
it is equal on all. If its values differ (batch statistics, hand-written tensor parallelism), each rank writes and reads
back its own. The ranks compare their tensors once, and again after a change.
"""

from __future__ import annotations

import ctypes
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout.checkpoint.peers import Peers
from flatout.checkpoint.problems import CheckpointError
from flatout.checkpoint.safetensors import COMPLEX, NAMES
from flatout.checkpoint.state import Collected

_NUM_SAMPLED = 64  # elements of a plain tensor that the ranks compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A tensor of this rank, or the local part of one."""

    name: str
    local: torch.Tensor
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # offset of the part in the whole tensor
    device: str
    kind: str  # "parameter" (including its optimizer state), "buffer" or "value"
    is_own: bool = False  # belongs to this rank alone: never combined with those of other ranks
    is_sharded: bool = False
    is_written_here: bool = True  # whether this replica of a sharded tensor is the one that writes

    @property
    def num_bytes(self) -> int:
        return int(self.local.numel() * self.local.dtype.itemsize)


def items_of(collected: Collected) -> tuple[list[Item], dict[str, str]]:
    """Return the local parts, and the names of tensors that share another tensor's memory."""
    items, aliases = [], {}
    seen: dict[tuple[object, ...], str] = {}
    for name, tensor in collected.tensors.items():
        for item in _parts(name, tensor, "parameter" if name in collected.parameters else "buffer"):
            local = item.local
            memory = (local.data_ptr(), item.shape, item.offsets, local.dtype, local.stride())
            if local.numel() and memory in seen:
                aliases[name] = seen[memory]
            else:
                seen[memory] = name
                items.append(item)
    items += [_whole(name, tensor, "value", is_own=True) for name, tensor in collected.own.items()]
    return items, aliases


def _parts(name: str, tensor: Any, kind: str) -> list[Item]:
    if not hasattr(tensor, "device_mesh"):
        return [_whole(name, tensor, kind)]
    coordinate, mesh = tensor.device_mesh.get_coordinate(), tensor.device_mesh
    if coordinate is None:
        return []
    chunks = tensor.__create_chunk_list__()
    local = _checked(name, tensor.to_local().detach())
    if len(chunks) != 1 or list(chunks[0].sizes) != list(local.shape):
        raise CheckpointError(f"`{name}` is sharded into parts that are not blocks, which a checkpoint cannot hold")
    # The replica that writes differs by name, so that the work is spread.
    number = zlib.crc32(name.encode())
    is_written_here = all(
        coordinate[place] == number % mesh.size(place)
        for place, placement in enumerate(tensor.placements)
        if placement.is_replicate()
    )
    return [
        Item(
            name=name,
            local=local,
            shape=tuple(tensor.shape),
            offsets=tuple(chunks[0].offsets),
            device=local.device.type,
            kind=kind,
            is_sharded=True,
            is_written_here=is_written_here,
        )
    ]


def _whole(name: str, tensor: Any, kind: str, *, is_own: bool = False) -> Item:
    return Item(
        name=name,
        local=_checked(name, tensor),
        shape=tuple(tensor.shape),
        offsets=(0,) * tensor.dim(),
        device=tensor.device.type,
        kind=kind,
        is_own=is_own,
    )


def _checked(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        hint = "save its plain tensors through your own state_dict()"
        raise CheckpointError(f"`{name}` is a {type(tensor).__qualname__}, which a checkpoint cannot hold", hint=hint)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        what = "on the meta device, without values" if tensor.device.type == "meta" else f"{tensor.layout}"
        raise CheckpointError(
            f"`{name}` is {what}, which a checkpoint cannot hold", hint="make it a dense tensor first"
        )
    if tensor.dtype not in NAMES and tensor.dtype not in COMPLEX:
        hint = "convert it to a dtype that safetensors has"
        raise CheckpointError(f"`{name}` has the dtype {tensor.dtype}, which safetensors does not support", hint=hint)
    return tensor


class Sharing:
    """The ranks' agreement on which rank writes which tensors.

    Each save checks it; the ranks compare again when any rank's tensors differ.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._described = ""
        self._own: set[str] = set()
        self._owners: dict[str, int] = {}
        self._host_owners: dict[str, int] = {}

    def fingerprint(self, items: Sequence[Item]) -> int:
        """Return a number for the ranks to exchange: 0 if nothing has changed since the last time."""
        described = _described(items)
        return 0 if described == self._described else zlib.crc32(described.encode()) or 1

    def compare(self, items: Sequence[Item]) -> None:
        """Agree on which rank writes which tensors. Every rank calls this when any rank's fingerprint was not 0."""
        self._described = _described(items)
        if self._peers.world_size == 1:
            return
        mine = [[i.name, i.num_bytes, i.kind, _sample(i.local)] for i in items if not (i.is_own or i.is_sharded)]
        number = zlib.crc32(json.dumps(mine).encode())
        all_alike = len(set(self._peers.gather(number))) == 1
        lists = [mine] * self._peers.world_size if all_alike else self._peers.gather(mine)
        having: dict[str, list[int]] = {}
        described: dict[str, list[Any]] = {}
        self._own = set()
        for rank, given in enumerate(lists):
            for name, *what in given:
                having.setdefault(name, []).append(rank)
                if described.setdefault(name, what) != what:
                    self._own.add(name)
        everywhere = list(range(self._peers.world_size))
        self._owners = _spread(described, having, everywhere)
        self._host_owners = _spread(described, having, self._peers.host_ranks)

    def own(self, item: Item) -> bool:
        return item.is_own or item.name in self._own

    def is_written_here(self, item: Item, *, is_local: bool = False) -> bool:
        """Whether this rank writes the item. `is_local`: to its host's folder, which must have all its ranks' parts."""
        if self.own(item) or self._peers.world_size == 1:
            return True
        if item.is_sharded:
            # A rank without a part writes that to its host's folder, so that the folder names all tensors.
            return is_local or (item.is_written_here and item.local.numel() > 0)
        owners = self._host_owners if is_local else self._owners
        return owners[item.name] == self._peers.rank


def _spread(described: dict[str, list[Any]], having: dict[str, list[int]], ranks: Sequence[int]) -> dict[str, int]:
    loads = dict.fromkeys(ranks, 0)
    owners = {}
    for name, (num_bytes, kind, _) in sorted(described.items(), key=lambda one: (-one[1][0], one[0])):
        possible = [rank for rank in having[name] if rank in loads]
        if not possible:
            continue
        # Buffers are taken from the first rank, as in DDP: they can diverge after the ranks have compared them.
        owner = min(possible, key=lambda rank: (loads[rank], rank)) if kind == "parameter" else possible[0]
        loads[owner] += num_bytes
        owners[name] = owner
    return owners


def _described(items: Sequence[Item]) -> str:
    return json.dumps(
        [
            [i.name, str(i.local.dtype), i.local.shape, i.offsets, i.is_own, i.is_sharded, i.is_written_here]
            for i in items
        ]
    )


def _sample(tensor: torch.Tensor) -> int:
    """Return the CRC-32 of some of the item's elements."""
    count = tensor.numel()
    if count == 0:
        return 0
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if count > _NUM_SAMPLED and not flat.is_contiguous():
        flat = flat[tuple(slice(0, min(size, 8)) for size in flat.shape)]
    flat = flat.reshape(-1)
    some = flat[:: max(flat.numel() // _NUM_SAMPLED, 1)].cpu().contiguous()
    return zlib.crc32(ctypes.string_at(some.data_ptr(), some.numel() * some.element_size()))
