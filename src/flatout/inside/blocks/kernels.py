"""Switch the precision of matrix multiplications and convolutions in fp32: TF32."""

from __future__ import annotations

from typing import Any

import torch

from flatout.inside.blocks.switcher import Switcher


class Tf32(Switcher):
    """fp32 matrix multiplications and convolutions with inputs rounded to TF32."""

    def __init__(self) -> None:
        super().__init__()
        self._core: Any = torch._C
        self._precision = ""
        self._convolutions = False

    def apply(self) -> None:
        self._precision = torch.get_float32_matmul_precision()
        self._convolutions = self._core._get_cudnn_allow_tf32()
        torch.set_float32_matmul_precision("high")
        if not self._convolutions:
            self._core._set_cudnn_allow_tf32(True)

    def undo(self) -> None:
        torch.set_float32_matmul_precision(self._precision)
        if not self._convolutions:
            self._core._set_cudnn_allow_tf32(False)


def tf32() -> Switcher:
    return Tf32()
