"""Checks of the sensors of the node's board management controller (BMC)."""

from __future__ import annotations

import msgspec

from flatout.doctor.check import check, ok, warn
from flatout.doctor.machine import BMC_SENSORS, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.ipmi_text import read_sdr_text
from flatout.doctor.unknown import NotReadError
from flatout.errors import InputError
from flatout.input_files import decode_json
from flatout.records.bmc import BmcReading

_SHOWN = 3


@check(
    "bmc-sensors",
    "host",
    topic="sensors of the BMC",
    read="ipmitool sdr elist, or Redfish with --redfish",
    expected="all sensors in order, and redundant power supplies",
    source="the limits in the BMC itself",
    cost="clocks fall when it gets warm; without redundancy, the next failure of a supply stops the node",
    fix="replace the fan or the power supply that is named; check the air inlet; `flatout watch node` weighs a drain",
    when_wrong="the BMC may keep a state until it is cleared",
)
def sensors(machine: Machine) -> CheckOutcome:
    reading = _reading(machine)
    bad = [f"{sensor.name} {sensor.health}" for sensor in reading.sensors if sensor.health in ("warning", "critical")]
    if reading.is_redundant is False:
        bad.append("the power supplies are not redundant")
    if not bad:
        return ok(f"{len(reading.sensors)} sensors in order")
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return warn(f"the BMC reports {', '.join(bad[:_SHOWN])}{more}")


def _reading(machine: Machine) -> BmcReading:
    """Return what was read through Redfish, else what ipmitool printed. Raises NotReadError if neither was read."""
    try:
        if BMC_SENSORS in machine.snapshot.outputs:
            return decode_json(machine.output(BMC_SENSORS), type=BmcReading)
        return read_sdr_text(machine.output("ipmitool sdr elist"))
    except (InputError, msgspec.DecodeError) as error:
        raise NotReadError(str(error)) from error
