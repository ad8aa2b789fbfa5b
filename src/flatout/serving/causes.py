"""Say why requests take long, from one load point: each cause with its share of the mean latency.

In: a `ServingWindow`, the engine's table and the server's command. Out: causes. The specific ones come before the
general one: requests wait in the queue because the cache is full, or because the batch is, or (`queueing`) because the
server has more work than it can do, for which the specific causes are reasons too: their shares overlap. Unknown
numbers give no cause. It suggests no change: tables do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flatout.records.serving import Cause, ServingWindow
from flatout.serving.engine import Engine
from flatout.serving.words import has_option, option_value
from flatout.units import percent, seconds

MIN_SHARE = 0.05  # of the mean latency
MIN_WAITING = 0.5  # requests, on average
FULL_CACHE = 0.95  # share of the KV cache
FULL_BATCH = 0.95  # of the limit
MIN_SHARED = 0.2  # of the prompt tokens
MOST_REUSED = 0.5  # of the shared tokens
BUSY_THREAD = 0.9  # cores
IDLE_GPU = 0.7  # share of the time that it is busy
BUSY_HOST = 0.9  # of the allowed cores
MIN_OUTSIDE = 0.1  # of the latency, outside the engine's queue, prefill and decode


def find_causes(window: ServingWindow, engine: Engine, words: Sequence[str]) -> tuple[Cause, ...]:
    """Return the causes: the largest known share first, then those of unknown share, and the general one last."""
    found: list[Cause] = []
    for rule in _RULES:
        cause = rule(window, engine, words, found)
        if cause is not None and (cause.share is None or cause.share >= MIN_SHARE):
            found.append(cause)
    return tuple(sorted(found, key=lambda cause: (cause.name == "queueing", -(cause.share or 0.0))))


_Rule = Callable[[ServingWindow, Engine, Sequence[str], Sequence[Cause]], Cause | None]


def _share(seconds_per_request: float | None, window: ServingWindow) -> float | None:
    if seconds_per_request is None or not window.latency_s:
        return None
    return min(max(seconds_per_request / window.latency_s, 0.0), 1.0)


def _waits(window: ServingWindow) -> bool:
    return window.mean_waiting is not None and window.mean_waiting >= MIN_WAITING


def _kv_cache_full(window: ServingWindow, _: Engine, __: Sequence[str], ___: Sequence[Cause]) -> Cause | None:
    is_full = window.most_kv_share is not None and window.most_kv_share >= FULL_CACHE
    preemptions = window.preemptions or 0.0
    if not preemptions and not (is_full and _waits(window)):
        return None
    told = f"{preemptions:.0f} requests were preempted" if preemptions else "requests wait"
    evidence: dict[str, float | str] = {"preemptions": preemptions}
    if window.most_kv_share is not None:
        evidence["most_kv_share"] = window.most_kv_share
    return Cause(
        name="kv-cache-full",
        title=f"the KV cache is full: {told}",
        share=_share(window.queue_s, window) or None,
        evidence=evidence,
    )


def batch_limit(engine: Engine, words: Sequence[str]) -> float | None:
    """Return the most requests that the server takes into a batch; None if the command and the table do not say."""
    if engine.batch_of_one_without is not None and not has_option(words, engine.batch_of_one_without):
        return 1.0
    text = None if engine.batch_option is None else option_value(words, engine.batch_option)
    if text is not None:
        try:
            return float(text)
        except ValueError:
            return None
    return engine.batch_default


def _under_batched(window: ServingWindow, engine: Engine, words: Sequence[str], found: Sequence[Cause]) -> Cause | None:
    limit = batch_limit(engine, words)
    if limit is None or window.most_running is None or not _waits(window) or _has(found, "kv-cache-full"):
        return None
    if window.most_running < FULL_BATCH * limit and limit > 1:
        return None
    return Cause(
        name="under-batched",
        title=f"requests wait although the cache has room: a batch holds at most {limit:g} of them",
        share=_share(window.queue_s, window),
        evidence={"batch_limit": limit, "mean_waiting": window.mean_waiting or 0.0},
    )


def _no_prefix_reuse(window: ServingWindow, engine: Engine, words: Sequence[str], _: Sequence[Cause]) -> Cause | None:
    shared = window.shared_prompt_share
    if shared is None or shared < MIN_SHARED:
        return None
    is_off = any(has_option(words, option) for option in engine.no_prefix_cache_with)
    hits = window.prefix_hit_share
    if hits is None and not is_off:
        return None
    reused = hits or 0.0
    if reused >= MOST_REUSED * shared:
        return None
    # in the queue, a request waits for the prompts of others
    prefill = None if window.prefill_s is None else _share(window.prefill_s + (window.queue_s or 0.0), window)
    return Cause(
        name="no-prefix-reuse",
        title=f"{percent(shared)} of the prompt tokens repeat an earlier prompt's beginning, and "
        f"{percent(reused)} are reused",
        share=None if prefill is None else max(prefill * (shared - reused), MIN_SHARE),
        evidence={"shared_prompt_share": shared, "prefix_hit_share": reused},
    )


def _prefill_stalls_decode(window: ServingWindow, _: Engine, __: Sequence[str], ___: Sequence[Cause]) -> Cause | None:
    share = _share(window.stall_s, window)
    if share is None or window.stall_s is None:
        return None
    return Cause(
        name="prefill-stalls-decode",
        title=f"answers pause while prompts of other requests are computed: {seconds(window.stall_s)} per request",
        share=share,
        evidence={"stall_s": window.stall_s},
    )


def _host_bound(window: ServingWindow, _: Engine, __: Sequence[str], ___: Sequence[Cause]) -> Cause | None:
    outside = _outside_share(window)
    thread = window.busiest_thread_cores
    is_thread_busy = thread is not None and thread >= BUSY_THREAD
    waits_outside = outside is not None and outside >= MIN_OUTSIDE
    is_gpu_idle = window.gpu_busy_share is not None and window.gpu_busy_share < IDLE_GPU
    if is_thread_busy and thread is not None and (waits_outside or is_gpu_idle):
        return Cause(
            name="host-bound",
            title=f"one thread of the server keeps {thread:.1f} cores busy, and the rest waits for it",
            share=outside if waits_outside else None,
            evidence={"busiest_thread_cores": thread},
        )
    if window.gpu_busy_share is not None or window.cores_busy is None or not window.cores_allowed:
        return None
    if window.cores_busy < BUSY_HOST * window.cores_allowed:
        return None
    return Cause(
        name="host-bound",
        title=f"the server keeps {window.cores_busy:.1f} of {window.cores_allowed:g} cores busy, and uses no GPU",
        share=None,
        evidence={"cores_busy": window.cores_busy, "cores_allowed": window.cores_allowed},
    )


def _outside_share(window: ServingWindow) -> float | None:
    """Return the share of the latency that the engine's own queue, prefill and decode do not explain."""
    parts = (window.queue_s, window.prefill_s, window.decode_s)
    if not window.is_from_metrics or window.latency_s is None or any(part is None for part in parts):
        return None
    inside_s = sum(part for part in parts if part is not None)
    return _share(window.latency_s - inside_s, window)


def _eager_mode(_: ServingWindow, engine: Engine, words: Sequence[str], __: Sequence[Cause]) -> Cause | None:
    switched_off = [option for option in engine.eager_with if has_option(words, option)]
    if switched_off:
        return Cause(name="eager-mode", title=f"the command has {switched_off[0]}: no graphs are captured", share=None)
    if engine.eager_without and not any(has_option(words, option) for option in engine.eager_without):
        missing = " or ".join(engine.eager_without)
        return Cause(name="eager-mode", title=f"the command has no {missing}: each operation is launched", share=None)
    return None


def _queueing(window: ServingWindow, _: Engine, __: Sequence[str], found: Sequence[Cause]) -> Cause | None:
    if not _waits(window) or _has(found, "kv-cache-full") or _has(found, "under-batched"):
        return None
    share = _share(window.queue_s, window)
    if share is None or window.queue_s is None:
        return None
    return Cause(
        name="queueing",
        title=f"requests wait {seconds(window.queue_s)} before they are computed: more comes than the server can do",
        share=share,
        evidence={"queue_s": window.queue_s, "mean_waiting": window.mean_waiting or 0.0},
    )


def _has(found: Sequence[Cause], name: str) -> bool:
    return any(cause.name == name for cause in found)


# The specific ones first: `queueing` is what they leave.
_RULES: tuple[_Rule, ...] = (
    _kv_cache_full,
    _under_batched,
    _no_prefix_reuse,
    _prefill_stalls_decode,
    _host_bound,
    _eager_mode,
    _queueing,
)
