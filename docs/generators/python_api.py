"""The reference of `flatout.api`, from its signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flatout.api
from flatout.api import results as api_results
from generators.markdown import table


def python_functions() -> str:
    """Return the functions of `flatout.api`: signature and docstring of each."""
    return "\n\n".join(_function(getattr(flatout.api, name)) for name in flatout.api.__all__)


def _function(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    lines = [f"    {_parameter(parameter)}," for parameter in parameters]
    first_keyword = next(at for at, one in enumerate(parameters) if one.kind is inspect.Parameter.KEYWORD_ONLY)
    lines.insert(first_keyword, "    *,")
    returned = inspect.signature(function).return_annotation
    code = "\n".join([f"{function.__name__}(", *lines, f") -> {returned}"])
    text = inspect.cleandoc(function.__doc__ or "")
    return f"## {function.__name__}\n\n```python\n{code}\n```\n\n{text}"


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def _default(value: object) -> str:
    return getattr(value, "__name__", None) or repr(value)


def python_results() -> str:
    """Return the classes that the functions return: what each is, its tables, and its methods."""
    classes = [
        api_results.DiagnosisResult,
        api_results.ProfileResult,
        api_results.TuningResult,
        api_results.ComparisonResult,
        api_results.CompressionResult,
        api_results.DiffResult,
        api_results.LogDiffResult,
        api_results.PlanResult,
        api_results.ReplayResult,
    ]
    return "\n\n".join(_result_class(cls) for cls in classes)


def _result_class(cls: Any) -> str:
    rows = []
    for name in ("to_dict", "to_json", "to_text", "to_html", "to_pandas", "rows", "folder", "is_better", "context"):
        member = getattr(cls, name, None)
        if member is not None:
            sentence = inspect.cleandoc(member.__doc__ or _inherited_doc(name)).split("\n\n")[0]
            rows.append([f"`{name}`", " ".join(sentence.split())])
    tables = getattr(cls, "tables", ())
    named = f" Its tables are {', '.join(f'`{name}`' for name in tables)}." if tables else ""
    return f"### {cls.__name__}\n\n{inspect.cleandoc(cls.__doc__)}{named}\n\n" + table(["Member", "Meaning"], rows)


def _inherited_doc(name: str) -> str:
    return getattr(api_results.Result, name).__doc__ or ""


GENERATORS: Mapping[str, Callable[[], str]] = {
    "python_functions": python_functions,
    "python_results": python_results,
}
