"""Combine what each rank recorded of its first steps: the `GradientNorms` and the `StartState` of each optimizer.

The norm of a parameter that is sharded over the ranks (DTensor) is the root of the sum of squares. If each rank has the
complete parameter, the ranks' norms are bitwise equal once its gradient is reduced: their spread is kept, before and
after clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.records.trial import GradientNorms, StartState

FAINT = 1e-4  # share of the norm of all parameters: less can be mere rounding, as for a bias before a batch norm


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    has_state: bool
    weights: str | None


class _Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    num_parameters: int | None  # None: unknown
    sharded: tuple[int, ...]
    steps: tuple[tuple[float, ...] | None, ...]  # of each parameter
    unclipped: tuple[tuple[float, ...] | None, ...]  # the same before clipping; None: not clipped, or unknown
    start: _Start | None = None


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    optimizers: tuple[_Optimizer, ...]


def read_start(folder: Path, num_ranks: int) -> tuple[StartState, ...]:
    """Read the state in which each optimizer began; empty if a rank wrote none, or the state is unknown."""
    states = []
    for of_ranks in zip(*(rank.optimizers for rank in _read_ranks(folder, num_ranks)), strict=False):
        starts = [rank.start for rank in of_ranks if rank.start is not None]
        if len(starts) != len(of_ranks):
            return ()
        digests = [start.weights for start in starts if start.weights is not None]
        states.append(
            StartState(
                num_steps=max(start.num_steps for start in starts),
                has_state=any(start.has_state for start in starts),
                weights=" ".join(dict.fromkeys(digests)) if len(digests) == len(starts) else None,
            )
        )
    return tuple(states)


def read_gradients(folder: Path, num_ranks: int) -> tuple[GradientNorms, ...]:
    """Read the files of all ranks in the folder; empty if a rank wrote none, or nothing is known."""
    ranks = _read_ranks(folder, num_ranks)
    if not ranks:
        return ()
    norms = tuple(_together(optimizers) for optimizers in zip(*(rank.optimizers for rank in ranks), strict=False))
    return norms if any(optimizer.num_parameters is not None for optimizer in norms) else ()


def _read_ranks(folder: Path, num_ranks: int) -> list[_Rank]:
    """Read the files of all ranks; empty if a rank wrote none."""
    ranks = []
    for file in sorted(folder.glob(File.GRADIENTS.glob)):
        try:
            # Infinite norms and NaN are written as strings, which `strict` would refuse.
            rank = decode_json(read_bytes(file), _Rank, strict=False)
        except (OSError, msgspec.DecodeError):
            continue  # truncated when its process ended
        if all(map(_is_consistent, rank.optimizers)):
            ranks.append(rank)
    return ranks if len(ranks) == num_ranks else []


def _is_consistent(optimizer: _Optimizer) -> bool:
    """Whether each step has a norm of each parameter, as the recorder writes it; a damaged file may not."""
    count = optimizer.num_parameters
    if count is None:
        return True
    num_norms = {len(norms) for norms in (*optimizer.steps, *optimizer.unclipped) if norms is not None}
    return num_norms <= {count} and all(0 <= place < count for place in optimizer.sharded)


def _together(ranks: Sequence[_Optimizer]) -> GradientNorms:
    """Combine the ranks of one optimizer; its norms are unknown if its ranks hold different parameters."""
    known = {(rank.num_parameters, rank.sharded) for rank in ranks if rank.num_parameters is not None}
    if len(known) != 1:
        return GradientNorms(num_parameters=None, norms=(np.nan,) * min(len(rank.steps) for rank in ranks))
    (num_parameters, sharded), *_ = known
    assert num_parameters is not None
    is_sharded = np.zeros(num_parameters, dtype=np.bool_)
    is_sharded[list(sharded)] = True
    steps = _of_all_ranks([rank.steps for rank in ranks], is_sharded)
    before = _of_all_ranks([rank.unclipped for rank in ranks], is_sharded)
    # If each layer is clipped separately, a parameter's norm after clipping can be equal on all ranks by clipping
    # alone.
    spreads = [step.spread for step in (*steps, *before) if step is not None and step.spread is not None]
    without, absent, faint = _missing_in(steps)
    return GradientNorms(
        num_parameters=num_parameters,
        norms=_norms(steps),
        unclipped=_norms(before) if any(step is not None for step in before) else (),
        without=without,
        absent=absent,
        faint=faint,
        rank_spread=max(spreads, default=None),
    )


def _of_all_ranks(
    by_rank: Sequence[Sequence[tuple[float, ...] | None]], is_sharded: NDArray[np.bool_]
) -> list[_Step | None]:
    """Combine the ranks' norms of each step that all of them have."""
    return [_of_step(of_ranks, is_sharded) for of_ranks in zip(*by_rank, strict=False)]


def _missing_in(steps: Sequence[_Step | None]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the parameters without a gradient in most steps, in any step, and with a faint one in any step."""
    finite = [step for step in steps if step is not None and np.isfinite(step.norms).all()]
    if not finite:
        return (), (), ()
    is_zero = np.array([step.norms == 0 for step in finite])
    is_faint = np.array([step.norms <= FAINT * step.norm for step in finite])
    in_most = np.sum(is_zero, axis=0) > len(finite) / 2
    return _places(in_most), _places(np.any(is_zero, axis=0)), _places(np.any(is_faint, axis=0))


class _Step(NamedTuple):
    norms: NDArray[np.float64]  # of each parameter, of all ranks together
    norm: float  # of all parameters; infinite if one is infinite or NaN
    spread: float | None  # like GradientNorms.rank_spread


def _of_step(of_ranks: Sequence[tuple[float, ...] | None], is_sharded: NDArray[np.bool_]) -> _Step | None:
    if any(norms is None for norms in of_ranks):
        return None
    each = np.array(of_ranks, dtype=np.float64)  # ranks x parameters
    each[np.isnan(each)] = np.inf
    norms = np.sqrt(np.where(is_sharded, (each**2).sum(axis=0), (each**2).mean(axis=0)))
    norm = float(np.sqrt((norms**2).sum()))
    return _Step(norms, norm, _spread(each, ~is_sharded & (norms > FAINT * norm)) if np.isfinite(norm) else None)


def _norms(steps: Sequence[_Step | None]) -> tuple[float, ...]:
    return tuple(np.nan if step is None else step.norm for step in steps)


def _spread(each: NDArray[np.float64], compared: NDArray[np.bool_]) -> float | None:
    if len(each) < 2 or not compared.any():
        return None
    most, least = each[:, compared].max(axis=0), each[:, compared].min(axis=0)
    return float(((most - least) / most).max())


def _places(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())
