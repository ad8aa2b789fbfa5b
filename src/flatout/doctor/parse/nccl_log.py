"""A log of `NCCL_DEBUG=INFO` -> what NCCL chose and what went wrong; of any number of ranks, hosts and versions.

In: the text, perhaps with prefixes of a launcher, perhaps a part of it. Out: only what lines say; a field that no line
gives is empty, which never means that NCCL did not do it.
"""

from __future__ import annotations

import re

import msgspec

# Before a WARN stands where in the source it is: `misc/socket.cc:49`, or the signature of a plugin's function.
_LINE = re.compile(
    r"(?P<host>[^\s:|]+):(?P<pid>\d+):\d+ (?:\[(?P<device>-?\d+)\] (?:(?P<place>\S.{0,200}:\d+) )?)?"
    r"NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_LINE_WITHOUT_HOST = re.compile(r"(?P<host>)(?:(?P<place>\S+:\d+) )?NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)")
# Before 2.3 the lines lacked NCCL's name.
_OLD_LINE = re.compile(
    r"(?P<host>[^\s:|]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:(?P<place>\S+:\d+) )?"
    r"(?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_CONNECTION = re.compile(
    r"(?:Call to connect|socketPollConnect: connect to \S+) (?:returned|failed :) (?P<first>[\w ]+?)(?:,|$|\.)|"
    r"(?:socketStartConnect: )?Connect to (?:\S+) failed : (?P<second>[\w ]+)",
    re.IGNORECASE,
)
# At the end of the text a number may be cut off: 1 of 12.
_VERSION = re.compile(r"[NR]CCL version(?: :)? (\d+\.\d+\.\d+)(?!\d|\Z)")
_DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):(\d+)/(IB|RoCE|\w+)(?:/\w+)?")
_INTERFACE = re.compile(r"\[\d+\]([\w.@-]+):")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? via (.+)"
)
_BYTES = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:speed|bw) ([\d.]+)/([\d.]+), type (\w+)/(\w+)"
)
_SYSTEM = re.compile(r"=== System : maxBw ([\d.]+) totalBw ([\d.]+) ===")
_SET = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.*?)\.?$")
_GDR_OFF = re.compile(r"GPU Direct RDMA Disabled for HCA \d+ '([^']+)'")
_GDR_ON = re.compile(r"GPU Direct RDMA Enabled for HCA \d+ '([^']+)'")
_STATUS = re.compile(
    r"Got completion (?:from peer (?P<peer>[^\s<]+)\S* )?.*?with (?:error|status=)\s*(?P<status>\d+)(?!\d|\Z)"
    r"(?:.*? hca (?P<device>\S+))?"
)
_FABRIC = re.compile(r"MNNVL busId (0x\w+) fabric UUID (\S+) cliqueId (0x\w+) state (\d+) healthMask (0x\w+)")
_AFFINITY = re.compile(r"Setting affinity for GPU (\d+) to ([0-9a-f,]+)")
_RANK = re.compile(r"rank (\d+) nranks (\d+)", re.IGNORECASE)
_P2P_OFF = re.compile(r"P2P is disabled between connected GPUs (\d+) and (\d+)")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    host: str | None
    channel: int
    sender: int
    receiver: int
    direction: str | None  # `send` or `receive`: which side the line speaks of; None within a host
    via: str  # as NCCL writes it: `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`

    @property
    def transport(self) -> str:
        if "shared memory" in self.via:
            return "SHM"
        first = self.via.split("/")[0].split()[0]
        return first if first in {"P2P", "SHM", "NET", "COLLNET"} else self.via.split("[")[0]

    @property
    def network(self) -> str | None:
        """`IB`, `Socket`, `AWS Libfabric`; None within a host."""
        return self.via.split("/")[1] if self.transport == "NET" and "/" in self.via else None

    @property
    def is_gpu_direct(self) -> bool:
        return "GDRDMA" in self.via


class Warning_(msgspec.Struct, frozen=True, kw_only=True):  # noqa: N801 - `Warning` is a builtin
    host: str | None
    place: str | None  # in the source: `transport/nvls.cc:254`
    text: str


class CompletionError(msgspec.Struct, frozen=True, kw_only=True):
    status: int  # ibv_wc_status
    host: str | None
    device: str | None  # newer versions name it
    peer: str | None  # address of the other side


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]
    versions: tuple[str, ...]
    num_ranks: int | None
    networks: dict[str, tuple[str, ...]]  # host -> `Using network ...`
    rdma_devices: dict[str, tuple[str, ...]]  # host -> devices of NET/IB, with their link layer
    socket_interfaces: dict[str, tuple[str, ...]]  # host -> interfaces that NET/Socket or FastSocket uses for data
    bootstrap: dict[str, str]  # host -> interface of the bootstrap, or the out-of-band one
    channels: tuple[Channel, ...]
    gpu_direct_off: dict[str, tuple[str, ...]]  # host -> devices
    gpu_direct_on: dict[str, tuple[str, ...]]
    settings: dict[str, tuple[str, ...]]  # NCCL_X -> values that were set by the environment or a file
    choices: tuple[tuple[int, str, str], ...]  # bytes, algorithm, protocol
    patterns: tuple[tuple[int, int, float, str, str], ...]  # pattern, channels, GB/s, type inside, type between hosts
    system: tuple[float, float] | None  # the model's largest link, and total, in GB/s
    ring_gpu_direct: tuple[bool, ...]  # `use ring PXN 0 GDR 1`
    fabrics: tuple[tuple[str, str, str, int, int], ...]  # bus, UUID, clique, state, health mask
    affinities: dict[tuple[str, int], str]  # (host, GPU) -> CPU mask
    p2p_off: tuple[tuple[int, int], ...]
    completion_errors: tuple[CompletionError, ...]  # in the order of the log
    no_connection: dict[str, tuple[str, ...]]  # host -> why it could not reach another: `Connection timed out`
    retries: dict[str, tuple[str, ...]]  # the same, of those that were tried again
    warnings: tuple[Warning_, ...]
    num_started: int  # ranks whose start is said to be complete
    num_lines: int  # lines of NCCL in the text


def parse_nccl_log(text: str) -> NcclLog:
    """Raises ValueError where no line is NCCL's."""
    log = _Collected()
    for line in text.splitlines(keepends=True):
        log.read(line)
    if not log.num_lines:
        raise ValueError("no line of an NCCL log")
    return log.done()


class _Collected:
    def __init__(self) -> None:
        self.num_lines = 0
        self.num_started = 0
        self.num_ranks: int | None = None
        self.hosts: dict[str, None] = {}
        self.versions: dict[str, None] = {}
        self.by_host: dict[str, dict[str, dict[str, None]]] = {}
        self.bootstrap: dict[str, str] = {}
        self.channels: list[Channel] = []
        self.settings: dict[str, dict[str, None]] = {}
        self.choices: list[tuple[int, str, str]] = []
        self.patterns: list[tuple[int, int, float, str, str]] = []
        self.system: tuple[float, float] | None = None
        self.ring_gpu_direct: list[bool] = []
        self.fabrics: list[tuple[str, str, str, int, int]] = []
        self.affinities: dict[tuple[str, int], str] = {}
        self.p2p_off: list[tuple[int, int]] = []
        self.completion_errors: list[CompletionError] = []
        self.warnings: list[Warning_] = []

    def read(self, line: str) -> None:
        if match := _VERSION.search(line):
            self.num_lines += 1
            self.versions[match[1]] = None
            return
        if "INFO" not in line and "WARN" not in line and "NCCL ERROR" not in line:
            return
        line = _COLOUR.sub("", line) if "\x1b" in line else line
        found = _LINE.search(line) or _LINE_WITHOUT_HOST.search(line) or _OLD_LINE.search(line)
        if found is None:
            return
        self.num_lines += 1
        host, text = found["host"] or "", found["text"].rstrip()
        if host:
            self.hosts[host] = None
        if "onnect" in text and (match := _NO_CONNECTION.search(text)):
            kind = "retry" if found["level"] == "INFO" else "no connection"
            self._add(kind, host, (match["first"] or match["second"]).strip())
        if found["level"] == "INFO" and not line.endswith("\n") and "Init COMPLETE" not in line:
            return  # the last line of the text may be cut off
        if found["level"] != "INFO":
            self.warnings.append(Warning_(host=host or None, place=found["place"], text=text))
            if match := _STATUS.search(line):
                self.completion_errors.append(
                    CompletionError(
                        status=int(match["status"]), host=host or None, device=match["device"], peer=match["peer"]
                    )
                )
            return
        self._read_network(host, text)
        self._read_choice(host, text)

    def _add(self, kind: str, host: str, value: str) -> None:
        self.by_host.setdefault(kind, {}).setdefault(host, {})[value] = None

    def _read_network(self, host: str, text: str) -> None:
        used, _, out_of_band = text.partition("; OOB ")
        if text.startswith("NET/IB") and " : Using " in used:
            for device in _DEVICE.finditer(used):
                self._add("rdma", host, f"{device[2]}:{device[3]}/{device[4]}")
            if out_of_band:
                self.bootstrap.setdefault(host, out_of_band.split(":")[0])
        elif re.match(r"NET/(Socket|FastSocket)\b", text) and " : Using " in text:
            for name in _INTERFACE.findall(text):
                self._add("socket", host, name)
        elif match := re.match(r"(?:Bootstrap\s*: Using|NET : Using interface) (?:\[\d+\])?([\w.@-]+):", text):
            self.bootstrap[host] = match[1]
        elif match := re.match(r"Using (?:internal Network|network) (.+)", text, re.IGNORECASE):
            self._add("network", host, match[1].strip())
        elif match := _GDR_OFF.search(text):
            self._add("off", host, match[1])
        elif match := _GDR_ON.search(text):
            self._add("on", host, match[1])

    def _read_choice(self, host: str, text: str) -> None:
        if match := _CHANNEL.match(text):
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
        elif match := _SET.match(text):
            self.settings.setdefault(match[1], {})[match[2]] = None
        elif match := _BYTES.match(text):
            self.choices.append((int(match[2]), _named(match[3], ALGORITHMS), _named(match[4], PROTOCOLS)))
        elif match := _PATTERN.match(text):
            self.patterns.append((int(match[1]), int(match[3]), float(match[4]), match[6], match[7]))
        elif match := _SYSTEM.match(text):
            self.system = (float(match[1]), float(match[2]))
        elif match := re.search(r"use ring PXN \d GDR (\d)", text):
            self.ring_gpu_direct.append(match[1] == "1")
        elif match := _FABRIC.match(text):
            self.fabrics.append((match[1], match[2], match[3], int(match[4]), int(match[5], 16)))
        elif match := _AFFINITY.match(text):
            self.affinities[host, int(match[1])] = match[2]
        elif match := _P2P_OFF.search(text):
            self.p2p_off.append((int(match[1]), int(match[2])))
        self.num_started += "Init COMPLETE" in text
        if match := _RANK.search(text):
            self.num_ranks = max(self.num_ranks or 0, int(match[2]))

    def done(self) -> NcclLog:
        def by_host(kind: str) -> dict[str, tuple[str, ...]]:
            return {host: tuple(values) for host, values in self.by_host.get(kind, {}).items()}

        return NcclLog(
            hosts=tuple(self.hosts),
            versions=tuple(self.versions),
            num_ranks=self.num_ranks,
            networks=by_host("network"),
            rdma_devices=by_host("rdma"),
            socket_interfaces=by_host("socket"),
            bootstrap=self.bootstrap,
            channels=tuple(self.channels),
            gpu_direct_off=by_host("off"),
            gpu_direct_on=by_host("on"),
            settings={name: tuple(values) for name, values in self.settings.items()},
            choices=tuple(self.choices),
            patterns=tuple(self.patterns),
            system=self.system,
            ring_gpu_direct=tuple(self.ring_gpu_direct),
            fabrics=tuple(self.fabrics),
            affinities=self.affinities,
            p2p_off=tuple(self.p2p_off),
            completion_errors=tuple(self.completion_errors),
            no_connection=by_host("no connection"),
            retries=by_host("retry"),
            warnings=tuple(self.warnings),
            num_started=self.num_started,
            num_lines=self.num_lines,
        )


def _named(text: str, names: tuple[str, ...]) -> str:
    """NCCL wrote numbers before 2.24, and names since."""
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text
