"""Lines for changes that other packages make: lower precision, kernels, optimizers, ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.records.change import Patch, Scalar

Lines = list[str]


def function(name: str, *body: str) -> Lines:
    return [f"def {name}:", *(f"    {line}" if line else "" for line in body)]


def keywords(parameters: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in parameters.items())


def fp8(patch: Patch) -> Lines:
    if patch.parameters["library"] == "transformer_engine":
        return function(
            "loss_in_fp8(model, batch, loss_of)",
            "# With transformer_engine.pytorch.Linear in place of the model's linear layers.",
            "import transformer_engine.pytorch",
            "with transformer_engine.pytorch.fp8_autocast(enabled=True):",
            "    return loss_of(model, batch)",
        )
    return function(
        "in_fp8(model, last)",
        "# Before the model is compiled; `last` is its last linear layer.",
        "from torchao.float8 import convert_to_float8_training",
        "",
        "def suits(module, name):",
        "    is_even = not (module.in_features % 16 or module.out_features % 16)",
        "    return module is not last and is_even",
        "",
        "return convert_to_float8_training(model, module_filter_fn=suits)",
    )


def liger_kernels(patch: Patch) -> Lines:
    del patch
    return function(
        "with_liger(model)",
        "from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance",
        "",
        "_apply_liger_kernel_to_instance(model=model)",
        "return model",
    )


def xformers_attention(patch: Patch) -> Lines:
    del patch
    return function(
        "attention(query, key, value, is_causal)",
        "# In place of scaled_dot_product_attention, in half precision; heads are the second dimension.",
        "from xformers.ops import LowerTriangularMask, memory_efficient_attention",
        "",
        "bias = LowerTriangularMask() if is_causal else None",
        "swapped = [each.transpose(1, 2) for each in (query, key, value)]",
        "return memory_efficient_attention(*swapped, attn_bias=bias).transpose(1, 2)",
    )


def lamb(patch: Patch) -> Lines:
    del patch
    return function(
        "lamb_step(optimizer)",
        "# In place of optimizer.step() of Adam or AdamW.",
        "matrices = [(p, g['lr']) for g in optimizer.param_groups for p in g['params'] if p.dim() > 1]",
        "before = [p.detach().clone() for p, _ in matrices]",
        "optimizer.step()",
        "with torch.no_grad():",
        "    for (p, rate), old in zip(matrices, before, strict=True):",
        "        step = p - old",
        "        ratio = old.norm() * rate / step.norm().clamp(min=1e-30)",
        "        p.copy_(old + step * ratio if old.norm() > 0 else p)",
    )


def optimizer_8bit(patch: Patch) -> Lines:
    library = patch.parameters["library"]
    return function(
        "make_optimizer(parameters, **yours)",
        f"from {library}.optim import AdamW8bit",
        "",
        "return AdamW8bit(parameters, **yours)",
    )


def onnx_export(patch: Patch) -> Lines:
    del patch
    return function(
        "exported(model, inputs)",
        "# `inputs` is a tuple of tensors; other shapes need another session.",
        "import io",
        "",
        "import onnxruntime",
        "",
        "target = io.BytesIO()",
        "torch.onnx.export(model, inputs, target, dynamo=False)",
        'session = onnxruntime.InferenceSession(target.getvalue(), providers=["CPUExecutionProvider"])',
        "names = [one.name for one in session.get_inputs()]",
        "return lambda *tensors: session.run(None, dict(zip(names, (one.numpy() for one in tensors), strict=True)))",
    )
