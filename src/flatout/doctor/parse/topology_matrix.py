"""Parse `nvidia-smi topo -m` and `-p2p`: the devices, and how each pair is connected.

In: the text, which may be truncated, lack its header or have columns that ran together. Out: only cells that are
certain. A text can contain several matrices (`-m` and then `-p2p`, or several hosts): their rows are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

import msgspec

_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+|[a-z][a-z0-9]*(?:_[a-z]+)*_?\d+")
_GLUED_DEVICES = re.compile(r"((?:GPU|NIC)\d+)(?=(?:GPU|NIC)\d)")
_GLUED_AFFINITY = re.compile(r"^([\d,-]+)(N/A)$")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_LEGEND_NIC = re.compile(r"\s+(NIC\d+): (\S+)\s*")
_AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
P2P_STATUSES = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}


class TopologyMatrix(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]  # both directions, no diagonal
    cpus: dict[str, str]  # device -> CPU list
    numa: dict[str, str]  # device -> NUMA node or nodes: `1`, `0-1`, `0,3-9`
    gpu_numa: dict[str, str]  # GPU -> the NUMA node of its memory, on Grace
    names: dict[str, str]  # NIC0 -> mlx5_0
    hides_nvlink: bool  # printed by `topo -mp`, which never shows NVLink
    has_header: bool = True
    missing_rows: tuple[str, ...] = ()  # devices of the header without a row
    problems: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if device.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if not device.startswith("GPU"))

    @property
    def may_lack_gpus(self) -> bool:
        """Whether the machine may have more GPUs than the text has rows for."""
        return not self.has_header or any(device.startswith("GPU") for device in self.missing_rows)

    @property
    def is_peer_to_peer(self) -> bool:
        return bool(self.cells) and set(self.cells.values()) <= P2P_STATUSES


class _Header(msgspec.Struct, frozen=True):
    columns: list[str]
    num_affinity_columns: int


class _Row(msgspec.Struct, frozen=True):
    line_number: int
    device: str
    cells: list[str]
    affinity: list[str]  # the words after the cells


class _Affinity(msgspec.Struct, frozen=True):
    """The columns after the cells; None if a column says `N/A` or is missing."""

    cpus: str | None = None
    numa: str | None = None
    gpu_numa: str | None = None


def parse_topology_matrix(text: str) -> TopologyMatrix:
    """Parse the first matrix of the text that is not `-p2p`. Raises ValueError if there is none."""
    connections = [matrix for matrix in matrices(text) if not matrix.is_peer_to_peer]
    return _only(connections, "the text does not contain any row of a topology matrix")


def parse_peer_to_peer(text: str) -> TopologyMatrix:
    """Parse the first matrix of `-p2p`. Raises ValueError if there is none."""
    peer_to_peer = [matrix for matrix in matrices(text) if matrix.is_peer_to_peer]
    return _only(peer_to_peer, "the text does not contain any row of a -p2p matrix")


def matrices(text: str) -> list[TopologyMatrix]:
    """Parse every matrix of the text; each header starts the next one."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if _is_header(line)]
    # The line above a header may be the prompt with the command.
    ends = [max(start - 1, 0) for start in starts[1:]]
    parsed = []
    for start, end in zip([0, *ends], [*ends, len(lines)], strict=True):
        with suppress(ValueError):
            parsed.append(_parse("".join(lines[start:end])))
    return parsed


def has_header(text: str) -> bool:
    return any(_is_header(line) for line in text.splitlines())


def _only(candidates: list[TopologyMatrix], error: str) -> TopologyMatrix:
    """Return the first matrix, with a problem if the others differ from it."""
    if not candidates:
        raise ValueError(error)
    first, *others = candidates
    if all(other.cells == first.cells for other in others):
        return first
    problem = f"{len(others)} more matrices in the text differ from the first and are skipped: pass one host per file"
    return msgspec.structs.replace(first, problems=(problem, *first.problems))


def _parse(text: str) -> TopologyMatrix:
    """Parse one matrix. Raises ValueError if no line is a row."""
    lines = [_without_underline(line) for line in text.splitlines()]
    rows = [row for number, line in enumerate(lines) if (row := _read_row(number, line))]
    if not rows:
        raise ValueError("the text does not contain any row of a topology matrix")
    header = _find_header(lines)
    collected = _Collected(header, rows, is_wrapped=_is_wrapped(lines, rows))
    num_gpus = sum(column.startswith("GPU") for column in collected.columns)
    is_truncated = len(rows) < num_gpus or not _ends_complete(text)
    for row in rows[:-1]:
        collected.add(row)
    has_all_rows = len(rows) >= len(collected.columns) or text.endswith("\n")
    collected.add(rows[-1], is_truncated=is_truncated, is_affinity_truncated=is_truncated and not has_all_rows)
    devices = {row.device for row in rows}
    missing_rows = [column for column in collected.columns if column not in devices]
    if missing_rows:
        collected.problems.append(f"rows are missing: {', '.join(missing_rows)}")
    collected.make_symmetric()
    legend = filter(None, map(_LEGEND_NIC.fullmatch, lines))
    return TopologyMatrix(
        devices=tuple(collected.columns),
        cells=collected.cells,
        cpus=collected.cpus,
        numa=collected.numa,
        gpu_numa=collected.gpu_numa,
        names={match[1]: match[2] for match in legend},
        hides_nvlink=_hides_nvlink(text),
        has_header=header is not None,
        missing_rows=tuple(missing_rows),
        problems=tuple(collected.problems),
    )


class _Collected:
    """Collects the cells and affinities that are certain, and the problems of the text."""

    def __init__(self, header: _Header | None, rows: Sequence[_Row], *, is_wrapped: bool) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self.cpus: dict[str, str] = {}
        self.numa: dict[str, str] = {}
        self.gpu_numa: dict[str, str] = {}
        self.problems: list[str] = []
        self.is_wrapped = is_wrapped
        if is_wrapped:
            self.problems.append("the lines are wrapped, as by a narrow terminal, and only their first parts are read")
        if header is None:
            self.columns = [row.device for row in rows]
            self.num_affinity_columns = len(_AFFINITY_COLUMNS)
            self.problems.append("the header is missing: columns without a row have no name and are skipped")
        else:
            self.columns = header.columns
            self.num_affinity_columns = header.num_affinity_columns

    def add(self, row: _Row, *, is_truncated: bool = False, is_affinity_truncated: bool = False) -> None:
        cells = self._certain_cells(row, is_truncated=is_truncated)
        if len(cells) < len(self.columns):
            self.problems.append(f"row {row.device} is truncated after {len(cells)} of {len(self.columns)} cells")
        if not self._is_aligned(row.device, cells):
            self.problems.append(f"row {row.device} has its own X in another column, and is skipped")
            return
        for column, cell in zip(self.columns, cells, strict=False):
            if column != row.device:
                self.cells[row.device, column] = "SYS" if cell == "SOC" else cell  # drivers before 384 wrote SOC
        self._add_affinity(row, is_truncated=is_affinity_truncated)

    def _certain_cells(self, row: _Row, *, is_truncated: bool) -> list[str]:
        """Return the cells without a last cell that may be truncated, e.g. NV1 from NV18."""
        may_be_cut = self.is_wrapped or (is_truncated and len(row.cells) < len(self.columns))
        if may_be_cut and not row.affinity and row.cells[-1].startswith("NV"):
            return row.cells[:-1]
        return row.cells

    def _is_aligned(self, device: str, cells: Sequence[str]) -> bool:
        """Whether the row has its X in its own column, if the row reaches that column."""
        if device not in self.columns:
            return False
        own_column = self.columns.index(device)
        return own_column >= len(cells) or cells[own_column] == "X"

    def _add_affinity(self, row: _Row, *, is_truncated: bool) -> None:
        affinity = _read_affinity(row.affinity, self.num_affinity_columns)
        if affinity is None:
            self.problems.append(f"the affinity columns of {row.device} are unclear: {' '.join(row.affinity)}")
            return
        if is_truncated:
            self.problems.append(f"the affinity of {row.device} may be truncated, and is skipped")
            return
        for value, by_device in (
            (affinity.cpus, self.cpus),
            (affinity.numa, self.numa),
            (affinity.gpu_numa, self.gpu_numa),
        ):
            if value is not None:
                by_device[row.device] = value

    def make_symmetric(self) -> None:
        """Give each cell both directions; drop a pair whose two directions contradict each other."""
        for (a, b), cell in list(self.cells.items()):
            reverse = self.cells.setdefault((b, a), cell)
            if reverse != cell and (a, b) < (b, a):
                self.problems.append(f"{a} to {b} is {cell}, but {b} to {a} is {reverse}; both are skipped")
                del self.cells[a, b], self.cells[b, a]


def _without_underline(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _is_header(line: str) -> bool:
    return _read_header(_without_underline(line)) is not None


def _find_header(lines: Sequence[str]) -> _Header | None:
    for line in lines:
        if header := _read_header(line):
            return header
    return None


def _read_header(line: str) -> _Header | None:
    if "GPU" not in line:
        return None
    before_affinity, *_ = re.split(r"\s*CPU Affinity", line)
    devices = _GLUED_DEVICES.sub(r"\1 ", before_affinity).split()
    if not devices or not devices[0].startswith("GPU"):
        return None
    if not all(_DEVICE.fullmatch(device) for device in devices):
        return None
    if len(devices) == 1 and "CPU Affinity" not in line:
        return None
    return _Header(devices, sum(column in line for column in _AFFINITY_COLUMNS))


def _read_row(line_number: int, line: str) -> _Row | None:
    device, *words = line.split() or [""]
    if not _DEVICE.fullmatch(device):
        return None
    cells = list(takewhile(_CELL.fullmatch, words))
    if not cells:
        return None
    return _Row(line_number, device, cells, affinity=words[len(cells) :])


def _is_wrapped(lines: Sequence[str], rows: Sequence[_Row]) -> bool:
    """Whether there is other text between the rows, such as the ends of lines that a terminal wrapped."""
    between = lines[rows[0].line_number : rows[-1].line_number + 1]
    num_with_text = sum(bool(line.strip()) for line in between)
    return num_with_text > len(rows)


def _read_affinity(words: Sequence[str], num_columns: int) -> _Affinity | None:
    """Read the columns after the cells; None if they ran together or are incomplete."""
    values = " ".join(_GLUED_AFFINITY.sub(r"\1 \2", word) for word in words).split()
    if not values:
        return _Affinity()
    if len(values) != num_columns:
        return None
    if values[0] != "N/A" and not _CPUS.fullmatch(values[0]):
        return None
    return _Affinity(*(None if value == "N/A" else value for value in values))


def _ends_complete(text: str) -> bool:
    return text.endswith("\n") or "Legend" in text


def _hides_nvlink(text: str) -> bool:
    """Whether the command was `topo -mp`; the legend of `topo -m` always explains NV#."""
    if re.search(r"topo\s+-mp\b", text):
        return True
    return "Legend" in text and "NV#" not in text
