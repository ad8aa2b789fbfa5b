"""What `flatout bench` measured of a machine, in place of what vendors say of it: products, memory, collectives.

Collectives give the rate that they reach: the constants' share of the link's rate is divided out, so that the model
comes back to what was measured.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.plan.constants import Constants
from flatout.records.plan import Cluster

SCHEMA = "flatout/ceilings"
# What plain copies reach of a data sheet's memory rate: the model's constants are of the data sheet's.
_COPY = 0.92
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


class _Measurement(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    unit: str = ""
    dtype: str | None = None
    group: str | None = None
    size: int | None = None


class _Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    measurements: tuple[_Measurement, ...]


def is_ceilings(path: Path) -> bool:
    """Whether a file begins as one of `flatout bench`."""
    try:
        with path.open("rb") as file:
            return SCHEMA.encode() in file.read(200)
    except OSError:
        return False


def with_ceilings(
    cluster: Cluster, shares: dict[str, float], path: Path, constants: Constants
) -> tuple[Cluster, dict[str, float]]:
    """The cluster with what was measured. InputError: unreadable, or nothing in it is of use."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Ceilings)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` holds no ceilings: {error}", hint="flatout bench --json writes them") from error
    if found.schema != SCHEMA:
        raise InputError(f"`{path}` must be of schema `{SCHEMA}`, but is of `{found.schema}`")
    products: dict[str, float] = {}
    for one in found.measurements:
        if one.name == "matmul" and one.dtype in cluster.peak_flops_per_s and one.value > 0:
            products[one.dtype] = max(products.get(one.dtype, 0.0), one.value / cluster.peak_flops_per_s[one.dtype])
    copy = _best(found, ("memory_copy",))
    node, across = _best(found, _COLLECTIVES, "node"), _best(found, _COLLECTIVES, "across")
    if not products and copy is None and node is None and across is None:
        raise InputError(
            f"`{path}` must have a `matmul` of a type that the GPU has, a `memory_copy` or a collective, but has none",
            hint=f"types of this GPU: {', '.join(cluster.peak_flops_per_s)}",
        )
    return (
        msgspec.structs.replace(
            cluster,
            memory_bytes_per_s=copy / _COPY if copy else cluster.memory_bytes_per_s,
            link_bytes_per_s=node / constants.link if node else cluster.link_bytes_per_s,
            nic_bytes_per_s=across / constants.nic if across else cluster.nic_bytes_per_s,
            origin="measured",
        ),
        {**shares, **products},
    )


def _best(found: _Ceilings, names: tuple[str, ...], group: str | None = None) -> float | None:
    return max((one.value for one in found.measurements if one.name in names and one.group == group), default=None)
