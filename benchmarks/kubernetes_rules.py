"""Evaluate the rules in CEL of CustomResourceDefinitions on a manifest, as a server does when the object is created.

In: a definition's schema and a manifest. Out: the rules that the manifest breaks, and those that were not
evaluated. The schema's defaults are filled in first. Rules that compare with the object before (`oldSelf`) do not apply
to a new one. The evaluator is `cel-python`, which lacks Kubernetes' own libraries, such as that of quantities.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

try:
    import celpy
except ImportError:
    celpy = None
HAS_EVALUATOR = celpy is not None


class Rule(NamedTuple):
    """One rule, and the value of the manifest that it is about."""

    text: str
    message: str
    value: Any
    place: str


class Outcome(NamedTuple):
    """What evaluating the rules of one manifest came to."""

    num_held: int
    broken: tuple[str, ...]
    not_evaluated: tuple[str, ...]  # the rules' texts


def evaluated(schema: dict[str, Any], manifest: dict[str, Any]) -> Outcome:
    """Evaluate all rules that apply to the manifest."""
    num_held, broken, not_evaluated = 0, [], []
    for rule in rules_of(schema, with_defaults(schema, manifest), manifest["kind"]):
        holds = _holds(rule)
        if holds is None:
            not_evaluated.append(rule.text)
        elif holds:
            num_held += 1
        else:
            broken.append(f"{rule.place}: {rule.message or rule.text}")
    return Outcome(num_held, tuple(broken), tuple(not_evaluated))


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """Return a value with the schema's defaults for what it lacks."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        lacking = {
            name: copy.deepcopy(each["default"])
            for name, each in properties.items()
            if name not in value and "default" in each
        }
        others = schema.get("additionalProperties")
        return {
            name: with_defaults(properties.get(name, others if isinstance(others, dict) else {}), each)
            for name, each in {**value, **lacking}.items()
        }
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), each) for each in value]
    return value


def rules_of(schema: dict[str, Any], value: Any, place: str) -> Iterator[Rule]:
    """Yield the rules of a schema that apply to a new object, with the values that they are about."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield Rule(" ".join(rule["rule"].split()), rule.get("message", ""), value, place)
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, others)
            if isinstance(inner, dict):
                yield from rules_of(inner, each, f"{place}.{name}")
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from rules_of(schema.get("items", {}), each, f"{place}[{number}]")


def _holds(rule: Rule) -> bool | None:
    """Whether a rule holds; None if this evaluator cannot say."""
    if celpy is None:
        return None
    program = _program(rule.text)
    if program is None:
        return None
    try:
        return bool(program.evaluate({"self": celpy.json_to_cel(rule.value)}))
    except celpy.CELEvalError:
        return None


@cache
def _program(text: str) -> Any:
    try:
        environment = celpy.Environment()
        return environment.program(environment.compile(text))
    except celpy.CELParseError:
        return None
