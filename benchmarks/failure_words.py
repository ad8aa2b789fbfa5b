"""Fit the weights by which `flatout explain --error` estimates the class of a text that no strong rule explains.

    PYTHONPATH=src:. python benchmarks/failure_words.py [--out FILE] [--sets LETTERS=TABLE ...] [--write]

A multinomial logistic regression on what counts of a text (`flatout.catalog.failure_words`), by gradient descent from
zero, so it gives the same weights each time. It is fitted to the texts in `tests/data/failures`, among them lines of
healthy jobs, and to the phrases of `failures.toml`.

The benchmark leaves out each set of texts in turn, fits to the others, and counts how often the class and the decision
of the left-out ones are right by the estimate alone; phrases are not used there, because some were written for the
left-out texts. With `--sets vw=FILE`, the sets of these letters are also tried as they were at first sight: the weights
do not know them, and the rules and phrases are those of `FILE`, a `failures.toml` from before these sets came.
The result has the rules alone beside rules and estimate together, and how often the package as it is is right for the
texts in `tests/data/failures/held_out`, which the weights do not know (`README.md` says what the rules know of them).
`--write` replaces `src/flatout/catalog/failure_words.json`.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.sparse import csr_matrix

from flatout.catalog import failure_words, failures
from flatout.catalog.failures import KnownFailure, Phase, known_failures
from flatout.keep.classify import classify
from flatout.keep.error_text import errors_in, without_names
from flatout.keep.explain_failure import explain_failure

REPOSITORY = Path(__file__).parents[1]
TEXTS = REPOSITORY / "tests" / "data" / "failures"
WEIGHTS = REPOSITORY / "src" / "flatout" / "catalog" / "failure_words.json"
HELD_OUT = TEXTS / "held_out"
HEALTHY = "harmless_lines"
STEPS = 250
RATE, MOMENTUM, DECAY = 10.0, 0.9, 1e-5
RATE_OF_BIAS = 1.0
LEAST_OFTEN = 4  # views that must have a word: each text has two, with its phase and without
LEAST_WEIGHT = 15  # in hundredths: smaller ones are left out of the file
SHARE_OF_PHRASE, SHARE_OF_HEALTHY = 1.0, 3.0  # how much a phrase, and a line of a healthy job, counts beside a text
HEALTHY_PARTS = 3  # into which the lines of healthy jobs are divided where they are left out

Text = dict[str, str]
Label = tuple[str, str]


class View(NamedTuple):
    """What counts of a text, its label, and how much it counts beside others."""

    words: set[str]
    label: Label
    share: float


def texts() -> list[Text]:
    rows: list[Text] = []
    for path in sorted(TEXTS.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            of_file = [row | {"is_healthy": "yes" * (path.stem == HEALTHY)} for row in csv.DictReader(file)]
        rows += [row | {"set": _set_of(row, i)} for i, row in enumerate(of_file)]
    return rows


def _set_of(row: Text, i: int) -> str:
    return f"healthy {i % HEALTHY_PARTS}" if row["is_healthy"] else row["id"][0]


def views(rows: Iterable[Text]) -> list[View]:
    """Return each text with its phase, and without: `explain` may not know it."""
    found: list[View] = []
    for row in rows:
        label = ("healthy", "yes") if row["is_healthy"] else (row["class"], row["should_restart"])
        share = SHARE_OF_HEALTHY if row["is_healthy"] else 1.0
        message = without_names(row["message"])
        for phase in (_phase(row), None):
            words = failure_words.words_of(row["exception_type"], message, phase)
            found.append(View(words, label, share))
    return found


def phrases() -> list[View]:
    """Return the phrases of the table, as texts of one line."""
    found: list[View] = []
    for known in known_failures():
        if known.is_family:
            continue
        label = (known.failure_class, known.restart)
        for phrase in _spelled(known):
            message = phrase.lstrip("^").replace("*", " ").replace("#", "3")
            words = failure_words.words_of(_first_type(known), without_names(message), None)
            found.append(View(words, label, SHARE_OF_PHRASE))
    return found


def _spelled(known: KnownFailure) -> list[str]:
    groups = failures._table().words
    return [one for phrase in known.phrases for one in (groups[phrase[1:]] if phrase[0] == "@" else (phrase,))]


def _first_type(known: KnownFailure) -> str:
    """Return the type of exception that stands for an entry; empty if it fits lines of a log, too."""
    first = known.types[0]
    if first == "@native" or "" in known.types:
        return ""
    return failures._table().groups[first[1:]][0] if first[0] == "@" else first.strip("*")


def _phase(row: Text) -> Phase:
    return "start" if row["phase"] == "start" else "training"


def fit(given: list[View]) -> failure_words._Weights:
    counts = collections.Counter(word for view in given for word in view.words)
    number = {word: i for i, word in enumerate(w for w, n in sorted(counts.items()) if n >= LEAST_OFTEN)}
    importance = {word: round(100 * math.sqrt(math.log(len(given) / counts[word]))) for word in number}
    labels = sorted({view.label for view in given})
    wanted = np.zeros((len(given), len(labels)), dtype=np.float32)
    for i, view in enumerate(given):
        wanted[i, labels.index(view.label)] = 1
    features = _features([view.words for view in given], number, importance)
    shares = np.array([[view.share] for view in given], dtype=np.float32)
    weights, bias = _descend(features, wanted, shares / shares.sum())
    kept = {word: [importance[word], *_pairs(weights[i])] for word, i in number.items()}
    return failure_words._Weights(
        source="benchmarks/failure_words.py",
        labels=labels,  # type: ignore[arg-type]
        bias=[round(100 * float(one)) for one in bias],
        words={word: numbers for word, numbers in kept.items() if len(numbers) > 1},
    )


def _features(texts_words: list[set[str]], number: dict[str, int], importance: dict[str, int]) -> Any:
    """Return a matrix of texts and words: the importance of each word, scaled as `estimate` does."""
    counts: list[float] = []
    columns: list[int] = []
    ends = [0]
    for words in texts_words:
        known = sorted(words.intersection(number))
        length = failure_words.length_of([importance[word] for word in known])
        counts += [importance[word] / length for word in known]
        columns += [number[word] for word in known]
        ends.append(len(columns))
    return csr_matrix((np.array(counts, dtype=np.float32), columns, ends), shape=(len(texts_words), len(number)))


def _descend(features: Any, wanted: Any, shares: Any) -> tuple[Any, Any]:
    """Return the weight of each feature for each label, and the bias of each label."""
    weights = np.zeros((features.shape[1], wanted.shape[1]), dtype=np.float32)
    bias = np.zeros(wanted.shape[1], dtype=np.float32)
    transposed = features.T.tocsr()
    velocity, velocity_of_bias = np.zeros_like(weights), np.zeros_like(bias)
    for _ in range(STEPS):
        scores = features @ weights + bias
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        error = (likely - wanted) * shares
        velocity = MOMENTUM * velocity + transposed @ error + DECAY * weights
        velocity_of_bias = MOMENTUM * velocity_of_bias + error.sum(axis=0)
        weights -= RATE * velocity
        bias -= RATE_OF_BIAS * velocity_of_bias
    return weights, bias


def _pairs(weights: Any) -> list[int]:
    hundredths = [round(100 * float(one)) for one in weights]
    return [number for label, one in enumerate(hundredths) if abs(one) >= LEAST_WEIGHT for number in (label, one)]


def left_out(rows: list[Text]) -> dict[str, Any]:
    """Return how often estimates are right for texts of a set that the weights were not fitted to."""
    outcomes: dict[str, list[Outcome]] = collections.defaultdict(list)
    of_set: dict[str, list[View]] = {name: views(row for row in rows if row["set"] == name) for name in sets_of(rows)}
    for name in of_set:
        use(fit([view for other, found in of_set.items() if other != name for view in found]))
        kind = "lines of healthy jobs" if name.startswith("healthy") else "texts"
        outcomes[kind] += [_estimated(row) for row in rows if row["set"] == name]
    return {kind: shares_of(found) for kind, found in outcomes.items()}


def sets_of(rows: list[Text]) -> list[str]:
    return sorted({row["set"] for row in rows})


def at_first_sight(rows: list[Text], letters: str, table: Path) -> dict[str, Any]:
    """Return how often explanations are right by rules from before these sets, and with the estimate."""
    use_rules(table)
    use(fit(views(row for row in rows if row["set"] not in letters) + phrases()))
    unseen = [row for row in rows if row["set"] in letters]
    return {
        "sets": letters,
        "rules": table.stem,
        "rules alone": shares_of([_by_rules(row) for row in unseen]),
        "rules and estimate": shares_of([_explained(row) for row in unseen]),
    }


def use_rules(table: Path) -> None:
    """Let the package read another `failures.toml`, alone. An old one does not yet say what each class means."""
    rules = tomllib.loads(table.read_text(encoding="utf-8"))
    rules.setdefault("likely", tomllib.loads(failures._FILE.read_text(encoding="utf-8"))["likely"])
    converted = msgspec.convert(rules, failures._Table)
    failures._table = lambda: converted  # type: ignore[assignment]
    failures._of_programs = tuple  # type: ignore[assignment]
    for cached in (failures._matchers, failures._known_types, failures._word_groups):
        cached.cache_clear()


def use(weights: failure_words._Weights) -> None:
    failure_words._weights = lambda: weights  # type: ignore[assignment]


def held_out() -> dict[str, Any]:
    """Return how often the package is right for the texts that are held out, and for the traps among them."""
    rows: list[Text] = []
    for path in sorted(HELD_OUT.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    texts_of = {
        "texts": [row for row in rows if row["source"] != "made"],
        "traps": [row for row in rows if row["source"] == "made"],
    }
    found = {name: shares_of([_explained(row) for row in given]) for name, given in texts_of.items()}
    return found | {"texts without a phase": shares_of([_explained(row, None) for row in texts_of["texts"]])}


class Outcome(NamedTuple):
    """Whether an answer is right, and whether it leaves a host that is not the cause."""

    is_class_right: bool
    is_decision_right: bool
    leaves_a_healthy_host: bool


def _outcome(row: Text, failure_class: str, restart: str) -> Outcome:
    is_right = restart == row["should_restart"]
    leaves = restart == "elsewhere" and row["class"] not in ("gpu", "host")
    return Outcome(failure_class == row["class"], is_right, leaves)


def _estimated(row: Text) -> Outcome:
    found = failure_words.estimate(row["exception_type"], without_names(row["message"]), _phase(row))
    return _outcome(row, found.failure_class, found.restart)


def text_of(row: Text) -> str:
    return f"{row['exception_type']}: {row['message']}" if row["exception_type"] else row["message"]


def _by_rules(row: Text) -> Outcome:
    found = classify(errors_in(text_of(row)), _phase(row))
    return _outcome(row, "unknown", "yes") if found is None else _outcome(row, found.failure_class, found.restart)


def _explained(row: Text, *phase: Phase | None) -> Outcome:
    answer = explain_failure(text_of(row), *(phase or (_phase(row),)))
    return _outcome(row, answer.failure_class, answer.restart)


def shares_of(outcomes: list[Outcome]) -> dict[str, Any]:
    number = len(outcomes)
    return {
        "texts": number,
        "class right": round(sum(one.is_class_right for one in outcomes) / number, 3),
        "decision right": round(sum(one.is_decision_right for one in outcomes) / number, 3),
        "healthy hosts left": sum(one.leaves_a_healthy_host for one in outcomes),
    }


def write(rows: list[Text]) -> None:
    weights = fit(views(rows) + phrases())
    lines = ",\n".join(f"  {json.dumps(word)}: {json.dumps(pairs)}" for word, pairs in weights.words.items())
    head = json.dumps({"source": weights.source, "labels": weights.labels, "bias": weights.bias}, indent=1)
    WEIGHTS.write_text(head[:-2] + ',\n "words": {\n' + lines + "\n }\n}\n", encoding="utf-8")
    print(f"{len(weights.words)} words, {WEIGHTS.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--sets", nargs="+", default=[], metavar="LETTERS=TABLE", help="sets to try at first sight")
    parser.add_argument("--write", action="store_true", help="replace the weights of the package")
    given = parser.parse_args()
    rows = texts()
    if given.write:
        write(rows)
        return
    found = {"held out": held_out(), "left out": left_out(rows), "at first sight": []}
    for letters, _, table in (one.partition("=") for one in given.sets):
        found["at first sight"].append(at_first_sight(rows, letters, Path(table)))
    result = json.dumps(found, indent=1)
    print(result)
    if given.out is not None:
        given.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
