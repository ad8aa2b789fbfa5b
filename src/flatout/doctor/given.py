"""Files that the user gives instead of this machine -> one Snapshot; what each is, is told from its content.

A bundle of `--capture`, outputs of `nvidia-smi` (`topo -m`, `topo -p2p`, `-q`, `-L`, `nvlink -s`, `nvlink -e`),
`lspci`, a topology or graph XML of NCCL, an NCCL log, a kernel log, a JSON object of sysfs paths, or a folder: a copy
of `/`, or of `/sys/class/infiniband`.
"""

from __future__ import annotations

import codecs
import os
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.doctor.graph import lspci_kind
from flatout.doctor.machine import (
    FABRIC_MANAGER_LOG,
    KERNEL_LOG,
    LSPCI,
    NCCL_GRAPH,
    NCCL_LOG,
    NCCL_TOPOLOGY,
    SMI_LIST,
    SMI_NVLINK,
    SMI_NVLINK_ERRORS,
    SMI_P2P,
    SMI_QUERY,
    SMI_TOPOLOGY,
)
from flatout.doctor.parse.kernel_log import MARK, STAMP, kernel_lines
from flatout.doctor.parse.lspci import parse_lspci
from flatout.doctor.parse.topology_matrix import has_header, matrices
from flatout.errors import InputError
from flatout.records.snapshot import Output, Snapshot

SCHEMA = "flatout/snapshot"
VERSION = 1
_MAX_BYTES = 256 << 20
_MAX_FILES_OF_A_FOLDER = 200_000
_MAX_BYTES_OF_A_SYSFS_FILE = 1 << 20
_NVLINK = re.compile(r"^\s+Link \d+: (?:[\d.]+ GB/s|<inactive>)|all links are inactive", re.MULTILINE | re.IGNORECASE)
_MISSING_BEFORE = re.compile(r"there is no `[^`]+` here")  # as bundles without `is_missing` word it
KINDS = (
    "a bundle of `flatout doctor --capture`, an output of nvidia-smi or lspci, a topology XML of NCCL, an NCCL log, a "
    "kernel log, a JSON object of sysfs files, or a folder with a copy of /sys and /proc"
)


class _Bundle(msgspec.Struct):
    schema: str
    version: int
    tool_version: str
    snapshot: Snapshot


def bundle_bytes(snapshot: Snapshot) -> bytes:
    """A snapshot as the file of `--capture`."""
    bundle = _Bundle(schema=SCHEMA, version=VERSION, tool_version=__version__, snapshot=snapshot)
    return msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n"


def read_given(paths: Sequence[Path]) -> Snapshot:
    """All files as one machine. Raises InputError where one is missing or none of what is known."""
    snapshot = Snapshot()
    for path in paths:
        snapshot = merged(snapshot, _read(path))
    return msgspec.structs.replace(snapshot, read_from=tuple(str(path) for path in paths))


def read_bundle(data: bytes, name: str) -> Snapshot:
    """What `flatout doctor --capture -` wrote on a host; a shell may have said something before it. InputError."""
    text = data.decode("utf-8", "replace")
    snapshot = _json(Path(name), text[max(0, text.find("{")) :])
    return msgspec.structs.replace(snapshot, read_from=(name,))


def read_log(path: Path) -> Output:
    """A text whose kind the user says."""
    return Output(text=_text(path))


def merged(first: Snapshot, second: Snapshot) -> Snapshot:
    """Both; where they have the same source, the second's."""
    outputs = dict(first.outputs)
    for name, output in second.outputs.items():
        before = outputs.get(name)
        if before is not None and before.text and output.text and name in (NCCL_LOG, KERNEL_LOG, SMI_NVLINK):
            output = Output(text=before.text.rstrip("\n") + "\n" + output.text)
        outputs[name] = output
    return Snapshot(
        host=second.host or first.host,
        taken_at=second.taken_at or first.taken_at,
        read_from=(*first.read_from, *second.read_from),
        files=first.files | second.files,
        links=first.links | second.links,
        problems={path: why for path, why in (first.problems | second.problems).items() if path not in second.files},
        outputs=outputs,
        environment=second.environment if second.environment is not None else first.environment,
    )


def _read(path: Path) -> Snapshot:
    if path.is_dir():
        return _folder(path)
    text = _text(path)
    if text.lstrip().startswith("{"):
        return _json(path, text)
    found = texts_of(text)
    if not found:
        raise InputError(f"`{path}` is nothing that can be judged", hint=f"give {_instead(text)}")
    return Snapshot(outputs={kind: Output(text=part) for kind, part in found.items()})


def _instead(text: str) -> str:
    """What to give instead of the outputs of which users have only an unreadable form at hand."""
    if "<nvidia_smi_log" in text[: 1 << 16]:
        return "the output of `nvidia-smi -q`, without `-x`"
    if re.search(r"^\| NVIDIA-SMI ", text[: 1 << 16], re.MULTILINE):
        return "the output of `nvidia-smi -q`: the table of `nvidia-smi` holds too little"
    if re.search(r"^ ?[-+\\|]+-?\[(?:[0-9a-f]{4}:)?[0-9a-f]{2}\]", text[: 1 << 16], re.MULTILINE):
        return "the output of `lspci -vvv`, which tells the same tree and its links; of `lspci -t` neither is sure"
    return KINDS


def texts_of(text: str) -> dict[str, str]:
    """Source -> text, for a file that may hold outputs of several tools, as posts and bug reports do."""
    kind = kind_of(text)
    if kind is None:
        return {}
    found = {kind: text}
    if kind in (NCCL_TOPOLOGY, NCCL_GRAPH):
        return found
    if kind in (SMI_TOPOLOGY, SMI_P2P) or has_header(text):
        for matrix in matrices(text):
            found[SMI_P2P if matrix.is_peer_to_peer else SMI_TOPOLOGY] = text
    head = text[: 1 << 20]
    if "NVSMI LOG" in head:
        found[SMI_QUERY] = text
    if _NVLINK.search(head):
        found[SMI_NVLINK] = text
    if kind != KERNEL_LOG and (lines := kernel_lines(text)):
        found[KERNEL_LOG] = lines  # only these: the others say nothing of how much of the log is here
    if kind != LSPCI and any(lspci_kind(device.kind, device.name) != "other" for device in parse_lspci(head)):
        found[LSPCI] = text
    return found


def kind_of(text: str) -> str | None:
    """Which source a text is, by what only that source writes; None where it is none, or empty."""
    head = text[: 1 << 20]
    if re.search(r"<system[ >]", head):
        return NCCL_TOPOLOGY
    if re.search(r"<graphs[ >]", head):
        return NCCL_GRAPH
    if re.search(r"NCCL (?:INFO|WARN|version \d)|^\S+:\d+:\d+ \[\d+\] INFO NET\b", head, re.MULTILINE):
        return NCCL_LOG
    if "NVSMI LOG" in head:
        return SMI_QUERY
    if re.search(r"^\s+Link \d+: .*Errors: ", head, re.MULTILINE):
        return SMI_NVLINK_ERRORS
    if _NVLINK.search(head):
        return SMI_NVLINK
    if re.search(r"^GPU \d+: .*\(UUID: ", head, re.MULTILINE) and not re.search(r"^\s+Link \d", head, re.MULTILINE):
        return SMI_LIST
    if re.search(r"\[(?:INFO|ERROR|WARNING)\] \[tid \d+\]", head):
        return FABRIC_MANAGER_LOG
    if MARK.search(head):
        return KERNEL_LOG  # also without a prefix, and with one that is not known here
    if parse_lspci(head[:100_000]):
        return LSPCI
    if found := matrices(head):
        return SMI_P2P if all(matrix.is_peer_to_peer for matrix in found) else SMI_TOPOLOGY
    return KERNEL_LOG if any(STAMP.match(line) for line in head.splitlines()) else None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"`{path}` must be at most {_MAX_BYTES >> 20} MiB", hint="give the part that matters")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    # Some shells write UTF-16, and terminals colour what they show.
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    text = data.decode(encoding, "replace")
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", text) if "\x1b[" in text else text


def _json(path: Path, text: str) -> Snapshot:
    try:
        content: Any = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"`{path}` is no JSON: {error}", hint=f"give {KINDS}") from error
    if isinstance(content, dict) and content.get("schema") == SCHEMA:
        if content.get("version") != VERSION:
            raise InputError(
                f"`{path}` has version {content.get('version')} of its schema, and this Flatout reads {VERSION}",
                hint="capture it again with this Flatout",
            )
        try:
            snapshot = msgspec.json.decode(text.encode(), type=_Bundle).snapshot
            return _with_missing_commands(snapshot)
        except msgspec.DecodeError as error:
            raise InputError(f"`{path}` breaks the schema `{SCHEMA}`: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("intf_status"), list):
        return Snapshot(files=dict(_interfaces(content["intf_status"])))
    if isinstance(content, dict):
        files = {_usual(name): value for name, value in content.items() if isinstance(value, str) and _is_kernel(name)}
        if files:
            return Snapshot(files=files)
    raise InputError(f"`{path}` is JSON, but no bundle and no object of sysfs files", hint=f"give {KINDS}")


def _with_missing_commands(snapshot: Snapshot) -> Snapshot:
    """Compatibility: bundles from before `Output.is_missing` say that a command is missing by its problem alone."""
    outputs = dict(snapshot.outputs)
    for name, output in snapshot.outputs.items():
        if _MISSING_BEFORE.fullmatch(output.problem):
            outputs[name] = msgspec.structs.replace(output, is_missing=True)
    return msgspec.structs.replace(snapshot, outputs=outputs)


def _interfaces(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """`ip -j address`, as some site scripts keep it."""
    for entry in entries:
        if isinstance(entry, dict) and isinstance(name := entry.get("ifname"), str):
            for key in ("mtu", "operstate"):
                if key in entry:
                    yield f"/sys/class/net/{name}/{key}", str(entry[key]).lower()


def _is_kernel(name: str) -> bool:
    return name.startswith(("/sys/", "/proc/"))


def _usual(name: str) -> str:
    """A sysfs path under the name by which checks look for it; one device has many paths."""
    if match := re.match(r"/sys/class/pci_bus/[^/]+/device/([0-9a-f:.]+)/(.*)", name):
        return f"/sys/bus/pci/devices/{match[1]}/{match[2]}"
    if match := re.match(r"/sys/bus/pci/devices/[^/]+/(infiniband|net)/(.*)", name):
        return f"/sys/class/{match[1]}/{match[2]}"
    return name


def _folder(folder: Path) -> Snapshot:
    tops = {child.name for child in folder.iterdir()} if os.access(folder, os.R_OK) else set()
    if not tops:
        raise InputError(f"`{folder}` is empty or cannot be read", hint=f"give {KINDS}")
    if tops & {"sys", "proc"}:
        root = ""
    elif any((folder / name / "ports").is_dir() for name in tops):
        root = "/sys/class/infiniband"
    else:
        raise InputError(f"`{folder}` holds neither `sys` nor `proc` nor RDMA devices", hint=f"give {KINDS}")
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for parent, folders, names in os.walk(folder):
        base = f"{root}/{Path(parent).relative_to(folder)}".replace("/.", "")
        for name in folders:
            if os.path.islink(os.path.join(parent, name)):
                links[f"{base}/{name}"] = os.path.normpath(os.path.join(base, os.readlink(os.path.join(parent, name))))
        for name in names:
            path = Path(parent, name)
            if not path.is_file() or path.stat().st_size > _MAX_BYTES_OF_A_SYSFS_FILE:
                continue
            if len(files) >= _MAX_FILES_OF_A_FOLDER:
                raise InputError(f"`{folder}` must have at most {_MAX_FILES_OF_A_FOLDER:,} files")
            files[_usual(f"{base}/{name}")] = _text(path)
    return Snapshot(files=_under_their_names(files, links) | files, links=links)


_DEVICE_LINK = re.compile(r"/sys/(?:bus/pci/devices|class/(?:net|infiniband)|block)/[^/]+")
_MODALIAS = re.compile(r"pci:v0000(\w{4})d0000(\w{4})sv\w+sd\w+bc(\w\w)sc(\w\w)i(\w\w)", re.IGNORECASE)


def _under_their_names(files: dict[str, str], links: dict[str, str]) -> dict[str, str]:
    """Files of devices by the paths that checks ask for: a copy of /sys has them below /sys/devices, and links."""
    paths = sorted(files)
    found: dict[str, str] = {}
    for link, target in links.items():
        if not _DEVICE_LINK.fullmatch(link):
            continue
        for path in paths[bisect(paths, f"{target}/") : bisect(paths, f"{target}0")]:  # `0` follows `/`
            rest = path.removeprefix(f"{target}/")
            if "/" not in rest or "/infiniband/" in link or rest.startswith(("queue/", "nvme/")):
                found[f"{link}/{rest}"] = files[path]
        # Vendor, device and class in one, where a copy has nothing else.
        if alias := _MODALIAS.match(found.get(f"{link}/modalias", "")):
            vendor, device, *kind = (part.lower() for part in alias.groups())
            said = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{''.join(kind)}"}
            found |= {f"{link}/{name}": text for name, text in said.items() if f"{link}/{name}" not in found}
    return found
