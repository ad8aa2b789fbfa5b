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
    job |= {"done": None, "ready": 0, "level": 0, "limit": duration, "priority": 0, "queued": None}
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


class BlockedError(Exception):
    """A blocked job lets no other pass."""


class ByLevel:
    """Serve jobs by level, the lower first, and stop running jobs of higher levels for them.

    `level` gives a job's level. A job's time since it was queued, or became urgent, is `since`.
    """

    URGENT = -(10**6)

    def __init__(
        self,
        level: Any,
        *,
        keeps_order: bool = False,
        protected: int = 0,
        loss: int = 10**9,
        ageing: int = 10**9,
        quantum: int = 0,
        spares_wider: bool = False,
    ):
        self.level, self.keeps_order, self.spares_wider = level, keeps_order, spares_wider
        self.protected, self.loss, self.ageing, self.quantum = protected, loss, ageing, quantum

    def __call__(self, sim: Naive) -> None:
        for job in sim.queue:
            if job["queued"] is None:
                self.queue(sim, job)
        for job in sim.running:
            turn = -(-self.quantum // sim.every) * sim.every  # it ends with a checkpoint
            if job["level"] == self.URGENT and sim.now >= job["ready"] + turn:
                job["level"] = self.level(job) + 1  # so that others of its level can have its GPUs
        for job in sim.queue:
            if job["level"] != self.URGENT and sim.now >= job["queued"] + self.ageing:
                job["level"], job["since"] = self.URGENT, sim.now
        level = self.URGENT - 1
        blocked: set[tuple[int, int]] = set()
        while later := [job["level"] for job in sim.queue if job["level"] > level]:
            level = min(later)
            try:
                while self.serve_one(sim, level, blocked):
                    pass
            except BlockedError:
                return

    def queue(self, sim: Naive, job: Job) -> None:
        job["level"], job["since"], job["queued"] = self.level(job), sim.now, sim.now

    def serve_one(self, sim: Naive, level: int, blocked: set[tuple[int, int]]) -> bool:
        """Start the first job of a level, if need be in the place of others, or note that its size is blocked."""
        waiting = [job for job in sim.queue if job["level"] == level and (job["gpus"], job["milli"]) not in blocked]
        if not waiting:
            return False
        order = "since" if level == self.URGENT else "submit"
        job = min(waiting, key=lambda job: (job[order], job["id"]))
        if not sim.try_to_start(job):
            victims = self.victims(sim, job)
            if not victims and self.keeps_order:
                raise BlockedError
            if not victims:
                blocked.add((job["gpus"], job["milli"]))
                return True
            for victim in victims:
                sim.preempt(victim)
                self.queue(sim, victim)
            blocked.clear()
            assert sim.try_to_start(job)
        job["queued"] = None
        return True

    def may_be_stopped(self, sim: Naive, running: Job, waiting: Job) -> bool:
        worked = sim.now - running["ready"]
        if worked < self.protected:
            return False
        return bool(worked % sim.every <= self.loss + sim.now - waiting["since"])

    def cost(self, sim: Naive, job: Job) -> float:
        lost = max(0, sim.now - job["ready"]) % sim.every
        return (lost + sim.restart) * job["gpus"] * job["milli"] / WHOLE

    def victims(self, sim: Naive, job: Job) -> list[Job]:
        """Add jobs, the worst level and then the cheapest first, until there is room; then spare who is not needed."""
        worse = [other for other in sim.running if other["level"] > job["level"]]
        worse = [other for other in worse if self.may_be_stopped(sim, other, job)]
        worse.sort(key=lambda other: (-other["level"], self.cost(sim, other), other["id"]))
        if self.spares_wider:
            worse.sort(key=lambda other: other["gpus"] * other["milli"] / WHOLE > job["gpus"])
        touched: list[int] = []  # nodes, in the order in which a job on them was added
        for number in range(1, len(worse) + 1):
            added = worse[:number]
            nodes_of_last = [node for node, _, _ in added[-1]["at"]]
            touched += [node for node in nodes_of_last if node not in touched]
            if job["gpus"] > sim.capacity:
                victims = self.on_whole_nodes(sim, job, added, touched)
                if victims:
                    return victims
                continue
            for node in nodes_of_last:
                if self.free_without(sim, added, node) >= job["gpus"]:
                    return self.needed(sim, job, added, node)
        return []

    def free_without(self, sim: Naive, stopped: list[Job], node: int) -> int:
        nodes = copy.deepcopy(sim.nodes)
        for job in stopped:
            give_back(nodes, job["at"])
        return len(unused(nodes[node]))

    def needed(self, sim: Naive, job: Job, added: list[Job], node: int) -> list[Job]:
        on_node = [other for other in added if any(number == node for number, _, _ in other["at"])]
        kept = list(on_node)
        for other in reversed(on_node[:-1]):
            fewer = [one for one in kept if one is not other]
            if self.free_without(sim, fewer, node) >= job["gpus"]:
                kept = fewer
        return kept

    def on_whole_nodes(self, sim: Naive, job: Job, added: list[Job], touched: list[int]) -> list[Job]:
        num_empty = sum(len(unused(node)) == sim.capacity for node in sim.nodes)
        num_missing = max(0, -(-job["gpus"] // sim.capacity) - num_empty)
        emptied = [node for node in touched if self.free_without(sim, added, node) == sim.capacity]
        if len(emptied) < num_missing:
            return []
        chosen = emptied[:num_missing]
        return [other for other in added if any(number in chosen for number, _, _ in other["at"])]


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
