"""`flatout plan place`, from its options to its files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatout.cli import main

PLACE = ["plan", "place", "--model", "llama3-8b", "--cluster", "h100x32", "--global-batch", "64", "--seq", "2048"]
# With sixteen stages and little data parallelism, neighbours that alternate between leaf switches matter.
SLOW = [*PLACE, "--fix", "tp=8", "--fix", "pp=2", "--oversubscription", "4", "--leaf-nodes", "2"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
    return main()


def test_the_order_follows_the_switches_of_the_nodes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    switches = tmp_path / "topology.conf"
    switches.write_text("SwitchName=a Nodes=n[1,3]\nSwitchName=b Nodes=n[2,4]\nSwitchName=s Switches=a,b\n")
    out = tmp_path / "out"
    arguments = [*SLOW, "--nodes", "n[1-4]", "--switches", str(switches), "--emit", "slurm,torchrun", "--out", str(out)]
    assert run(monkeypatch, *arguments, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["schema"] == "flatout/placement"
    placement = result["placement"]
    assert placement["is_changed"]
    assert placement["seconds_after"] < placement["seconds_before"]
    # Two data-parallel ranks of each stage are on one leaf switch.
    by_leaf = {"n1": 0, "n3": 0, "n2": 1, "n4": 1}
    node_of = {rank: node for node, ranks in placement["ranks_of_nodes"].items() for rank in ranks}
    assert by_leaf[node_of[0]] == by_leaf[node_of[8]] != by_leaf[node_of[16]]
    assert sorted(file.name for file in out.iterdir()) == ["placed_hosts", "placed_torchrun.sh"]
    lines = (out / "placed_hosts").read_text().split()
    assert lines == [node_of[rank] for rank in range(32)]
    before = {link["link"]: link["bytes_before"] for link in placement["links"] if link["kind"] == "leaf uplink"}
    after = {link["link"]: link["bytes_after"] for link in placement["links"] if link["kind"] == "leaf uplink"}
    assert sum(after.values()) < sum(before.values())


def test_the_text_ends_with_the_next_command_and_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLACE, "--fix", "tp=8") == 0
    said = capfd.readouterr().out
    assert "no order found is better than the given one" in " ".join(said.split())
    assert "tensor (TP)" in said
    assert said.rstrip().splitlines()[-1] == "next: flatout bench --only pair_send"
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--emit", "slurm"], "`--emit` writes the names of nodes, and needs --nodes"),
        (["--emit", "pbs", "--nodes", "n[1-4]"], "--emit must be one of slurm, torchrun, kubernetes"),
        (["--switches", "topology.conf"], "`--switches` needs the names of the nodes"),
        (["--nodes", "n[1-3]"], "`--nodes` must name the 4 nodes of 32 GPUs, but names 3"),
        (["--nodes", "n1,n1,n2,n3"], "`--nodes` names `n1` more than once"),
        (["--nodes", "n[1-"], "`--nodes` must be a list of hosts"),
        (["--nodes", "n[1-4]", "--switches", "missing.conf"], "`missing.conf` cannot be read"),
        (["--fabric", "ring", "--oversubscription", "2"], "`--oversubscription` is for switches, but a ring has none"),
        (["--oversubscription", "0.5"], "must be a number from 1 to 64"),
    ],
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(monkeypatch, *PLACE, *arguments) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("cluster", "message"),
    [("h100x12", "a placement needs full nodes"), ("h100x16384", "a placement can have at most 8,192 ranks")],
)
def test_clusters_that_cannot_be_placed_are_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cluster: str, message: str
) -> None:
    assert run(monkeypatch, "plan", "place", "--model", "llama3-8b", "--cluster", cluster) == 2
    assert message in capfd.readouterr().err


def test_a_plan_says_where_its_ranks_go_and_what_slow_links_carry(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = [argument for argument in SLOW if argument != "place"]
    assert run(monkeypatch, *slow, "--json") == 0
    placement = json.loads(capfd.readouterr().out)["placement"]
    assert run(monkeypatch, *SLOW, "--json") == 0
    placed = json.loads(capfd.readouterr().out)["placement"]
    ranks = [rank for ranks in placement["ranks_of_nodes"].values() for rank in ranks]
    assert sorted(ranks) == list(range(32))
    assert placement["seconds_before"] == pytest.approx(placed["seconds_before"])
    assert placed["seconds_after"] * (1 - 1e-9) <= placement["seconds_after"] <= placement["seconds_before"]
    for links in placement["slow_links"]:
        of_kind = [link["bytes_before"] for link in placed["links"] if link["kind"] == links["kind"]]
        assert links["sum_before"] == pytest.approx(sum(of_kind))
        assert links["busiest_before"] == max(of_kind)
    assert {links["kind"] for links in placement["slow_links"]} == {"leaf uplink", "adapter"}
    assert run(monkeypatch, *slow) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "Ranks on nodes" in said
    assert "Links above leaf switches carry" in said


@pytest.mark.parametrize("cluster", ["h100x8", "h100x12"])
def test_a_plan_for_one_node_or_partly_empty_nodes_has_no_placement(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cluster: str
) -> None:
    arguments = ["plan", "--model", "llama3-8b", "--cluster", cluster, "--global-batch", "12", "--seq", "2048"]
    assert run(monkeypatch, *arguments, "--json") == 0
    assert json.loads(capfd.readouterr().out)["placement"] is None
