"""Orders of ranks for launchers: Slurm puts each rank where the order says, and each node gets its rank of nodes."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.placement.fabrics import exchanges, fabric
from tests.slurm import SlurmLab

from flatout.emit.placement import PLACEMENT_TARGETS
from flatout.emit.write import write
from flatout.placement.groups import LayoutDegrees
from flatout.placement.place import place
from flatout.records.placement import Fabric, GroupExchange, Placement

DEGREES = LayoutDegrees(tp=2, dp=2, pp=2)


def with_long_pipeline_sends() -> list[GroupExchange]:
    """Return exchanges of which those of the pipeline are the largest, so that stages belong on one node."""
    sizes = {"tensor": 90e9, "pipeline": 80e9, "data": 1e9}
    return [msgspec.structs.replace(each, bytes_to_neighbour=sizes[each.name]) for each in exchanges(DEGREES)]


def named(made: Fabric, *nodes: str) -> Fabric:
    return msgspec.structs.replace(made, nodes=nodes)


def mixed() -> Placement:
    """Return an order in which each node has ranks that are not consecutive."""
    network = named(fabric("fat-tree", 2, 4), "n1", "n2")
    placement = place(network, with_long_pipeline_sends(), (2, 1, 2, 2))
    assert placement.ranks_of_nodes == {"n1": (0, 1, 4, 5), "n2": (2, 3, 6, 7)}
    assert not placement.keeps_nodes_whole
    return placement


def reordered() -> Placement:
    """Return an order of four nodes, of which every second one is on the same leaf switch."""
    network = named(fabric("fat-tree", 4, 2, leaves=(0, 1, 0, 1), oversubscription=4), "n1", "n2", "n3", "n4")
    return place(network, exchanges(LayoutDegrees(tp=2, dp=4)), (2, 1, 4, 1))


def test_the_host_file_has_the_node_of_each_rank() -> None:
    (emitted,) = PLACEMENT_TARGETS["slurm"](mixed())
    assert emitted.text.split() == ["n1", "n1", "n2", "n2", "n1", "n1", "n2", "n2"]
    assert "--distribution=arbitrary" in emitted.notes[0]


def test_slurm_starts_each_rank_on_its_node_and_numbers_those_of_a_node_in_ascending_order(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    placement = mixed()
    (emitted,) = PLACEMENT_TARGETS["slurm"](placement)
    file = write(emitted, tmp_path)
    said = subprocess.run(
        [
            *("srun", "--ntasks=8", "--distribution=arbitrary"),
            *("sh", "-c", "echo $SLURMD_NODENAME $SLURM_LOCALID $SLURM_PROCID"),
        ],
        env={**os.environ, "SLURM_HOSTFILE": str(file)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    started: dict[str, dict[int, int]] = {}
    for line in said.splitlines():
        node, local, rank = line.split()
        started.setdefault(node, {})[int(local)] = int(rank)
    assert {node: tuple(ranks[local] for local in sorted(ranks)) for node, ranks in started.items()} == dict(
        placement.ranks_of_nodes
    )


def test_torchrun_gets_the_rank_of_the_node_on_which_it_starts(tmp_path: Path) -> None:
    placement = reordered()
    assert sorted(placement.node_order) == ["n1", "n2", "n3", "n4"]
    # A ring over the nodes in this order changes between the leaf switches of n1, n3 and n2, n4 twice, not four times.
    leaves = [node in ("n1", "n3") for node in placement.node_order]
    assert sum(leaf != after for leaf, after in pairwise([*leaves, leaves[0]])) == 2
    (emitted,) = PLACEMENT_TARGETS["torchrun"](placement)
    script = write(emitted, tmp_path)
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    for rank, node in enumerate(placement.node_order):
        words = subprocess.run(
            ["sh", str(script), "train.py", "--lr", "1"],
            env={**os.environ, "PATH": path, "SLURMD_NODENAME": node},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        assert words[words.index("--node-rank") + 1] == str(rank)
        assert words[words.index("--rdzv-backend") + 1] == "static"
        assert words[words.index("--master-addr") + 1] == placement.node_order[0]
        assert words[-3:] == ["train.py", "--lr", "1"]
    stranger = subprocess.run(
        ["sh", str(script)], env={**os.environ, "SLURMD_NODENAME": "n9"}, capture_output=True, check=False, timeout=60
    )
    assert stranger.returncode == 2


def test_a_job_of_the_job_set_is_on_the_node_with_its_rank() -> None:
    yaml = pytest.importorskip("yaml")
    placement = reordered()
    (emitted,) = PLACEMENT_TARGETS["kubernetes"](placement)
    jobs = yaml.safe_load(emitted.text)["spec"]["replicatedJobs"]
    selectors = [job["template"]["spec"]["template"]["spec"]["nodeSelector"] for job in jobs]
    assert [selector["kubernetes.io/hostname"] for selector in selectors] == list(placement.node_order)
    assert {job["replicas"] for job in jobs} == {1}
