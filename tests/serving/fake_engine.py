"""A language model server that is simulated: continuous batching with a known time for each iteration.

Only the standard library is used, and only the event loop's clock: it runs in virtual time in the tests' process, or in
real time behind HTTP (`fake_server.py`). Its options are real ones' (`fake.toml`), and so are its metrics (vLLM's
names). An iteration takes

    base_s * (eager: 4) + per_sequence_s * (sequences that decode) + per_prompt_token_s * (prompt tokens computed)

and gives each decoding sequence a token. Requests pass one host thread, which takes `host_s` each, before they queue.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EAGER = 4.0
BLOCK = 16  # prompt tokens; the prefix cache knows whole blocks


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="fake_server")
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--max-num-seqs", type=int, default=64)
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    options.add_argument("--kv-tokens", type=int, default=1_000_000)
    options.add_argument("--enforce-eager", action="store_true")
    options.add_argument("--no-enable-prefix-caching", action="store_true")
    options.add_argument("--api-server-count", type=int, default=1)
    options.add_argument("--fast-math", action="store_true", help="twice as fast, and wrong")
    options.add_argument("--short-answers", action="store_true", help="twice as fast, with half of the tokens")
    options.add_argument("--log-level", default="warning", help="does nothing")
    options.add_argument("--refuse-late", action="store_true", help="refuses requests when many wait")
    # the law of the machine, not of the server: no table offers these
    options.add_argument("--base-s", type=float, default=0.004)
    options.add_argument("--per-sequence-s", type=float, default=0.0002)
    options.add_argument("--per-prompt-token-s", type=float, default=0.00002)
    options.add_argument("--host-s", type=float, default=0.0002)
    options.add_argument("--noise", type=float, default=0.02)
    options.add_argument("--seed", type=int, default=0)
    return options


@dataclass
class Job:
    """A request inside the engine."""

    prompt: list[str]
    max_tokens: int
    on_token: Callable[[str], None]
    came_s: float
    done: asyncio.Future[None]
    to_compute: int = 0  # prompt tokens
    num_tokens: int = 0
    admitted_s: float | None = None
    first_s: float | None = None

    @property
    def held(self) -> int:
        return len(self.prompt) + self.num_tokens


@dataclass
class Counters:
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    requests: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    host_busy_s: float = 0.0


@dataclass
class FakeEngine:
    """The engine; `start` numbers its starts, each of which is a little faster or slower."""

    arguments: Sequence[str]
    start: int = 0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.options = parser().parse_args(list(self.arguments))
        draw = random.Random(f"{self.options.seed} {self.start}")
        self.pace = draw.lognormvariate(0.0, self.options.noise)
        self._draw = draw
        self._hosts = asyncio.Semaphore(self.options.api_server_count)
        self._work = asyncio.Event()
        self._known: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._iterate())

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def generate(self, prompt: str, max_tokens: int, on_token: Callable[[str], None]) -> tuple[int, int]:
        """Answer a prompt; return the number of tokens of the answer and of the prompt."""
        loop = asyncio.get_running_loop()
        if self.options.refuse_late and len(self.waiting) > 4:
            raise RefusedError
        async with self._hosts:
            await asyncio.sleep(self.options.host_s * self.pace)
            self.counters.host_busy_s += self.options.host_s * self.pace
        words = prompt.split()
        if self.options.short_answers:
            max_tokens = max(max_tokens // 2, 1)
        sequence = Job(words, max_tokens, on_token, loop.time(), loop.create_future())
        self.waiting.append(sequence)
        self._work.set()
        await sequence.done
        return sequence.num_tokens, len(words)

    def _token(self, sequence: Job) -> str:
        """Return the next token of an answer, which depends on the prompt alone."""
        number = zlib.crc32(" ".join(sequence.prompt).encode()) + sequence.num_tokens
        if self.options.fast_math and sequence.num_tokens >= 3:
            number += 1
        return f"w{number % 997} "

    async def _iterate(self) -> None:
        while True:
            self._admit()
            if not self.running:
                self._work.clear()
                await self._work.wait()
                continue
            computed = self._prefill()
            decoding = [each for each in self.running if each.to_compute == 0]
            await asyncio.sleep(self._iteration_s(len(decoding), computed))
            self._emit(decoding)

    def _iteration_s(self, num_decoding: int, computed: int) -> float:
        options = self.options
        base_s = options.base_s * (EAGER if options.enforce_eager else 1.0)
        work_s = base_s + options.per_sequence_s * num_decoding + options.per_prompt_token_s * computed
        if options.fast_math or options.short_answers:
            work_s /= 2
        return work_s * self.pace * self._draw.uniform(0.97, 1.03)

    def _admit(self) -> None:
        now_s = asyncio.get_running_loop().time()
        held = sum(each.held for each in self.running)
        planned = sum(each.to_compute for each in self.running)
        while self.waiting and len(self.running) < self.options.max_num_seqs:
            if planned >= self.options.max_num_batched_tokens:
                break
            sequence = self.waiting[0]
            if self.running and held + sequence.held + 1 > self.options.kv_tokens:
                break
            del self.waiting[0]
            held += sequence.held
            sequence.to_compute = self._uncached(sequence) + sequence.num_tokens
            if sequence.admitted_s is None:
                sequence.admitted_s = now_s
                self.counters.queue_s += now_s - sequence.came_s
                self.counters.requests += 1
            planned += sequence.to_compute
            self.running.append(sequence)

    def _uncached(self, sequence: Job) -> int:
        """Return the prompt tokens that must be computed, at least one."""
        if self.options.no_enable_prefix_caching:
            return len(sequence.prompt)
        hits = 0
        blocks = [hash(tuple(sequence.prompt[:end])) for end in range(BLOCK, len(sequence.prompt) + 1, BLOCK)]
        for block in blocks:
            if block not in self._known:
                break
            hits += BLOCK
        self._known.update(blocks)
        self.counters.prefix_queries += len(sequence.prompt)
        self.counters.prefix_hits += hits
        return max(len(sequence.prompt) - hits, 1)

    def _prefill(self) -> int:
        """Compute prompt tokens within the iteration's budget, the first come first; return how many."""
        budget = self.options.max_num_batched_tokens
        computed = 0
        for sequence in self.running:
            part = min(sequence.to_compute, budget - computed)
            sequence.to_compute -= part
            computed += part
            if computed >= budget:
                break
        return computed

    def _emit(self, decoding: list[Job]) -> None:
        now_s = asyncio.get_running_loop().time()
        for sequence in decoding:
            sequence.on_token(self._token(sequence))
            sequence.num_tokens += 1
            if sequence.first_s is None:
                sequence.first_s = now_s
                self.counters.prefill_s += now_s - (sequence.admitted_s or now_s)
            if sequence.num_tokens >= sequence.max_tokens:
                self.running.remove(sequence)
                self.counters.decode_s += now_s - sequence.first_s
                sequence.done.set_result(None)
        while len(self.running) > 1 and sum(each.held for each in self.running) > self.options.kv_tokens:
            self.counters.preemptions += 1
            self.waiting.insert(0, self.running.pop())

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        kv = sum(each.held for each in self.running) / self.options.kv_tokens
        counters = self.counters
        values = {
            "vllm:request_queue_time_seconds_sum": counters.queue_s,
            "vllm:request_queue_time_seconds_count": counters.requests,
            "vllm:request_prefill_time_seconds_sum": counters.prefill_s,
            "vllm:request_decode_time_seconds_sum": counters.decode_s,
            "vllm:num_preemptions_total": counters.preemptions,
            "vllm:kv_cache_usage_perc": min(kv, 1.0),
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": len(self.waiting),
            "vllm:prefix_cache_queries_total": counters.prefix_queries,
            "vllm:prefix_cache_hits_total": counters.prefix_hits,
        }
        lines = ["# HELP vllm:num_requests_running Number of requests in model execution batches."]
        lines += [f'{name}{{model_name="fake",engine="0"}} {value}' for name, value in values.items()]
        return "\n".join(lines) + "\n"


class RefusedError(Exception):
    """The server refuses a request."""
