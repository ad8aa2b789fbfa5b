"""What Flatout looks for and what it can do: findings, checks, changes, variants and policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from flatout.change.catalogue import FAMILIES, KNOBS
from flatout.change.forbidden import FORBIDDEN
from flatout.compress.catalogue import ROWS
from flatout.diagnose.explain import explanation, listed
from flatout.doctor.checks import CHECKS
from flatout.predict.collective_time import Link
from flatout.predict.gradient_exchange import COMPRESSIONS, MIN_GAIN, gain
from flatout.records.change import Knob, ValidRange
from flatout.records.doctor import FAMILIES as CHECK_FAMILIES
from flatout.report.parts import PART_MEANINGS, SAFETY_MEANINGS
from flatout.schedule.policies.names import POLICIES
from generators.markdown import table

# One rank's share of the link to the next node, and the time of one message: NVLink of H100 and H200; NCCL over TCP
# with and without more sockets (measured on H200); adapters at their line rate.
_LINKS = {
    "NVLink, 400 GB/s": Link(latency_s=5e-6, bytes_per_s=400e9),
    "InfiniBand or RoCE, 400 Gbit/s": Link(latency_s=1e-5, bytes_per_s=48e9),
    "TCP with more sockets, 17 GB/s": Link(latency_s=3e-5, bytes_per_s=17e9),
    "TCP by NCCL's default, 2.9 GB/s": Link(latency_s=3e-5, bytes_per_s=2.9e9),
    "Ethernet, 10 Gbit/s": Link(latency_s=5e-5, bytes_per_s=1.18e9),
    "Ethernet, 1 Gbit/s": Link(latency_s=1e-4, bytes_per_s=0.118e9),
}
_BUCKET_BYTES = 25 << 20


def findings() -> str:
    """Return each finding as `flatout explain` has it: name, code, summary and five texts."""
    sections = []
    for name, summary in listed():
        finding = explanation(name)
        texts = "\n\n".join(f"**{heading}**\n\n{text}" for heading, text in finding.sections.items())
        sections.append(f"## {name}\n\n`{finding.code}` {summary}\n\n{texts}")
    return "\n\n".join(sections)


def parts() -> str:
    """Return each part and its meaning."""
    return table(["Part", "Meaning"], [[f"`{name}`", text] for name, text in PART_MEANINGS.items()])


def checks() -> str:
    """Return each check of `flatout doctor`, in a section for each family."""
    sections = []
    for family in CHECK_FAMILIES:
        of_family = [check for check in CHECKS if check.family == family]
        sections.append(f"## {family}\n\n{len(of_family)} checks.")
        for check in of_family:
            rows = [
                ["read", check.read],
                ["expected", check.expected],
                ["source", check.source],
                ["costs", check.cost],
                ["fix", check.fix],
                ["when this is wrong", check.when_wrong],
            ]
            title = f"{check.topic[0].upper()}{check.topic[1:]}."
            sections.append(f"### {check.id}\n\n{title}\n\n" + table(["", ""], rows))
    return "\n\n".join(sections)


def changes() -> str:
    """Return the catalogue of changes, in a section for each family, and the forbidden settings."""
    sections = []
    for family in FAMILIES:
        intro = inspect.cleandoc(family.__doc__ or "")
        knobs = "\n\n".join(_knob(knob) for knob in KNOBS if knob.family == family.FAMILY)
        sections.append(f"## {family.FAMILY}\n\n{intro}\n\n{knobs}")
    # A rule that allows some values gives its reason for one that it refuses.
    rows = [[f"`{name}`", rule("LL128", {name: "LL128"}) or ""] for name, rule in FORBIDDEN.items()]
    return "\n\n".join([*sections, f"## Forbidden settings\n\n{table(['Variable', 'Why'], rows)}"])


def _knob(knob: Knob) -> str:
    rows = [
        ["safety", f"`{knob.safety}`"],
        ["values", _valid(knob.valid)],
        ["answers", ", ".join(f"[`{name}`](findings.md#{name})" for name in knob.answers)],
        ["works on", ", ".join(f"`{part}`" for part in knob.reduces)],
        ["saves memory", f"up to {knob.saves_memory:.0%} of the peak" if knob.saves_memory else ""],
        ["needs", "; ".join(f"{need.fact.replace('_', ' ')} {need.relation} {need.value}" for need in knob.needs)],
        ["excludes", ", ".join(f"`{name}`" for name in knob.excludes)],
        ["requires", ", ".join(f"`{name}`" for name in knob.requires)],
        ["goes with", ", ".join(f"`{name}`" for name in knob.combines_with)],
        ["gates", ", ".join(knob.gates)],
        ["source", knob.source],
    ]
    summary = f"{knob.summary[0].upper()}{knob.summary[1:]}."
    return f"### {knob.name}\n\n{summary} {knob.doc}\n\n" + table(["", ""], [row for row in rows if row[1]])


def _valid(valid: ValidRange) -> str:
    if valid.choices:
        return ", ".join(f"`{choice}`" for choice in valid.choices)
    return "" if valid.least is None or valid.most is None else f"{valid.least:g} to {valid.most:g}"


def safety() -> str:
    """Return each safety class and its meaning."""
    return table(["Safety", "Meaning"], [[f"`{name}`", text] for name, text in SAFETY_MEANINGS.items()])


def compression() -> str:
    """Return what the exposed exchange of a DDP bucket gains by each compression, by link and number of ranks."""
    rows = []
    for link_name, link in _LINKS.items():
        for num_ranks in (2, 8, 64, 256):
            gains = [gain(name, link, _BUCKET_BYTES, num_ranks) for name in COMPRESSIONS if name != "fp16"]
            cells = [f"**{times:.1f}**" if times >= MIN_GAIN else f"{times:.2g}" for times in gains]
            rows.append([link_name, str(num_ranks), *cells])
    return table(["Link of each rank", "Ranks", *[name for name in COMPRESSIONS if name != "fp16"]], rows)


def compression_variants() -> str:
    """Return the variants that `flatout compress` tries."""
    rows = [(f"`{row.name}`", row.summary, "patch" if row.applied_by == "patch" else "file") for row in ROWS]
    return table(("Variant", "What it is", "Applied by"), rows)


def policies() -> str:
    """Return the scheduling policies: name and rule."""
    return table(["Policy", "Rule"], [[f"`{name}`", policy.summary] for name, policy in POLICIES.items()])


GENERATORS: Mapping[str, Callable[[], str]] = {
    "findings": findings,
    "parts": parts,
    "checks": checks,
    "changes": changes,
    "safety": safety,
    "compression": compression,
    "compression_variants": compression_variants,
    "policies": policies,
}
