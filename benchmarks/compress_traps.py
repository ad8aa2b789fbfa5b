"""Planted traps in 50 compressions: variants that must never be recommended, beside one that should be.

    python benchmarks/compress_traps.py [--seeds 50] [--out FILE]

Each seed draws evaluations, trials and sizes of variants with a known truth, and runs the loop of `flatout compress` on
them: fast and wrong, small and slow, not applied, crashing, worse than the limit by a half, and lucky on 50 samples
(whose true loss is the limit or more, in a compression of its own with 50 samples). `good` is twice as fast and loses
nothing. A third compression has a short budget: seven variants that are 1.3 to 24 times as slow come before `good`, at
two batch sizes, and after the screening the budget allows two comparisons.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kept_result import keep
from tests.compress.simulated import SimulatedBackend, Truth

from flatout.compress.backend import Variant
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.records.compression import MaxLoss

LIMIT = 0.02
TRAPS = {
    "fast and wrong": Truth(speedup=4.0, size=0.25, loss=0.8),
    "small and slow": Truth(speedup=0.5, size=0.1),
    "slower by 3 %": Truth(speedup=0.97, size=0.1, noise=0.01),
    "not applied": Truth(is_applied=False, speedup=3.0, size=0.2),
    "crashes": Truth(speedup=3.0, fails=True),
    "worse than the limit": Truth(speedup=3.0, size=0.2, loss=1.5 * LIMIT),
}
GOOD = {"good": Truth(speedup=2.0, size=0.25)}
LUCKY = {"lucky": Truth(speedup=3.0, size=0.2, loss=LIMIT), "very lucky": Truth(speedup=2.0, size=0.1, loss=3 * LIMIT)}
SLOW = {f"{times:g} times as slow": Truth(speedup=1 / times, size=0.25) for times in (1.3, 2, 3, 4, 6, 12, 24)}
BATCHES = (32, 1)
SHORT_BUDGET_S = 10 + 11 + 2 * 16  # 10 evaluations, 11 starts to screen and 16 trials a comparison, of a second each


def in_short_budget(seed: int) -> CompressionFound:
    backend = SimulatedBackend({**SLOW, **GOOD}, seed=seed)
    limit = MaxLoss(value=LIMIT, is_relative=True)
    plan = CompressionPlan(
        metric="accuracy", is_higher_better=True, max_loss=limit, batches=BATCHES, budget_s=SHORT_BUDGET_S
    )
    variants = [Variant(name=name, kind=name) for name in (*SLOW, *GOOD)]
    return CompressionLoop(backend, plan, variants, lambda line: None).run()


def compressed(truths: dict[str, Truth], seed: int, num_samples: int) -> CompressionFound:
    backend = SimulatedBackend(truths, seed=seed, num_samples=num_samples)
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=LIMIT, is_relative=True))
    return CompressionLoop(backend, plan, [Variant(name=name, kind=name) for name in truths], lambda line: None).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    options = parser.parse_args()
    recommended: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    in_short: Counter[str] = Counter()
    for seed in range(options.seeds):
        in_short.update(in_short_budget(seed).recommended)
        for found in (compressed({**TRAPS, **GOOD}, seed, 2000), compressed(LUCKY, seed, 50)):
            recommended.update(found.recommended)
            for variant in found.variants:
                reasons.setdefault(variant.name, Counter())[variant.refusal or "recommended"] += 1
    traps = {name: recommended[name] for name in (*TRAPS, *LUCKY)}
    keep(
        {
            "seeds": options.seeds,
            "limit": LIMIT,
            "traps_recommended": traps,
            "good_recommended": recommended["good"],
            "short_budget_recommended": {name: in_short[name] for name in (*SLOW, *GOOD)},
            "outcomes": {name: dict(counts) for name, counts in reasons.items()},
        },
        options.out,
    )


if __name__ == "__main__":
    main()
