"""The page of a loader's profile: the cause first, the numbers of the text, and names from the job stay names."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from tests.loading.test_speed import a_loader, a_stage
from tests.report.test_track_html import Tags

from flatout.loading.causes import find_causes
from flatout.loading.speed import loader_speeds
from flatout.records.loading import CodePlace, LoadingProfile, RankLoading
from flatout.report.loading_html import loading_html

COMMAND = ("flatout", "data", "show", "out")


def page(loading: RankLoading | None, **changed: Any) -> str:
    content: dict[str, Any] = {"recording": "out", "ranks": (), "slowest_rank": None, "is_waiting": None}
    if loading is not None:
        loading = msgspec.structs.replace(loading, speeds=loader_speeds(loading))
        content |= {"ranks": (loading,), "slowest_rank": loading.rank}
        content |= {"causes": find_causes(loading), "is_waiting": bool(find_causes(loading))}
    return loading_html(LoadingProfile(**content | changed), COMMAND)


def words(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html.split("</style>")[1]).replace("\u00a0", " ")


def test_the_page_says_why_and_shows_the_stages_and_the_predictions() -> None:
    html = page(a_loader())
    text = words(html)
    assert "The training waits for its batches: 32.0 ms of each step of 42.0 ms (76 %)." in text
    assert "decode-bound" in text and "Way out:" in text
    assert "4 workers instead of no workers: predicted 4.20x." in text
    assert "0 (now)" in text
    tags = Tags(html)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "default-src 'none'" in html


def test_each_table_has_headers_and_each_section_a_name() -> None:
    html = page(a_loader())
    assert html.count("<table") >= 2
    assert len(re.findall(r"<th(?! scope=)", html.replace("<thead", ""))) == 0
    named = re.findall(r'<section aria-labelledby="([\w-]+)"', html)
    assert named and all(f'id="{name}"' in html for name in named)


def test_a_name_of_the_job_is_text_on_the_page() -> None:
    place = CodePlace(place="<script>alert(1)</script>", share=1.0)
    html = page(a_loader(a_stage("code", cpu_s=0.003), dataset="<b onload=x>", places=(place,)))
    assert "script" not in Tags(html).seen
    assert "&lt;b onload=x&gt;" in html


def test_without_a_loader_the_page_says_so() -> None:
    text = words(page(None, problems=("stages-node-7.json is damaged: cut",)))
    assert "No process of this job made a batch with a torch DataLoader." in text
    assert "stages-node-7.json is damaged" in text
