"""Parse an `NCCL_DEBUG=INFO` log into NCCL's choices and failures, for any number of ranks, hosts and versions.

In: the text, perhaps prefixed by a launcher, perhaps incomplete. Out: only facts stated in its lines. An empty field
means that no line states its value, never that NCCL did not do it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

# A WARN begins with its place in the source: `misc/socket.cc:49`, or the signature of a plugin's function.
_LINE = re.compile(
    r"(?P<host>[^\s:|]+):(?P<pid>\d+):\d+ (?:\[(?P<device>-?\d+)\] (?:(?P<source>\S.{0,200}:\d+) )?)?"
    r"NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_LINE_WITHOUT_HOST = re.compile(r"(?P<host>)(?:(?P<source>\S+:\d+) )?NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)")
# Before 2.3 the lines lacked NCCL's name.
_OLD_LINE = re.compile(
    r"(?P<host>[^\s:|]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:(?P<source>\S+:\d+) )?"
    r"(?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_CONNECTION = re.compile(
    r"(?:Call to connect|socketPollConnect: connect to \S+) (?:returned|failed :) (?P<first>[\w ]+?)(?:,|$|\.)|"
    r"(?:socketStartConnect: )?Connect to (?:\S+) failed : (?P<second>[\w ]+)",
    re.IGNORECASE,
)
# A number at the end of the text may be truncated: 1 of 12.
_VERSION = re.compile(r"[NR]CCL version(?: :)? (\d+\.\d+\.\d+)(?!\d|\Z)")
_RDMA_USED = re.compile(r"NET/IB.* : Using ")
_SOCKETS_USED = re.compile(r"NET/(?:Socket|FastSocket)\b.* : Using ")
_BOOTSTRAP = re.compile(r"(?:Bootstrap\s*: Using|NET : Using interface) (?:\[\d+\])?([\w.@-]+):")
_NETWORK = re.compile(r"Using (?:internal Network|network) (.+)", re.IGNORECASE)
_DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):(\d+)/(IB|RoCE|\w+)(?:/\w+)?")
_INTERFACE = re.compile(r"\[\d+\]([\w.@-]+):")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? via (.+)"
)
_CHOICE = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:speed|bw) ([\d.]+)/([\d.]+), type (\w+)/(\w+)"
)
_RING_GDR = re.compile(r"use ring PXN \d GDR (\d)")
_SET = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.*?)\.?$")
_GDR_OFF = re.compile(r"GPU Direct RDMA Disabled for HCA \d+ '([^']+)'")
_GDR_ON = re.compile(r"GPU Direct RDMA Enabled for HCA \d+ '([^']+)'")
_COMPLETION_ERROR = re.compile(
    r"Got completion (?:from peer (?P<peer>[^\s<]+)\S* )?.*?with (?:error|status=)\s*(?P<status>\d+)(?!\d|\Z)"
    r"(?:.*? hca (?P<device>\S+))?"
)
_FABRIC = re.compile(r"MNNVL busId (0x\w+) fabric UUID (\S+) cliqueId (0x\w+) state (\d+) healthMask (0x\w+)")
_AFFINITY = re.compile(r"Setting affinity for GPU (\d+) to ([0-9a-f,]+)")
_RANK = re.compile(r"rank (\d+) nranks (\d+)", re.IGNORECASE)
_NUM_NODES = re.compile(r"\bnNodes (\d+)(?!\d|\Z)")
_RING = 4  # NCCL's number for the ring pattern, whose rings begin at a NIC if ranks are on several hosts
_RING_LINE = re.compile(r"^\s*\d+ : (NET|GPU)/\S+ ")
_NO_RDMA = re.compile(r"NET/IB : No device found")
_P2P_OFF = re.compile(r"P2P is disabled between connected GPUs (\d+) and (\d+)")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    host: str | None
    channel: int
    sender: int
    receiver: int
    direction: str | None  # `send` or `receive`: the side that wrote the line; None within a host
    via: str  # as NCCL writes it: `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`

    @property
    def transport(self) -> str:
        if "shared memory" in self.via:
            return "SHM"
        first = self.via.split("/")[0].split()[0]
        return first if first in {"P2P", "SHM", "NET", "COLLNET"} else self.via.split("[")[0]

    @property
    def network(self) -> str | None:
        """Return `IB`, `Socket`, `AWS Libfabric`, ...; None within a host."""
        return self.via.split("/")[1] if self.transport == "NET" and "/" in self.via else None

    @property
    def is_gpu_direct(self) -> bool:
        return "GDRDMA" in self.via


class LoggedWarning(msgspec.Struct, frozen=True, kw_only=True):
    host: str | None
    source: str | None  # where in NCCL's source: `transport/nvls.cc:254`
    text: str

    @property
    def whole_text(self) -> str:
        """Return the text with its place in the source before it, which shows what a general text is about."""
        return f"{self.source} {self.text}" if self.source else self.text


class CompletionError(msgspec.Struct, frozen=True, kw_only=True):
    status: int  # ibv_wc_status
    host: str | None
    device: str | None  # named by newer versions
    peer: str | None  # address of the other side


class Choice(msgspec.Struct, frozen=True):
    """The algorithm and protocol that NCCL chose for a message size."""

    num_bytes: int
    algorithm: str
    protocol: str


class ChannelLayout(msgspec.Struct, frozen=True):
    """How NCCL laid out rings or trees."""

    number: int
    num_channels: int
    channel_gb_per_s: float
    inside: str  # the worst kind of path within the host
    between: str  # the worst kind of path to the network


class NvlinkFabric(msgspec.Struct, frozen=True):
    """A GPU on a multi-node NVLink fabric."""

    bus: str
    uuid: str
    clique: str
    state: int
    health_mask: int


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]
    versions: tuple[str, ...]
    num_ranks: int | None
    networks: dict[str, tuple[str, ...]]  # host -> `Using network ...`
    rdma_devices: dict[str, tuple[str, ...]]  # host -> devices of NET/IB, with their link layer
    without_rdma: tuple[str, ...]  # hosts on which NET/IB found no device
    socket_interfaces: dict[str, tuple[str, ...]]  # host -> interfaces that NET/Socket or FastSocket uses for data
    bootstrap: dict[str, str]  # host -> interface of the bootstrap, or the out-of-band one
    channels: tuple[Channel, ...]
    gpu_direct_off: dict[str, tuple[str, ...]]  # host -> devices
    gpu_direct_on: dict[str, tuple[str, ...]]
    settings: dict[str, tuple[str, ...]]  # NCCL_X -> values that the environment or a file sets
    choices: tuple[Choice, ...]
    patterns: tuple[ChannelLayout, ...]
    ring_gpu_direct: tuple[bool, ...]  # `use ring PXN 0 GDR 1`
    fabrics: tuple[NvlinkFabric, ...]
    affinities: dict[tuple[str, int], str]  # (host, GPU) -> CPU mask
    p2p_off: tuple[tuple[int, int], ...]  # pairs of connected GPUs, each once
    completion_errors: tuple[CompletionError, ...]  # in the order of the log
    no_connection: dict[str, tuple[str, ...]]  # host -> why it could not reach another: `Connection timed out`
    retries: dict[str, tuple[str, ...]]  # the same, for connections that were retried
    warnings: tuple[LoggedWarning, ...]
    num_started: int  # ranks that report a complete start
    num_lines: int  # NCCL's lines in the text
    needs_network: bool | None  # None if the log does not show whether ranks are on other hosts


def parse_nccl_log(text: str) -> NcclLog:
    """Parse the log. Raises ValueError if no line is NCCL's."""
    reader = _LogReader()
    for line in text.splitlines(keepends=True):
        reader.read(line)
    if not reader.num_lines:
        raise ValueError("the text does not contain any NCCL log lines")
    return reader.log()


_Ordered = dict[str, None]  # a set that keeps the order of the log


class _LogReader:
    """Collects the facts in the lines, in the order of the log."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.num_started = 0
        self.num_ranks: int | None = None
        self.num_nodes: int | None = None
        self.ranks: defaultdict[int, set[int]] = defaultdict(set)  # by the size of their communicator
        self.ring_starts: set[str] = set()  # of the ring pattern: `NET` or `GPU`
        self.hosts: _Ordered = {}
        self.versions: _Ordered = {}
        self.networks: defaultdict[str, _Ordered] = defaultdict(dict)  # by host, as those below
        self.rdma_devices: defaultdict[str, _Ordered] = defaultdict(dict)
        self.without_rdma: _Ordered = {}
        self.socket_interfaces: defaultdict[str, _Ordered] = defaultdict(dict)
        self.gpu_direct_off: defaultdict[str, _Ordered] = defaultdict(dict)
        self.gpu_direct_on: defaultdict[str, _Ordered] = defaultdict(dict)
        self.no_connection: defaultdict[str, _Ordered] = defaultdict(dict)
        self.retries: defaultdict[str, _Ordered] = defaultdict(dict)
        self.settings: defaultdict[str, _Ordered] = defaultdict(dict)  # by name
        self.bootstrap: dict[str, str] = {}
        self.channels: list[Channel] = []
        self.choices: list[Choice] = []
        self.patterns: list[ChannelLayout] = []
        self.ring_gpu_direct: list[bool] = []
        self.fabrics: list[NvlinkFabric] = []
        self.affinities: dict[tuple[str, int], str] = {}
        self.p2p_off: dict[tuple[int, int], None] = {}
        self.completion_errors: list[CompletionError] = []
        self.warnings: list[LoggedWarning] = []

    def read(self, line: str) -> None:
        if match := _VERSION.search(line):
            self.num_lines += 1
            self.versions[match[1]] = None
            return
        if "INFO" not in line and "WARN" not in line and "NCCL ERROR" not in line:
            return
        line = _COLOUR.sub("", line)
        match = _LINE.search(line) or _LINE_WITHOUT_HOST.search(line) or _OLD_LINE.search(line)
        if match is None:
            return
        self.num_lines += 1
        host, text = match["host"], match["text"].rstrip()
        if host:
            self.hosts[host] = None
        if match["level"] != "INFO":
            self._read_no_connection(host, text, self.no_connection)
            self._read_warning(line, match)
            return
        self._read_no_connection(host, text, self.retries)
        if line.endswith("\n") or "Init COMPLETE" in line:  # otherwise the text ends here, perhaps within the line
            self._read_info(host, text)

    def _read_no_connection(self, host: str, text: str, reasons: defaultdict[str, _Ordered]) -> None:
        if "onnect" not in text:
            return  # matching the pattern alone would be slow
        if match := _NO_CONNECTION.search(text):
            reason = match["first"] or match["second"]
            reasons[host][reason.strip()] = None

    def _read_warning(self, line: str, match: re.Match[str]) -> None:
        host = match["host"] or None
        self.warnings.append(LoggedWarning(host=host, source=match["source"], text=match["text"].rstrip()))
        if error := _COMPLETION_ERROR.search(line):
            self.completion_errors.append(
                CompletionError(status=int(error["status"]), host=host, device=error["device"], peer=error["peer"])
            )

    def _read_info(self, host: str, text: str) -> None:
        for find, read in _INFO_LINES:
            if match := find(text):
                read(self, host, match)
                break
        self.num_started += "Init COMPLETE" in text
        if match := _RANK.search(text):
            self.num_ranks = max(self.num_ranks or 0, int(match[2]))
            self.ranks[int(match[2])].add(int(match[1]))
        if match := _NUM_NODES.search(text):
            self.num_nodes = max(self.num_nodes or 0, int(match[1]))
        if match := _RING_LINE.match(text):
            is_of_ring = not self.patterns or self.patterns[-1].number == _RING
            if is_of_ring:
                self.ring_starts.add(match[1])

    @property
    def needs_network(self) -> bool | None:
        """Whether ranks communicate over the network: by the hosts of the job, or by its channels."""
        if self.num_nodes is not None and self.num_nodes > 1:
            return True
        if (
            len(self.hosts) > 1
            or "NET" in self.ring_starts
            or any(channel.transport == "NET" for channel in self.channels)
        ):
            return True
        if self.num_nodes == 1 or "GPU" in self.ring_starts:
            return False
        if self.num_ranks is None:
            return None
        started = self.ranks[self.num_ranks]
        connected = {rank for channel in self.channels for rank in (channel.sender, channel.receiver)}
        is_every_rank_here = max(len(started), len(connected)) >= self.num_ranks
        return False if is_every_rank_here else None

    def _read_rdma(self, host: str, match: re.Match[str]) -> None:
        used, _, out_of_band = match.string.partition("; OOB ")
        for device in _DEVICE.finditer(used):
            self.rdma_devices[host][f"{device[2]}:{device[3]}/{device[4]}"] = None
        if out_of_band:
            self.bootstrap.setdefault(host, out_of_band.split(":")[0])

    def _read_sockets(self, host: str, match: re.Match[str]) -> None:
        for interface in _INTERFACE.findall(match.string):
            self.socket_interfaces[host][interface] = None

    def _read_bootstrap(self, host: str, match: re.Match[str]) -> None:
        self.bootstrap[host] = match[1]

    def _read_network(self, host: str, match: re.Match[str]) -> None:
        self.networks[host][match[1].strip()] = None

    def _read_gpu_direct_off(self, host: str, match: re.Match[str]) -> None:
        self.gpu_direct_off[host][match[1]] = None

    def _read_gpu_direct_on(self, host: str, match: re.Match[str]) -> None:
        self.gpu_direct_on[host][match[1]] = None

    def _read_channel(self, host: str, match: re.Match[str]) -> None:
        self.channels.append(
            Channel(
                host=host or None,
                channel=int(match[1]),
                sender=int(match[2]),
                receiver=int(match[3]),
                direction=match[4],
                via=match[5].strip(),
            )
        )

    def _read_setting(self, host: str, match: re.Match[str]) -> None:
        self.settings[match[1]][match[2]] = None

    def _read_choice(self, host: str, match: re.Match[str]) -> None:
        algorithm, protocol = _name(match[3], ALGORITHMS), _name(match[4], PROTOCOLS)
        self.choices.append(Choice(int(match[2]), algorithm, protocol))

    def _read_pattern(self, host: str, match: re.Match[str]) -> None:
        self.patterns.append(ChannelLayout(int(match[1]), int(match[3]), float(match[4]), match[6], match[7]))

    def _read_ring(self, host: str, match: re.Match[str]) -> None:
        self.ring_gpu_direct.append(match[1] == "1")

    def _read_fabric(self, host: str, match: re.Match[str]) -> None:
        self.fabrics.append(NvlinkFabric(match[1], match[2], match[3], int(match[4]), int(match[5], 16)))

    def _read_affinity(self, host: str, match: re.Match[str]) -> None:
        self.affinities[host, int(match[1])] = match[2]

    def _read_p2p_off(self, host: str, match: re.Match[str]) -> None:
        first, second = sorted((int(match[1]), int(match[2])))
        self.p2p_off[first, second] = None

    def _read_no_rdma(self, host: str, match: re.Match[str]) -> None:
        self.without_rdma[host] = None

    def log(self) -> NcclLog:
        return NcclLog(
            hosts=tuple(self.hosts),
            versions=tuple(self.versions),
            num_ranks=self.num_ranks,
            networks=_tuples(self.networks),
            rdma_devices=_tuples(self.rdma_devices),
            without_rdma=tuple(self.without_rdma),
            socket_interfaces=_tuples(self.socket_interfaces),
            bootstrap=self.bootstrap,
            channels=tuple(self.channels),
            gpu_direct_off=_tuples(self.gpu_direct_off),
            gpu_direct_on=_tuples(self.gpu_direct_on),
            settings=_tuples(self.settings),
            choices=tuple(self.choices),
            patterns=tuple(self.patterns),
            ring_gpu_direct=tuple(self.ring_gpu_direct),
            fabrics=tuple(self.fabrics),
            affinities=self.affinities,
            p2p_off=tuple(self.p2p_off),
            completion_errors=tuple(self.completion_errors),
            no_connection=_tuples(self.no_connection),
            retries=_tuples(self.retries),
            warnings=tuple(self.warnings),
            num_started=self.num_started,
            num_lines=self.num_lines,
            needs_network=self.needs_network,
        )


# The handlers of INFO lines; the first pattern that matches the text counts.
_INFO_LINES: tuple[
    tuple[Callable[[str], re.Match[str] | None], Callable[[_LogReader, str, re.Match[str]], None]], ...
] = (
    (_RDMA_USED.match, _LogReader._read_rdma),
    (_SOCKETS_USED.match, _LogReader._read_sockets),
    (_BOOTSTRAP.match, _LogReader._read_bootstrap),
    (_NETWORK.match, _LogReader._read_network),
    (_GDR_OFF.search, _LogReader._read_gpu_direct_off),
    (_GDR_ON.search, _LogReader._read_gpu_direct_on),
    (_CHANNEL.match, _LogReader._read_channel),
    (_SET.match, _LogReader._read_setting),
    (_CHOICE.match, _LogReader._read_choice),
    (_PATTERN.match, _LogReader._read_pattern),
    (_RING_GDR.search, _LogReader._read_ring),
    (_FABRIC.match, _LogReader._read_fabric),
    (_AFFINITY.match, _LogReader._read_affinity),
    (_P2P_OFF.search, _LogReader._read_p2p_off),
    (_NO_RDMA.match, _LogReader._read_no_rdma),
)


def _tuples(values: Mapping[str, _Ordered]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(ordered) for key, ordered in values.items()}


def _name(text: str, names: tuple[str, ...]) -> str:
    """Return the name of a number: NCCL wrote numbers before 2.24, and has written names since."""
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text
