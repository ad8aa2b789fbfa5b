"""Cost, energy and carbon of a job, a team or a plan; the effects of a power cap and of spot machines.

In: GPU time with its measured usage and power, and the catalogue's prices. Out: records of `records.cost` and
`records.chargeback`, each number with its range and provenance. What is unknown stays unknown.
"""

from __future__ import annotations

from flatout.cost.bill import bill
from flatout.cost.energy import busy_power, energy, idle_power
from flatout.cost.money import carbon, electricity, rent

__all__ = ["bill", "busy_power", "carbon", "electricity", "energy", "idle_power", "rent"]
