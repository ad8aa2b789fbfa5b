"""`nvidia-smi topo -m` and `-p2p`: which devices, and how each pair is connected.

In: the text, perhaps cut off, without its header or with columns grown together. Out: only cells that are certain.
"""

from __future__ import annotations

import re

import msgspec

_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+|[a-z][a-z0-9]*(?:_[a-z]+)*_?\d+")
_GLUED_DEVICES = re.compile(r"((?:GPU|NIC)\d+)(?=(?:GPU|NIC)\d)")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_LEGEND_NIC = re.compile(r"\s+(NIC\d+): (\S+)\s*")
_AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
P2P_STATUSES = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}


class TopologyMatrix(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]  # both directions, no diagonal
    cpus: dict[str, str]  # device -> CPU list
    numa: dict[str, str]  # device -> NUMA node or nodes
    names: dict[str, str]  # NIC0 -> mlx5_0
    problems: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if device.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if not device.startswith("GPU"))

    @property
    def is_peer_to_peer(self) -> bool:
        return bool(self.cells) and set(self.cells.values()) <= P2P_STATUSES


def parse_topology_matrix(text: str) -> TopologyMatrix:
    """Raises ValueError where no row of a matrix is found."""
    lines = [_without_underline(line) for line in text.splitlines()]
    columns, num_affinity = _header(lines)
    rows = [(line, words) for line in lines if (words := line.split()) and _is_row(words)]
    if not rows:
        raise ValueError("no row of a topology matrix")
    problems: list[str] = []
    if not columns:
        columns = [words[0] for _, words in rows]
        problems.append("the header is missing: columns after the rows' own have no names and are left out")
    is_cut = len(rows) < sum(name.startswith("GPU") for name in columns) or not _ends_whole(text)
    cells: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    numa: dict[str, str] = {}
    for number, (_, words) in enumerate(rows):
        label, row, rest = _split_row(words)
        is_last = number == len(rows) - 1 and is_cut
        if len(row) < len(columns):
            problems.append(f"row {label} is cut off after {len(row)} of {len(columns)} cells")
            if is_last and row and row[-1].startswith("NV"):
                row = row[:-1]  # NV1 may be the beginning of NV18
        own = columns.index(label) if label in columns else None
        if own is None or (len(row) > own and row[own] != "X"):
            problems.append(f"row {label} has its own X in another column, and is left out")
            continue
        for column, cell in zip(columns, row, strict=False):
            if column != label:
                cells[label, column] = cell
        affinity = _affinity(rest, num_affinity)
        if affinity is None and rest:
            problems.append(f"the affinity of {label} cannot be told apart: {' '.join(rest)}")
        elif affinity is not None and is_last and number + 1 < len(columns) and not text.endswith("\n"):
            problems.append(f"the affinity of {label} may be cut off, and is left out")
        elif affinity is not None:
            cpus |= {label: affinity[0]} if affinity[0] else {}
            numa |= {label: affinity[1]} if affinity[1] else {}
    labels = {words[0] for _, words in rows}
    if missing := [name for name in columns if name not in labels]:
        problems.append(f"rows are missing: {', '.join(missing)}")
    for (a, b), cell in list(cells.items()):
        other = cells.setdefault((b, a), cell)
        if other != cell and (a, b) < (b, a):
            problems.append(f"{a} to {b} is {cell}, but {b} to {a} is {other}; both are left out")
            del cells[a, b], cells[b, a]
    names = {match[1]: match[2] for line in lines if (match := _LEGEND_NIC.fullmatch(line))}
    return TopologyMatrix(
        devices=tuple(columns), cells=cells, cpus=cpus, numa=numa, names=names, problems=tuple(problems)
    )


def _without_underline(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _header(lines: list[str]) -> tuple[list[str], int | None]:
    for line in lines:
        before, *_ = re.split(r"\s*CPU Affinity", line)
        words = _GLUED_DEVICES.sub(r"\1 ", before).split()
        if len(words) >= 1 and all(_DEVICE.fullmatch(word) for word in words) and words[0].startswith("GPU"):
            if len(words) == 1 and "CPU Affinity" not in line:
                continue
            return words, sum(name in line for name in _AFFINITY_COLUMNS)
    return [], None


def _is_row(words: list[str]) -> bool:
    return bool(_DEVICE.fullmatch(words[0])) and len(words) > 1 and bool(_CELL.fullmatch(words[1]))


def _split_row(words: list[str]) -> tuple[str, list[str], list[str]]:
    row: list[str] = []
    for word in words[1:]:
        if not _CELL.fullmatch(word):
            break
        row.append(word)
    return words[0], row, words[1 + len(row) :]


def _affinity(rest: list[str], num_columns: int | None) -> tuple[str | None, str | None] | None:
    """CPU list and NUMA node; None where the columns have grown together or are incomplete."""
    if num_columns is None:
        num_columns = 3
    words = [part for word in rest for part in (re.sub(r"^([\d,-]+)(N/A)$", r"\1 \2", word)).split()]
    if not words:
        return (None, None)
    if len(words) != num_columns or not (_CPUS.fullmatch(words[0]) or words[0] == "N/A"):
        return None
    cpus = None if words[0] == "N/A" else words[0]
    return cpus, next((word for word in words[1:2] if word != "N/A"), None)


def _ends_whole(text: str) -> bool:
    return text.endswith("\n") or "Legend" in text
