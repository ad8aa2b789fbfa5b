"""Parse `nvidia-smi -q -x` into the facts of `nvidia-smi -q`, under the same names, so that every check reads both.

The tags are read one after the other and no entity is expanded: parsing a damaged or hostile text takes time in
proportion to its length, and the complete part of a truncated text is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Possessive: a text without `>` would be searched again from each of its characters.
_TOKEN = re.compile(r"<(/?)(\w++)([^<>]*+)>([^<]*+)")
_GPU_ADDRESS = re.compile(r"\bid=[\"']([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])[\"']")
_DEEPEST = 16
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
# Tags of sections, then tags of values, and their names in `nvidia-smi -q`.
_NAMES = {
    "pci": "PCI",
    "pci_gpu_link_info": "GPU Link Info",
    "pcie_gen": "PCIe Generation",
    "link_widths": "Link Width",
    "mig_mode": "MIG Mode",
    "ecc_mode": "ECC Mode",
    "ecc_errors": "ECC Errors",
    "row_remapper_histogram": "Bank Remap Availability Histogram",
    "fb_memory_usage": "FB Memory Usage",
    "bar1_memory_usage": "BAR1 Memory Usage",
    "cc_protected_memory_usage": "Conf Compute Protected Memory Usage",
    "gpu_power_readings": "GPU Power Readings",
    "vbios_version": "VBIOS Version",
    "cuda_version": "CUDA Version",
    "attached_gpus": "Attached GPUs",
    "gpu_recovery_action": "GPU Recovery Action",
    "max_link_gen": "Max",
    "current_link_gen": "Current",
    "max_link_width": "Max",
    "current_link_width": "Current",
    "current_mig": "Current",
    "pending_mig": "Pending",
    "current_ecc": "Current",
    "pending_ecc": "Pending",
    "replay_counter": "Replays Since Reset",
    "replay_rollover_counter": "Replay Number Rollovers",
    "sram_correctable": "SRAM Correctable",
    "sram_uncorrectable": "SRAM Uncorrectable",
    "sram_uncorrectable_parity": "SRAM Uncorrectable Parity",
    "sram_uncorrectable_secded": "SRAM Uncorrectable SEC-DED",
    "dram_correctable": "DRAM Correctable",
    "dram_uncorrectable": "DRAM Uncorrectable",
    "sram_threshold_exceeded": "SRAM Threshold Exceeded",
    "remapped_row_corr": "Correctable Error",
    "remapped_row_unc": "Uncorrectable Error",
    "remapped_row_pending": "Pending",
    "remapped_row_failure": "Remapping Failure Occurred",
    "pending_retirement": "Pending Page Blacklist",
    "pending_blacklist": "Pending Page Blacklist",
    "gpu_util": "GPU",
    "gpu_temp": "GPU Current Temp",
    "gpu_temp_tlimit": "GPU T.Limit Temp",
    "gpu_temp_max_threshold": "GPU Shutdown Temp",
    "gpu_temp_slow_threshold": "GPU Slowdown Temp",
    "graphics_clock": "Graphics",
    "sm_clock": "SM",
    "mem_clock": "Memory",
    "video_clock": "Video",
}
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_(\w+)")
_REASON_WORDS = {"hw": "HW", "sw": "SW", "gpu": "GPU"}
_RETIRED = {
    ("multiple_single_bit_retirement", "retired_count"): "Single Bit ECC",
    ("double_bit_retirement", "retired_count"): "Double Bit ECC",
}


def is_smi_xml(text: str) -> bool:
    return "<nvidia_smi_log" in text


def smi_xml_values(text: str) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """Return the values of the head, then the address and the values of each GPU, by the paths of `nvidia-smi -q`."""
    head: dict[str, str] = {}
    gpus: list[tuple[str, dict[str, str]]] = []
    for tags, attributes, value in _leaves(text):
        if tags[0] != "gpu":
            head["/".join(_path(tags))] = value
            continue
        if attributes is not None:
            address = _GPU_ADDRESS.search(attributes)
            gpus.append((address[1] if address else "", {}))
        elif gpus:
            is_address = tags[1:] == ("pci", "pci_bus_id")
            if is_address and not gpus[-1][0]:
                gpus[-1] = (value, gpus[-1][1])
            gpus[-1][1].setdefault("/".join(_path(tags[1:])), value)
    return head, gpus


def _leaves(text: str) -> Iterator[tuple[tuple[str, ...], str | None, str]]:
    """Yield the tags and the text of each complete value, and the attributes of each `<gpu>` as it begins."""
    start = text.find("<nvidia_smi_log")
    opened: list[str] = []
    pending: tuple[str, str] | None = None  # the tag that has just begun, and the text after it
    for closing, tag, attributes, after in _TOKEN.findall(text[max(0, start) :]):
        if tag == "nvidia_smi_log":
            if closing:
                return
            continue
        if not closing:
            if tag == "gpu" and not opened:
                yield ("gpu",), attributes, ""
            if len(opened) < _DEEPEST:
                opened.append(tag)
            pending = (tag, after.strip())
            continue
        if pending is not None and pending[0] == tag and opened and opened[-1] == tag and len(opened) > 0:
            yield tuple(opened), None, _unescaped(pending[1])
        pending = None
        if tag in opened:
            del opened[len(opened) - 1 - opened[::-1].index(tag) :]


def _unescaped(text: str) -> str:
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    return text


def _path(tags: tuple[str, ...]) -> list[str]:
    if tags[-2:] in _RETIRED:
        return [*map(_name, tags[:-2]), _RETIRED[tags[-2], tags[-1]]]
    return [_name(tag) for tag in tags]


def _name(tag: str) -> str:
    """Return the name in `nvidia-smi -q`: most are the tag's words with capitals."""
    if tag in _NAMES:
        return _NAMES[tag]
    clock = _REASON.fullmatch(tag)
    if clock:
        return " ".join(_REASON_WORDS.get(word, word.capitalize()) for word in clock[1].split("_"))
    histogram = tag.removeprefix("row_remapper_histogram_")
    return " ".join(word.capitalize() for word in histogram.split("_"))
