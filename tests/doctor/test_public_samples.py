"""Samples that users and projects have published, in ../shared: what they are known to show is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.doctor.inputs import kind_of, read_inputs
from flatout.doctor.judge import judge_machine
from flatout.errors import InputError
from flatout.records.snapshot import Output, Snapshot
from flatout.report.doctor_text import doctor_text
from flatout.report.terminal import TextStyle


@pytest.fixture(scope="session")
def public(shared_data: Path) -> Path:
    return shared_data / "samples"


# folder, file, check, status, what the reason names
KNOWN = [
    ("topo_m", "06-4xA100-nv4-4nics-oneNUMA-each.txt", "gpu-nvlink-matrix", "ok", "NV4 between all"),
    ("topo_m", "06-4xA100-nv4-4nics-oneNUMA-each.txt", "topology-nic-distance", "ok", "4 GPUs"),
    ("topo_m", "05-8gpu-pxb-mlx5-named-column.txt", "topology-nic-distance", "warn", "GPU3"),
    ("topo_m", "10-2x5090-p2p-rw-GNS.txt", "gpu-peer-to-peer", "info", "GNS"),
    ("topo_m", "23-2xL4-p2p-CNS.txt", "gpu-peer-to-peer", "warn", "CNS"),
    ("topo_m", "24-8xH100-p2p-OK.txt", "gpu-peer-to-peer", "ok", "28 pairs"),
    ("topo_m", "28-nvidia-smi-L-MIG-A100.txt", "gpu-mig", "fail", "GPU0"),
    (
        "topo_m",
        "14-8xB200-glued-header-NIC11NIC12-numa-restricted-TRUNCATED.txt",
        "topology-nic-distance",
        "unknown",
        "",
    ),
    ("topo_m", "16-16xV100-dgx2-nv6-mlx5-columns-TRUNCATED.txt", "topology-nic-share", "unknown", ""),
    ("nccl_logs", "02-ibv_modify_qp-network-unreachable.log", "nccl-log-warnings", "fail", "GID or route"),
    ("nccl_logs", "03-ib-completion-status12-vendor129.log", "nccl-log-completion-error", "fail", "status 12"),
    ("nccl_logs", "04-ib-status12-then-status5-flush.log", "nccl-log-completion-error", "fail", "status 12"),
    ("nccl_logs", "05-gdr-disabled-roce.log", "nccl-log-gpu-direct", "fail", "mlx5_0"),
    ("nccl_logs", "08-old-posix_fallocate-shm.log", "nccl-log-warnings", "fail", "/dev/shm"),
    ("nccl_logs", "09-gb200-mnnvl-fabric-nvls.log", "nccl-log-fabric", "ok", "4 GPUs"),
    ("nccl_logs", "12-tuning-lines-and-gdrdma-h100-3node.log", "nccl-log-gpu-direct", "ok", "GDRDMA"),
    ("nccl_logs", "13-consumer-shm-direct-allreduce-table.log", "nccl-log-transport", "warn", "SHM"),
    ("nccl_logs", "16-mixed-nccl-2.4.7-ipoib-then-ib.log", "nccl-log-interface", "warn", "IPoIB"),
    ("nccl_logs", "20-fastsocket-instead-of-ib.log", "nccl-log-network", "warn", "sockets"),
    ("topo_xml", "superbench-ndv4-topo.xml", "topology-nccl-file", "warn", "shares CPUs"),
    ("topo_xml", "azhpc-ndv4-topo.xml", "topology-nccl-file", "ok", "4 NUMA"),
    ("pci", "lspci-vvv-8xH100-cx7-trimmed.txt", "pci-access-control", "warn", "0000:82:00.0"),
    ("kernel_logs", "dmesg-xid119-gsp-timeout.txt", "gpu-xid", "fail", "119"),
    ("kernel_logs", "dmesg-libnccl-segfault.txt", "kernel-nccl-crash", "warn", "segfault"),
    ("kernel_logs", "syslog-ib6-6flaps.txt", "net-carrier-losses", "warn", "ib6: 6"),
    ("kernel_logs", "kmsg-nvidia-peermem-invalid-context.txt", "nic-peermem-errors", "info", "invalid context"),
    ("nvidia_smi", "nvidia-smi-q-page-retirement-bad.txt", "gpu-retired-pages", "fail", "60 or more"),
    ("nvidia_smi", "nvidia-smi-q-page-retirement-good.txt", "gpu-retired-pages", "ok", ""),
    ("nvidia_smi", "nvlink-status-8xA100.txt", "gpu-nvlink-active", "ok", "12 links on each of 8"),
    ("nvidia_smi", "nvlink-status-gpu6-all-inactive.txt", "gpu-nvlink-active", "fail", ""),
    ("sysfs_infiniband", "sys-class-infiniband-h100.0", "rdma-rate", "ok", "400 Gb/s"),
    ("sysfs_infiniband", "sys-class-infiniband-h100.0", "rdma-link-downed", "warn", "mlx5_1"),
    ("gcm_fakes", "eth_learn_good.json", "net-mtu", "ok", "9192"),
]
REFUSED = {  # AMD's tools, a table of nccl-tests, a manifest: told so in one line
    "11-rocm-smi-4gpu-pcie-TRUNCATED.txt",
    "27-rocm-smi-showtoponuma.txt",
    "21-nccl-tests-h200-480.txt",
    "DGX_A100.json",
}


@pytest.mark.parametrize(("folder", "file", "check_id", "status", "named"), KNOWN)
def test_what_a_sample_is_known_to_show_is_found(
    public: Path, folder: str, file: str, check_id: str, status: str, named: str
) -> None:
    report = judge_machine(read_inputs([public / folder / file]))
    found = next(check for check in report.checks if check.id == check_id)
    assert (found.status, named in found.reason) == (status, True), found.reason


def test_every_sample_is_judged_or_refused_in_one_line(public: Path) -> None:
    paths = [path for folder in public.iterdir() if folder.is_dir() for path in folder.iterdir()]
    refused = set()
    for path in paths:
        try:
            report = judge_machine(read_inputs([path]))
        except InputError:
            refused.add(path.name)
            continue
        assert [c.reason for c in report.checks if "the input cannot be parsed" in c.reason] == [], path
        assert doctor_text(report, style=TextStyle())
    assert refused == REFUSED


@pytest.mark.parametrize("folder", ["topo_m", "nccl_logs", "topo_xml", "nvidia_smi", "kernel_logs"])
def test_a_sample_that_is_cut_off_is_understood_as_far_as_it_goes(public: Path, folder: str) -> None:
    for path in sorted((public / folder).iterdir()):
        text = path.read_text(errors="replace")
        for cut in (text[: int(len(text) * share)] for share in (0.2, 0.5, 0.9)):
            if (kind := kind_of(cut)) is not None:
                report = judge_machine(Snapshot(outputs={kind: Output(text=cut)}))
                assert [c.reason for c in report.checks if "the input cannot be parsed" in c.reason] == [], path
