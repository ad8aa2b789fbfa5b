"""`lspci -vvv`, `-nn` or plain -> PCI devices, with the bridges above them where the text tells.

Without root, capabilities read `<access denied>`: links and ACS are None then, never good.
"""

from __future__ import annotations

import re

import msgspec

from flatout.records.doctor import PcieLink

_HEAD = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:\[]+?)(?: \[([0-9a-f]{4})\])?: (.*)")
_BUS = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_LINK = re.compile(r"Speed ([\d.]+)GT/s(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?")
_NUMA = re.compile(r"NUMA node: (-?\d+)")
_ACS = re.compile(r"ACSCtl:\s+(.*)")
_READ_REQUEST = re.compile(r"MaxReadReq (\d+) bytes")


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    address: str  # with its domain
    kind: str  # as lspci says it: `3D controller`
    name: str
    numa_node: int | None
    secondary_bus: str | None  # of a bridge, with its domain
    link: PcieLink | None
    acs_redirects: bool | None  # of a bridge: requests are sent up to the root; None where ACSCtl was not read
    max_read_request_bytes: int | None
    is_denied: bool
    is_gone: bool  # it is listed, but reads as ones: it has fallen off the bus
    is_root_port: bool  # only where lspci says so: of an excerpt, the topmost bridge may be a switch


def parse_lspci(text: str) -> tuple[PciDevice, ...]:
    devices = []
    body, end, last = text.rpartition("\n")
    if end and last.startswith((" ", "\t")):
        text = body  # it may be cut off: x1 of x16
    for block in re.split(r"\n(?=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )", text.strip()):
        first, _, body = block.partition("\n")
        if head := _HEAD.match(first):
            devices.append(_device(head, body))
    return tuple(devices)


def full_address(address: str) -> str:
    """`17:00.0` or `00000000:17:00.0` -> `0000:17:00.0`."""
    address = address.lower()
    if address.count(":") == 1:
        return f"0000:{address}"
    domain, rest = address.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _device(head: re.Match[str], body: str) -> PciDevice:
    address = full_address(head[1])
    bus, numa, acs = _BUS.search(body), _NUMA.search(body), _ACS.search(body)
    requests = _READ_REQUEST.findall(body)
    return PciDevice(
        address=address,
        kind=head[2].strip(),
        name=re.sub(r" \((?:rev|prog-if).*", "", head[4]).strip(),
        numa_node=int(numa[1]) if numa and int(numa[1]) >= 0 else None,
        secondary_bus=f"{address[:4]}:{bus[2]}" if bus else None,
        link=_link(body),
        acs_redirects=("ReqRedir+" in acs[1] if acs else None),
        max_read_request_bytes=int(requests[-1]) if requests else None,
        is_denied="<access denied>" in body,
        is_gone="(rev ff)" in head[4] or "Unknown header type 7f" in body,
        is_root_port=bool(re.search(r"Express \(v\d\) Root Port", body)),
    )


def _link(body: str) -> PcieLink | None:
    can = re.search(r"LnkCap:.*?" + _LINK.pattern, body)
    now = re.search(r"LnkSta:.*?" + _LINK.pattern, body)
    if can is None and now is None:
        return None
    return PcieLink(
        speed_gt_per_s=float(now[1]) if now else None,
        width=int(now[3]) if now else None,
        max_speed_gt_per_s=float(can[1]) if can else None,
        max_width=int(can[3]) if can else None,
    )
