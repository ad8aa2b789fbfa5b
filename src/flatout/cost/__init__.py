"""Money, energy and carbon of a job, a team or a plan; what a power cap and spot machines would change.

In: GPU time, with what is known of its use and power, and the catalogue's prices. Out: records of `records.cost` and
`records.chargeback`, each number with its range and how it is known. What is not known stays unknown.
"""

from __future__ import annotations

from flatout.cost.bill import bill
from flatout.cost.energy import busy_power, energy, idle_power
from flatout.cost.money import carbon, electricity, rent

__all__ = ["bill", "busy_power", "carbon", "electricity", "energy", "idle_power", "rent"]
