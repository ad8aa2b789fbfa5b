"""Parse `ibstat`, `ibv_devinfo` and `ibstatus` into the equivalent files of /sys/class/infiniband.

The text may be a part of a longer one, such as a post, with quotation marks or without indentation. A device that
appears again belongs to another host and keeps its values under a separate name, so that its faults are not hidden.
"""

from __future__ import annotations

import re

_BASE = "/sys/class/infiniband"
# A line that begins a device: of ibstat, of ibv_devinfo, of ibstatus (which names the port, too).
_DEVICE = re.compile(
    r"(?:CA '([\w.-]+)'|hca_id:\s*([\w.-]+)|Infiniband device '([\w.-]+)' port (\d+) status:)\s*", re.IGNORECASE
)
# Possessive (`++`): otherwise a time is needed that grows with the square of the white space.
_PORT = re.compile(r"port\s*+:?+\s*+(\d+):?", re.IGNORECASE)
_VALUE = re.compile(r"([\w ]++)\s*+:\s*+(\S.*)")
_QUOTED = re.compile(r"^[\s>|]+")
_STATES = {"down": "1: DOWN", "initializing": "2: INIT", "init": "2: INIT", "armed": "3: ARMED", "active": "4: ACTIVE"}
_PHYSICAL = {
    "sleep": "1: Sleep",
    "polling": "2: Polling",
    "disabled": "3: Disabled",
    "portconfigurationtraining": "4: PortConfigurationTraining",
    "linkup": "5: LinkUp",
    "linkerrorrecovery": "6: LinkErrorRecovery",
}
_GIGABITS = re.compile(r"([\d.]+)\s*(?:Gb|$)")
_LANES = re.compile(r"(\d+)X", re.IGNORECASE)
_GID = re.compile(r"GID\[\s*(\d+)\]:\s*([0-9a-fA-F:.]+)(?:,\s*(.+))?")


def rdma_files(text: str) -> dict[str, str]:
    """Return the files of each device and port that the text shows: path -> content."""
    if "CA '" not in text and "hca_id" not in text and "nfiniband device" not in text:
        return {}
    reader = _Reader()
    for line in text.splitlines():
        reader.read(_QUOTED.sub("", line).strip())
    return reader.files


class _Reader:
    """The files so far, and the device and port to which the next lines belong."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._device: str | None = None
        self._port: str | None = None
        self._lanes: float | None = None
        self._lane_gb_per_s: float | None = None

    def read(self, line: str) -> None:
        if not line:
            return
        if match := _DEVICE.fullmatch(line):
            device, port = match[1] or match[2] or match[3], match[4]
            is_next_port = port is not None and self._is_new_port(device, port)
            self._device = device if is_next_port else self._new_name(device)
            self._port = port
        elif self._device is None:
            return
        elif match := _PORT.fullmatch(line):
            self._port = match[1]
            self._lanes = self._lane_gb_per_s = None
        elif match := _GID.match(line):
            self._read_gid(match)
        elif match := _VALUE.fullmatch(line):
            self._read_value(match[1].rstrip().lower().replace(" ", "_"), match[2].strip())

    def _is_new_port(self, device: str, port: str) -> bool:
        return not any(path.startswith(f"{_BASE}/{device}/ports/{port}/") for path in self.files)

    def _new_name(self, device: str) -> str:
        """Return the device's name, with a number if the name was used before, by another host or a second tool."""
        known = {path.split("/")[4] for path in self.files}
        name, number = device, 2
        while name in known:
            name = f"{device}#{number}"
            number += 1
        return name

    def _read_value(self, key: str, value: str) -> None:
        if self._port is None:
            names = {"ca_type": "hca_type", "firmware_version": "fw_ver", "fw_ver": "fw_ver", "board_id": "board_id"}
            if key in names:
                self.files[f"{_BASE}/{self._device}/{names[key]}"] = value
            return
        if key == "state":
            self._set("state", _state(value))
        elif key in ("physical_state", "phys_state"):
            self._set("phys_state", _physical_state(value))
        elif key == "link_layer":
            self._set("link_layer", value)
        elif key == "active_mtu":
            self._set("active_mtu", value.split()[0])
        elif key == "rate":
            rate = _GIGABITS.match(value)
            self._set("rate", f"{rate[1]} Gb/sec" if rate else None)
        elif key in ("active_width", "active_speed"):
            self._read_lanes(key, value)

    def _read_lanes(self, key: str, value: str) -> None:
        """Read the width and the speed of a lane of `ibv_devinfo -v`, whose product is the rate."""
        match = (_LANES if key == "active_width" else _GIGABITS).match(value)
        if match is None:
            return
        if key == "active_width":
            self._lanes = float(match[1])
        else:
            self._lane_gb_per_s = float(match[1])
        if self._lanes and self._lane_gb_per_s:
            self._set("rate", f"{self._lanes * self._lane_gb_per_s:g} Gb/sec")

    def _read_gid(self, match: re.Match[str]) -> None:
        self._set(f"gids/{match[1]}", _long_address(match[2]))
        if match[3]:
            self._set(f"gid_attrs/types/{match[1]}", match[3].strip())

    def _set(self, name: str, value: str | None) -> None:
        if value and self._port is not None:
            self.files[f"{_BASE}/{self._device}/ports/{self._port}/{name}"] = value


def _state(value: str) -> str | None:
    """Return the state as sysfs writes it; `PORT_ACTIVE (4)` and `Active` both mean `4: ACTIVE`."""
    word = re.sub(r"^\d+:\s*|^PORT_|\s*\(.*", "", value, flags=re.IGNORECASE).lower()
    return _STATES.get(word)


def _physical_state(value: str) -> str | None:
    word = re.sub(r"^\d+:\s*|\s*\(.*", "", value).replace("_", "").replace(" ", "").lower()
    return _PHYSICAL.get(word)


def _long_address(address: str) -> str:
    """Return an address of 8 groups: `::ffff:10.0.0.1` as sysfs writes it."""
    mapped = re.fullmatch(r"::ffff:(\d+)\.(\d+)\.(\d+)\.(\d+)", address, re.IGNORECASE)
    if mapped is None:
        return address
    a, b, c, d = (int(part) for part in mapped.groups())
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
