"""The model once more, for one layout of a dense model, in plain Python with `math` and `if`: written from the papers'
formulas beside the vectorised one, to be compared with it."""

from __future__ import annotations

import math
from typing import Any

# ruff: noqa: N803, N806 - the papers' letters


def small_in_layer(w: Any) -> int:
    """Two norms, and what GPT-3 and Qwen 3 have besides: biases of four matrices, norms of queries and keys."""
    if not w.has_bias:
        return 2 * w.hidden + (2 * w.head_dim if w.has_qk_norm else 0)
    biases = (w.num_heads + 2 * w.num_kv_heads) * w.head_dim + w.hidden + w.ffn + w.hidden
    return 4 * w.hidden + biases


def small_outside(w: Any) -> int:
    """The norm after the last layer, and learned positions."""
    return w.hidden * (2 if w.has_bias else 1) + w.max_positions * w.hidden


def step_seconds(w: Any, m: Any, lay: Any, seq: int, c: Any) -> float:
    """`w` a dense workload, `m` the machine's columns as a dict, `lay` a Layout, `c` Constants; default software."""
    t, p, v, tokens = lay.tp, lay.pp, lay.vpp, lay.micro_batch * seq / lay.cp
    h, L = w.hidden, w.num_layers
    gpus = m["gpus"]

    def product(M: float, N: float, K: float, half: bool = False) -> float:
        peak, balance = (m["half_peak"], m["half_balance"]) if half else (m["matmul_peak"], m["balance"])
        rate = peak * c.matmul * (c.low if m["is_low"] and not half else 1)
        waves = math.ceil(M / 128) * math.ceil(N / 128) / m["sms"]
        partial = min(c.waves * (math.ceil(waves) / waves - 1), 2.0)
        return 2 * M * N * K / rate * (1 + c.balance * balance * (1 / M + 1 / N + 1 / K) + partial)

    def inside(size: int, stride: int) -> int:
        return int(max(1, min(m["domain"] // stride, size)))

    def ring_rate(size: int, stride: int) -> float:
        k = inside(size, stride)
        if size == k:
            return m["link"] * c.link
        pod = m["rail_pod"] if k == 1 else m["pod"]
        core = m["core"] if size * stride > pod else 1
        return min(m["link"] * c.link, k * m["nic"] * c.nic * core)

    def ring_latency(size: int, stride: int) -> float:
        nodes = size / inside(size, stride)
        return 3.4e-6 * (size - nodes) + (14e-6 * m["network_latency"] * nodes if nodes > 1 else 0)

    def gather(num_bytes: float, size: int, stride: int, calls: float) -> float:
        if size == 1:
            return 0.0
        return num_bytes * (size - 1) / size / ring_rate(size, stride) + calls * c.latency * (
            8.4e-6 + ring_latency(size, stride)
        )

    def reduce_all(num_bytes: float, size: int, stride: int) -> float:
        if size == 1:
            return 0.0
        k = inside(size, stride)
        tree = 2 * (3.4e-6 * (k - 1) + 14e-6 * m["network_latency"] * math.log2(max(size / k, 1)))
        latency = 8.4e-6 + min(2 * ring_latency(size, stride), tree)
        return 2 * num_bytes * (size - 1) / size / ring_rate(size, stride) + c.latency * latency

    a, d, kv, f = w.num_heads, w.head_dim, w.num_kv_heads, w.ffn
    mats = 3 if w.is_gated else 2
    linear = product(tokens, (a + 2 * kv) * d / t, h) + product(tokens, h, a * d / t)
    linear += product(tokens, (mats - 1) * f / t, h) + product(tokens, h, f / t)
    scores = 4 * tokens * seq * a * d / t * 0.5 / (m["half_peak"] * c.matmul * c.flash)
    moved = 20 * tokens * h / (t if lay.sequence_parallel else 1)
    moved += tokens / t * (4 * (a + 2 * kv) * d + 2 * mats * f)
    moved_s = moved * c.elementwise / m["memory_rate"]
    cast = m["is_low"] * tokens * 4 * (2 * h + (a * d + f) / t) * c.cast / m["memory_rate"]
    kernels = 14 + 6 * m["is_low"]
    launches = kernels * c.launch_s
    forward = max(linear + scores + moved_s + cast + launches, kernels * c.host_s)
    backward = 2 * c.backward * linear + 2.5 * scores + 2 * moved_s + cast + 2 * launches
    backward = max(backward, 2 * kernels * c.host_s)
    full = lay.recompute == "full"
    weights = backward / 2
    backward += forward if full else 0
    tensor = reduce_all(2 * tokens * h, t, 1) * (6 if full else 4)
    ring = gather(2 * tokens * lay.cp * 2 * kv * d / t, lay.cp, t, 1)
    context = max(ring - 0.8 * scores, 0) + max(2 * ring - 0.8 * 2.5 * scores, 0)
    layer = forward + backward + tensor + context
    logits = (
        3 * product(tokens, w.vocab / t, h, half=True) + 20 * tokens * w.vocab / t / m["memory_rate"] * c.elementwise
    )

    stages = stage_layers(L, p, v)
    most, last = max(stages[:-1], default=L), stages[-1]
    whole = L * layer + logits
    slowest = max(most * layer, last * layer + logits) if p > 1 else whole
    last_s = last * layer + logits
    fill = (whole - slowest) / v
    if v == 1 and lay.schedule == "1f1b" and lay.num_micro_batches > 1 and p > 1 and last_s < slowest:
        # the stage before a shorter last one waits for it after its first forward and before its last backward
        forward_s, backward_s = slowest / 3, slowest * 2 / 3
        fill += max(last_s - forward_s, 0) + max(last_s - backward_s, 0) - last_s
    if lay.schedule == "zero-bubble":  # weights' gradients fill it twice, a lone micro-batch's once
        fill *= 1 - weights * (2 - max(p - lay.num_micro_batches, 0) / max(p - 1, 1)) / (forward + backward)
    total = lay.num_micro_batches * slowest + fill
    if p > 1:
        near = t * lay.cp * lay.dp < m["domain"]
        core = m["core"] if t * lay.cp * lay.dp + 1 > m["rail_pod"] else 1
        rate = m["link"] * c.link if near else m["nic"] * c.nic * core
        one = 2 * tokens * h / t / rate + c.latency * (3.4e-6 if near else 14e-6 * m["network_latency"])
        steady = c.sends * (0.2 if v > 1 else 1.0)
        total += one * (2 * (p - 1) + 2 * lay.num_micro_batches * v * steady)

    table = w.vocab * h / t
    parameters = most * (h * ((a + 2 * kv) * d + a * d + mats * f) / t + small_in_layer(w))
    parameters += (table if p > 1 or w.is_tied else 2 * table) + small_outside(w)
    size = lay.dp * lay.cp
    cut = min(lay.shard, size) if lay.shard else size
    calls = most if lay.zero == 3 else math.ceil(parameters / max(40e6, 1e6 * size))  # layers, or Megatron's buckets
    g, r = gather(2 * parameters, cut, t, calls), gather(4 * parameters, cut, t, calls)
    copies = reduce_all(4 * parameters / cut, size // cut, t * cut)
    compute = L / p * layer
    share = min(c.overlap, 1)
    if lay.zero == 3:
        total += lay.num_micro_batches * (2 * g + r - share * min(2 * g + r, compute))
        total += copies - share * min(copies, max(compute - 2 * g - r, 0))
    else:
        once = r + g + copies if lay.zero else reduce_all(4 * parameters, size, t)
        total += once - share * min(once, compute)
    owned = parameters / (cut if lay.zero else 1)
    if lay.offload:
        total += 6 * owned / m["host_link"] + 30 * owned / m["host_memory"] * c.update
    else:
        total += 30 * owned / m["memory_rate"] * c.update
    return total * (1 + c.jitter * math.log2(max(gpus / min(m["domain"], 8), 1)))


def stage_layers(num_layers: int, pp: int, vpp: int) -> list[int]:
    """Return the layers of each stage: what full chunks have too many is taken from the last one, then the first."""
    chunks = [math.ceil(num_layers / (pp * vpp))] * (pp * vpp)
    while sum(chunks) > num_layers:
        chunks[-1 if chunks[-1] else 0] -= 1
    return [sum(chunks[stage::pp]) for stage in range(pp)]


def memory_bytes(w: Any, m: Any, lay: Any, seq: int, c: Any) -> float:
    """Return the memory of the rank that uses the most, for a dense model; `c` is MemoryConstants."""
    t, p, v, h = lay.tp, lay.pp, lay.vpp, w.hidden
    a, d, kv, f = w.num_heads, w.head_dim, w.num_kv_heads, w.ffn
    mats = 3 if w.is_gated else 2
    stages = stage_layers(w.num_layers, p, v)
    most = max(stages[:-1], default=w.num_layers)
    of_last = min(stages[-1], most)
    layer = h * ((a + 2 * kv) * d + a * d + mats * f) / t + small_in_layer(w)
    table = w.vocab * h / t
    tables = table if p > 1 or w.is_tied else 2 * table
    replicas = lay.dp * lay.cp
    cut = min(lay.shard, replicas) if lay.shard else replicas

    def states(layers: int, outside: int) -> float:
        parameters = layers * layer + tables + outside
        unsharded = tables + 2 * (parameters - tables) / most if lay.zero == 3 else 0
        weights = 2 * (0 if lay.zero == 3 else parameters) + 2 * unsharded  # with ZeRO 3 the fp32 master is the shard
        gradients = 4 * parameters / (cut if lay.zero >= 2 else 1) + 2 * unsharded
        optimizer = 0 if lay.offload else 12 * parameters / (cut if lay.zero >= 1 else 1)
        return weights + gradients + optimizer

    tokens = lay.micro_batch * seq / lay.cp
    split = t if lay.sequence_parallel else 1
    one = 8 * h / split + (2 * (a * d + 2 * kv * d + a * d) + 2 * mats * f) / t
    boundary = 2 * h / split
    gathered = (
        4 * h if lay.sequence_parallel and t > 1 else 0
    )  # a layer's gathered input, and the gradient before its sum
    repeated = tokens * one * c.activations if lay.recompute == "full" else 0

    def held(micro_batches: float, layers: int) -> float:
        kept = layers * micro_batches
        per_token = kept * (boundary if lay.recompute == "full" else one) + 2 * boundary + gathered
        return tokens * per_token * c.activations

    first, final = min(p + ((p - 1) / v if v > 1 else 0), lay.num_micro_batches), p - (p - 1) / v
    if lay.schedule == "gpipe":
        first = final = lay.num_micro_batches
    waiting = lay.num_micro_batches - 1 if lay.schedule == "gpipe" else 0
    at_loss = max(repeated, 8 * tokens * w.vocab / t)  # the last layer is repeated once the logits are gone
    at_loss += 6 * waiting * tokens * w.vocab / t
    outside = small_outside(w)
    inside = states(most, outside) + held(first, most) + repeated
    if p == 1:
        inside = max(inside, states(most, outside) + held(first, most) + at_loss)
    else:  # the last stage has no positions, and fewer layers if they do not divide
        on_last = states(of_last, 0 if w.max_positions > 16 else outside) + held(final, of_last) + at_loss
        inside = max(inside, on_last)
    groups = sum(size > 1 for size in (t, p, lay.cp, lay.ep, lay.dp))
    channels = min(max(m["link"] / 300e9, 0.5), 1.5)
    return inside * c.allocator + c.context_bytes + c.group_bytes * channels * groups
