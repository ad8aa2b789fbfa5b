"""Files that the user gives instead of this machine -> one Snapshot; what each is, is told from its content.

A bundle of `--capture`, outputs of `nvidia-smi` (`topo -m`, `topo -p2p`, `-q`, `-L`, `nvlink -s`, `nvlink -e`),
`lspci`, a topology or graph XML of NCCL, an NCCL log, a kernel log, a JSON object of sysfs paths, or a folder: a copy
of `/`, or of `/sys/class/infiniband`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
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
from flatout.doctor.parse.lspci import parse_lspci
from flatout.doctor.parse.topology_matrix import parse_topology_matrix
from flatout.errors import InputError
from flatout.records.snapshot import Output, Snapshot

SCHEMA = "flatout/snapshot"
VERSION = 1
_MAX_BYTES = 256 << 20
_MAX_FILES_OF_A_FOLDER = 200_000
_MAX_BYTES_OF_A_SYSFS_FILE = 1 << 20
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
    kind = kind_of(text)
    if kind is None:
        raise InputError(f"`{path}` is nothing that can be judged", hint=f"give {KINDS}")
    return Snapshot(outputs={kind: Output(text=text)})


def kind_of(text: str) -> str | None:
    """Which source a text is, by what only that source writes; None where it is none, or empty."""
    head = text[: 1 << 20]
    if re.search(r"<system[ >]", head):
        return NCCL_TOPOLOGY
    if re.search(r"<graphs[ >]", head):
        return NCCL_GRAPH
    if re.search(r"NCCL (?:INFO|WARN|version \d)", head):
        return NCCL_LOG
    if "NVSMI LOG" in head:
        return SMI_QUERY
    if re.search(r"^\s+Link \d+: .*Errors: ", head, re.MULTILINE):
        return SMI_NVLINK_ERRORS
    if re.search(r"^\s+Link \d+: |all links are inactive", head, re.MULTILINE):
        return SMI_NVLINK
    if re.search(r"^GPU \d+: .*\(UUID: ", head, re.MULTILINE):
        return SMI_LIST
    if re.search(r"\[(?:INFO|ERROR|WARNING)\] \[tid \d+\]", head):
        return FABRIC_MANAGER_LOG
    if re.search(r"NVRM: Xid \(|nvidia-nvswitch\S* SXid|\bAER: |EDAC MC\d|mce: \[Hardware Error\]", head):
        return KERNEL_LOG  # also without a prefix, and with one that is not known here
    if parse_lspci(head[:100_000]):
        return LSPCI
    try:
        return SMI_P2P if parse_topology_matrix(head).is_peer_to_peer else SMI_TOPOLOGY
    except ValueError:
        pass
    if re.search(
        r"^(?:kern\s*:|\[[ \d.]+\] |\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|\d+,\d+,\d+,|\w{3} +\d+ \d\d:\d\d:\d\d \S+ \S+: |"
        r"\d{4}-\d\d-\d\dT\S+ \S+ (?:kernel|\S+\[\d+\]): )",
        head,
        re.MULTILINE,
    ):
        return KERNEL_LOG
    return None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"`{path}` must be at most {_MAX_BYTES >> 20} MiB", hint="give the part that matters")
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error


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
            return msgspec.json.decode(text.encode(), type=_Bundle).snapshot
        except msgspec.DecodeError as error:
            raise InputError(f"`{path}` breaks the schema `{SCHEMA}`: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("intf_status"), list):
        return Snapshot(files=dict(_interfaces(content["intf_status"])))
    if isinstance(content, dict):
        files = {_usual(name): value for name, value in content.items() if isinstance(value, str) and _is_kernel(name)}
        if files:
            return Snapshot(files=files)
    raise InputError(f"`{path}` is JSON, but no bundle and no object of sysfs files", hint=f"give {KINDS}")


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
    return Snapshot(files=files, links=links)
