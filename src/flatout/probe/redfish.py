"""Read the sensors of a node's BMC through Redfish. In: a client. Out: `BmcReading`, with what could not be read.

Both forms of DMTF's schema are read: `Thermal` and `Power` with their sensors inside, and `ThermalSubsystem`,
`PowerSubsystem` and `Sensors` with one resource each. A half tree gives half of the sensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flatout.errors import InputError
from flatout.probe.redfish_client import ROOT, NotRead, RedfishClient
from flatout.records.bmc import BmcReading, BmcSensor, SensorHealth, SensorKind

_HEALTH: dict[str, SensorHealth] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}
_UNITS = {"Cel": "C", "RPM": "RPM", "%": "%", "W": "W"}


def read_redfish(client: RedfishClient) -> BmcReading:
    """Return all sensors of all chassis. Raise InputError if the service cannot be read at all."""
    try:
        root = client.read(ROOT)
    except NotRead as reason:
        raise InputError(f"the BMC cannot be read: {reason}") from reason
    return _Tree(client).read(root)


class _Tree:
    """Walks the tree, and keeps what could not be read."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client
        self._problems: list[str] = []
        self._redundant: list[bool] = []

    def read(self, root: dict[str, Any]) -> BmcReading:
        sensors: dict[str, BmcSensor] = {}
        for chassis in self._members(self._linked(root, "Chassis")):
            for sensor in self._of_chassis(chassis):
                sensors.setdefault(sensor.name, sensor)
        return BmcReading(
            sensors=tuple(sensors.values()),
            is_redundant=all(self._redundant) if self._redundant else None,
            problems=tuple(self._problems),
        )

    def _of_chassis(self, chassis: dict[str, Any]) -> Iterator[BmcSensor]:
        for resource in self._members(self._linked(chassis, "Sensors")):
            yield from _sensor(resource)
        for fan in self._members(self._linked(self._linked(chassis, "ThermalSubsystem"), "Fans")):
            yield from _fan(fan)
        power = self._linked(chassis, "PowerSubsystem")
        for supply in self._members(self._linked(power, "PowerSupplies")):
            yield from _supply(supply)
        self._note_redundancy(power, "PowerSupplyRedundancy")
        thermal = self._linked(chassis, "Thermal")
        for item in _items(thermal, "Temperatures"):
            yield from _temperature(item)
        for item in _items(thermal, "Fans"):
            yield from _old_fan(item)
        power = self._linked(chassis, "Power")
        for item in _items(power, "PowerSupplies"):
            yield from _supply(item)
        self._note_redundancy(power, "Redundancy")

    def _note_redundancy(self, power: dict[str, Any], name: str) -> None:
        for group in _items(power, name):
            health = _health(group)
            if health is not None:
                self._redundant.append(health == "ok")

    def _linked(self, resource: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the resource that a link leads to; empty without the link, or if it cannot be read."""
        link = resource.get(name)
        path = link.get("@odata.id") if isinstance(link, dict) else None
        return self._read(path) if isinstance(path, str) else {}

    def _members(self, collection: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for member in _items(collection, "Members"):
            if len(member) > 1:  # expanded in place
                yield member
            elif isinstance(path := member.get("@odata.id"), str):
                yield self._read(path)

    def _read(self, path: str) -> dict[str, Any]:
        try:
            return self._client.read(path.rstrip("/"))
        except NotRead as reason:
            self._problems.append(f"{path}: {reason}")
            return {}


def _items(resource: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = resource.get(name)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else, such as the NaN that Python's decoder reads."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(resource: dict[str, Any], *names: str) -> str:
    return next((value for name in names if isinstance(value := resource.get(name), str) and value), "")


def _health(resource: dict[str, Any]) -> SensorHealth | None:
    status = resource.get("Status")
    return _HEALTH.get(str(status.get("Health"))) if isinstance(status, dict) else None


def _is_absent(resource: dict[str, Any]) -> bool:
    status = resource.get("Status")
    return isinstance(status, dict) and status.get("State") in ("Absent", "Disabled")


def _threshold(resource: dict[str, Any], *names: str) -> float | None:
    thresholds = resource.get("Thresholds")
    for name in names:
        limit = thresholds.get(name) if isinstance(thresholds, dict) else None
        value = _number(limit.get("Reading")) if isinstance(limit, dict) else None
        if value is not None:
            return value
    return None


def _sensor(resource: dict[str, Any]) -> Iterator[BmcSensor]:
    """Yield a resource of the collection `Sensors`."""
    name = _text(resource, "Name", "Id")
    if not name or _is_absent(resource):
        return
    unit = _UNITS.get(_text(resource, "ReadingUnits"), _text(resource, "ReadingUnits"))
    kinds: dict[str, SensorKind] = {"Temperature": "temperature", "Rotational": "fan"}
    yield BmcSensor(
        name=name,
        kind=kinds.get(_text(resource, "ReadingType"), "other"),
        reading=_number(resource.get("Reading")),
        unit=unit,
        health=_health(resource),
        upper_limit=_threshold(resource, "UpperCaution", "UpperCritical"),
        lower_limit=_threshold(resource, "LowerCaution", "LowerCritical"),
        is_intake=_text(resource, "PhysicalContext") == "Intake",
    )


def _fan(resource: dict[str, Any]) -> Iterator[BmcSensor]:
    name = _text(resource, "Name", "Id")
    if not name or _is_absent(resource):
        return
    speed = resource.get("SpeedPercent")
    percent = _number(speed.get("Reading")) if isinstance(speed, dict) else None
    yield BmcSensor(name=name, kind="fan", reading=percent, unit="%", health=_health(resource))


def _old_fan(item: dict[str, Any]) -> Iterator[BmcSensor]:
    name = _text(item, "Name", "FanName", "MemberId")
    if not name or _is_absent(item):
        return
    unit = "%" if item.get("ReadingUnits") == "Percent" else "RPM"
    yield BmcSensor(
        name=name,
        kind="fan",
        reading=_number(item.get("Reading")),
        unit=unit,
        health=_health(item),
        lower_limit=_first(item, "LowerThresholdNonCritical", "LowerThresholdCritical"),
    )


def _temperature(item: dict[str, Any]) -> Iterator[BmcSensor]:
    name = _text(item, "Name", "MemberId")
    if not name or _is_absent(item):
        return
    yield BmcSensor(
        name=name,
        kind="temperature",
        reading=_number(item.get("ReadingCelsius")),
        unit="C",
        health=_health(item),
        upper_limit=_first(item, "UpperThresholdNonCritical", "UpperThresholdCritical"),
        lower_limit=_first(item, "LowerThresholdNonCritical", "LowerThresholdCritical"),
        is_intake=_text(item, "PhysicalContext") == "Intake",
    )


def _supply(item: dict[str, Any]) -> Iterator[BmcSensor]:
    name = _text(item, "Name", "Id", "MemberId")
    if name and not _is_absent(item):
        yield BmcSensor(name=name, kind="power_supply", health=_health(item))


def _first(item: dict[str, Any], *names: str) -> float | None:
    return next((value for name in names if (value := _number(item.get(name))) is not None), None)
