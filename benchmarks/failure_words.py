"""Fit the weights of words by which `flatout explain --error` estimates the class of a text that it does not know.

    PYTHONPATH=src:. python benchmarks/failure_words.py [--out FILE] [--write]

A multinomial logistic regression on the words, and pairs of words, of the texts in `tests/data/failures`, among them
lines of healthy jobs, by gradient descent from zero, so it gives the same weights each time. The benchmark leaves out
each set of texts in turn, fits to the others, and counts how often the class and the decision of the left-out ones
are right: of all, and of those whose estimate is at least as likely as the limit from which on `explain` uses it.
That is the estimate alone, without the table of known failures. `--write` replaces
`src/flatout/catalog/failure_words.json`.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from flatout.catalog import failure_words
from flatout.keep.error_text import without_names
from flatout.keep.explain_failure import LEAST_LIKELY

REPOSITORY = Path(__file__).parents[1]
TEXTS = REPOSITORY / "tests" / "data" / "failures"
WEIGHTS = REPOSITORY / "src" / "flatout" / "catalog" / "failure_words.json"
STEPS = 300
RATE, MOMENTUM, DECAY = 10.0, 0.9, 1e-5
LEAST_OFTEN = 2  # texts that must have a word
LEAST_WEIGHT = 15  # in hundredths: smaller ones are left out of the file

Text = dict[str, str]
Label = tuple[str, str]


def texts() -> list[Text]:
    rows: list[Text] = []
    for path in sorted(TEXTS.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows += [row | {"set": f"{path.stem} {row['id'][0]}"} for row in csv.DictReader(file)]
    return rows


def label_of(text: Text) -> Label:
    return text["class"], text["should_restart"]


def words(text: Text) -> list[set[str]]:
    """Return the words of a text with its phase, and without: `explain` may not know it."""
    message = without_names(text["message"])
    phase: Any = text["phase"]
    with_phase = failure_words.words_of(text["exception_type"], message, phase)
    return [with_phase, failure_words.words_of(text["exception_type"], message, None)]


def fit(rows: list[Text]) -> failure_words._Weights:
    views = [(one, label_of(row)) for row in rows for one in words(row)]
    counts = collections.Counter(word for one, _ in views for word in one)
    number = {word: i for i, word in enumerate(w for w, n in sorted(counts.items()) if n >= 2 * LEAST_OFTEN)}
    importance = {word: round(100 * math.sqrt(math.log(len(views) / counts[word]))) for word in number}
    labels = sorted({label for _, label in views})
    features = np.zeros((len(views), len(number)), dtype=np.float32)
    wanted = np.zeros((len(views), len(labels)), dtype=np.float32)
    for i, (one, label) in enumerate(views):
        known = {number[word]: importance[word] for word in one if word in number}
        features[i, list(known)] = np.array(list(known.values())) / math.sqrt(sum(v * v for v in known.values()))
        wanted[i, labels.index(label)] = 1
    weights = np.zeros((len(number), len(labels)), dtype=np.float32)
    velocity, bias = np.zeros_like(weights), np.zeros(len(labels), dtype=np.float32)
    for _ in range(STEPS):
        scores = features @ weights + bias
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        error = (likely - wanted) / len(views)
        velocity = MOMENTUM * velocity + features.T @ error + DECAY * weights
        weights -= RATE * velocity
        bias -= error.sum(axis=0)
    kept = {word: [importance[word], *_pairs(weights[i])] for word, i in number.items()}
    return failure_words._Weights(
        source="benchmarks/failure_words.py",
        labels=labels,  # type: ignore[arg-type]
        bias=[round(100 * float(one)) for one in bias],
        words={word: numbers for word, numbers in kept.items() if len(numbers) > 1},
    )


def _pairs(weights: Any) -> list[int]:
    hundredths = [round(100 * float(one)) for one in weights]
    return [number for label, one in enumerate(hundredths) if abs(one) >= LEAST_WEIGHT for number in (label, one)]


def left_out(rows: list[Text]) -> dict[str, Any]:
    """Return how often estimates are right for texts of a set that the weights were not fitted to."""
    sets = sorted({row["set"] for row in rows})
    outcomes: list[tuple[float, bool, bool]] = []
    for name in sets:
        weights = fit([row for row in rows if row["set"] != name])
        outcomes += [_outcome(row, weights) for row in rows if row["set"] == name]
    likely = [outcome for outcome in outcomes if outcome[0] >= LEAST_LIKELY]
    return {"sets": len(sets), "all": _shares(outcomes), f"at least {LEAST_LIKELY} likely": _shares(likely)}


def _outcome(row: Text, weights: failure_words._Weights) -> tuple[float, bool, bool]:
    failure_words._weights = lambda: weights  # type: ignore[assignment]
    phase: Any = row["phase"]
    found = failure_words.estimate(row["exception_type"], without_names(row["message"]), phase)
    return found.likelihood, found.failure_class == row["class"], found.restart == row["should_restart"]


def _shares(outcomes: list[tuple[float, bool, bool]]) -> dict[str, Any]:
    number = len(outcomes)
    return {
        "texts": number,
        "class right": round(sum(one[1] for one in outcomes) / number, 3),
        "decision right": round(sum(one[2] for one in outcomes) / number, 3),
        "mean likelihood": round(sum(one[0] for one in outcomes) / number, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--write", action="store_true", help="replace the weights of the package")
    given = parser.parse_args()
    rows = texts()
    if given.write:
        weights = fit(rows)
        lines = ",\n".join(f"  {json.dumps(word)}: {json.dumps(pairs)}" for word, pairs in weights.words.items())
        head = json.dumps({"source": weights.source, "labels": weights.labels, "bias": weights.bias}, indent=1)
        WEIGHTS.write_text(head[:-2] + ',\n "words": {\n' + lines + "\n }\n}\n", encoding="utf-8")
        print(f"{len(weights.words)} words, {WEIGHTS.stat().st_size} bytes")
        return
    result = json.dumps(left_out(rows), indent=1)
    print(result)
    if given.out is not None:
        given.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
