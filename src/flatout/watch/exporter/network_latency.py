"""The latency of this host's network where `flatout bench` has measured it. In: saved ceilings. Out: samples on a page.

It is the time of the smallest collective by the line that fits the measured sizes best. It is read once, when the
exporter starts: a measurement during the job would disturb it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from flatout.probe.ceilings.saved import known_ceilings
from flatout.records.ceilings import CollectiveFit
from flatout.watch.exporter.page import MetricPage

_MOST = 32
_TEXT = "Latency of a collective, by its backend and ranks, as `flatout bench` has measured it on this host."


def measured_latencies() -> tuple[CollectiveFit, ...]:
    """Return the collectives that were measured on this host; empty without a saved measurement."""
    host = os.uname().nodename
    ceilings = known_ceilings({host}).get(host)
    return ceilings.fits[:_MOST] if ceilings is not None else ()


def add_latencies(page: MetricPage, fits: Sequence[CollectiveFit]) -> None:
    first_of_groups = {(fit.name, fit.group, fit.backend): fit for fit in reversed(fits)}
    for (name, group, backend), fit in first_of_groups.items():
        labels = {"collective": name, "group": group, "backend": backend}
        page.gauge("flatout_network_latency_seconds", _TEXT, fit.latency_s, **labels)
