"""`nvidia-smi -q`, `nvlink -s`, `nvlink -e` and `-L` -> facts of each GPU. `N/A` and the like are None."""

from __future__ import annotations

import re

import msgspec

from flatout.doctor.parse.lspci import full_address

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
        """The value whose path ends so, the first of the endings that is there; None for N/A and where it is absent."""
        for ending in endings:
            for path, value in self.values.items():
                if path == ending or path.endswith("/" + ending):
                    return None if value.lower() in _MISSING else value
        return None

    def number(self, *endings: str) -> float | None:
        text = self.text(*endings)
        match = re.match(r"-?\d+(?:\.\d+)?", text) if text else None
        return float(match[0]) if match else None

    def section(self, name: str) -> dict[str, str]:
        """All values below a section of that name, by the rest of the path."""
        found = {}
        for path, value in self.values.items():
            before, mark, rest = path.partition(name + "/")
            if mark and (not before or before.endswith("/")):
                found[rest] = value
        return found


class SmiQuery(msgspec.Struct, frozen=True, kw_only=True):
    driver: str | None
    cuda: str | None
    num_attached: int | None
    gpus: tuple[SmiGpu, ...]


def parse_query(text: str) -> SmiQuery:
    """`nvidia-smi -q`, whole or with `-d SECTION`."""
    head: dict[str, str] = {}
    gpus: list[SmiGpu] = []
    values = head
    path: list[tuple[int, str]] = []
    lines = text.splitlines()
    if lines and not text.endswith("\n") and lines[-1].startswith(" "):
        lines.pop()  # its value may be cut off
    for line in lines:
        if not line.strip() or line.startswith("="):
            continue
        if match := _GPU.fullmatch(line):
            values, path = {}, []
            gpus.append(SmiGpu(address=full_address(match[1]), values=values))
            continue
        indent = len(line) - len(line.lstrip())
        key, mark, value = line.strip().partition(" : ")
        while path and path[-1][0] >= indent:
            path.pop()
        if mark or line.rstrip().endswith(" :"):
            values["/".join([*(name for _, name in path), key.rstrip(" :")])] = value.strip()
        else:
            path.append((indent, key.strip()))
    attached = head.get("Attached GPUs", "")
    return SmiQuery(
        driver=head.get("Driver Version"),
        cuda=head.get("CUDA Version"),
        num_attached=int(attached) if attached.isdecimal() else None,
        gpus=tuple(gpus),
    )


def parse_nvlink_status(text: str) -> dict[int, dict[int, float | None]]:
    """`nvidia-smi nvlink -s`: GPU -> link -> GB/s; None is an inactive link; no links: none is active."""
    gpus: dict[int, dict[int, float | None]] = {}
    current: dict[int, float | None] | None = None
    lines = text.splitlines()
    if lines and not text.endswith("\n") and "Link" in lines[-1] and not lines[-1].endswith(("GB/s", "<inactive>")):
        lines.pop()
    for line in lines:
        if match := _LISTED.match(line):
            current = gpus.setdefault(int(match[1]), {})
        elif current is not None and (match := _LINK_SPEED.match(line)):
            current[int(match[1])] = float(match[2])
        elif current is not None and (match := _LINK_INACTIVE.match(line)):
            current[int(match[1])] = None
    return gpus


def parse_nvlink_errors(text: str) -> dict[int, dict[str, int]]:
    """`nvidia-smi nvlink -e`: GPU -> kind of error -> count over all links."""
    gpus: dict[int, dict[str, int]] = {}
    current: dict[str, int] | None = None
    for line in text.splitlines():
        if match := _LISTED.match(line):
            current = gpus.setdefault(int(match[1]), {})
        elif current is not None and (match := _LINK_ERROR.match(line)):
            kind = match[2].lower()
            current[kind] = current.get(kind, 0) + int(match[3])
    return gpus


def is_list_whole(text: str) -> bool:
    """Whether the last line of `nvidia-smi -L` that tells a device has its end; a text that is cut may lack devices."""
    told = [line for line in text.splitlines() if _LISTED.match(line) or re.match(r"\s+MIG\b", line)]
    return bool(told) and told[-1].rstrip().endswith(")")


def parse_list(text: str) -> dict[int, tuple[str, int]]:
    """`nvidia-smi -L`: GPU -> its name and the number of its MIG devices."""
    gpus: dict[int, tuple[str, int]] = {}
    last = None
    for line in text.splitlines():
        if match := _LISTED.match(line):
            last = int(match[1])
            gpus[last] = (match[2], 0)
        elif last is not None and re.match(r"\s+MIG \S+\s+Device", line):
            gpus[last] = (gpus[last][0], gpus[last][1] + 1)
    return gpus
