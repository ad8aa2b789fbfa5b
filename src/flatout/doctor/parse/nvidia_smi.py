"""Parse `nvidia-smi -q`, `nvlink -s`, `nvlink -e` and `-L` into facts of each GPU. `N/A` and the like are None."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from flatout.doctor.parse.lspci import full_address
from flatout.doctor.parse.number import count_in, number_at_start
from flatout.doctor.parse.nvidia_smi_xml import is_smi_xml, smi_xml_values

_MISSING = {"", "n/a", "[n/a]", "not supported", "[not supported]", "unknown error", "requested functionality", "none"}
_GPU = re.compile(r"GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*")
_LISTED = re.compile(r"GPU (\d+): (.*?) \(UUID")
_LINK_SPEED = re.compile(r"\s+Link (\d+): ([\d.]+) GB/s")
_LINK_INACTIVE = re.compile(r"\s+Link (\d+): <inactive>")
_LINK_ERROR = re.compile(r"\s+Link (\d+): (\w+) Errors: (\d+)", re.IGNORECASE)


class SmiGpu(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    values: dict[str, str]  # `ECC Errors/Volatile/SRAM Correctable` -> text

    def text(self, *endings: str) -> str | None:
        """Return the value whose path ends with the first ending that is present; None if it is absent or `N/A`."""
        for ending in endings:
            for path, value in self.values.items():
                if path == ending or path.endswith("/" + ending):
                    return None if value.lower() in _MISSING else value
        return None

    def number(self, *endings: str) -> float | None:
        return number_at_start(self.text(*endings))

    def section(self, name: str) -> dict[str, str]:
        """Return all values below a section of that name, by the rest of their path."""
        values = {}
        for path, value in self.values.items():
            before, separator, rest = path.partition(name + "/")
            is_whole_name = not before or before.endswith("/")
            if separator and is_whole_name:
                values[rest] = value
        return values


class SmiQuery(msgspec.Struct, frozen=True, kw_only=True):
    driver: str | None
    cuda: str | None
    num_attached: int | None
    gpus: tuple[SmiGpu, ...]


def parse_query(text: str) -> SmiQuery:
    """Parse `nvidia-smi -q`, with or without `-d SECTION` or `-x`."""
    if is_smi_xml(text):
        return _parse_query_xml(text)
    head: dict[str, str] = {}
    gpus: list[SmiGpu] = []
    values = _Values(head)
    for line in _certain_lines(text):
        if not line.strip() or line.startswith("="):
            continue
        if match := _GPU.fullmatch(line):
            gpu = SmiGpu(address=full_address(match[1]), values={})
            gpus.append(gpu)
            values = _Values(gpu.values)
        else:
            values.read(line)
    return SmiQuery(
        driver=head.get("Driver Version"),
        cuda=head.get("CUDA Version"),
        num_attached=count_in(head.get("Attached GPUs")),
        gpus=tuple(gpus),
    )


def _parse_query_xml(text: str) -> SmiQuery:
    head, gpus = smi_xml_values(text)
    return SmiQuery(
        driver=head.get("Driver Version"),
        cuda=head.get("CUDA Version"),
        num_attached=count_in(head.get("Attached GPUs")),
        gpus=tuple(
            SmiGpu(address=full_address(address) if address else f"GPU {number}", values=values)
            for number, (address, values) in enumerate(gpus)
        ),
    )


def _certain_lines(text: str) -> list[str]:
    """Return the lines without a last line whose value may be truncated."""
    lines = text.splitlines()
    if lines and lines[-1].startswith(" ") and not text.endswith("\n"):
        lines.pop()
    return lines


class _Values:
    """Reads indented lines into a flat dictionary: `Temperature/GPU Current Temp` -> text."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._sections: list[tuple[int, str]] = []  # indentation and name of each open section, the outermost first

    def read(self, line: str) -> None:
        indent = len(line) - len(line.lstrip())
        while self._sections and self._sections[-1][0] >= indent:
            self._sections.pop()
        key, separator, value = line.strip().partition(" : ")
        is_value = separator or line.rstrip().endswith(" :")
        if not is_value:
            self._sections.append((indent, key.strip()))
            return
        path = [name for _, name in self._sections]
        path.append(key.rstrip(" :"))
        self._values["/".join(path)] = value.strip()


def parse_nvlink_status(text: str) -> dict[int, dict[int, float | None]]:
    """Parse `nvidia-smi nvlink -s`: GPU -> link -> GB/s.

    An inactive link is None; a GPU whose links are all inactive may list none.
    """
    gpus: dict[int, dict[int, float | None]] = {}
    links: dict[int, float | None] = {}
    for line in _whole_link_lines(text):
        if match := _LISTED.match(line):
            links = gpus.setdefault(int(match[1]), {})
        elif match := _LINK_SPEED.match(line):
            links[int(match[1])] = float(match[2])
        elif match := _LINK_INACTIVE.match(line):
            links[int(match[1])] = None
    return gpus


def _whole_link_lines(text: str) -> list[str]:
    """Return the lines without a last line that ends within a link's speed."""
    lines = text.splitlines()
    if not lines or text.endswith("\n"):
        return lines
    if "Link" in lines[-1] and not lines[-1].endswith(("GB/s", "<inactive>")):
        lines.pop()
    return lines


def parse_nvlink_errors(text: str) -> dict[int, dict[str, int]]:
    """Parse `nvidia-smi nvlink -e`: GPU -> kind of error -> count over all links."""
    gpus: dict[int, Counter[str]] = {}
    errors: Counter[str] = Counter()
    for line in text.splitlines():
        if match := _LISTED.match(line):
            errors = gpus.setdefault(int(match[1]), Counter())
        elif match := _LINK_ERROR.match(line):
            errors[match[2].lower()] += int(match[3])
    return {gpu: dict(counts) for gpu, counts in gpus.items()}


def is_list_complete(text: str) -> bool:
    """Whether the last device line of `nvidia-smi -L` is complete; a truncated text may lack devices."""
    devices = [line for line in text.splitlines() if _LISTED.match(line) or re.match(r"\s+MIG\b", line)]
    return bool(devices) and devices[-1].rstrip().endswith(")")


def parse_list(text: str) -> dict[int, tuple[str, int]]:
    """Parse `nvidia-smi -L`: GPU -> its name and the number of its MIG devices."""
    names: dict[int, str] = {}
    num_mig_devices: Counter[int] = Counter()
    gpu = None
    for line in text.splitlines():
        if match := _LISTED.match(line):
            gpu = int(match[1])
            names[gpu] = match[2]
            num_mig_devices[gpu] = 0
        elif gpu is not None and re.match(r"\s+MIG \S+\s+Device", line):
            num_mig_devices[gpu] += 1
    return {gpu: (name, num_mig_devices[gpu]) for gpu, name in names.items()}
