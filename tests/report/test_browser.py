"""The report in a real browser: nothing is wider than the screen, and a browser sees no error."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from tests.report import builder, doctor_builder, plan_builder, tuning_builder

from flatout.report.doctor_hosts_html import hosts_html
from flatout.report.doctor_html import doctor_html
from flatout.report.html import diagnosis_html
from flatout.report.plan_html import plan_html
from flatout.report.tuning_html import tuning_html

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
WIDTHS = (360, 900, 1280)
PAGES = (
    *sorted(builder.ALL),
    *(f"tuning_{name}" for name in sorted(tuning_builder.ALL)),
    *(f"doctor_{name}" for name in sorted(doctor_builder.ALL)),
    *(f"hosts_{name}" for name in sorted(doctor_builder.HOSTS)),
    *(f"plan_{name}" for name in sorted(plan_builder.ALL)),
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Measured by a script, which only the copies in this test have: the page itself forbids scripts.
MEASURE = """<script>
document.querySelectorAll("details").forEach(d => d.open = true);
const inScroller = e => {
  for (let p = e.parentElement; p; p = p.parentElement)
    if (["auto", "hidden"].includes(getComputedStyle(p).overflowX)) return true;
};
const box = e => e.getBoundingClientRect();
const named = list => [...new Set(list.map(e => e.className || e.tagName))].join("+");
const wide = [...document.querySelectorAll("body *")].filter(e => box(e).right > innerWidth + .5 && !inScroller(e));
const cut = [...document.querySelectorAll(".bar b")].filter(e =>
  box(e).top < box(e.parentElement).bottom - 1 && box(e).right > box(e.parentElement).right + .5);
const shown = [...document.querySelectorAll(".bar b")].filter(e => box(e).top < box(e.parentElement).bottom - 1);
const lines = e => Math.round(box(e).height / parseFloat(getComputedStyle(e).lineHeight));
const broken = [...document.querySelectorAll(".tag, .chip, .name")].filter(e => box(e).height && lines(e) > 1);
const numbers = [...document.querySelectorAll(".steps .axis:not(.ticks) span")].map(box).filter(b => b.width);
const over = numbers.filter((b, i) => i && b.left < numbers[i - 1].right - .5);
const inRows = [...document.querySelectorAll(".plot .axis .lane")].map(lane => [...lane.children].map(box));
const overMarks = inRows.flatMap(marks => marks.filter((b, i) => i && b.left < marks[i - 1].right));
const root = document.documentElement;
parent.document.documentElement.dataset[window.name] =
  [innerWidth, root.scrollWidth, named(wide), cut.length, shown.length,
   named(broken), over.length, numbers.length, overMarks.length].join(",");
</script></html>"""

pytestmark = pytest.mark.skipif(not BROWSER, reason="needs the browser Chromium, which is not installed")


def dumped(page: Path, width: int, profile: Path) -> str:
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the script measured of each page, in frames as wide as a phone and as a desk."""
    folder = tmp_path_factory.mktemp("browser")
    pages = {
        name: diagnosis_html(make(), ["flatout", "diagnose", "traces"], explain={"straggler": "x " * 50})
        for name, make in builder.ALL.items()
    }
    pages |= {
        f"tuning_{name}": tuning_html(make(), ["flatout", "tune"], "out") for name, make in tuning_builder.ALL.items()
    }
    pages |= {f"doctor_{name}": doctor_html(make(), ["flatout", "doctor"]) for name, make in doctor_builder.ALL.items()}
    pages |= {f"hosts_{name}": hosts_html(make(), ["flatout", "doctor"]) for name, make in doctor_builder.HOSTS.items()}
    pages |= {
        f"plan_{name}": plan_html(*make(), ["flatout", "plan"], next_command=["flatout", "plan"])
        for name, make in plan_builder.ALL.items()
    }
    frames = []
    for name, page in pages.items():
        page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</html>", MEASURE)
        frames += [
            f'<iframe name="{name.replace("_", "")}{width}" srcdoc="{escape(page)}" width="{width}" frameborder="0">'
            "</iframe>"
            for width in WIDTHS
        ]
    (folder / "frames.html").write_text(f"<!doctype html><html><body>{''.join(frames)}</body></html>")
    dom = dumped(folder / "frames.html", 1400, folder / "profile")
    return {name: values.split(",") for name, values in re.findall(r'data-(\w+)="([^"]*)"', dom[: dom.index("<body")])}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_a_phone_or_a_desk(name: str, width: int, measured: dict[str, list[str]]) -> None:
    inner_width, scroll_width, wide, num_cut = measured[f"{name.replace('_', '')}{width}"][:4]
    assert int(inner_width) == width
    assert int(scroll_width) <= width, f"wider than {width} px: {wide}"
    assert wide == ""
    assert num_cut == "0", "a label is cut instead of left out"


def test_labels_are_shown_where_they_fit(measured: dict[str, list[str]]) -> None:
    assert int(measured["manyranks1280"][4]) > int(measured["manyranks360"][4]) > 3


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(builder.ALL))
def test_no_name_is_broken_and_no_number_of_a_step_lies_over_another(
    name: str, width: int, measured: dict[str, list[str]]
) -> None:
    broken, num_over, num_shown = measured[f"{name.replace('_', '')}{width}"][5:8]
    assert broken == ""
    assert num_over == "0"
    assert int(num_shown) > 0 or not builder.ALL[name]().job.num_steps


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(tuning_builder.ALL))
def test_no_mark_of_a_ratio_lies_over_another(name: str, width: int, measured: dict[str, list[str]]) -> None:
    found = measured[f"tuning{name.replace('_', '')}{width}"]
    assert found[5] == "", "a name or a chip is broken"
    assert found[8] == "0"


def test_the_page_as_it_is_shows_its_content_without_scripts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(diagnosis_html(builder.hostile(), ["flatout"]))
    dom = dumped(page, 1280, tmp_path / "profile")
    assert "<h1>" in dom
    assert "<script" not in dom
    assert "<img" not in dom
