"""The totals of a goodput ledger, as `flatout ledger FILE --json` prints them."""

from __future__ import annotations

import msgspec


class LedgerClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of the devices' time. Null: unknown, for the `reason`; the time is then included in another class.

    Communication, waiting and throttling are parts of steps. They were measured in `known_share` of the steps' time, by
    the sources in `basis`. For the remaining time they are included in `productive` and `recomputed`, and `reason` says
    why.
    """

    name: str
    device_s: float | None
    share: float | None  # of the allocated time
    cost: float | None  # in the currency of the price
    energy_kwh: float | None
    reason: str | None = None
    known_share: float | None = None  # null for classes that are always known
    basis: tuple[str, ...] = ()  # "ddp": DDP's own timing; "recording": shares of a recording; "nvml": the clocks


class LedgerImprovement(msgspec.Struct, frozen=True, kw_only=True):
    """The gain in 30 days from halving one cost of failures, with the checkpoint interval chosen again."""

    name: str  # "write time", "detection time", "restart time" or "failure rate"
    value: float  # current value in seconds, or in failures per 1,000 node-days
    is_assumed: bool  # not measured yet
    gain_device_h: float
    gain_cost: float | None  # null without a price


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a ledger. The times of the classes sum to `allocated_device_s`, without overlap."""

    runs: int
    attempts: int
    failures: int  # failed attempts, without hangs
    hangs: int
    unfinished_runs: int  # runs without an end line: still running, or `flatout run` itself was killed
    damaged_lines: int  # skipped
    num_devices: int | None  # in the last run
    steps: int
    nodes: int  # nodes whose ledgers were added up
    away_s: float  # between starts of the job by its scheduler, e.g. after a preemption: in no class
    allocated_device_s: float
    goodput: float | None  # share of `productive`; null if no time is known
    price_per_device_h: float | None
    price_source: str | None
    watts_per_device: float | None
    watts_source: str | None
    cost: float | None
    energy_kwh: float | None
    classes: tuple[LedgerClass, ...]
    what_failed: tuple[str, ...]
    first_damaged_line: str | None = None  # its file, number and field
    levers: tuple[LedgerImprovement, ...] = ()  # the largest gain first; empty without `--checkpoint-folder`
