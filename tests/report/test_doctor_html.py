"""The page of `flatout doctor`: faults first, devices drawn where they are, every check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.report import doctor_builder as builder
from tests.report.page import Node, read_page

from flatout.report.doctor_html import MOST_BOXES, doctor_html

COMMAND = ["flatout", "doctor", "--html", "page.html", "--api-key", "hunter2"]


def page(name: str) -> Node:
    return read_page(doctor_html(builder.ALL[name](), COMMAND))


@pytest.mark.parametrize("name", sorted(builder.ALL))
def test_nothing_outside_is_referred_to_and_there_is_no_script(name: str) -> None:
    text = doctor_html(builder.ALL[name](), COMMAND)
    assert len(text) < 1_000_000
    assert "hunter2" not in text
    for one in read_page(text).all():
        assert one.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "video")
        assert not any(key.startswith("on") or key in ("src", "href") for key in one.attributes)
    assert "\x1b" not in text


def test_what_fails_comes_before_what_warns_with_cost_and_cure() -> None:
    found = page("faulty")
    assert found.all("h1")[0].text == "1 check fails, 1 check warns"
    articles = found.section("wrong").all("article")
    assert [article.all("code")[0].text for article in articles] == ["gpu-pcie-width", "gpu-row-remap"]
    assert "x8 of x16" in articles[0].text
    assert "half of the bandwidth" in articles[0].text
    assert articles[0].all("p")[-1].all("code")[0].text == "nvidia-smi -r"


def test_a_healthy_host_says_so_and_unknown_is_not_ok() -> None:
    assert page("healthy").all("h1")[0].text == "No check fails or warns"
    counts = {one.all("dt")[0].text: one.all("dd")[0].text for one in page("faulty").all("dl")[0].all("div")}
    assert counts == {"fail": "1", "warn": "1", "unknown": "2", "info": "1", "ok": "1"}


def names_of(box: Node) -> list[str]:
    """Ids of the boxes directly within this one."""
    return [one.all("code")[0].text for lists in box.all("ul")[:1] for one in lists.children if isinstance(one, Node)]


def test_a_device_is_drawn_within_what_it_is_behind() -> None:
    tree = page("faulty").section("topology").all("ul", "tree")[0]
    first, second = (one for one in tree.children if isinstance(one, Node))
    assert names_of(first) == ["0000:00:01.0"]  # the port with nothing behind it is left out
    (port,) = (one for one in first.all("li") if one.all("code")[0].text == "0000:00:01.0")
    assert names_of(port) == ["0000:01:00.0"]
    (switch,) = port.all("li", "switch")
    assert names_of(switch) == ["0000:02:00.0", "0000:03:00.0"]
    assert [one.text for one in second.all("span", "narrow")] == ["x8 of x16, 32 GT/s"]
    assert first.all("span", "narrow") == []


def test_pairs_are_coloured_by_how_far_they_are() -> None:
    section = page("faulty").section("topology")
    rows = {
        row.all("th")[0].text: [(cell.text, cell.attributes["class"]) for cell in row.all("td")]
        for row in section.all("table", "relations")[0].all("tbody")[0].all("tr")
    }
    assert rows["GPU0"] == [("", "none"), ("NV18", "near0"), ("PIX", "near1")]
    assert rows["NIC0"] == [("PIX", "near1"), ("SYS", "near5"), ("", "none")]
    assert "one bridge is missing" in section.text


def test_every_check_is_there_and_unknown_ones_with_one_reason_are_together() -> None:
    section = page("faulty").section("checks")
    for check in builder.faulty().checks:
        assert check.id in section.text
    (line,) = (one for one in section.all("li") if "operation not permitted" in one.text)
    assert [code.text for code in line.all("code")] == ["dmesg", "kernel-log", "memory-errors"]


def test_a_large_host_is_cut_and_says_so() -> None:
    section = page("large").section("topology")
    assert len(section.all("li", "box")) <= MOST_BOXES
    assert "more boxes are not drawn" in section.text


def test_the_command_writes_it_and_overwrites_nothing(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    command = [sys.executable, "-m", "flatout", "doctor", "--html", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == f"wrote the page: {target}\n"
    assert "<h1>" in target.read_text()
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (again.returncode, again.stdout) == (2, "")
