"""Use the rates measured by `flatout bench` instead of the vendor's: matmul, memory copies, collectives.

A measured collective rate is divided by the share of the link's rate that the constants assume, so that the model
reproduces the measurement.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, open_file, read_bytes
from flatout.plan.constants import Constants
from flatout.records.plan import ClusterSpec

SCHEMA = "flatout/ceilings"
# Plain copies reach this share of a data sheet's memory rate; the model's constants are shares of the data sheet's
# rate.
_COPY_SHARE = 0.92
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

    def best(self, *names: str, group: str | None = None) -> float | None:
        """Return the highest rate measured under one of the names, for one kind of group."""
        values = [
            measurement.value
            for measurement in self.measurements
            if measurement.name in names and measurement.group == group
        ]
        return max(values, default=None)

    def matmul_shares(self, peaks: dict[str, float]) -> dict[str, float]:
        """Return the highest share of each peak that a matrix multiplication reached, by operand type."""
        shares: dict[str, float] = {}
        for measurement in self.measurements:
            dtype = measurement.dtype
            if measurement.name != "matmul" or dtype is None or dtype not in peaks:
                continue
            if measurement.value > 0:
                shares[dtype] = max(shares.get(dtype, 0.0), measurement.value / peaks[dtype])
        return shares


def is_ceilings(path: Path) -> bool:
    """Whether a file begins like a file written by `flatout bench`."""
    try:
        with open_file(path) as file:
            return SCHEMA.encode() in file.read(200)
    except OSError:
        return False


def with_ceilings(
    cluster: ClusterSpec, shares: dict[str, float], path: Path, constants: Constants
) -> tuple[ClusterSpec, dict[str, float]]:
    """Return the cluster with the measured rates, and the measured share of each peak.

    Raise InputError if the file is unreadable, or has no rate that a plan uses.
    """
    ceilings = _read(path)
    matmul_shares = ceilings.matmul_shares(cluster.peak_flops_per_s)
    copy = ceilings.best("memory_copy")
    in_node = ceilings.best(*_COLLECTIVES, group="node")
    across_nodes = ceilings.best(*_COLLECTIVES, group="across")
    measured: dict[str, float] = {}
    if copy:
        measured["memory_bytes_per_s"] = copy / _COPY_SHARE
    if in_node:
        measured["link_bytes_per_s"] = in_node / constants.link
    if across_nodes:
        measured["nic_bytes_per_s"] = across_nodes / constants.nic
    if not matmul_shares and copy is None and in_node is None and across_nodes is None:
        raise InputError(
            f"`{path}` must have a `matmul` of a type that the GPU has, a `memory_copy` or a collective, but has none",
            hint=f"types of this GPU: {', '.join(cluster.peak_flops_per_s)}",
        )
    changed = msgspec.structs.replace(cluster, origin="measured", **measured)
    return changed, {**shares, **matmul_shares}


def _read(path: Path) -> _Ceilings:
    try:
        ceilings = decode_json(read_bytes(path), type=_Ceilings)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` holds no ceilings: {error}", hint="flatout bench --json writes them") from error
    if ceilings.schema != SCHEMA:
        raise InputError(f"`{path}` must have schema `{SCHEMA}`, but has `{ceilings.schema}`")
    return ceilings
