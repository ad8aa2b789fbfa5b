"""Read files given by the user instead of this machine into one Snapshot; each file is recognised by its content.

In: a bundle of `--capture`, outputs of `nvidia-smi` (`topo -m`, `topo -p2p`, `-q`, `-q -x`, `-L`, `nvlink -s`,
`nvlink -e`), of `lspci`, `ibstat`, `ibv_devinfo` and `ibstatus`, a topology or graph XML of NCCL, an NCCL log, a kernel
log, a JSON object of sysfs paths, or a folder: a copy of `/`, or of `/sys/class/infiniband`.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.doctor.lspci_tree import lspci_kind
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
from flatout.doctor.parse.nvidia_smi_xml import is_smi_xml
from flatout.doctor.parse.rdma_tools import rdma_files
from flatout.doctor.parse.topology_matrix import has_header, matrices
from flatout.errors import InputError
from flatout.input_files import bounded_log, bounded_numbers, decode_json, read_bytes
from flatout.records.snapshot import Output, Snapshot

SCHEMA = "flatout/snapshot"
VERSION = 1
_MAX_BYTES = 256 << 20
_MAX_FILES_OF_A_FOLDER = 200_000
_MAX_BYTES_OF_A_SYSFS_FILE = 1 << 20
_HEAD = 1 << 20  # number of characters from which a text's kind is recognised
_MISSING_BEFORE = re.compile(r"there is no `[^`]+` here")  # in bundles without `is_missing`
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_NVLINK = re.compile(
    r"^[ \t]+Link \d+: (?:[\d.]+ GB/s|<inactive>)|all links are inactive", re.MULTILINE | re.IGNORECASE
)
KINDS = (
    "a bundle from `flatout doctor --capture`, the output of nvidia-smi, lspci or ibstat, an NCCL topology XML, "
    "an NCCL log, a kernel log, a JSON object of sysfs files, or a folder with a copy of /sys and /proc"
)
# Outputs that cannot be read, and the alternatives that a user can give.
_INSTEAD = (
    (
        re.compile(r"^\| NVIDIA-SMI ", re.MULTILINE),
        "the output of `nvidia-smi -q`: the table that plain `nvidia-smi` prints contains too little",
    ),
    (
        re.compile(r"^ ?[-+\\|]+-?\[(?:[0-9a-f]{4}:)?[0-9a-f]{2}\]", re.MULTILINE),
        "the output of `lspci -vvv`, which shows the same tree and its links; `lspci -t` does not show them reliably",
    ),
)


class _Bundle(msgspec.Struct):
    schema: str
    version: int
    tool_version: str
    snapshot: Snapshot


def bundle_bytes(snapshot: Snapshot) -> bytes:
    """Return a snapshot as the file of `--capture`."""
    bundle = _Bundle(schema=SCHEMA, version=VERSION, tool_version=__version__, snapshot=snapshot)
    return msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n"


def read_inputs(paths: Sequence[Path]) -> Snapshot:
    """Read all files as one machine. Raises InputError if one is missing or of unknown kind."""
    snapshot = Snapshot()
    for path in paths:
        snapshot = merge(snapshot, _read(path))
    return msgspec.structs.replace(snapshot, read_from=tuple(str(path) for path in paths))


def read_bundle(data: bytes, name: str) -> Snapshot:
    """Read what `flatout doctor --capture -` wrote on a host, perhaps after a shell's output. Raises InputError."""
    text = data.decode("utf-8", "replace")
    start = max(0, text.find("{"))
    snapshot = _json(Path(name), text[start:])
    return msgspec.structs.replace(snapshot, read_from=(name,))


def read_log(path: Path) -> Output:
    """Read a text whose kind is stated by the user."""
    return Output(text=_text(path))


def merge(first: Snapshot, second: Snapshot) -> Snapshot:
    """Merge two snapshots; the second's sources replace the first's, except logs, which are appended."""
    outputs = dict(first.outputs)
    for name, output in second.outputs.items():
        before = outputs.get(name)
        is_appended = name in (NCCL_LOG, KERNEL_LOG, SMI_NVLINK)
        if is_appended and before is not None and before.text and output.text:
            output = Output(text=before.text.rstrip("\n") + "\n" + output.text)
        outputs[name] = output
    problems = first.problems | second.problems
    return Snapshot(
        host=second.host or first.host,
        taken_at=second.taken_at or first.taken_at,
        read_from=(*first.read_from, *second.read_from),
        files=first.files | second.files,
        links=first.links | second.links,
        problems={path: problem for path, problem in problems.items() if path not in second.files},
        outputs=outputs,
        environment=first.environment if second.environment is None else second.environment,
    )


def _read(path: Path) -> Snapshot:
    if path.is_dir():
        return _folder(path)
    text = _text(path)
    if text.lstrip().startswith("{"):
        return _json(path, text)
    texts = texts_of(text)
    ports = rdma_files(text)
    if not texts and not ports:
        raise InputError(f"`{path}` is not an input that doctor recognizes", hint=f"give {_instead(text)}")
    return Snapshot(outputs={kind: Output(text=part) for kind, part in texts.items()}, files=ports)


def _instead(text: str) -> str:
    """Return what to pass instead of a text whose kind is unknown."""
    head = text[: 1 << 16]
    for pattern, instead in _INSTEAD:
        if pattern.search(head):
            return instead
    return KINDS


def texts_of(text: str) -> dict[str, str]:
    """Return source -> text, for a file that can hold outputs of several tools, such as a post or a bug report."""
    kind = kind_of(text)
    if kind is None:
        return {}
    if kind in (NCCL_TOPOLOGY, NCCL_GRAPH):
        return {kind: text}
    head = text[:_HEAD]
    texts = dict.fromkeys([kind, *_other_kinds(text, head, kind)], text)
    if kind != KERNEL_LOG:
        # Only the kernel's lines are kept: other lines would hide how much of its log is present.
        lines = kernel_lines(text)
        if lines:
            texts[KERNEL_LOG] = lines
    return texts


def _other_kinds(text: str, head: str, kind: str) -> Iterator[str]:
    """Yield the sources that a text contains in addition to its own kind, except a kernel log."""
    if kind in (SMI_TOPOLOGY, SMI_P2P) or has_header(text):
        for matrix in matrices(text):
            yield SMI_P2P if matrix.is_peer_to_peer else SMI_TOPOLOGY
    if "NVSMI LOG" in head or is_smi_xml(head):
        yield SMI_QUERY
    if _NVLINK.search(head):
        yield SMI_NVLINK
    if any(lspci_kind(device.kind, device.name) != "other" for device in parse_lspci(head)):
        yield LSPCI


def kind_of(text: str) -> str | None:
    """Return a text's source, recognised by what only that source writes; None if unknown or if the text is empty."""
    head = text[:_HEAD]
    for kind, is_of_kind in _KINDS:
        if is_of_kind(head):
            return kind
    return None


def _is_gpu_list(head: str) -> bool:
    """Whether this is `nvidia-smi -L`; `nvidia-smi nvlink` has the same lines, and lines of links."""
    has_gpus = re.search(r"^GPU \d+: .*\(UUID: ", head, re.MULTILINE)
    has_links = re.search(r"^[ \t]+Link \d", head, re.MULTILINE)
    return has_gpus is not None and has_links is None


def _is_peer_to_peer(head: str) -> bool:
    all_matrices = matrices(head)
    return bool(all_matrices) and all(matrix.is_peer_to_peer for matrix in all_matrices)


# The first test that matches decides a text's kind.
_KINDS: tuple[tuple[str, Callable[[str], object]], ...] = (
    (NCCL_TOPOLOGY, re.compile(r"<system[ >]").search),
    (NCCL_GRAPH, re.compile(r"<graphs[ >]").search),
    (
        NCCL_LOG,
        re.compile(r"NCCL (?:INFO|WARN|version \d)|^\S+:\d+:\d+ \[\d+\] INFO NET\b", re.MULTILINE).search,
    ),
    (SMI_QUERY, re.compile("NVSMI LOG|<nvidia_smi_log[ >]").search),
    (SMI_NVLINK_ERRORS, re.compile(r"^[ \t]+Link \d+: .*Errors: ", re.MULTILINE).search),
    (SMI_NVLINK, _NVLINK.search),
    (SMI_LIST, _is_gpu_list),
    (FABRIC_MANAGER_LOG, re.compile(r"\[(?:INFO|ERROR|WARNING)\] \[tid \d+\]").search),
    (KERNEL_LOG, MARK.search),  # also without a prefix, or with an unknown one
    (LSPCI, lambda head: parse_lspci(head[:100_000])),
    (SMI_P2P, _is_peer_to_peer),
    (SMI_TOPOLOGY, matrices),
    (KERNEL_LOG, lambda head: any(STAMP.match(line) for line in head.splitlines())),
)


def _text(path: Path) -> str:
    try:
        data = read_bytes(path, max_bytes=_MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InputError(
                f"`{path}` must be at most {_MAX_BYTES >> 20} MiB", hint="pass only the relevant part"
            ) from error
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    # Some shells write UTF-16, and terminals colour their output.
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return _bounded(_COLOUR.sub("", data.decode(encoding, "replace")))


def _bounded(text: str) -> str:
    """Return a text with bounded numbers, and with bounded lines, unless it is JSON or XML, which can be one line."""
    is_log = not text.lstrip().startswith(("{", "<"))
    return bounded_log(text) if is_log else bounded_numbers(text)


def _json(path: Path, text: str) -> Snapshot:
    try:
        content: Any = decode_json(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"`{path}` is not valid JSON: {error}", hint=f"give {KINDS}") from error
    if not isinstance(content, dict):
        content = {}
    if content.get("schema") == SCHEMA:
        return _bundle(path, text, content.get("version"))
    if isinstance(content.get("intf_status"), list):
        return Snapshot(files=dict(_interfaces(content["intf_status"])))
    files = {
        _usual_path(name): value for name, value in content.items() if isinstance(value, str) and _is_kernel_file(name)
    }
    if not files:
        raise InputError(f"`{path}` is JSON, but neither a bundle nor an object of sysfs files", hint=f"give {KINDS}")
    return Snapshot(files=files)


def _bundle(path: Path, text: str, version: object) -> Snapshot:
    if version != VERSION:
        raise InputError(
            f"`{path}` has version {version} of its schema, but this Flatout reads version {VERSION}",
            hint="capture it again with this Flatout",
        )
    try:
        bundle = decode_json(text.encode(), type=_Bundle)
    except msgspec.DecodeError as error:
        raise InputError(f"`{path}` does not match the schema `{SCHEMA}`: {error}") from error
    return _readable(bundle.snapshot)


def _readable(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot of a bundle with bounded texts.

    Compatibility: bundles from before `Output.is_missing` report a missing command by its problem alone.
    """
    outputs = dict(snapshot.outputs)
    for name, output in snapshot.outputs.items():
        if output.text is not None:
            output = msgspec.structs.replace(output, text=_bounded(output.text))
        is_missing = output.is_missing or _MISSING_BEFORE.fullmatch(output.problem) is not None
        outputs[name] = msgspec.structs.replace(output, is_missing=is_missing)
    return msgspec.structs.replace(snapshot, outputs=outputs)


def _interfaces(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the files of `ip -j address`, as some site scripts keep it."""
    for entry in entries:
        name = entry.get("ifname") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        for key in ("mtu", "operstate"):
            if key in entry:
                yield f"/sys/class/net/{name}/{key}", str(entry[key]).lower()


def _is_kernel_file(path: str) -> bool:
    return path.startswith(("/sys/", "/proc/"))


def _usual_path(path: str) -> str:
    """Return the path under which checks look for a sysfs file; a device has many paths."""
    if match := re.match(r"/sys/class/pci_bus/[^/]+/device/([0-9a-f:.]+)/(.*)", path):
        return f"/sys/bus/pci/devices/{match[1]}/{match[2]}"
    if match := re.match(r"/sys/bus/pci/devices/[^/]+/(infiniband|net)/(.*)", path):
        return f"/sys/class/{match[1]}/{match[2]}"
    return path


def _folder(folder: Path) -> Snapshot:
    root = _root_of(folder)
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    problems: dict[str, str] = {}
    inside = os.path.realpath(folder)
    for parent, folders, names in os.walk(folder):
        base = f"{root}/{Path(parent).relative_to(folder)}".replace("/.", "")
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink():
                links[f"{base}/{name}"] = os.path.normpath(os.path.join(base, path.readlink()))
        for name in names:
            path = Path(parent, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                problems[_usual_path(f"{base}/{name}")] = "it is a link that leaves the folder"
                continue
            if not path.is_file() or path.stat().st_size > _MAX_BYTES_OF_A_SYSFS_FILE:
                continue
            if len(files) >= _MAX_FILES_OF_A_FOLDER:
                raise InputError(f"`{folder}` must have at most {_MAX_FILES_OF_A_FOLDER:,} files")
            files[_usual_path(f"{base}/{name}")] = _text(path)
    return Snapshot(files=_under_device_links(files, links) | files, links=links, problems=problems)


def _root_of(folder: Path) -> str:
    """Return the folder's path on its own machine. Raises InputError if it is neither of the two kinds of copies."""
    names = {child.name for child in folder.iterdir()} if os.access(folder, os.R_OK) else set()
    if not names:
        raise InputError(f"`{folder}` is empty or cannot be read", hint=f"give {KINDS}")
    if names & {"sys", "proc"}:
        return ""
    if any((folder / name / "ports").is_dir() for name in names):
        return "/sys/class/infiniband"
    raise InputError(f"`{folder}` holds neither `sys` nor `proc` nor RDMA devices", hint=f"give {KINDS}")


_DEVICE_LINK = re.compile(r"/sys/(?:bus/pci/devices|class/(?:net|infiniband)|block)/[^/]+")
_MODALIAS = re.compile(r"pci:v0000(\w{4})d0000(\w{4})sv\w+sd\w+bc(\w\w)sc(\w\w)i(\w\w)", re.IGNORECASE)


def _under_device_links(files: dict[str, str], links: dict[str, str]) -> dict[str, str]:
    """Return the files of devices by the paths that checks use: a copy of /sys has these files below /sys/devices."""
    paths = sorted(files)
    linked: dict[str, str] = {}
    for link, target in links.items():
        if not _DEVICE_LINK.fullmatch(link):
            continue
        for path in paths[bisect(paths, f"{target}/") : bisect(paths, f"{target}0")]:  # `0` follows `/`
            rest = path.removeprefix(f"{target}/")
            if "/" not in rest or "/infiniband/" in link or rest.startswith(("queue/", "nvme/")):
                linked[f"{link}/{rest}"] = files[path]
        for name, text in _from_modalias(linked.get(f"{link}/modalias", "")).items():
            linked.setdefault(f"{link}/{name}", text)
    return linked


def _from_modalias(alias: str) -> dict[str, str]:
    """Return the vendor, device and class from a modalias: a copy can lack other sources of these."""
    match = _MODALIAS.match(alias)
    if match is None:
        return {}
    vendor, device, *pci_class = (part.lower() for part in match.groups())
    return {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{''.join(pci_class)}"}
