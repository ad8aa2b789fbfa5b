"""Patterns of event names: whether a kernel is communication, a call synchronises, an annotation is a data loader.

Each pattern is searched once per distinct name, never once per event. The names are those of CUDA, ROCm, XPU and the
libraries seen in public traces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import SESSION_SPAN

COMMUNICATION_KERNEL = re.compile(
    r"nccl(Dev)?Kernel|^nccl|^rccl|oneccl|^hccl|multimem_|(one|two)_shot_all_?reduce|cross_device_reduce|nvshmem"
    r"|deep_ep|hybrid_ep::(dispatch|combine|device_sync)|internode::|intranode::(dispatch|combine)|msccl|symm_mem|allreduce_fusion|lamport|userbuffers"
    r"|(?:^|[^a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)(?:_?kernel|_push|_pull|<|\()",
    re.IGNORECASE,
)
GENERATED_KERNEL = re.compile(r"^triton_|^void at::native")  # inductor names kernels after the fused operations
DATA_LOADING = re.compile(r"DataLoader.*__next__|^flatout:data_loading")
PYTHON_DATA_LOADING = re.compile(r"torch/utils/data/dataloader\.py.*__next__")
CHECKPOINT = re.compile(
    r"torch\.save\b|flatout:checkpoint|checkpoint_save|save_checkpoint|dcp\.save|torch/serialization\.py.*\bsave\b"
    r"|distributed/checkpoint/.*\bsave\b"
)
ALLOCATOR = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?!Host)(?:Async|Managed|Pitch|3D|FromPoolAsync)?(?:_v\d+)?$"
    r"|^cuMem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|Alloc|Free)(?:_v\d+)?$"
    r"|^hipMem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)$"
    r"|^(?:zeMemAllocDevice|zeMemFree|urUSMDeviceAlloc|urUSMFree)$"
)
SYNCHRONISING = re.compile(
    r"^(?:cuda|hip)(?:Stream|Device|Event)Synchronize(?:_ptsz)?$|^cu(?:Stream|Ctx|Event)Synchronize$"
    r"|^flatout:synchronize|^(?:cuda|hip)Memcpy(?:WithStream|2D)?$|^(?:urQueueFinish|zeEventHostSynchronize|zeCommandQueueSynchronize)$"
)
COLLECTIVE_ANNOTATION = re.compile(r"^(?:nccl|rccl|gloo|ucc|mpi|xccl|hccl|xla):")
COLLECTIVE_OPERATION = re.compile(
    r"^(?:nccl|rccl|gloo|ucc|mpi|xccl|hccl|xla):|^c10d::|^_?c10d_functional::|^record_param_comms$"
)
OPTIMIZER = re.compile(r"^Optimizer\.step#")
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
ACCUMULATE = re.compile(r"^torch::autograd::AccumulateGrad$")
FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
# Ways to distribute the model, recognised by the operators and annotations that they leave in a trace.
WRAPPERS = {
    "ddp": FORWARD,
    "fsdp": re.compile(r"^FSDP::|^FullyShardedDataParallel|fsdp::|torch/distributed/(?:_composable/)?fsdp/"),
    "deepspeed": re.compile(r"^DeepSpeed|^deepspeed[./]|deepspeed/runtime/"),
}
SESSION = re.compile(f"^{SESSION_SPAN}$")  # ONNX Runtime computes, without operators in the trace
STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,18})$")
LAUNCH = re.compile(r"^(?:cuda|hip)(?:Ext)?(?:Module)?Launch|^cuLaunchKernel|^hipGraphLaunch|^urEnqueueKernelLaunch")
BEGIN_CAPTURE = re.compile(r"^(?:cuda|hip|cu)StreamBeginCapture")
END_CAPTURE = re.compile(r"^(?:cuda|hip|cu)StreamEndCapture")
COMMAND_BUFFER_FULL = "Command Buffer Full"
BACKWARD_PREFIX = "autograd::engine::evaluate_function"

MATMUL = re.compile(
    r"(?<!fb)gemm|nvjet|cutlass.*(?:gemm|conv)|cublas.*(?:gemm|matmul)|xmma|Cijk_|implicit_convolve|winograd|wgrad|dgrad|fprop",
    re.I,
)
TENSOR_CORE = re.compile(
    r"tensorop|nvjet|xmma_gemm_(?:bf16|f16|e4m3|e5m2|tf32|i8)|tf32|f16|bf16|s1688|s16816|h1688|h16816|s884|h884|i16832|e4m3|e5m2|"
    r"wgmma|hmma|imma|fp8|_half|fp16|Cijk_",
    re.I,
)


def matching(names: Sequence[str], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return True for each name in the dictionary that contains the pattern; shape (len(names),)."""
    search = pattern.search
    return np.fromiter((search(name) is not None for name in names), dtype=np.bool_, count=len(names))


def communication_kernels(names: Sequence[str]) -> NDArray[np.bool_]:
    """Return True for each name of a kernel from a communication library."""
    return matching(names, COMMUNICATION_KERNEL) & ~matching(names, GENERATED_KERNEL)


_OPERATIONS = (
    ("all_reduce", re.compile(r"all_?reduce", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
    ("send_recv", re.compile(r"send_?recv", re.I)),
    ("send", re.compile(r"^_?i?send\b|:send\b", re.I)),
    ("recv", re.compile(r"^_?i?recv|:recv", re.I)),
    ("gather", re.compile(r"gather", re.I)),
    ("scatter", re.compile(r"scatter", re.I)),
    ("reduce", re.compile(r"cross_device_reduce", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
)


def operation(name: str) -> str:
    """Return the collective named by a kernel, annotation or recorded call: `all_reduce`, ..., or `unknown`."""
    if "cross_device_reduce" in name or "one_shot" in name or "two_shot" in name:
        return "all_reduce"
    for word, pattern in _OPERATIONS:
        if pattern.search(name):
            return word
    return "unknown"
