"""Diagnoses made by hand, as `flatout diagnose` would make them, for the reports to show."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.records.diagnosis import PART_NAMES, Blame, Diagnosis, Finding, JobSummary, RankDiagnosis, StepDiagnosis
from flatout.records.events import Quality

LEAD_IN_S = 0.021

HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \"'&{{ 7*7 }} \x1b[31m\x00 ‮ кернел"


def parts(**seconds: float) -> dict[str, float]:
    return dict.fromkeys(PART_NAMES, 0.0) | seconds


def finding(name: str, cost_s: float, share: float, **fields: Any) -> Finding:
    defaults: dict[str, Any] = {
        "code": "F03",
        "title": f"{name} costs {cost_s * 1e3:.1f} ms of each step.",
        "ranks": (),
        "evidence": {},
        "changes": (),
        "safety": "exact",
        "confidence": "high",
    }
    return Finding(name=name, cost_s_per_step=cost_s, share_of_step=share, **(defaults | fields))


def rank_of(
    rank: int, steps: Sequence[Mapping[str, float]], *, first_step: int = 3, lead_in_s: float = LEAD_IN_S
) -> RankDiagnosis:
    """A rank whose steps follow one another; the lead-in is computing."""
    start_s = lead_in_s
    made = []
    for number, step_parts in enumerate(steps, start=first_step):
        window_s = sum(step_parts.values())
        made.append(StepDiagnosis(step=number, start_s=start_s, window_s=window_s, parts_s=parts(**step_parts)))
        start_s += window_s
    total = {name: sum(step.parts_s[name] for step in made) for name in PART_NAMES}
    total["compute"] += lead_in_s
    return RankDiagnosis(
        rank=rank,
        window_s=sum(total.values()),
        num_steps=len(made),
        parts_s=total,
        lead_in_s=lead_in_s,
        steps=tuple(made),
        step_s=sum(step.window_s for step in made) / len(made) if made else None,
    )


def diagnosis_of(
    ranks: Sequence[RankDiagnosis],
    *,
    blame: Sequence[Blame] = (),
    findings: Sequence[Finding] = (),
    quality: Sequence[Quality] = (),
    **job: Any,
) -> Diagnosis:
    step_times = [rank.step_s for rank in ranks if rank.step_s is not None]
    fields: dict[str, Any] = {
        "num_ranks": len(ranks),
        "world_size": len(ranks),
        "missing_ranks": (),
        "device": "NVIDIA H200",
        "num_steps": max((rank.num_steps for rank in ranks), default=0),
        "step_s": sum(step_times) / len(step_times) if step_times else None,
    }
    return Diagnosis(
        job=JobSummary(**(fields | job)),
        ranks=tuple(ranks),
        blame=tuple(blame),
        findings=tuple(findings),
        data_quality=tuple(quality),
    )


def straggler_findings() -> tuple[Finding, ...]:
    return (
        finding(
            "straggler",
            0.0467,
            0.506,
            title="Rank 2 computes 46.2 ms longer than the other ranks in every step, and they wait for it.",
            ranks=(2,),
            evidence={
                "cause": "compute",
                "late_by_s": 0.0462,
                "waiting_ranks": [0, 1, 3],
                "num_late_steps": 3,
                "excess_s_per_step": {"compute": 0.0451, "launch_latency": 0.0013, "memory_copy": 0.0004},
                "compute_ratio": 2.19,
                "slowest_kernels": ["nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "flash_fwd_kernel<128>"],
            },
            changes=(
                "Give rank 2 the same work as the others: check the lengths of its samples.",
                "Run `nvidia-smi -q -d PERFORMANCE` on its machine: a throttled GPU computes all kernels slower.",
            ),
            safety="semantic",
        ),
        finding(
            "exposed-communication",
            0.0042,
            0.046,
            code="F02",
            title="4.2 ms of gradient transfer a step is not hidden by compute, at 21 GB/s.",
            ranks=(0, 1, 2, 3),
            evidence={
                "transfer_s_per_step": 0.0042,
                "num_bytes": 96 * 2**20,
                "bytes_per_s": 21.3e9,
                "hidden_share": 0.31,
            },
            changes=("Larger DDP buckets: `bucket_cap_mb=100`.",),
            confidence="medium",
        ),
    )


def straggler() -> Diagnosis:
    """Four ranks; rank 2 computes 46 ms longer than the others, and they wait."""
    noise = random.Random(7)
    ranks = []
    for rank in range(4):
        steps = []
        for extra_s in (0.0, 0.0031, -0.0012):
            late_s = 0.0462 + extra_s if rank == 2 else 0.0
            step = {
                "compute": 0.0385 + late_s + noise.uniform(0, 4e-4),
                "transfer": 0.00415 + noise.uniform(0, 2e-4),
                "memory_copy": 0.00028,
                "launch_latency": 0.0011,
                "host_launch": 0.0006 + noise.uniform(0, 3e-4),
            }
            step["wait"] = 0.0922 + extra_s - sum(step.values()) if rank != 2 else 0.0008
            steps.append(step)
        ranks.append(rank_of(rank, steps))
    waits = [sum(step.parts_s["wait"] for step in rank.steps) for rank in ranks]
    blame = [
        Blame(waiting_rank=rank, blamed_rank=2, part=part, wait_s=waits[rank] * share)
        for rank in (0, 1, 3)
        for part, share in (("compute", 0.965), ("launch_latency", 0.027), ("memory_copy", 0.008))
    ] + [Blame(waiting_rank=2, blamed_rank=1, part="host_launch", wait_s=waits[2])]
    return diagnosis_of(ranks, blame=blame, findings=straggler_findings())


def healthy(num_ranks: int = 1) -> Diagnosis:
    ranks = [
        rank_of(rank, [{"compute": 0.1726, "transfer": 0.0039, "launch_latency": 0.0012, "unattributed": 0.0006}] * 3)
        for rank in range(num_ranks)
    ]
    return diagnosis_of(ranks, world_size=None if num_ranks == 1 else num_ranks)


def many_ranks(num_ranks: int = 1000, num_steps: int = 3) -> Diagnosis:
    """Ranks alike within 1 % but for three: 137 loads data, 412 computes longer, 801 launches late."""
    noise = random.Random(3)
    late = {137: "data_loading", 412: "compute", 801: "host_launch"}
    ranks, blame = [], []
    for rank in range(num_ranks):
        steps = []
        for _ in range(num_steps):
            step = {
                "compute": 0.210 + noise.uniform(0, 1e-3),
                "transfer": 0.031 + noise.uniform(0, 4e-4),
                "memory_copy": 0.0007,
                "host_launch": 0.0041,
                "launch_latency": 0.0016,
                "unattributed": 0.0002,
            }
            if rank in late:
                step[late[rank]] = step.get(late[rank], 0.0) + 0.0352
                step["wait"] = 0.0061
            else:
                step["wait"] = 0.2891 - sum(step.values())
            steps.append(step)
        ranks.append(rank_of(rank, steps, lead_in_s=LEAD_IN_S + noise.uniform(0, 2e-3)))
        wait_s = sum(step["wait"] for step in steps)
        blame += [
            Blame(waiting_rank=rank, blamed_rank=blamed, part=part, wait_s=wait_s / 3)
            for blamed, part in late.items()
            if blamed != rank
        ]
    findings = [
        finding(
            name,
            0.0352 - index * 0.004,
            0.12 - index * 0.013,
            title=f"Rank {rank} is late by its {part.replace('_', ' ')} in every step, and {num_ranks - 1} ranks wait.",
            ranks=(rank,),
            evidence={"cause": part, "late_by_s": 0.0352, "waiting_ranks": [r for r in range(num_ranks) if r != rank]},
            changes=("Look at the machine of this rank.",),
        )
        for index, (name, (rank, part)) in enumerate(
            zip(("data-loading", "straggler", "host-bound"), late.items(), strict=True)
        )
    ]
    quality = [
        Quality(rank=rank, problem="the last 12 events have no end", effect="they are cut at the window's end")
        for rank in range(0, num_ranks, 2)
    ]
    return diagnosis_of(ranks, blame=blame, findings=findings, quality=quality)


def no_steps() -> Diagnosis:
    """Two of four ranks, no step marks: shares are of the whole recording, communication is not split."""
    ranks = []
    for rank in (0, 3):
        of_window = parts(
            compute=1.31, communication_unsplit=0.42, memory_copy=0.011, host_launch=0.27, unattributed=0.03
        )
        ranks.append(
            RankDiagnosis(
                rank=rank, window_s=2.041, num_steps=0, parts_s=of_window, lead_in_s=0.0, steps=(), step_s=None
            )
        )
    return diagnosis_of(
        ranks,
        findings=(
            finding(
                "host-bound",
                0.27,
                0.132,
                title="The GPU idles 270 ms of the recording while the host launches work.",
                ranks=(0, 3),
                evidence={"profiler_dilation": None, "num_launches": 21408, "idle_share": 0.132},
                changes=("`torch.compile` the model.",),
                safety="rounding",
                confidence="inconclusive",
            ),
        ),
        quality=(
            Quality(problem="the traces of ranks 1 and 2 are missing", effect="wait and transfer are unknown"),
            Quality(rank=3, problem="the file ends early", effect="events after 2.04 s are lost"),
        ),
        world_size=4,
        missing_ranks=(1, 2),
        device=None,
    )


def hostile() -> Diagnosis:
    """Every text that can come from a file is an attack."""
    ranks = [rank_of(rank, [{"compute": 0.05, "wait": 0.05}]) for rank in (0, 1)]
    return diagnosis_of(
        ranks,
        blame=(Blame(waiting_rank=0, blamed_rank=1, part=HOSTILE, wait_s=0.05),),
        findings=(
            finding(
                HOSTILE,
                0.05,
                0.5,
                title=HOSTILE,
                ranks=(1,),
                evidence={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE] * 20}, "long": "x" * 500},
                changes=(HOSTILE,),
                safety=HOSTILE,
                confidence=HOSTILE,
            ),
        ),
        quality=(Quality(rank=1, problem=HOSTILE, effect=HOSTILE),),
        device=HOSTILE,
    )


def many_parts(num_ranks: int = 16) -> Diagnosis:
    """Every part has some time on every rank, and everyone waits for everyone."""
    noise = random.Random(11)
    ranks = [
        rank_of(rank, [{name: noise.uniform(0.002, 0.02) for name in PART_NAMES} for _ in range(4)])
        for rank in range(num_ranks)
    ]
    blame = [
        Blame(waiting_rank=a, blamed_rank=b, part=noise.choice(PART_NAMES), wait_s=noise.uniform(0, 0.01))
        for a in range(num_ranks)
        for b in range(num_ranks)
        if a != b
    ] + [Blame(waiting_rank=0, blamed_rank=1, part="before_window", wait_s=0.02)]
    return diagnosis_of(ranks, blame=blame, untraced_step_s=0.08)


def uneven(num_steps: int = 40) -> Diagnosis:
    """Steps of 30 ms and of 2 s by turns, and findings with the longest names on one rank each."""
    names = ("redundant-gradient-sync", "exposed-communication", "checkpoint-stall")
    steps = [{"compute": 0.03, "checkpoint": 2.0 if number % 7 == 3 else 0.001} for number in range(num_steps)]
    return diagnosis_of(
        [rank_of(rank, steps, first_step=96) for rank in range(4)],
        findings=[finding(name, 0.3, 0.5, ranks=(rank,)) for rank, name in enumerate(names)],
    )


ALL = {
    "straggler": straggler,
    "healthy": healthy,
    "many_ranks": many_ranks,
    "no_steps": no_steps,
    "hostile": hostile,
    "many_parts": many_parts,
    "uneven": uneven,
}
