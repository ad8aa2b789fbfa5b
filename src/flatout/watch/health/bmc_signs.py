"""Signs in what a node's BMC measures. In: `BmcReading`. Out: `NodeSign`s, which only warn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from flatout.records.bmc import BmcReading, BmcSensor
from flatout.records.watch import NodeSign

# ASHRAE TC 9.9, class A2: the warmest air that a server of this class may take in. Used where the BMC has no limit.
MOST_INTAKE_C = 35.0
MOST_FAN_PERCENT = 95.0  # assumed: a fan at its limit cools no more when it gets warmer
# Assumed: sensors whose names differ only in their numbers measure like things.
LEAST_PEERS, MOST_FROM_PEERS_C = 4, 15.0
_DIGITS = re.compile(r"\d+")


def bmc_signs(reading: BmcReading) -> tuple[NodeSign, ...]:
    """Return the signs, those of single sensors first."""
    signs = [sign for sensor in reading.sensors for sign in _of_sensor(sensor)]
    signs += _unlike_peers(reading)
    if reading.is_redundant is False:
        reason = "the power supplies are no longer redundant: another failure stops the node, or slows it"
        signs.append(_sign("power_redundancy", 0, reason))
    return tuple(signs)


def _of_sensor(sensor: BmcSensor) -> Iterator[NodeSign]:
    value = sensor.reading
    shown = "" if value is None else f" ({value:g} {sensor.unit})"
    if sensor.health in ("warning", "critical"):
        yield _sign("bmc_health", value or 0.0, f"the BMC reports {sensor.name} as {sensor.health}{shown}")
        return
    if value is None:
        return
    upper, lower = sensor.upper_limit, sensor.lower_limit
    if upper is None and sensor.is_intake:
        upper = MOST_INTAKE_C
    if upper is not None and value > upper:
        yield _sign("above_limit", value, f"{sensor.name} is above {upper:g} {sensor.unit}{shown}")
    elif lower is not None and value < lower:
        yield _sign("below_limit", value, f"{sensor.name} is below {lower:g} {sensor.unit}{shown}")
    elif sensor.kind == "fan" and sensor.unit == "%" and value >= MOST_FAN_PERCENT:
        yield _sign("fan_at_limit", value, f"{sensor.name} is at its limit{shown}")


def _unlike_peers(reading: BmcReading) -> Iterator[NodeSign]:
    """Find a temperature that is far above that of its peers."""
    of_name: dict[str, list[BmcSensor]] = {}
    for sensor in reading.sensors:
        if sensor.kind == "temperature" and sensor.reading is not None and _DIGITS.search(sensor.name):
            of_name.setdefault(_DIGITS.sub("#", sensor.name), []).append(sensor)
    for peers in of_name.values():
        if len(peers) < LEAST_PEERS:
            continue
        middle = median(peer.reading or 0.0 for peer in peers)
        for peer in peers:
            above = (peer.reading or 0.0) - middle
            if above > MOST_FROM_PEERS_C:
                reason = f"{peer.name} is {above:.0f} C warmer than its {len(peers) - 1} peers"
                yield _sign("unlike_peers", peer.reading or 0.0, reason)


def _sign(kind: str, value: float, reason: str) -> NodeSign:
    return NodeSign(gpu=None, kind=kind, action="none", value=value, reason=reason)
