"""Leaf switches from Slurm's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.placement.switches import leaf_switches
from flatout.schedule.live.hostlist import expanded


def read(folder: Path, text: str, nodes: list[str]) -> tuple[int, ...]:
    file = folder / "topology.conf"
    file.write_text(text)
    return leaf_switches(file, nodes, expanded)


def test_each_node_is_on_the_leaf_that_names_it(tmp_path: Path) -> None:
    # From Slurm's topology guide, with a comment and keys in another case.
    text = "# fabric\nSwitchName=s0 Nodes=tux[0-3]\nswitchname=s1 nodes=tux[4-7]\nSwitchName=s2 Switches=s[0-1]\n"
    assert read(tmp_path, text, ["tux5", "tux0", "tux3"]) == (1, 0, 0)


def test_the_output_of_scontrol_names_nodes_of_upper_switches_too(tmp_path: Path) -> None:
    text = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]\n"
    )
    assert read(tmp_path, text, ["n1", "n3", "n2", "n4"]) == (0, 1, 0, 1)


def test_blocks_count_as_leaves(tmp_path: Path) -> None:
    assert read(tmp_path, "BlockName=b1 Nodes=n1,n2\nBlockName=b2 Nodes=n3\n", ["n3", "n1"]) == (1, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no leaf switch with nodes"),
        ("SwitchName=s0 Switches=s[1-2]\n", "names no leaf switch with nodes"),
        ("SwitchName=s0 Nodes=m1\n", "has no leaf switch of `n1`"),
        ("SwitchName=s0 Nodes=n[1-\n", "cannot be read"),
    ],
)
def test_a_file_that_lacks_a_node_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, ["n1"])
