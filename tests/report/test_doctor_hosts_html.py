"""The page of `flatout doctor --hosts`: who is unlike the others first, what was compared, each host's own findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.doctor.test_command import host, smi
from tests.report import doctor_builder as builder
from tests.report.page import Node, read_page

from flatout.report.doctor_hosts_html import MOST_HOSTS, hosts_html

COMMAND = ["flatout", "doctor", "--hosts", "bundles", "--api-key", "hunter2"]


def page(name: str) -> Node:
    return read_page(hosts_html(builder.HOSTS[name](), COMMAND))


@pytest.mark.parametrize("name", sorted(builder.HOSTS))
def test_nothing_outside_is_referred_to_and_there_is_no_script(name: str) -> None:
    text = hosts_html(builder.HOSTS[name](), COMMAND)
    assert len(text) < 2_000_000
    assert "hunter2" not in text
    for one in read_page(text).all():
        assert one.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "video")
        assert not any(key.startswith("on") or key in ("src", "href") for key in one.attributes)
    assert "\x1b" not in text


def test_the_host_that_is_unlike_the_others_is_in_the_headline_and_first() -> None:
    found = page("one_odd")
    assert found.all("h1")[0].text == "1 of 5 hosts differs from the others: n9"
    first, second = found.section("unlike").all("article")
    assert first.all("code")[0].text == "nccl-peer-to-peer"
    assert [(row.all("dt")[0].text, row.all("dd")[0].text) for row in second.all("div")] == [
        ("n9", "NCCL_P2P_LEVEL=LOC"),
        ("usual", "none"),
    ]
    hosts = found.section("hosts").all("details")
    assert [one.all("summary")[0].text.split()[0] for one in hosts] == ["n9", "n0", "n1", "n2", "n3"]
    assert "open" in hosts[0].attributes
    assert "open" not in hosts[1].attributes
    counts = {one.all("dt")[0].text: one.all("dd")[0].text for one in found.all("dl")[0].all("div")}
    assert counts == {
        "hosts": "5",
        "different from the others": "1",
        "with a check that fails": "1",
        "not captured": "1",
    }


def test_a_fact_in_which_all_are_alike_is_told_after_those_that_differ() -> None:
    rows = page("one_odd").section("compared").all("tbody")[0].all("tr")
    assert [row.all("th")[0].text.split(" 5 ")[0] for row in rows] == ["NCCL settings", "driver"]
    assert "NCCL_P2P_LEVEL=LOC: n9" in rows[0].text
    assert "all alike" in rows[1].text
    assert "kernel: 0 of 5 hosts report a value" in page("one_odd").section("compared").text


def test_what_most_hosts_have_is_told_once_and_each_host_has_its_own() -> None:
    found = page("one_odd")
    (shared,) = found.section("shared").all("article")
    assert "on 5 of 5 hosts" in shared.text
    assert "4 GiB of swap" in shared.text
    odd, well = found.section("hosts").all("details")[:2]
    assert [row.all("code")[0].text for row in odd.all("tbody")[0].all("tr")] == ["nccl-peer-to-peer"]
    assert "turned off: NCCL_P2P_LEVEL=LOC" in odd.text
    assert "run nvidia-smi -r" in odd.text
    assert "No check fails or warns only on this host" in well.text
    assert "Same as on most hosts: swap" in well.text
    assert "4 GiB of swap" not in found.section("hosts").text


def test_of_two_hosts_nothing_is_usual() -> None:
    found = page("no_majority")
    assert found.all("h1")[0].text == "2 hosts, and they differ"
    assert not [one for one in found.all("section") if one.attributes["id"] == "shared"]
    assert all("governor" in one.text for one in found.section("hosts").all("details"))


def test_a_host_that_could_not_be_read_is_not_among_the_healthy() -> None:
    section = page("one_odd").section("not-captured")
    assert "n7" in section.text
    assert "did not answer" in section.text
    assert page("alike").all("h1")[0].text == "2 hosts: none differs from the others"


def test_a_thousand_hosts_are_cut_and_it_is_said() -> None:
    found = page("many")
    start = "40 of 1,200 hosts differ from the others: gpu-node-0000, gpu-node-0001, gpu-node-0002 and 37 more"
    assert found.all("h1")[0].text == start
    assert "all of .eu-west.cluster.example.org" in found.all("ul", "facts")[0].text
    assert "on 1,200 of 1,200 hosts" in found.section("shared").text
    section = found.section("hosts")
    assert len(section.all("details")) == MOST_HOSTS
    assert "700 more are in --json" in section.text
    assert "and 16 more" in found.section("unlike").text
    assert not any("open" in one.attributes for one in section.all("details"))


def test_the_command_writes_it_of_real_bundles_and_overwrites_nothing(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    for number in range(4):
        host(f"node-{number}", smi(), bundles)
    host("node-9", smi(num=3), bundles, NCCL_P2P_LEVEL="LOC")
    target = tmp_path / "page.html"
    command = [sys.executable, "-m", "flatout", "doctor", "--hosts", str(bundles), "--html", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == f"wrote the page: {target}\n"
    found = read_page(target.read_text())
    assert found.all("h1")[0].text == "1 of 5 hosts differs from the others: node-9"
    facts = {
        row.all("th")[0].text: row.all("td")[0].text for row in found.section("compared").all("tbody")[0].all("tr")
    }
    assert facts["number of GPUs 5 hosts"] == "4 3: node-9"
    assert facts["power limit of the GPUs 5 hosts, all alike"] == "700 W"
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (again.returncode, again.stdout) == (2, "")
