"""Parse the values that `probe.gpu_values` reads from NVML into the record of `nvidia-smi -q`, under the same names."""

from __future__ import annotations

import msgspec

from flatout.doctor.parse.lspci import full_address
from flatout.doctor.parse.nvidia_smi import SmiGpu, SmiQuery
from flatout.input_files import decode_json


class _Gpu(msgspec.Struct):
    address: str
    values: dict[str, str]


class _Printed(msgspec.Struct):
    driver: str | None
    cuda: str | None
    gpus: list[_Gpu]


def parse_nvml(text: str) -> SmiQuery:
    """Parse the text. Raises ValueError if it does not have the format of `probe.gpu_values`."""
    printed = decode_json(text.encode(), type=_Printed)
    return SmiQuery(
        driver=printed.driver,
        cuda=printed.cuda,
        num_attached=len(printed.gpus),
        gpus=tuple(SmiGpu(address=full_address(gpu.address), values=gpu.values) for gpu in printed.gpus),
    )
