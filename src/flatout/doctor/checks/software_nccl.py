"""Checks of NCCL's settings: left over, forced, unsafe, or naming a device that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flatout.doctor.check import check, fail, info, named, ok, warn
from flatout.doctor.machine import NO_FILE, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError, NotReadError

_NCCL = "NCCL documentation, environment variables, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_READ = "the environment, /etc/nccl.conf, ~/.nccl.conf, and `set by environment` of an NCCL log"
_WRONG = "the job's own script sets the variable: run doctor there, or pass an NCCL log"
_NOT_BETWEEN_HOSTS = re.compile(r"lo$|docker|virbr|br-|veth|cni|flannel|cali")


class NcclSetting(NamedTuple):
    value: str
    source: str


def settings(machine: Machine) -> dict[str, NcclSetting]:
    """Return each variable with its source; the environment precedes files. Raises NotReadError if none was read."""
    from_log = _log_settings(machine)
    from_files = _file_settings(machine)
    environment = machine.snapshot.environment
    if from_log is None and from_files is None and environment is None:
        raise NotReadError("the input has neither the environment nor nccl.conf nor an NCCL log")
    from_environment = {
        name: NcclSetting(value, "the environment")
        for name, value in (environment or {}).items()
        if name.startswith("NCCL_")
    }
    return (from_files or {}) | (from_log or {}) | from_environment


def _log_settings(machine: Machine) -> dict[str, NcclSetting] | None:
    try:
        values = machine.nccl_log.settings
    except NotReadError:
        return None
    return {name: NcclSetting(all_values[-1], "the NCCL log") for name, all_values in values.items()}


def _file_settings(machine: Machine) -> dict[str, NcclSetting] | None:
    """Return the settings of nccl.conf files, the first file's if several set a variable; None without a file."""
    files = {
        path: text for path, text in machine.snapshot.files.items() if path.endswith(("/nccl.conf", "/.nccl.conf"))
    }
    if not files:
        return None
    values: dict[str, NcclSetting] = {}
    for path, text in files.items():
        for line in text.splitlines():
            name, separator, value = line.partition("=")
            if separator and name.strip().startswith("NCCL_"):
                values.setdefault(name.strip(), NcclSetting(value.strip(), path))
    return values


def _unset(machine: Machine, outcome: CheckOutcome) -> CheckOutcome:
    """Return the outcome if every source was read.

    A log or file without a variable does not prove that the variable is unset.
    """
    if machine.snapshot.environment is None:
        raise NotReadError("not found, but the environment is not in the input")
    for path, problem in machine.snapshot.problems.items():
        if path.endswith("nccl.conf") and problem != NO_FILE:
            raise NotReadError(f"not in the input, and `{path}` was not read: {problem}")
    return outcome


def _matching(machine: Machine, **patterns: str) -> str:
    """Name the variables whose whole value matches: `NCCL_X=1 (the environment)`; empty if none does."""
    all_settings = settings(machine)
    matching = []
    for name, pattern in patterns.items():
        setting = all_settings.get(name)
        if setting is not None and re.fullmatch(pattern, setting.value.strip(), re.IGNORECASE):
            matching.append(f"{name}={setting.value} ({setting.source})")
    return named(matching)


@check(
    "nccl-peer-to-peer",
    "software",
    topic="NCCL peer-to-peer setting",
    read=_READ + ": NCCL_P2P_DISABLE, NCCL_P2P_LEVEL",
    expected="not set",
    source=_NCCL + "; a published case reached 220 GB/s after NCCL_P2P_LEVEL=LOC was removed",
    cost="collectives go through host memory instead of NVLink or PCIe peer-to-peer, up to 10 times slower",
    fix="remove the variable, unless it avoids a hang caused by peer-to-peer",
    when_wrong="GPUs without peer-to-peer lose nothing; the variable can be a workaround for IOMMU or ACS faults",
    traffic="gpus",
)
def peer_to_peer(machine: Machine) -> CheckOutcome:
    if off := _matching(machine, NCCL_P2P_DISABLE="[1-9]", NCCL_P2P_LEVEL="LOC|0"):
        return fail(f"NCCL peer-to-peer is turned off: {off}")
    return _unset(machine, ok("not turned off"))


@check(
    "nccl-shared-memory",
    "software",
    topic="NCCL shared-memory setting",
    read=_READ + ": NCCL_SHM_DISABLE",
    expected="not set",
    source=_NCCL,
    cost="GPUs without peer-to-peer communicate over the network instead",
    fix="remove the variable, and give the container a larger /dev/shm if that was the reason",
    when_wrong=_WRONG,
    traffic="gpus",
)
def shared_memory(machine: Machine) -> CheckOutcome:
    if off := _matching(machine, NCCL_SHM_DISABLE="[1-9]"):
        return warn(f"NCCL shared memory is turned off: {off}")
    return _unset(machine, ok("not turned off"))


@check(
    "nccl-infiniband",
    "software",
    topic="NCCL RDMA setting",
    read=_READ + ": NCCL_IB_DISABLE, NCCL_NET",
    expected="not set, on a machine with RDMA devices",
    source=_NCCL,
    cost="TCP sockets instead of RDMA: a fraction of the bandwidth, and CPU time for each byte",
    fix="remove the variable",
    when_wrong="the RDMA devices do not reach the other hosts (storage only)",
    traffic="network",
)
def infiniband(machine: Machine) -> CheckOutcome:
    off = _matching(machine, NCCL_IB_DISABLE="[1-9]", NCCL_NET="Socket")
    if not off:
        return _unset(machine, ok("not turned off"))
    try:
        num_devices = len(machine.rdma_devices)
    except NotHereError:
        return info(f"turned off, and there is no RDMA device: {off}")
    except NotReadError as error:
        return warn(f"RDMA is turned off for NCCL: {off}; {error}")
    return fail(f"RDMA is turned off for NCCL, with {num_devices} RDMA devices: {off}")


@check(
    "nccl-gpu-direct",
    "software",
    topic="NCCL GPUDirect RDMA setting",
    read=_READ + ": NCCL_NET_GDR_LEVEL, NCCL_IB_GDR_LEVEL, NCCL_NET_GDR_READ, NCCL_DMABUF_ENABLE",
    expected="not set, or not lower than the path between GPU and NIC",
    source=_NCCL,
    cost="each message between hosts is copied through host memory, in one direction or both",
    fix="remove the variable",
    when_wrong="on a platform where reads over PCIe are slower than copies, NCCL_NET_GDR_READ=0 is right",
    traffic="network",
)
def gpu_direct(machine: Machine) -> CheckOutcome:
    if off := _matching(machine, NCCL_NET_GDR_LEVEL="LOC|0", NCCL_IB_GDR_LEVEL="LOC|0"):
        return fail(f"GPUDirect RDMA is turned off for NCCL: {off}")
    if partly_off := _matching(machine, NCCL_NET_GDR_READ="0", NCCL_DMABUF_ENABLE="0"):
        return info(f"partly turned off: {partly_off}")
    return _unset(machine, ok("not turned off"))


@check(
    "nccl-forced-choice",
    "software",
    topic="forced NCCL algorithms, protocols and channels",
    read=_READ + ": NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_MIN_/MAX_NCHANNELS, NCCL_MIN_/MAX_CTAS, NCCL_BUFFSIZE",
    expected="unset, or tuned from measurements on this machine with this NCCL version",
    source=_NCCL,
    cost="the best choice for one message size, version or cluster can be several times slower on another",
    fix="remove it, and measure with and without it",
    when_wrong="the value was tuned on this machine",
)
def forced_choice(machine: Machine) -> CheckOutcome:
    names = ("ALGO", "PROTO", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "BUFFSIZE")
    if forced := _matching(machine, **{f"NCCL_{name}": ".+" for name in names}):
        return warn(f"NCCL's choice is forced: {forced}")
    return _unset(machine, ok("nothing is forced"))


@check(
    "nccl-unsafe-protocol",
    "software",
    topic="forced NCCL protocol LL128",
    read=_READ + ": NCCL_PROTO",
    expected="LL128 only if NCCL itself would use it",
    source=_NCCL + ": forcing LL128 on a platform that does not support it can corrupt data",
    cost="wrong gradients, without an error message",
    fix="remove NCCL_PROTO",
    when_wrong="NVLink platforms where NCCL uses LL128 anyway",
)
def unsafe_protocol(machine: Machine) -> CheckOutcome:
    if forced := _matching(machine, NCCL_PROTO="(?!\\^)(?:.*,)?LL128(?:,.*)?"):
        return fail(f"an unsafe NCCL protocol is forced: {forced}")
    return _unset(machine, ok("not forced"))


@check(
    "nccl-debug-output",
    "software",
    topic="NCCL debug output",
    read=_READ + ": NCCL_DEBUG, NCCL_DEBUG_SUBSYS",
    expected="not set, VERSION, WARN or INFO",
    source=_NCCL,
    cost="TRACE, and COLL or ALL of INFO, write a line for each collective and rank, which delays launches",
    fix="set NCCL_DEBUG=WARN, or NCCL_DEBUG_FILE with one file per rank",
    when_wrong="you are investigating a fault",
)
def debug_output(machine: Machine) -> CheckOutcome:
    all_settings = settings(machine)
    unset = NcclSetting("", "")
    level = all_settings.get("NCCL_DEBUG", unset).value.upper()
    systems = all_settings.get("NCCL_DEBUG_SUBSYS", unset).value.upper()
    if not level:
        return _unset(machine, ok("not set"))
    writes_each_call = not systems.startswith("^") and re.search(r"COLL|ALL|P2P", systems)
    if level == "TRACE" or (level == "INFO" and writes_each_call):
        level_and_systems = f"NCCL_DEBUG={level} NCCL_DEBUG_SUBSYS={systems}" if systems else f"NCCL_DEBUG={level}"
        return warn(f"NCCL writes much debug output: {level_and_systems}")
    return ok(f"NCCL_DEBUG={level}")


@check(
    "nccl-named-interface",
    "software",
    topic="interfaces of NCCL_SOCKET_IFNAME",
    read=_READ + "; /sys/class/net",
    expected="prefixes (or `=name`) of interfaces of this host, neither loopback nor of containers",
    source=_NCCL,
    cost="if no interface matches, the job does not start; all start-up and socket traffic goes to a wrong one",
    fix="name the interface that reaches the other hosts; `ip route` shows it",
    when_wrong="doctor runs in another network namespace than the job",
)
def named_interface(machine: Machine) -> CheckOutcome:
    setting = settings(machine).get("NCCL_SOCKET_IFNAME")
    if setting is None:
        return _unset(machine, ok("not set: NCCL chooses an interface"))
    shown = f"NCCL_SOCKET_IFNAME={setting.value}"
    interfaces = machine.names("/sys/class/net")
    if not interfaces:
        raise NotReadError(f"{shown}, but the interfaces of the host were not read")
    if setting.value.startswith("^"):
        return ok(shown)
    is_exact = setting.value.startswith("=")
    chosen = _chosen(interfaces, setting.value.lstrip("=").split(","), is_exact=is_exact)
    if not chosen:
        return fail(f"{shown}, but the host has {named(interfaces)}")
    wrong = [interface for interface in chosen if _NOT_BETWEEN_HOSTS.match(interface)]
    if wrong:
        return warn(f"{shown} chooses {named(wrong)}")
    return ok(f"{shown}: {named(chosen)}")


def _chosen(names: Iterable[str], wanted: Iterable[str], *, is_exact: bool) -> list[str]:
    """Return the names that NCCL selects: those that equal, or begin with, a wanted name without its port."""
    prefixes = tuple(entry.split(":")[0] for entry in wanted)
    if is_exact:
        return [name for name in names if name in prefixes]
    return [name for name in names if name.startswith(prefixes)]


@check(
    "nccl-named-device",
    "software",
    topic="devices of NCCL_IB_HCA",
    read=_READ + "; /sys/class/infiniband",
    expected="prefixes (or `=name`) of devices of this host",
    source=_NCCL,
    cost="if no device matches, NCCL falls back to sockets; if only some match, it has less bandwidth",
    fix="remove the variable, or name the devices of the fabric",
    when_wrong="storage devices are excluded deliberately",
)
def named_device(machine: Machine) -> CheckOutcome:
    setting = settings(machine).get("NCCL_IB_HCA")
    if setting is None:
        return _unset(machine, ok("not set: NCCL uses all"))
    value = setting.value
    devices = machine.rdma_devices
    wanted = [entry for entry in value.lstrip("^=").split(",") if entry]
    used = _chosen(devices, wanted, is_exact="=" in value[:2])
    if value.startswith("^"):
        used = [device for device in devices if device not in used]
    if not used:
        return fail(f"NCCL_IB_HCA={value} leaves none of {named(devices)}")
    return info(f"NCCL_IB_HCA={value}: {len(used)} of {len(devices)} devices")


@check(
    "nccl-library-override",
    "software",
    topic="NCCL library overrides",
    read="LD_PRELOAD and LD_LIBRARY_PATH of the environment",
    expected="no libnccl in LD_PRELOAD, no NCCL folder in LD_LIBRARY_PATH",
    source="PyTorch ships nvidia-nccl's library, but the dynamic loader prefers these paths",
    cost="an old version lacks fixes and faster algorithms; ranks with different versions can hang",
    fix="remove the entry, or deliberately make it the same on all hosts",
    when_wrong="a vendor's image deliberately brings a newer NCCL",
)
def library_override(machine: Machine) -> CheckOutcome:
    overrides = []
    for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        entries = re.split(r"[: ]", machine.environment.get(variable, ""))
        overrides += [f"{variable}: {entry}" for entry in entries if _is_nccl(entry.lower())]
    return warn(f"another NCCL library may be loaded: {named(overrides)}") if overrides else ok("none")


def _is_nccl(path: str) -> bool:
    return "nccl" in path and "plugin" not in path


@check(
    "nccl-network-plugin",
    "software",
    topic="NCCL network plugin",
    read="NCCL_NET_PLUGIN and LD_LIBRARY_PATH; `NET/OFI` or `NET/Plugin` of an NCCL log; EFA devices of sysfs",
    expected="aws-ofi-nccl if there are EFA devices",
    source="AWS documentation, EFA and NCCL; https://github.com/aws/aws-ofi-nccl",
    cost="NCCL uses sockets instead of the fabric, with a tenth of the bandwidth",
    fix="install the vendor's plugin, or use the vendor's image",
    when_wrong="the plugin is in the loader's default path, which an NCCL log shows",
    traffic="network",
)
def network_plugin(machine: Machine) -> CheckOutcome:
    efa = [name for name in machine.rdma_devices if name.startswith(("efa", "rdmap"))]
    if not efa:
        return info("the input has no device that needs a plugin")
    shown = f"{len(efa)} EFA devices"
    networks = _logged_networks(machine)
    if networks == {"Socket"}:
        return fail(f"{shown}, but NCCL uses Socket")
    if networks:
        return ok(f"NCCL uses {named(sorted(networks))}")
    is_named = "NCCL_NET_PLUGIN" in machine.environment or "ofi" in machine.environment.get("LD_LIBRARY_PATH", "")
    if is_named:
        return info(f"{shown}, and a plugin is named; an NCCL log would show whether it is loaded")
    raise NotReadError(f"{shown}; only an NCCL log shows whether NCCL loads aws-ofi-nccl")


def _logged_networks(machine: Machine) -> set[str]:
    try:
        by_host = machine.nccl_log.networks
    except NotReadError:
        return set()
    return set().union(*by_host.values())
