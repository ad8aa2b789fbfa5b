"""What the board management controller (BMC) of a node measures, at one moment."""

from __future__ import annotations

from typing import Literal

import msgspec

SensorKind = Literal["temperature", "fan", "power_supply", "other"]
SensorHealth = Literal["ok", "warning", "critical"]


class BmcSensor(msgspec.Struct, frozen=True, kw_only=True):
    """One sensor. Null: the controller does not give it."""

    name: str
    kind: SensorKind
    reading: float | None = None
    unit: str = ""
    health: SensorHealth | None = None
    upper_limit: float | None = None  # the lowest that the controller has: caution, else critical
    lower_limit: float | None = None
    is_intake: bool = False  # the air that the node takes in


class BmcReading(msgspec.Struct, frozen=True, kw_only=True):
    sensors: tuple[BmcSensor, ...]
    is_redundant: bool | None = None  # power supplies; null: not given
    problems: tuple[str, ...] = ()  # what could not be read, and why
