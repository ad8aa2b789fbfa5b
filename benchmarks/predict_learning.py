"""Whether predictions learn from use: their errors without a history, with the same job's, and with other jobs' only.

    python benchmarks/predict_learning.py

It computes from what is kept, and runs no job, so it gives the same each time. `results/predict_error.json` has pairs
that were measured three times: each time is held against what is predicted once the two others are in the history (the
same job, tuned before), once all pairs of other jobs are, and once both are. Beside them stands how far the two other
measurements themselves are off: less than that no history can reach. Of the recorded GPU tunings that
`tests/tune/golden` keeps, each is held against what the pairs and the other recorded tunings say. `results/` also has
tunings of two kinds of machine in their order, a line each (`{"job": .., "outcomes": [..]}`, as Flatout's history has
outcomes): each is held against what the tunings before it say. The GPU ones are `nanogpt_tcp` and `nanogpt_tcp_noisy`
of `tests/tune/golden`, the same job on two days and machines; the model of channels was changed after them.

GPU pairs are a history of GPU pairs only, and CPU pairs of CPU pairs: a user's history is of the own machines.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from flatout.predict.calibrate import calibrate, reference_outcomes
from flatout.records.prediction import PredictionRecord

RESULTS = Path(__file__).parent / "results"
HISTORIES = ("none", "same job", "other jobs", "both")
REPEATED = "the measurements themselves"
TUNINGS = {
    "CPU tunings, in their order": RESULTS / "predict_cpu_tunings.jsonl",
    "GPU tunings of one job, in their order": RESULTS / "predict_gpu_tunings.jsonl",
}
GOLDEN: dict[str, dict[str, Any]] = {
    "nanogpt_tcp": {},
    "nanogpt_tcp_tuned": {"num_steps": 40, "max_trials": 13},
    "imagenet_loader": {},
}
Errors = dict[str, list[float]]  # by history


def error(outcome: PredictionRecord, history: Sequence[PredictionRecord]) -> float:
    """Of the predicted speedup over the measured one, relative and absolute."""
    model = (outcome.predicted, outcome.low or 0.0, outcome.high or 0.0)
    said = calibrate(history, ()).of(outcome.family, outcome.change, model)
    return abs(said.speedup / outcome.measured - 1)


def of_repeated(
    outcomes: Sequence[tuple[PredictionRecord, Sequence[float]]], others: Sequence[PredictionRecord]
) -> Errors:
    """Of each pair the measured ratios: each is left out once. Of `others`, pairs, those of its job are not used."""
    found: Errors = {name: [] for name in (*HISTORIES, REPEATED)}
    for outcome, ratios in outcomes:
        apart = [one for one in others if one.date != outcome.date]
        for place, ratio in enumerate(ratios):
            rest = [math.log(one) for number, one in enumerate(ratios) if number != place]
            before = msgspec.structs.replace(outcome, measured=math.exp(statistics.mean(rest)))
            now = msgspec.structs.replace(outcome, measured=ratio)
            _add(found, now, [before], apart)
            found[REPEATED].append(abs(before.measured / ratio - 1))
    return found


def of_sequence(tunings: Sequence[tuple[str, Sequence[PredictionRecord]]]) -> Errors:
    """Tunings in their order, each with its job's name: what comes later is no history."""
    found: Errors = {name: [] for name in HISTORIES}
    for place, (job, outcomes) in enumerate(tunings):
        before = tunings[:place]
        same = [one for name, made in before if name == job for one in made]
        others = [one for name, made in before if name != job for one in made]
        for outcome in outcomes:
            _add(found, outcome, same, others)
    return found


def _add(
    found: Errors, outcome: PredictionRecord, same: Sequence[PredictionRecord], others: Sequence[PredictionRecord]
) -> None:
    """Where there is no such history, its error is that of none."""
    for name, history in zip(HISTORIES, ((), same, others, [*others, *same]), strict=True):
        found[name].append(error(outcome, history))


def row(what: str, errors: Errors, average: Callable[[Sequence[float]], float]) -> dict[str, Any]:
    averages = {name: round(average(found), 3) for name, found in errors.items()}
    return {"what": what, "num": len(errors["none"]), **averages}


def repeated(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, PredictionRecord, Sequence[float]]]:
    """`cpu` or `gpu`, the pair, and the ratios of its three repetitions; of pairs without repetitions none."""
    for one in rows:
        if one["predicted_speedup"] is None:
            continue
        low, high = one["interval"]
        outcome = PredictionRecord(
            family=one["family"],
            change="+".join(one["changes"]),
            predicted=one["predicted_speedup"],
            measured=one["measured_speedup"],
            machine=one["kind"],
            date=one["pair"],
            low=low,
            high=high,
        )
        ends = one.get("measured_from_to")
        yield "cpu" if one["kind"] == "cpu" else "gpu", outcome, (ends[0], outcome.measured, ends[1]) if ends else ()


def golden() -> list[tuple[str, Sequence[PredictionRecord]]]:
    """The recorded tunings gone through again; of the one for memory no time is predicted."""
    from tests.tune.test_golden import gone_through

    from flatout.tune.files import outcomes_of

    found = []
    for name, options in GOLDEN.items():
        with TemporaryDirectory() as folder:
            result, _ = gone_through(name, Path(folder), **options)
        found.append((name, outcomes_of(result)))
    return found


def tunings_of(file: Path) -> list[tuple[str, Sequence[PredictionRecord]]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(line["job"], msgspec.convert(line["outcomes"], list[PredictionRecord])) for line in lines]


def table() -> dict[str, dict[str, Errors]]:
    rows = json.loads((RESULTS / "predict_error.json").read_text())["rows"]
    pairs = list(repeated(rows))
    found = {}
    for device, words in (("gpu", "GPU pairs, measured three times"), ("cpu", "CPU pairs, measured three times")):
        of_device = [(outcome, ratios) for name, outcome, ratios in pairs if name == device]
        others = [outcome for outcome, _ in of_device]
        found[words] = of_repeated([one for one in of_device if one[1]], others)
    recorded: Errors = {name: [] for name in HISTORIES}
    made = golden()
    for place, (_, outcomes) in enumerate(made):
        others = [
            *reference_outcomes(),
            *(one for number, (_, more) in enumerate(made) if number != place for one in more),
        ]
        for outcome in outcomes:
            _add(recorded, outcome, (), others)
    found["recorded GPU tunings (no job twice)"] = recorded
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = table() | {what: of_sequence(tunings_of(file)) for what, file in TUNINGS.items()}
    medians = [row(what, errors, statistics.median) for what, errors in found.items()]
    means = [row(what, errors, statistics.mean) for what, errors in found.items()]
    (RESULTS / "predict_learning.json").write_text(
        json.dumps({"median_absolute_error": medians, "mean_absolute_error": means}, indent=2) + "\n"
    )
    for name, lines in (("median", medians), ("mean", means)):
        print(f"| {name} absolute error | number | {' | '.join((*HISTORIES, REPEATED))} |")
        for line in lines:
            cells = " | ".join(f"{line[each]:.1%}" if each in line else "" for each in (*HISTORIES, REPEATED))
            print(f"| {line['what']} | {line['num']} | {cells} |")


if __name__ == "__main__":
    main()
