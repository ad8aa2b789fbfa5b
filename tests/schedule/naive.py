"""A second simulator, written to be read and not to be quick: whole seconds, one tick after another, plain lists.

It shares no code with `flatout.schedule`: nodes are lists of free counts, jobs are dictionaries. Jobs have whole
seconds, so that a tick a second is exact.
"""

from __future__ import annotations

from typing import Any


def place(free: list[int], capacity: int, gpus: int) -> list[tuple[int, int]] | None:
    """Best fit on one node, the first of equals; or the first empty nodes, and the rest on another by best fit."""
    if gpus <= capacity:
        fitting = [(room, node) for node, room in enumerate(free) if room >= gpus]
        return [(min(fitting)[1], gpus)] if fitting else None
    whole, rest = divmod(gpus, capacity)
    empty = [node for node, room in enumerate(free) if room == capacity][:whole]
    if len(empty) < whole:
        return None
    pieces = [(node, capacity) for node in empty]
    if rest:
        others = [(room, node) for node, room in enumerate(free) if room >= rest and node not in empty]
        if not others:
            return None
        pieces.append((min(others)[1], rest))
    return pieces


class Naive:
    def __init__(self, jobs: list[tuple[int, int, int]], nodes: int, capacity: int, restart: int = 0, every: int = 1):
        self.jobs = [
            {"id": i, "submit": s, "gpus": g, "left": d, "run": 0, "overhead": 0, "at": None, "done": None, "ready": 0}
            for i, (s, g, d) in enumerate(jobs)
        ]
        self.free, self.capacity, self.restart, self.every = [capacity] * nodes, capacity, restart, every
        self.now = 0
        self.queue: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []

    def start(self, job: dict[str, Any], pieces: list[tuple[int, int]]) -> None:
        for node, count in pieces:
            self.free[node] -= count
        job["at"], job["began"], job["end"] = pieces, self.now, self.now + job["overhead"] + job["left"]
        job["ready"] = self.now + job["overhead"]
        self.queue.remove(job)
        self.running.append(job)

    def stop(self, job: dict[str, Any]) -> None:
        for node, count in job["at"]:
            self.free[node] += count
        self.running.remove(job)

    def preempt(self, job: dict[str, Any]) -> None:
        self.stop(job)
        worked = max(0, self.now - job["ready"])
        job["left"] -= worked - worked % self.every
        job["overhead"] = self.restart + max(0, job["ready"] - self.now - self.restart)
        self.queue.append(job)

    def run(self, policy: Any) -> list[int]:
        """When each job ended."""
        while any(job["done"] is None for job in self.jobs):
            for job in [job for job in self.running if job["end"] == self.now]:
                self.stop(job)
                job["done"] = self.now
            self.queue += [job for job in self.jobs if job["submit"] == self.now]
            self.queue.sort(key=lambda job: (job["submit"], job["id"]))
            policy(self)
            self.now += 1
        return [job["done"] for job in self.jobs]


def fifo(sim: Naive) -> None:
    while sim.queue and (pieces := place(sim.free, sim.capacity, sim.queue[0]["gpus"])):
        sim.start(sim.queue[0], pieces)


class Easy:
    """EASY backfill with exact estimates. The reservation stays until its job starts, as nothing ends unforeseen."""

    def __init__(self) -> None:
        self.head: int | None = None
        self.shadow = 0
        self.extra: list[int] = []

    def __call__(self, sim: Naive) -> None:
        fifo(sim)
        if not sim.queue:
            return
        head = sim.queue[0]
        if self.head != head["id"]:
            self.reserve(sim, head)
        for job in list(sim.queue[1:]):
            if sim.now + job["left"] <= self.shadow:
                if pieces := place(sim.free, sim.capacity, job["gpus"]):
                    sim.start(job, pieces)
                continue
            whole = job["gpus"] > sim.capacity
            usable = [
                room if extra >= (sim.capacity if whole else job["gpus"]) else 0
                for room, extra in zip(sim.free, self.extra, strict=True)
            ]
            if pieces := place(usable, sim.capacity, job["gpus"]):
                sim.start(job, pieces)
                for node, count in pieces:
                    self.extra[node] -= count

    def reserve(self, sim: Naive, head: dict[str, Any]) -> None:
        free = list(sim.free)
        self.head = head["id"]
        for end in sorted({job["end"] for job in sim.running}):
            for job in sim.running:
                if job["end"] == end:
                    for node, count in job["at"]:
                        free[node] += count
            if place(free, sim.capacity, head["gpus"]):
                self.shadow, self.extra = end, free
                for node, count in place(free, sim.capacity, head["gpus"]):
                    self.extra[node] -= count
                return
        raise AssertionError


def shortest_first(sim: Naive) -> None:
    """Shortest job first without preemption: whatever fits, the shortest first, then the earliest."""
    for job in sorted(sim.queue, key=lambda job: (job["left"], job["submit"], job["id"])):
        if pieces := place(sim.free, sim.capacity, job["gpus"]):
            sim.start(job, pieces)


def shortest_remaining_first(sim: Naive) -> None:
    """SRTF on one GPU: stop the running job, unless it is restarting, for one with less left. Restarts are
    charged, and lost work."""
    for job in sorted(sim.queue, key=lambda job: (job["left"] + job["overhead"], job["submit"], job["id"])):
        if sim.running:
            now_running = sim.running[0]
            is_restarting = sim.now < now_running["ready"]
            if not is_restarting and now_running["end"] - sim.now > job["left"] + job["overhead"]:
                sim.preempt(now_running)
        if pieces := place(sim.free, sim.capacity, job["gpus"]):
            sim.start(job, pieces)
