"""Price a ledger's totals: `Totals` -> `LedgerReport`. If a device's price is unknown, its cost is None."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.keep.ledger import Totals
from flatout.keep.step_breakdown import PARTED
from flatout.records.ledger import LedgerClass, LedgerImprovement, LedgerReport

_S_PER_H = 3600.0
_SHOWN_FAILURES = 20
_NEARLY_ALL = 0.99


def report(
    totals: Totals, *, price_per_h: tuple[float, str] | None = None, watts: tuple[float, str] | None = None
) -> LedgerReport:
    """Return the report. `price_per_h` and `watts` are those of one device, each with its source."""
    allocated_s = totals.allocated_ns / 1e9

    def cost(device_s: float) -> float | None:
        return None if price_per_h is None else device_s / _S_PER_H * price_per_h[0]

    def energy(device_s: float) -> float | None:
        return None if watts is None else device_s / _S_PER_H * watts[0] / 1e3

    def classes() -> Iterator[LedgerClass]:
        for name, value in totals.ns.items():
            known_share = totals.known_share(name) if name in PARTED else None
            if name in PARTED and not known_share:
                reason = totals.not_known.get(name)
                yield LedgerClass(name=name, device_s=None, share=None, cost=None, energy_kwh=None, reason=reason)
                continue
            device_s = value / 1e9
            yield LedgerClass(
                name=name,
                device_s=device_s,
                share=device_s / allocated_s if allocated_s else None,
                cost=cost(device_s),
                energy_kwh=energy(device_s),
                known_share=known_share,
                basis=tuple(totals.known_ns.get(name, ())) if name in PARTED else (),
                reason=None if known_share is None or known_share > _NEARLY_ALL else totals.not_known.get(name),
            )

    return LedgerReport(
        runs=totals.num_runs,
        attempts=totals.num_attempts,
        failures=totals.num_failures,
        hangs=totals.num_hangs,
        unfinished_runs=totals.num_unfinished,
        damaged_lines=totals.num_bad_lines,
        first_damaged_line=totals.first_bad_line,
        num_devices=totals.num_devices,
        steps=totals.num_steps,
        nodes=totals.num_nodes,
        away_s=totals.away_s,
        allocated_device_s=allocated_s,
        goodput=totals.goodput,
        price_per_device_h=price_per_h[0] if price_per_h else None,
        price_source=price_per_h[1] if price_per_h else None,
        watts_per_device=watts[0] if watts else None,
        watts_source=watts[1] if watts else None,
        cost=cost(allocated_s),
        energy_kwh=energy(allocated_s),
        classes=tuple(classes()),
        what_failed=totals.failures[-_SHOWN_FAILURES:],
        levers=_improvements(totals, price_per_h[0] if price_per_h else None),
    )


def _improvements(totals: Totals, price_per_h: float | None) -> tuple[LedgerImprovement, ...]:
    if totals.saving is None:
        return ()
    from flatout.keep.interval_choice import IntervalChoice  # SciPy is slow to import

    try:
        saving = msgspec.convert(totals.saving, IntervalChoice)
        return saving.improvements(totals.num_devices or 1, price_per_h)
    except (msgspec.ValidationError, ArithmeticError, ValueError):  # a damaged line
        return ()
