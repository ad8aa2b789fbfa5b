"""Python's garbage collector: fewer objects to examine, no collections, or all ranks collect at the same step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, ValidRange

FAMILY = "garbage_collection"
AFTER = 10  # steps, in which the data, the model, the optimizer's state and compiled code are created
INTERVALS = (50, 500)  # steps between collections on all ranks
_NO_VALUE = ValidRange()
_NAMES = ("gc-freeze", "gc-off", "gc-together")
_GC = "Python documentation, gc"


def _collector(name: str, *, saves: float, summary: str, doc: str, source: str, valid: ValidRange = _NO_VALUE) -> Knob:
    """Define a way to run the collector: it excludes the other ways, and changes no result."""
    return Knob(
        name=name,
        family=FAMILY,
        summary=summary,
        safety="exact",
        answers={"garbage-collection": saves},
        valid=valid,
        excludes=tuple(other for other in _NAMES if other != name),
        gates=("loss", "memory"),
        doc=doc,
        source=source,
    )


FREEZE = _collector(
    "gc-freeze",
    saves=1.0,
    summary="take all objects that exist after the warm-up out of later garbage collections",
    doc=(
        f"After {AFTER} steps, `gc.collect()` and `gc.freeze()`: later collections, also those that the script asks"
        " for, examine only newer objects. Python or the script decides as before when to collect. It does not help if"
        " the many objects are created later, as by a data set that grows while it is read. Frozen objects in a"
        " reference cycle are never freed."
    ),
    source=f"{_GC} (gc.freeze)",
)
OFF = _collector(
    "gc-off",
    saves=1.0,
    summary="turn the garbage collector off after the warm-up",
    doc=(
        f"After {AFTER} steps, `gc.disable()` and one `gc.collect()`. Reference counts free all other objects, but"
        " those in reference cycles stay: the memory of a script that creates cycles grows until the job ends or runs"
        " out of memory, on the GPU too if the cycles hold tensors. A trial is too short to show that; the patch"
        " reports how many objects have been added since. Loader workers that start later collect as before."
    ),
    source=f"{_GC} (gc.disable)",
)
TOGETHER = _collector(
    "gc-together",
    saves=0.95,
    summary="collect garbage on all ranks at the same step",
    valid=ValidRange(least=1, most=100_000),
    doc=(
        f"After {AFTER} steps the collector is turned off. Each rank then collects the young objects at every"
        " N-th step, and all objects at every tenth of these, so no rank waits for the collection of another, and"
        " reference cycles are freed. Between two collections, memory grows by the cycles of N steps. One rank alone"
        " gains only by collecting less often."
    ),
    source="torchtitan, gc_freq",
)
KNOBS = (FREEZE, OFF, TOGETHER)


def changes(facts: JobFacts) -> Iterator[Change]:
    yield setting(FREEZE, patch="garbage_collection", how="freeze", after=AFTER)
    if facts.collects_automatically is False:  # the script decides itself when to collect
        return
    yield setting(OFF, patch="garbage_collection", how="off", after=AFTER)
    for interval in INTERVALS:
        yield setting(TOGETHER, interval, patch="garbage_collection", how="together", after=AFTER, every=interval)
