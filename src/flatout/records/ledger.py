"""What a goodput ledger adds up to: `flatout ledger FILE --json` prints it."""

from __future__ import annotations

import msgspec


class LedgerClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of the devices' time. Null: unknown, `reason` says why; it is then included in another class.

    Communication, waiting and throttling are looked for within steps: in `known_share` of their time they were, by what
    `basis` names; in the rest they are inside `productive` and `recomputed`, and `reason` says why.
    """

    name: str
    device_s: float | None
    share: float | None  # of the allocated time
    cost: float | None  # in the currency of the price
    energy_kwh: float | None
    reason: str | None = None
    known_share: float | None = None  # null for the classes of which all is known
    basis: tuple[str, ...] = ()  # "ddp": DDP's own timing; "recording": shares of a recording; "nvml": the clocks


class LedgerLever(msgspec.Struct, frozen=True, kw_only=True):
    """What halving one cost of failures would bring in 30 days, with the checkpoint interval chosen again."""

    name: str  # "write time", "detection time", "restart time" or "failure rate"
    value: float  # now; seconds, or failures per 1,000 node-days
    is_assumed: bool  # not measured yet
    gain_device_h: float
    gain_cost: float | None  # null without a price


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The classes with a time sum to `allocated_device_s`: each second of each device is in one."""

    runs: int
    attempts: int
    failures: int  # attempts that failed, hangs not counted
    hangs: int
    unfinished_runs: int  # without an end: they still run, or `flatout run` itself was killed
    damaged_lines: int  # skipped
    num_devices: int | None  # of the last run
    steps: int
    nodes: int  # whose ledgers were added up
    away_s: float  # between starts of one job by its scheduler, as after a preemption: in no class
    allocated_device_s: float
    goodput: float | None  # share of `productive`; null where no time is known
    price_per_device_h: float | None
    price_source: str | None
    watts_per_device: float | None
    watts_source: str | None
    cost: float | None
    energy_kwh: float | None
    classes: tuple[LedgerClass, ...]
    what_failed: tuple[str, ...]
    levers: tuple[LedgerLever, ...] = ()  # the most worthwhile first; empty without `--checkpoint-folder`
