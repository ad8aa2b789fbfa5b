"""Parse `lspci -vvv`, `-nn` or plain into PCI devices, with the bridges above them if the text shows them.

Without root, capabilities read `<access denied>`: links and ACS are then None, never good.
"""

from __future__ import annotations

import re

import msgspec

from flatout.doctor.parse.number import count_in
from flatout.records.doctor import PcieLink

_HEAD = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:\[]+?)(?: \[([0-9a-f]{4})\])?: (.*)")
_BUS = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_LINK = r"Speed ([\d.]+)GT/s(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?"
_CAPABILITY = re.compile(r"LnkCap:.*?" + _LINK)
_STATUS = re.compile(r"LnkSta:.*?" + _LINK)
_NUMA = re.compile(r"NUMA node: (-?\d+)")
_ACS = re.compile(r"ACSCtl:\s+(.*)")
_DEVICE_START = re.compile(r"\n(?=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )")
_READ_REQUEST = re.compile(r"MaxReadReq (\d+) bytes")


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    address: str  # with its domain
    kind: str  # as lspci writes it: `3D controller`
    name: str
    numa_node: int | None
    secondary_bus: str | None  # behind a bridge, with its domain
    link: PcieLink | None
    acs_redirects: bool | None  # whether a bridge sends requests up to the root; None if ACSCtl was not read
    max_read_request_bytes: int | None
    is_denied: bool
    is_gone: bool  # listed, but all its registers read as ones: it has fallen off the bus
    is_root_port: bool  # only if lspci says so: in an excerpt, the topmost bridge may be a switch


def parse_lspci(text: str) -> tuple[PciDevice, ...]:
    devices = []
    for block in _DEVICE_START.split(_certain_lines(text).strip()):
        first_line, _, details = block.partition("\n")
        if head := _HEAD.match(first_line):
            devices.append(_device(head, details))
    return tuple(devices)


def full_address(address: str) -> str:
    """Return `0000:17:00.0` for `17:00.0` and for `00000000:17:00.0`."""
    address = address.lower()
    if address.count(":") == 1:
        return f"0000:{address}"
    domain, rest = address.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _certain_lines(text: str) -> str:
    """Return the text without an indented last line that may be truncated: x1 of x16."""
    complete_lines, newline, last = text.rpartition("\n")
    if newline and last.startswith((" ", "\t")):
        return complete_lines
    return text


def _device(head: re.Match[str], details: str) -> PciDevice:
    address = full_address(head[1])
    bus = _BUS.search(details)
    acs = _ACS.search(details)
    read_requests = _READ_REQUEST.findall(details)
    return PciDevice(
        address=address,
        kind=head[2].strip(),
        name=re.sub(r" \((?:rev|prog-if).*", "", head[4]).strip(),
        numa_node=_numa_node(details),
        secondary_bus=f"{address[:4]}:{bus[2]}" if bus else None,
        link=_link(details),
        acs_redirects="ReqRedir+" in acs[1] if acs else None,
        max_read_request_bytes=int(read_requests[-1]) if read_requests else None,
        is_denied="<access denied>" in details,
        is_gone="(rev ff)" in head[4] or "Unknown header type 7f" in details,
        is_root_port=bool(re.search(r"Express \(v\d\) Root Port", details)),
    )


def _numa_node(details: str) -> int | None:
    """Return the node; None if the kernel gives none, or writes -1."""
    match = _NUMA.search(details)
    return count_in(match[1]) if match else None


def _link(details: str) -> PcieLink | None:
    capability = _CAPABILITY.search(details)
    status = _STATUS.search(details)
    if capability is None and status is None:
        return None
    return PcieLink(
        speed_gt_per_s=float(status[1]) if status else None,
        width=int(status[3]) if status else None,
        max_speed_gt_per_s=float(capability[1]) if capability else None,
        max_width=int(capability[3]) if capability else None,
    )
