"""`flatout index`: the results in a folder, their pages, and one page that lists them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import flatout.cli
from flatout.errors import InputError
from flatout.index_pipeline import index_folder
from flatout.report.headline import headline

READERS = Path(__file__).parent / "data" / "readers"
PAGE = '<!doctype html><meta name="generator" content="flatout 0.1.0"><title>{} | Flatout plan</title>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "diagnosis.json").write_bytes((READERS / "diagnosis.json").read_bytes())
    (tmp_path / "a" / "report.html").write_text(PAGE.format("one"))
    (tmp_path / "ledger.json").write_text(
        json.dumps({"schema": "flatout/ledger-report", "goodput": 0.7, "allocated_device_s": 7200})
    )
    (tmp_path / "ledger.html").write_text(PAGE.format("two"))
    (tmp_path / "plan <1>.html").write_text(PAGE.format("3 layouts &lt;fit&gt;"))
    (tmp_path / "bad.json").write_text('{"schema": "flatout/plan", ')
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "other.html").write_text("<title>of another tool</title>")
    (tmp_path / "link.json").symlink_to(READERS / "diagnosis.json")
    for age, name in enumerate(("ledger.json", "a/diagnosis.json", "plan <1>.html")):
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    return tmp_path


def run(*words: str) -> int:
    before, sys.argv = sys.argv, ["flatout", "index", *words]
    try:
        return flatout.cli.main()
    finally:
        sys.argv = before


def test_results_have_their_pages_and_headlines_the_newest_first(folder: Path) -> None:
    found = index_folder(folder)
    assert [(result.kind, result.path, result.page) for result in found.results] == [
        ("ledger-report", "ledger.json", "ledger.html"),
        ("diagnosis", "a/diagnosis.json", "a/report.html"),
        ("page", "plan <1>.html", "plan <1>.html"),
    ]
    assert found.results[0].headline == "70 % of 2.0 GPU-hours productive"
    assert found.results[2].headline == "3 layouts <fit>"
    (unreadable,) = found.unreadable
    assert unreadable.startswith("bad.json: ")


@pytest.mark.parametrize("out", ["index.html", "b/all.html"])
def test_every_link_of_the_page_leads_to_a_file(folder: Path, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = folder / out
    page.parent.mkdir(exist_ok=True)
    assert run(str(folder), "--out", str(page)) == 0
    text = page.read_text()
    assert "<fit>" not in text
    links = re.findall(r'href="([^"]+)"', text)
    assert len(links) == 3
    for link in links:
        assert (page.parent / link.replace("%20", " ").replace("%3C", "<").replace("%3E", ">")).is_file(), link
    assert run(str(folder), "--out", str(page)) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(str(folder), "--out", str(page), "--force") == 0
    assert 'href="index.html"' not in page.read_text()


def test_charges_are_a_page_of_their_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = "JobID|State|AllocTRES|ElapsedRaw|Account|User|Submit|Start|End|WCKey"
    row = "1|FAILED|gres/gpu=8|7200|<vision>|ann|2026-11-01T00:00:00|2026-11-01T00:00:00|2026-11-01T02:00:00|x"
    (tmp_path / "jobs.txt").write_text(f"{columns}\n{row}\n")
    page = tmp_path / "costs.html"
    before, sys.argv = sys.argv, ["flatout", "cost", "jobs", str(tmp_path / "jobs.txt"), "--html", str(page)]
    try:
        assert flatout.cli.main() == 0
    finally:
        sys.argv = before
    text = page.read_text()
    assert "16.0 GPU-hours in 1 attempt" in text
    assert '<th scope="row">&lt;vision&gt; / x</th><td>used</td><td class="number">0</td>' in text
    assert text.count("<tr>") == 4  # the header, and what was used, idle and lost


def test_a_path_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        index_folder(tmp_path / "missing")


def test_a_folder_without_results_is_one_line_and_gets_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert run(str(tmp_path)) == 2
    assert f"`{tmp_path}` holds no results\n" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()
    (tmp_path / "bad.json").write_text('{"schema": "flatout/plan", ')
    assert len(index_folder(tmp_path).unreadable) == 1


@pytest.mark.parametrize(
    "record", [{}, {"schema": "flatout/plan"}, {"schema": "flatout/tuning", "changes": 3}, {"schema": 5}]
)
def test_a_result_that_says_nothing_has_no_headline(record: dict[str, object]) -> None:
    assert headline(record) == ""


def test_a_long_headline_is_cut() -> None:
    finding = {"title": "x" * 1000}
    assert len(headline({"schema": "flatout/diagnosis", "findings": [finding], "ranks": []})) == 300


def test_a_result_that_was_cut_is_named_on_the_terminal_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cut.json").write_text('{"schema": "flatout/diagnosis", "version": 1, ')
    assert run(str(folder)) == 0
    assert "could not be read: cut.json: " in capsys.readouterr().err
