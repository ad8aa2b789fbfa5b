"""Write what runs a script with a recommended variant of its model: a launcher, and the same change as Python.

In: a `Compression`, and the folder that Python loads `inside/` from at its start. Out: texts of files.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from flatout import __version__
from flatout.emit.heading import MASKED, measured_words, one_comment_line
from flatout.inside.protocol import Variable
from flatout.records.compression import RECOMMENDED, Compression, LossVerdict, VariantResult, variant_file_name
from flatout.records.tuning import Emitted
from flatout.secrets import MASK

EXPORTED = frozenset({"onnx", "onnx-int8"})  # variants whose file replaces the model, as they need its first call
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


def emit_compression(result: Compression, startup: Path) -> list[Emitted]:
    """Return the files for each recommended variant."""
    files = []
    for variant in result.variants:
        if variant.is_recommended:
            files += [_launcher(variant, result, startup), _module(variant, result)]
    return files


def _heading(variant: VariantResult, result: Compression) -> list[str]:
    lines = [f"Written by flatout {__version__} compress: {variant.name}"]
    for speed in variant.speeds:
        at = "" if speed.batch is None else f"Batch {speed.batch}. "
        if speed.verdict.speedup is not None:
            lines.append(at + measured_words(speed.verdict, speed.verdict.speedup))
    if variant.final is not None:
        lines.append(_loss_words(variant.final, result))
    return [one_comment_line(line) for line in lines]


def _loss_words(final: LossVerdict, result: Compression) -> str:
    unit = " as a share" if result.max_loss.is_relative else ""
    most = "" if final.most_loss is None else f", below {final.most_loss:.4g} at {1 - final.level:.3g}"
    return f"Loss of {result.metric}{unit}: {final.loss:.4g}{most}, on {final.num_samples} samples that chose nothing"


def _launcher(variant: VariantResult, result: Compression, startup: Path) -> Emitted:
    """Return a script that runs its arguments, or the benchmark, with the variant."""
    command = _benchmark(variant, result)
    is_masked = any(MASK in word for word in command)
    lines = [
        *_heading(variant, result),
        *([MASKED] if is_masked else []),
        "Run it in the folder in which the model was compressed: sh FILE [COMMAND...]",
    ]
    text = "#!/bin/sh\n" + "".join(f"# {line}\n" for line in lines)
    if variant.applied_by == "patch":
        asked = json.dumps({"variant": variant.kind, "skip": list(variant.skipped), **variant.options})
        text += f"{Variable.COMPRESS}={shlex.quote(asked)}\n"
        text += f"PYTHONPATH={shlex.quote(str(startup))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        text += f"export {Variable.COMPRESS} PYTHONPATH\n"
    text += f'[ $# -gt 0 ] || set -- {shlex.join(command)}\nexec "$@"\n'
    notes = (f"values that look like secrets are {MASK} in the written command: replace them",) if is_masked else ()
    return Emitted(path=f"{RECOMMENDED}/{variant_file_name(variant.name)}.sh", text=text, notes=notes)


def _benchmark(variant: VariantResult, result: Compression) -> list[str]:
    model = variant.model_path or result.model or ""
    batch = str(result.batches[0]) if result.batches else ""
    words = [word.replace("{model}", model).replace("{batch}", batch) for word in result.bench_command]
    return ["env", *words] if _VARIABLE.match(words[0]) else words


def _module(variant: VariantResult, result: Compression) -> Emitted:
    """Return the same change as Python: of the model, or the session of a file."""
    lines = "\n".join(_heading(variant, result)).replace("\\", "/").replace('"', "'")
    body = _PATCH if variant.applied_by == "patch" and variant.kind not in EXPORTED else _FILE
    arguments = "".join(f", {name}={value!r}" for name, value in variant.options.items())
    file = str(Path(variant.model_path or variant.disk_path or "").absolute())
    text = body.format(heading=lines, kind=variant.kind, skip=list(variant.skipped), arguments=arguments, file=file)
    return Emitted(path=f"{RECOMMENDED}/{variant_file_name(variant.name)}.py", text=text, notes=())


_PATCH = '''"""{heading}"""

from flatout.inside.compression.variants import compress


def compressed(model):
    """Change the model in place once its weights are loaded, before it is compiled, and return it."""
    compress(model, {kind!r}, skip={skip!r}{arguments})
    return model
'''
_FILE = '''"""{heading}"""

MODEL = {file!r}  # what stands in the place of the model; a file of ONNX is run by onnxruntime.InferenceSession
'''
