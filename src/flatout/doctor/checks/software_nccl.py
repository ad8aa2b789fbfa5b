"""Settings of NCCL that are left over, forced, unsafe, or name what is not there."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, ok, warn
from flatout.doctor.machine import NO_FILE, Machine
from flatout.doctor.unknown import NotHereError, NotReadError

_NCCL = "NCCL documentation, environment variables, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_READ = "the environment, /etc/nccl.conf, ~/.nccl.conf, and `set by environment` of an NCCL log"
_WRONG = "the variable is set elsewhere, in the job's own script: run doctor there, or give an NCCL log"


def settings(machine: Machine) -> dict[str, tuple[str, str]]:
    """Variable -> value and where it was found; the environment goes before files. Raises NotReadError."""
    found: dict[str, tuple[str, str]] = {}
    sources = 0
    try:
        log = machine.nccl_log.settings
    except NotReadError:
        log = None
    if log is not None:
        sources += 1
        found |= {name: (values[-1], "the NCCL log") for name, values in log.items()}
    for path, text in machine.snapshot.files.items():
        if path.endswith(("/nccl.conf", "/.nccl.conf")):
            sources += 1
            for line in text.splitlines():
                name, mark, value = line.partition("=")
                if mark and name.strip().startswith("NCCL_"):
                    found.setdefault(name.strip(), (value.strip(), path))
    if machine.snapshot.environment is not None:
        sources += 1
        found |= {
            name: (value, "the environment") for name, value in machine.environment.items() if name.startswith("NCCL_")
        }
    if not sources:
        raise NotReadError("neither the environment nor nccl.conf nor an NCCL log is in what was read")
    return found


def _unset(machine: Machine, outcome: CheckOutcome) -> CheckOutcome:
    """The outcome, where all that could set it was read; a log or a file that lacks a variable proves nothing."""
    if machine.snapshot.environment is None:
        raise NotReadError("not in what was given, but the environment was not read")
    for path, why in machine.snapshot.problems.items():
        if path.endswith("nccl.conf") and why != NO_FILE:
            raise NotReadError(f"not in what was read, but `{path}` could not be: {why}")
    return outcome


def _set(machine: Machine, **bad: str) -> list[str]:
    """The variables whose whole value matches: `NCCL_X=1 (the environment)`."""
    found = settings(machine)
    return [
        f"{name}={found[name][0]} ({found[name][1]})"
        for name, pattern in bad.items()
        if name in found and re.fullmatch(pattern, found[name][0].strip(), re.IGNORECASE)
    ]


@check(
    "nccl-peer-to-peer",
    "software",
    title="GPUs of one host may talk to each other directly",
    read=_READ + ": NCCL_P2P_DISABLE, NCCL_P2P_LEVEL",
    expected="not set",
    source=_NCCL + "; a public case: 220 GB/s once NCCL_P2P_LEVEL=LOC was removed",
    cost="NVLink and PCIe peer-to-peer are not used: collectives go through memory of the host, up to 10 times slower",
    fix="remove the variable, unless a hang was traced to peer-to-peer",
    when_wrong="GPUs without peer-to-peer lose nothing; a workaround for IOMMU or ACS faults",
)
def peer_to_peer(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NCCL_P2P_DISABLE="[1-9]", NCCL_P2P_LEVEL="LOC|0")
    return fail(f"turned off: {named(bad)}") if bad else _unset(machine, ok("not turned off"))


@check(
    "nccl-shared-memory",
    "software",
    title="ranks of one host may use shared memory",
    read=_READ + ": NCCL_SHM_DISABLE",
    expected="not set",
    source=_NCCL,
    cost="GPUs without peer-to-peer talk over the network instead",
    fix="remove the variable, and give the container a larger /dev/shm if that was the reason",
    when_wrong=_WRONG,
)
def shared_memory(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NCCL_SHM_DISABLE="[1-9]")
    return warn(f"turned off: {named(bad)}") if bad else _unset(machine, ok("not turned off"))


@check(
    "nccl-infiniband",
    "software",
    title="RDMA is not turned off",
    read=_READ + ": NCCL_IB_DISABLE, NCCL_NET",
    expected="not set, on a machine with RDMA devices",
    source=_NCCL,
    cost="TCP sockets instead of RDMA: a fraction of the bandwidth, and CPU time for each byte",
    fix="remove the variable",
    when_wrong="RDMA devices that do not reach the other hosts (storage only)",
)
def infiniband(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NCCL_IB_DISABLE="[1-9]", NCCL_NET="Socket")
    if not bad:
        return _unset(machine, ok("not turned off"))
    try:
        devices = machine.rdma_devices
    except NotHereError:
        return info(f"turned off, and there is no RDMA device: {named(bad)}")
    except NotReadError as error:
        return warn(f"turned off: {named(bad)}; {error}")
    return fail(f"turned off, with {len(devices)} RDMA devices: {named(bad)}")


@check(
    "nccl-gpu-direct",
    "software",
    title="GPUDirect RDMA is not turned off",
    read=_READ + ": NCCL_NET_GDR_LEVEL, NCCL_IB_GDR_LEVEL, NCCL_NET_GDR_READ, NCCL_DMABUF_ENABLE",
    expected="not set, or no lower than the path between GPU and NIC",
    source=_NCCL,
    cost="each message between hosts takes a copy through memory of the host, in one direction or both",
    fix="remove the variable",
    when_wrong="a platform on which reads over PCIe are slower than copies: NCCL_NET_GDR_READ=0 is right there",
)
def gpu_direct(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NCCL_NET_GDR_LEVEL="LOC|0", NCCL_IB_GDR_LEVEL="LOC|0")
    if bad:
        return fail(f"turned off: {named(bad)}")
    half = _set(machine, NCCL_NET_GDR_READ="0", NCCL_DMABUF_ENABLE="0")
    return info(f"in part: {named(half)}") if half else _unset(machine, ok("not turned off"))


@check(
    "nccl-forced-choice",
    "software",
    title="NCCL chooses algorithms, protocols and channels itself",
    read=_READ + ": NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_MIN_/MAX_NCHANNELS, NCCL_MIN_/MAX_CTAS, NCCL_BUFFSIZE",
    expected="not set, or measured on this machine with this version",
    source=_NCCL,
    cost="what was best for one message size, version or cluster may be several times slower on another",
    fix="remove it, and measure with and without",
    when_wrong="a value that was tuned on this very machine",
)
def forced_choice(machine: Machine) -> CheckOutcome:
    names = ("ALGO", "PROTO", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "BUFFSIZE")
    bad = _set(machine, **{f"NCCL_{name}": ".+" for name in names})
    return warn(f"forced: {named(bad)}") if bad else _unset(machine, ok("none is forced"))


@check(
    "nccl-unsafe-protocol",
    "software",
    title="the protocol LL128 is not forced",
    read=_READ + ": NCCL_PROTO",
    expected="LL128 only where NCCL itself would use it",
    source=_NCCL + ": forcing LL128 on a platform that does not support it can corrupt data",
    cost="wrong gradients, without an error",
    fix="remove NCCL_PROTO",
    when_wrong="NVLink platforms where NCCL uses LL128 anyway",
)
def unsafe_protocol(machine: Machine) -> CheckOutcome:
    bad = _set(machine, NCCL_PROTO="(?!\\^)(?:.*,)?LL128(?:,.*)?")
    return fail(f"forced: {named(bad)}") if bad else _unset(machine, ok("not forced"))


@check(
    "nccl-debug-output",
    "software",
    title="NCCL does not write a line for each call",
    read=_READ + ": NCCL_DEBUG, NCCL_DEBUG_SUBSYS",
    expected="not set, VERSION, WARN or INFO",
    source=_NCCL,
    cost="TRACE, and COLL or ALL of INFO, write a line for each collective and rank: launches are delayed",
    fix="NCCL_DEBUG=WARN, or NCCL_DEBUG_FILE with a file a rank",
    when_wrong="while a fault is being looked for",
)
def debug_output(machine: Machine) -> CheckOutcome:
    found = settings(machine)
    level = found.get("NCCL_DEBUG", ("", ""))[0].upper()
    systems = found.get("NCCL_DEBUG_SUBSYS", ("", ""))[0].upper()
    if level == "TRACE" or (level == "INFO" and not systems.startswith("^") and re.search(r"COLL|ALL|P2P", systems)):
        return warn(f"NCCL_DEBUG={level}{f' NCCL_DEBUG_SUBSYS={systems}' if systems else ''}")
    return ok(f"NCCL_DEBUG={level}") if level else _unset(machine, ok("not set"))


@check(
    "nccl-named-interface",
    "software",
    title="the interfaces that NCCL_SOCKET_IFNAME asks for are there",
    read=_READ + "; /sys/class/net",
    expected="prefixes (or `=name`) of interfaces of this host, neither loopback nor of containers",
    source=_NCCL,
    cost="no such interface: the job does not start; a wrong one: all start-up and socket traffic goes there",
    fix="name the interface that reaches the other hosts; `ip route` tells",
    when_wrong="the job runs in another network namespace than doctor",
)
def named_interface(machine: Machine) -> CheckOutcome:
    found = settings(machine).get("NCCL_SOCKET_IFNAME")
    if found is None:
        return _unset(machine, ok("not set: NCCL looks for one itself"))
    value = found[0]
    names = machine.names("/sys/class/net")
    if not names:
        raise NotReadError(f"NCCL_SOCKET_IFNAME={value}, but the interfaces of the host were not read")
    if value.startswith("^"):
        return ok(f"NCCL_SOCKET_IFNAME={value}")
    is_exact = value.startswith("=")
    wanted = value.lstrip("=").split(",")
    chosen = [
        n for n in names if any(n == w.split(":")[0] if is_exact else n.startswith(w.split(":")[0]) for w in wanted)
    ]
    if not chosen:
        return fail(f"NCCL_SOCKET_IFNAME={value}, but the host has {named(names)}")
    if wrong := [n for n in chosen if re.match(r"lo$|docker|virbr|br-|veth|cni|flannel|cali", n)]:
        return warn(f"NCCL_SOCKET_IFNAME={value} chooses {named(wrong)}")
    return ok(f"NCCL_SOCKET_IFNAME={value}: {named(chosen)}")


@check(
    "nccl-named-device",
    "software",
    title="the RDMA devices that NCCL_IB_HCA asks for are there",
    read=_READ + "; /sys/class/infiniband",
    expected="prefixes (or `=name`) of devices of this host",
    source=_NCCL,
    cost="no such device: NCCL falls back to sockets; fewer than there are: less bandwidth",
    fix="remove the variable, or name the devices of the fabric",
    when_wrong="devices of storage are left out on purpose",
)
def named_device(machine: Machine) -> CheckOutcome:
    found = settings(machine).get("NCCL_IB_HCA")
    if found is None:
        return _unset(machine, ok("not set: NCCL uses all"))
    value = found[0]
    devices = machine.rdma_devices
    is_not, is_exact = value.startswith("^"), "=" in value[:2]
    wanted = [part.split(":")[0] for part in value.lstrip("^=").split(",") if part]
    hit = [d for d in devices if any(d == w if is_exact else d.startswith(w) for w in wanted)]
    used = [d for d in devices if d not in hit] if is_not else hit
    if not used:
        return fail(f"NCCL_IB_HCA={value} leaves none of {named(devices)}")
    return info(f"NCCL_IB_HCA={value}: {len(used)} of {len(devices)} devices")


@check(
    "nccl-library-override",
    "software",
    title="no other NCCL is put before the one that PyTorch brings",
    read="LD_PRELOAD and LD_LIBRARY_PATH of the environment",
    expected="no libnccl in LD_PRELOAD, no folder of NCCL in LD_LIBRARY_PATH",
    source="PyTorch loads nvidia-nccl's library, but the loader takes an earlier one",
    cost="an old version without fixes and faster algorithms; ranks with different versions hang",
    fix="remove the entry, or make it the same on all hosts on purpose",
    when_wrong="a vendor's image that brings a newer NCCL on purpose",
)
def library_override(machine: Machine) -> CheckOutcome:
    found = []
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        parts = re.split(r"[: ]", machine.environment.get(name, ""))
        found += [f"{name}: {part}" for part in parts if "nccl" in part.lower() and "plugin" not in part.lower()]
    return warn(named(found)) if found else ok("none")


@check(
    "nccl-network-plugin",
    "software",
    title="on a cloud whose fabric needs a plugin, NCCL loads it",
    read="NCCL_NET_PLUGIN and LD_LIBRARY_PATH; `NET/OFI` or `NET/Plugin` of an NCCL log; EFA devices of sysfs",
    expected="aws-ofi-nccl where there are EFA devices",
    source="AWS documentation, EFA and NCCL; https://github.com/aws/aws-ofi-nccl",
    cost="sockets instead of the fabric: a tenth of the bandwidth",
    fix="install the vendor's plugin, or use the vendor's image",
    when_wrong="the plugin lies on the loader's default path: an NCCL log tells",
)
def network_plugin(machine: Machine) -> CheckOutcome:
    devices = machine.rdma_devices
    efa = [name for name in devices if name.startswith(("efa", "rdmap"))]
    if not efa:
        return info("no device that needs a plugin was found")
    try:
        networks = {name for names in machine.nccl_log.networks.values() for name in names}
    except NotReadError:
        networks = set()
    if networks:
        used = named(sorted(networks))
        return (
            fail(f"{len(efa)} EFA devices, but NCCL uses {used}") if networks <= {"Socket"} else ok(f"NCCL uses {used}")
        )
    if "ofi" in machine.environment.get("LD_LIBRARY_PATH", "") or "NCCL_NET_PLUGIN" in machine.environment:
        return info(f"{len(efa)} EFA devices, and a plugin is named; an NCCL log would tell whether it is loaded")
    raise NotReadError(f"{len(efa)} EFA devices; whether NCCL loads aws-ofi-nccl, only an NCCL log tells")
