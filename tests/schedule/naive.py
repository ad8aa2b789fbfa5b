"""A second simulator, written to be read and not to be quick: whole seconds, one tick after another, plain lists.

It shares no code with `flatout.schedule`: a node is a list of GPUs with their free thousandths, jobs are dictionaries.
Jobs have whole seconds, so that a tick a second is exact.
"""

from __future__ import annotations

import copy
from typing import Any

WHOLE = 1000
Gpu = dict[str, Any]  # free thousandths, and the count of GPUs of its node that were shared before it was
Nodes = list[list[Gpu]]
Job = dict[str, Any]
Pieces = list[tuple[int, list[int], int]]  # node, its GPUs, thousandths of each


def make_job(number: int, submit: int, gpus: int, duration: int, **rest: Any) -> Job:
    """Return a job; `milli` is its share of a GPU, `limit` the user's time limit."""
    job = {"id": number, "submit": submit, "gpus": gpus, "left": duration, "milli": WHOLE, "overhead": 0, "at": None}
    job |= {"done": None, "ready": 0, "level": 0, "limit": duration, "priority": 0, "attained": 0}
    return job | rest


def unused(node: list[Gpu]) -> list[int]:
    """Return the numbers of the node's GPUs that nobody holds."""
    return [number for number, gpu in enumerate(node) if gpu["free"] == WHOLE]


def place(nodes: Nodes, gpus: int, milli: int = WHOLE) -> Pieces | None:
    """Best fit on one node, the first of equals; or the first empty nodes, and the rest on another by best fit.

    A share goes to the GPU in use with the least sufficient room, or else to an unused GPU.
    """
    if milli < WHOLE:
        return place_share(nodes, milli)
    capacity = len(nodes[0])
    whole, rest = divmod(gpus, capacity)
    if gpus <= capacity:
        whole, rest = 0, gpus
    empty = [number for number, node in enumerate(nodes) if len(unused(node)) == capacity][:whole]
    if len(empty) < whole:
        return None
    pieces = [(number, list(range(capacity)), WHOLE) for number in empty]
    if rest:
        others = [(len(unused(node)), number) for number, node in enumerate(nodes) if number not in empty]
        others = [(room, number) for room, number in others if room >= rest]
        if not others:
            return None
        last = min(others)[1]
        pieces.append((last, unused(nodes[last])[:rest], WHOLE))
    return pieces


def place_share(nodes: Nodes, milli: int) -> Pieces | None:
    options = [
        (gpu["free"], number, gpu["opened"], index)
        for number, node in enumerate(nodes)
        for index, gpu in enumerate(node)
        if milli <= gpu["free"] < WHOLE
    ]
    if options:
        _, number, _, index = min(options)
        return [(number, [index], milli)]
    pieces = place(nodes, 1)
    return [(pieces[0][0], pieces[0][1], milli)] if pieces else None


def hold(nodes: Nodes, pieces: Pieces) -> None:
    for number, gpus, milli in pieces:
        for index in gpus:
            gpu = nodes[number][index]
            if gpu["free"] == WHOLE and milli < WHOLE:
                gpu["opened"] = 1 + max(other["opened"] for other in nodes[number])
            gpu["free"] -= milli
            assert gpu["free"] >= 0


def give_back(nodes: Nodes, pieces: Pieces) -> None:
    for number, gpus, milli in pieces:
        for index in gpus:
            nodes[number][index]["free"] += milli


class Naive:
    def __init__(self, jobs: list[Job], nodes: int, capacity: int, restart: int = 0, every: int = 1):
        self.jobs = jobs
        self.nodes: Nodes = [[{"free": WHOLE, "opened": 0} for _ in range(capacity)] for _ in range(nodes)]
        self.capacity, self.restart, self.every = capacity, restart, every
        self.now = 0
        self.queue: list[Job] = []
        self.running: list[Job] = []

    def start(self, job: Job, pieces: Pieces) -> None:
        hold(self.nodes, pieces)
        job["at"], job["began"], job["end"] = pieces, self.now, self.now + job["overhead"] + job["left"]
        job["ready"] = self.now + job["overhead"]
        self.queue.remove(job)
        self.running.append(job)

    def is_shared(self, node: int, index: int) -> bool:
        """Whether a running job holds a share of this GPU."""
        return any(job["milli"] < WHOLE and job["at"][0][:2] == (node, [index]) for job in self.running)

    def try_to_start(self, job: Job) -> bool:
        pieces = place(self.nodes, job["gpus"], job["milli"])
        if pieces:
            self.start(job, pieces)
        return bool(pieces)

    def stop(self, job: Job) -> None:
        give_back(self.nodes, job["at"])
        job["attained"] += (self.now - job["began"]) * job["gpus"] * job["milli"] / WHOLE
        self.running.remove(job)

    def preempt(self, job: Job) -> None:
        self.stop(job)
        worked = max(0, self.now - job["ready"])
        job["left"] -= worked - worked % self.every
        job["overhead"] = self.restart + max(0, job["ready"] - self.now - self.restart)
        self.queue.append(job)

    def run(self, policy: Any) -> list[int]:
        """Return when each job ended."""
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
    while sim.queue and sim.try_to_start(sim.queue[0]):
        pass


def skip(sim: Naive) -> None:
    for job in list(sim.queue):
        sim.try_to_start(job)


def shortest_first(sim: Naive) -> None:
    """Shortest job first without preemption: whatever fits, the shortest first, then the earliest."""
    for job in sorted(sim.queue, key=lambda job: (job["left"], job["submit"], job["id"])):
        sim.try_to_start(job)


class Easy:
    """EASY backfill. A reservation stays until its job starts, or a running job leaves before its limit."""

    def __init__(self) -> None:
        self.head: int | None = None
        self.shadow = 0
        self.later: Nodes = []  # the GPUs at `shadow`, with all jobs that then still run, but not the reserved one
        self.num_reserved: dict[int, int] = {}  # unused GPUs at `shadow` that are for the reserved job, by node
        self.reserved_share: tuple[int, int, int] | None = None  # node, GPU in use, thousandths
        self.expected: dict[int, int] = {}  # when each running job reaches its limit

    def __call__(self, sim: Naive) -> None:
        still_running = {job["id"] for job in sim.running}
        left = [number for number in self.expected if number not in still_running]
        if any(self.expected[number] > sim.now for number in left):
            self.head = None
        self.expected = {number: end for number, end in self.expected.items() if number in still_running}
        fifo(sim)
        self.expect(sim)
        if not sim.queue:
            return
        head = sim.queue[0]
        if self.head != head["id"]:
            self.reserve(sim, head)
        for job in list(sim.queue[1:]):
            if sim.now + job["limit"] <= self.shadow:
                sim.try_to_start(job)
            elif job["milli"] < WHOLE:
                self.start_share_past_the_shadow(sim, job)
            else:
                self.start_past_the_shadow(sim, job)
            self.expect(sim)

    def expect(self, sim: Naive) -> None:
        for job in sim.running:
            self.expected.setdefault(job["id"], sim.now + job["limit"])

    def reserve(self, sim: Naive, head: Job) -> None:
        self.head, self.later = head["id"], copy.deepcopy(sim.nodes)
        for end in sorted(set(self.expected.values())):
            for job in sim.running:
                if self.expected[job["id"]] == end:
                    give_back(self.later, job["at"])
            pieces = place(self.later, head["gpus"], head["milli"])
            if pieces:
                self.shadow = end
                self.num_reserved = {number: len(gpus) for number, gpus, _ in pieces}
                self.reserved_share = None
                if head["milli"] < WHOLE:
                    self.reserve_share(sim, pieces[0][0], pieces[0][1][0], head["milli"])
                return
        raise AssertionError

    def reserve_share(self, sim: Naive, node: int, index: int, milli: int) -> None:
        """Reserve a share of a GPU that is in use now, if there is one; otherwise an unused GPU."""
        in_use = [index for index in unused(self.later[node]) if sim.is_shared(node, index)]
        if self.later[node][index]["free"] == WHOLE:
            if not in_use:
                return
            index = min(in_use, key=lambda index: sim.nodes[node][index]["opened"])
        self.num_reserved = {}
        self.reserved_share = (node, index, milli)

    def start_past_the_shadow(self, sim: Naive, job: Job) -> None:
        """Start a job that is still running at the shadow if the first one gets its GPUs all the same."""
        is_wide = job["gpus"] > sim.capacity
        nodes = copy.deepcopy(sim.nodes)
        for number, node in enumerate(nodes):
            if self.room_beside(number) < (sim.capacity if is_wide else job["gpus"]):
                for gpu in node:
                    gpu["free"] = 0
        pieces = place(nodes, job["gpus"])
        if pieces:
            sim.start(job, pieces)
            hold(self.later, pieces)

    def start_share_past_the_shadow(self, sim: Naive, job: Job) -> None:
        nodes = copy.deepcopy(sim.nodes)
        for number, node in enumerate(nodes):
            for index, gpu in enumerate(node):
                if not self.leaves(number, index, job["milli"]):
                    gpu["free"] = 0
        pieces = place(nodes, 1, job["milli"])
        if pieces:
            sim.start(job, pieces)
            hold(self.later, pieces)

    def room_beside(self, node: int) -> int:
        """Return how many GPUs of a node nobody holds at the shadow, beside the reserved ones."""
        free = len(unused(self.later[node])) - self.num_reserved.get(node, 0)
        if self.reserved_share is not None:
            reserved_node, index, _ = self.reserved_share
            if reserved_node == node and self.later[node][index]["free"] == WHOLE:
                free -= 1
        return free

    def leaves(self, node: int, index: int, milli: int) -> bool:
        """Whether a share can stay on a GPU past the shadow."""
        free = self.later[node][index]["free"]
        if self.reserved_share is not None and self.reserved_share[:2] == (node, index):
            return bool(free - self.reserved_share[2] >= milli)
        if free == WHOLE:
            return self.room_beside(node) > 0
        return bool(free >= milli)


def shortest_remaining_first(sim: Naive) -> None:
    """SRTF on one GPU: stop the running job, unless it is restarting, for one with less left. Restarts are
    charged, and lost work."""
    for job in sorted(sim.queue, key=lambda job: (job["left"] + job["overhead"], job["submit"], job["id"])):
        if sim.running:
            now_running = sim.running[0]
            is_restarting = sim.now < now_running["ready"]
            if not is_restarting and now_running["end"] - sim.now > job["left"] + job["overhead"]:
                sim.preempt(now_running)
        sim.try_to_start(job)
