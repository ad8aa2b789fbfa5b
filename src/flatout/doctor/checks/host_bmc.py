"""Checks of the sensors of the node's board management controller (BMC)."""

from __future__ import annotations

from flatout.doctor.check import check, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.ipmi_text import read_sdr_text
from flatout.doctor.unknown import NotReadError
from flatout.errors import InputError

_SHOWN = 3


@check(
    "bmc-sensors",
    "host",
    topic="sensors of the BMC",
    read="ipmitool sdr elist",
    expected="all sensors in order, and redundant power supplies",
    source="the limits in the BMC itself",
    cost="clocks fall when it gets warm; without redundancy, the next failure of a supply stops the node",
    fix="replace the fan or the power supply that is named; check the air inlet; `flatout watch node` weighs a drain",
    when_wrong="the BMC may keep a state until it is cleared",
)
def sensors(machine: Machine) -> CheckOutcome:
    try:
        reading = read_sdr_text(machine.output("ipmitool sdr elist"))
    except InputError as error:
        raise NotReadError(str(error)) from error
    bad = [f"{sensor.name} {sensor.health}" for sensor in reading.sensors if sensor.health in ("warning", "critical")]
    if reading.is_redundant is False:
        bad.append("the power supplies are not redundant")
    if not bad:
        return ok(f"{len(reading.sensors)} sensors in order")
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return warn(f"the BMC reports {', '.join(bad[:_SHOWN])}{more}")
