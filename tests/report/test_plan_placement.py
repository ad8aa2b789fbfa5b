"""The sentences about where a plan puts its ranks, on a terminal and on the page."""

from __future__ import annotations

import msgspec
from tests.report.plan_builder import one_stage

from flatout.records.placement import LinkKind, PlannedPlacement, SlowLinks
from flatout.report.plan_html import plan_html
from flatout.report.plan_placement import MOST_NODES, first_nodes, placement_lines, placement_sentences
from flatout.report.terminal import TextStyle

GIB = float(1 << 30)
LINKS = SlowLinks(
    kind=LinkKind.CORE, busiest_before=4 * GIB, busiest_after=2 * GIB, sum_before=16 * GIB, sum_after=8 * GIB
)
CHANGED = PlannedPlacement(
    fabric="fat-tree",
    ranks_of_nodes={f"node-{number}": (2 * number, 2 * number + 1) for number in range(MOST_NODES + 1)},
    is_changed=True,
    keeps_nodes_whole=False,
    seconds_before=2.0,
    seconds_after=1.5,
    seconds_with_node_order=1.75,
    slow_links=(LINKS,),
)


def test_a_better_order_is_said_with_what_it_saves_and_what_it_needs() -> None:
    order, links, more = placement_sentences(CHANGED)
    assert "take 1.50 s in place of 2.00 s, 25 % less" in order
    assert "(Slurm)" in order and "1.75 s" in order
    assert links == (
        "Links above leaf switches carry 8.00 GiB per step (given order: 16.0 GiB), the busiest 2.00 GiB (4.00 GiB)."
    )
    assert "`flatout plan place`" in more
    whole = msgspec.structs.replace(CHANGED, keeps_nodes_whole=True)
    assert "an order of nodes is enough" in placement_sentences(whole)[0]


def test_an_order_that_saves_only_bytes_does_not_claim_time() -> None:
    as_long = msgspec.structs.replace(CHANGED, seconds_after=2.0)
    order = placement_sentences(as_long)[0]
    assert "fewer bytes on slow links" in order and "less" not in order


def test_a_given_order_that_is_as_good_is_kept() -> None:
    kept = msgspec.structs.replace(CHANGED, is_changed=False, seconds_after=2.0, slow_links=())
    assert placement_sentences(kept) == [
        "Keep the ranks in their given order, node by node: no order tried is better. Its exchanges take 2.00 s per "
        "step, one after the other at the links' full rates.",
        "No bytes leave a node.",
    ]
    assert not any("node-0" in line for line in placement_lines(kept, TextStyle()))


def test_the_first_nodes_are_listed_and_the_others_counted() -> None:
    rows = first_nodes(CHANGED)
    assert rows[0] == ("node-0", "ranks 0, 1")
    assert rows[MOST_NODES:] == [("and 1 more node", "--json has all")]
    fewer = dict(list(CHANGED.ranks_of_nodes.items())[:MOST_NODES])
    assert len(first_nodes(msgspec.structs.replace(CHANGED, ranks_of_nodes=fewer))) == MOST_NODES


def test_the_page_has_the_order_and_escapes_its_names() -> None:
    plan, details = one_stage()
    assert 'id="placement"' not in plan_html(plan, details, ["flatout"], next_command=["flatout"])
    hostile = msgspec.structs.replace(CHANGED, ranks_of_nodes={"<script>": (0, 1)})
    page = plan_html(msgspec.structs.replace(plan, placement=hostile), details, ["flatout"], next_command=["flatout"])
    assert 'id="placement"' in page and "<script>" not in page
    assert "&lt;script&gt;" in page
