"""Read a GPU's PCIe link while it is busy: an idle link runs at its lowest speed, which is not informative.

In: functions that read the link (from sysfs, else NVML) and keep it busy. Out: the last reading that was certainly
under load; None if a virtual machine hides the link, there is no such device, or the copies ended before the reading.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.records.ceilings import LoadedLink

_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}  # per lane, by PCIe generation
_NUM_COPIES = 8  # of 256 MiB each: at least 40 ms in total, and a sleeping link wakes up after a few


def link_under_load(
    read: Callable[[], LoadedLink | None], copy: Callable[[], None], is_busy: Callable[[], bool]
) -> LoadedLink | None:
    """Return the last reading after which the copies still ran; `copy` only queues a copy.

    The link is read once before the copies, because the first reading starts NVML and can take longer than all copies.
    """
    if read() is None:
        return None  # a later reading would not succeed either
    for _ in range(_NUM_COPIES):
        copy()
    found = None
    while True:
        now = read()
        if not is_busy():
            return found
        found = now
        time.sleep(0.001)


def pci_address(torch: Any, device: Any) -> str | None:
    """Return the PCI address, `0000:1b:00.0`; None if this torch does not provide it."""
    about = torch.cuda.get_device_properties(device)
    numbers = [getattr(about, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    domain, bus, slot = (number if isinstance(number, int) else -1 for number in numbers)
    return None if min(domain, bus, slot) < 0 else f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def read_link(address: str, devices: Path = Path("/sys/bus/pci/devices")) -> LoadedLink | None:
    return _from_sysfs(devices / address) or _from_nvml(address)


def _from_sysfs(folder: Path) -> LoadedLink | None:
    """Read the link; its best speed and width are those that both ends support: the device and the port above it."""
    speed, width = _speed(folder / "current_link_speed"), _width(folder / "current_link_width")
    if speed is None or width is None:
        return None
    above = folder.resolve().parent
    speeds = [_speed(end / "max_link_speed") for end in (folder, above)]
    widths = [_width(end / "max_link_width") for end in (folder, above)]
    return LoadedLink(
        speed_gt_per_s=speed,
        width=width,
        best_speed_gt_per_s=min((one for one in speeds if one is not None), default=None),
        best_width=min((one for one in widths if one is not None), default=None),
        source="sysfs",
    )


def _speed(file: Path) -> float | None:
    """Parse `16.0 GT/s PCIe`; a device without a link says `Unknown`."""
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", _text(file))
    return float(found[1]) if found else None


def _width(file: Path) -> int | None:
    """Return the number of lanes; None for 0 (no link) and 255 (unknown to the kernel)."""
    text = _text(file)
    return int(text) if text.isdecimal() and 0 < int(text) <= 32 else None


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _from_nvml(address: str) -> LoadedLink | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()  # never shut down: the next reading must be quick, and the process is short-lived
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(address)
        speed = _GT_PER_S.get(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
        width = int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
        best = _GT_PER_S.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        best_width = int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except pynvml.NVMLError:
        return None
    if speed is None or width < 1:
        return None
    return LoadedLink(
        speed_gt_per_s=speed, width=width, best_speed_gt_per_s=best, best_width=best_width or None, source="NVML"
    )
