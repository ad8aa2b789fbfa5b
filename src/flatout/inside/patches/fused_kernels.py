"""Use kernels of other packages where they are installed: Liger's for models of transformers, xformers' attention."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from flatout.inside.patches.models import MODELS
from flatout.inside.patches.report import Report

_HALF = (torch.float16, torch.bfloat16)


def liger_kernels(report: Report) -> None:
    """Replace norms, rotary positions, activations and the loss of a model of transformers by Liger's kernels."""
    report.waits("no model of transformers was found")
    if find_spec("liger_kernel") is None:
        report.note("the package liger_kernel is not installed")
        return
    if torch.cuda.device_count() == 0:
        report.note("there is no GPU")
        return

    def found(model: Any) -> None:
        if not any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__):
            report.note(f"{type(model).__name__} is not a model of transformers")
            return
        liger = import_module("liger_kernel.transformers.monkey_patch")
        kind = getattr(model.config, "model_type", "")
        if kind not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
            report.note(f"Liger has no kernels for models of type {kind}")
            return
        liger._apply_liger_kernel_to_instance(model=model)
        report.did("models")

    MODELS.on_model(report, found)


def xformers_attention(report: Report) -> None:
    """Compute `scaled_dot_product_attention` in half precision, without a mask of the script's own, with xformers."""
    report.waits("no attention in half precision without a mask was computed")
    if find_spec("xformers") is None:
        report.note("the package xformers is not installed")
        return
    if torch.cuda.device_count() == 0:
        report.note("there is no GPU")
        return
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention
    operators: Any = import_module("xformers.ops")

    @wraps(original)
    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if report.is_on and not torch.compiler.is_compiling() and _suits(query, key, args, kwargs):
            try:
                output = by_xformers(operators, query, key, value, kwargs)
            except Exception as error:  # noqa: BLE001 - the script's own call follows
                report.note(f"xformers does not take it: {str(error)[:200]}")
            else:
                report.did("calls")
                return output
        return original(query, key, value, *args, **kwargs)

    functional.scaled_dot_product_attention = attention


def _suits(query: Any, key: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call passes no mask, and has shapes and types that xformers' kernels take."""
    has_more = bool(args) or kwargs.get("attn_mask") is not None or bool(kwargs.get("enable_gqa"))
    return (
        not has_more and query.is_cuda and query.dim() == 4 and query.dtype in _HALF and query.shape[1] == key.shape[1]
    )


def by_xformers(operators: Any, query: Any, key: Any, value: Any, kwargs: Any) -> Any:
    bias = operators.LowerTriangularMask() if kwargs.get("is_causal") else None
    output = operators.memory_efficient_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_bias=bias,
        p=kwargs.get("dropout_p", 0.0),
        scale=kwargs.get("scale"),
    )
    return output.transpose(1, 2)
