"""Parse what `ipmitool sdr elist` prints. In: its text. Out: `BmcReading`.

A line has a name, a number, a state, an entity and a reading, such as
`Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C`. The states nc, cr and nr are IPMI's non-critical, critical and
non-recoverable; ns is a sensor without a reading, and is skipped.
"""

from __future__ import annotations

import re

from flatout.errors import InputError
from flatout.records.bmc import BmcReading, BmcSensor, SensorHealth, SensorKind

_HEALTH: dict[str, SensorHealth] = {"ok": "ok", "nc": "warning", "cr": "critical", "nr": "critical"}
_LINE = re.compile(r"^([^|]{1,80}?)\s*\|\s*([0-9A-Fa-f]{2}h)\s*\|\s*(\w{2})\s*\|\s*([\d.]+)\s*\|\s*(.*?)\s*$")
_NUMBER = re.compile(r"^(-?\d{1,9}(?:\.\d{1,6})?) (degrees C|RPM|percent|Watts|Volts|Amps)")
_UNITS = {"degrees C": "C", "RPM": "RPM", "percent": "%", "Watts": "W", "Volts": "V", "Amps": "A"}
_INTAKE = re.compile(r"inlet|ambient|intake", re.I)
_SUPPLY = re.compile(r"\b(PS|PSU|power supply)\s?\d", re.I)
_REDUNDANCY = re.compile(r"redundan", re.I)
_FAULTS = re.compile(r"failure|fault|predictive|lost", re.I)


def read_sdr_text(text: str) -> BmcReading:
    """Return the sensors. Raise InputError for another text."""
    sensors: list[BmcSensor] = []
    redundant: list[bool] = []
    lines = [match for line in text.splitlines() if (match := _LINE.match(line))]
    if not lines:
        raise InputError("the text is not that of ipmitool", hint="ipmitool sdr elist > sensors.txt")
    for match in lines:
        name, _, state, _, reading = (part.strip() for part in match.groups())
        if _REDUNDANCY.search(name) and reading:
            redundant.append(not _FAULTS.search(reading))
        elif state in _HEALTH:
            sensors.append(_sensor(name, _HEALTH[state], reading))
    return BmcReading(sensors=tuple(sensors), is_redundant=all(redundant) if redundant else None)


def _sensor(name: str, health: SensorHealth, text: str) -> BmcSensor:
    number = _NUMBER.match(text)
    unit = _UNITS[number[2]] if number else ""
    kind: SensorKind = "other"
    if unit == "C":
        kind = "temperature"
    elif unit == "RPM" or (unit == "%" and "fan" in name.lower()):
        kind = "fan"
    elif number is None and _SUPPLY.search(name):
        kind = "power_supply"
        health = "critical" if _FAULTS.search(text) else health
    reading = float(number[1]) if number else None
    is_intake = kind == "temperature" and bool(_INTAKE.search(name))
    return BmcSensor(name=name, kind=kind, reading=reading, unit=unit, health=health, is_intake=is_intake)
