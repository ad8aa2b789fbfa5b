"""How well GPUs and ports are, as their drivers count it, at one moment."""

from __future__ import annotations

import msgspec


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Counters are since the driver was loaded, those of remapped rows over the card's life. Null: unknown."""

    gpu: int
    uuid: str | None = None
    model: str | None = None
    corrected_errors: int | None = None
    uncorrected_errors: int | None = None
    correctable_remaps: int | None = None
    uncorrectable_remaps: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    pcie_replays: int | None = None
    nvlink_replays: int | None = None  # of all links
    nvlink_recoveries: int | None = None
    margin_c: float | None = None  # degrees below the temperature at which clocks are lowered
    busy_percent: float | None = None
    sm_clock_hz: float | None = None
    recovery_action: int | None = None  # NVML's: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, ...


class PortHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One port of an InfiniBand or RoCE adapter, as the kernel counts it. Null: unknown."""

    device: str
    port: str
    symbol_errors: float | None = None
    link_recoveries: float | None = None
    link_downs: float | None = None


class HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and ports of a host at one moment: a line of the history."""

    unix_s: float
    gpus: tuple[GpuHealth, ...]
    ports: tuple[PortHealth, ...] = ()
