"""`nvidia-smi topo -m` and `-p2p`: which devices, and how each pair is connected.

In: the text, perhaps cut off, without its header or with columns grown together. Out: only cells that are certain. A
text may hold several matrices (`-m` and then `-p2p`, or several hosts): rows of two are never taken for one's.
"""

from __future__ import annotations

import re
from contextlib import suppress

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
    numa: dict[str, str]  # device -> NUMA node or nodes: `1`, `0-1`, `0,3-9`
    gpu_numa: dict[str, str]  # GPU -> the NUMA node that its own memory is, on Grace
    names: dict[str, str]  # NIC0 -> mlx5_0
    hides_nvlink: bool  # of `topo -mp`, which never shows NVLink
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
    """The first matrix of the text that is no `-p2p`. Raises ValueError where there is none."""
    return _only([m for m in matrices(text) if not m.is_peer_to_peer], "no row of a topology matrix")


def parse_peer_to_peer(text: str) -> TopologyMatrix:
    """The first of `-p2p`. Raises ValueError where there is none."""
    return _only([m for m in matrices(text) if m.is_peer_to_peer], "no row of a matrix of -p2p")


def matrices(text: str) -> list[TopologyMatrix]:
    """All in the text, parted before each header."""
    lines = text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if "GPU" in line and _header([_without_underline(line)])[0]]
    # The line above a header may be the prompt with the command.
    ends = [max(start - 1, 0) for start in starts[1:]]
    found = []
    for start, end in zip([0, *ends], [*ends, len(lines)], strict=True):
        with suppress(ValueError):
            found.append(_parse("".join(lines[start:end])))
    return found


def has_header(text: str) -> bool:
    return any("GPU" in line and _header([_without_underline(line)])[0] for line in text.splitlines())


def _only(found: list[TopologyMatrix], none: str) -> TopologyMatrix:
    if not found:
        raise ValueError(none)
    first, *others = found
    if all(other.cells == first.cells for other in others):
        return first
    more = f"{len(others)} more matrices in the text are unlike the first, and are left out: give each host's apart"
    return msgspec.structs.replace(first, problems=(more, *first.problems))


def _parse(text: str) -> TopologyMatrix:
    """Raises ValueError where no row of a matrix is found."""
    lines = [_without_underline(line) for line in text.splitlines()]
    columns, num_affinity = _header(lines)
    hides_nvlink = re.search(r"topo\s+-mp\b", text) is not None or ("Legend" in text and "NV#" not in text)
    rows = [(number, words) for number, line in enumerate(lines) if (words := line.split()) and _is_row(words)]
    if not rows:
        raise ValueError("no row of a topology matrix")
    problems: list[str] = []
    between = lines[rows[0][0] : rows[-1][0] + 1]
    is_wrapped = sum(bool(line.strip()) for line in between) > len(rows)
    if is_wrapped:
        problems.append("the lines are broken, as by a narrow terminal: only their first parts are read")
    if not columns:
        columns = [words[0] for _, words in rows]
        problems.append("the header is missing: columns after the rows' own have no names and are left out")
    is_cut = len(rows) < sum(name.startswith("GPU") for name in columns) or not _ends_whole(text)
    cells: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    numa: dict[str, str] = {}
    gpu_numa: dict[str, str] = {}
    for number, (_, words) in enumerate(rows):
        label, row, rest = _split_row(words)
        is_last = number == len(rows) - 1 and is_cut
        if (is_wrapped or (is_last and len(row) < len(columns))) and not rest and row and row[-1].startswith("NV"):
            row = row[:-1]  # NV1 may be the beginning of NV18
        if len(row) < len(columns):
            problems.append(f"row {label} is cut off after {len(row)} of {len(columns)} cells")
        own = columns.index(label) if label in columns else None
        if own is None or (len(row) > own and row[own] != "X"):
            problems.append(f"row {label} has its own X in another column, and is left out")
            continue
        for column, cell in zip(columns, row, strict=False):
            if column != label:
                cells[label, column] = "SYS" if cell == "SOC" else cell  # as drivers before 384 wrote it
        affinity = _affinity(rest, num_affinity)
        if affinity is None and rest:
            problems.append(f"the affinity of {label} cannot be told apart: {' '.join(rest)}")
        elif affinity is not None and is_last and number + 1 < len(columns) and not text.endswith("\n"):
            problems.append(f"the affinity of {label} may be cut off, and is left out")
        elif affinity is not None:
            cpus |= {label: affinity[0]} if affinity[0] else {}
            numa |= {label: affinity[1]} if affinity[1] else {}
            gpu_numa |= {label: affinity[2]} if affinity[2] else {}
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
        devices=tuple(columns),
        cells=cells,
        cpus=cpus,
        numa=numa,
        gpu_numa=gpu_numa,
        names=names,
        hides_nvlink=hides_nvlink,
        problems=tuple(problems),
    )


def _without_underline(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _header(lines: list[str]) -> tuple[list[str], int | None]:
    for line in lines:
        if "GPU" not in line:
            continue
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


def _affinity(rest: list[str], num_columns: int | None) -> tuple[str | None, str | None, str | None] | None:
    """CPU list, NUMA node and GPU NUMA ID; None where the columns have grown together or are incomplete."""
    if num_columns is None:
        num_columns = 3
    words = [part for word in rest for part in (re.sub(r"^([\d,-]+)(N/A)$", r"\1 \2", word)).split()]
    if not words:
        return (None, None, None)
    if len(words) != num_columns or not (_CPUS.fullmatch(words[0]) or words[0] == "N/A"):
        return None
    cpus, numa, gpu_numa = (None if word == "N/A" else word for word in (*words, "N/A", "N/A")[:3])
    return cpus, numa, gpu_numa


def _ends_whole(text: str) -> bool:
    return text.endswith("\n") or "Legend" in text
