"""Find an order of ranks with little communication on slow links.

In: a network, exchanges, and the degrees by which ranks are numbered. Out: the slot of each rank. Candidates nest the
dimensions of the layout, or factors of them, in every way: the innermost ones fill the NVLink domains, the next ones
the leaf switches. The best few are then improved by exchanging ranks and nodes, and by reversing rows of nodes,
while that helps. Of few orders, all are tried.

Within a node, ranks are in ascending order: launchers number them so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from math import factorial

import numpy as np

from flatout.placement.cost import costs
from flatout.placement.network import Network, Slots
from flatout.records.placement import GroupExchange

MOST_CANDIDATES = 1500
MOST_NUMBERS = 1 << 22  # ranks of all candidates together
MOST_NUMBERS_QUICKLY = 1 << 15  # the same for a quick search, which takes some tenths of a second
MOST_MOVES = 2500  # pairs of ranks or of nodes to exchange in one round
MOST_ROUNDS = 50
MOST_ORDERS_TO_TRY = 40_320  # 8!, which take about a second
NUM_STARTS, NUM_STARTS_OF_MANY = 6, 2  # candidates that are improved; of more than `MANY` GPUs
MANY = 128
MOST_IN_ROUNDS = 1 << 23  # ranks of all orders that the improvement of one candidate looks at


def best_order(
    network: Network, exchanges: Sequence[GroupExchange], degrees: Sequence[int], *, tries_all: bool = True
) -> Slots:
    """Return the best order found. `degrees`: of the layout, in the order in which ranks are numbered.

    `tries_all`: whether to try all orders where they are few, so that the result is optimal.
    """
    if tries_all and _num_orders(network) <= MOST_ORDERS_TO_TRY:
        every = np.stack(list(_all_orders(network)))
        return np.asarray(every[costs(network, exchanges, every).best()])
    candidates = _ascending(network, np.stack([_given(network), *_nested_orders(network, degrees)]))
    return _best_improved(network, exchanges, candidates, [*_rank_moves(network), *_node_moves(network)])


def quick_order(network: Network, exchanges: Sequence[GroupExchange], degrees: Sequence[int]) -> Slots:
    """Return the best of the few orders that nest the whole degrees, or large factors of them, without improving it."""
    nested = _nested_orders(network, degrees, most_numbers=MOST_NUMBERS_QUICKLY)
    return _best_of(network, exchanges, _ascending(network, np.stack([_given(network), *nested])))


def quick_node_order(network: Network, exchanges: Sequence[GroupExchange], order: Slots) -> Slots:
    """Return the best of the few orders in which near nodes have consecutive ranks, or `order` if its nodes do."""
    if keeps_nodes_whole(network, order):
        return order
    of_nodes = [_of_nodes(network, nodes) for nodes in _node_sequences(network)]
    return _best_of(network, exchanges, np.stack([_given(network), *of_nodes]))


def _best_of(network: Network, exchanges: Sequence[GroupExchange], orders: Slots) -> Slots:
    return np.asarray(orders[costs(network, exchanges, orders).best()])


def best_node_order(
    network: Network, exchanges: Sequence[GroupExchange], order: Slots, *, tries_all: bool = True
) -> Slots:
    """Return the best order found in which each node has consecutive ranks, as torchrun and pods number them.

    `order`: the best order of ranks, which is returned if it has this property.
    """
    if keeps_nodes_whole(network, order):
        return order
    num_nodes = len(network.fabric.nodes)
    if tries_all and factorial(num_nodes) <= MOST_ORDERS_TO_TRY:
        every = np.stack([_of_nodes(network, nodes) for nodes in permutations(range(num_nodes))])
        return np.asarray(every[costs(network, exchanges, every).best()])
    candidates = np.stack([_given(network), *(_of_nodes(network, nodes) for nodes in _node_sequences(network))])
    return _best_improved(network, exchanges, candidates, list(_node_moves(network)))


def keeps_nodes_whole(network: Network, order: Slots) -> bool:
    """Whether each node has consecutive ranks, in ascending order of its GPUs."""
    first = order[:: network.fabric.gpus_per_node]
    whole = first[:, None] + np.arange(network.fabric.gpus_per_node)
    return bool(np.array_equal(whole.ravel(), order) and np.all(network.position[first] == 0))


def _of_nodes(network: Network, nodes: Sequence[int] | Slots) -> Slots:
    """Return the order in which the nodes have consecutive ranks, one after the other."""
    per_node = network.fabric.gpus_per_node
    return (np.asarray(nodes)[:, None] * per_node + np.arange(per_node)).ravel()


def _given(network: Network) -> Slots:
    return np.arange(network.fabric.num_gpus)


def _num_orders(network: Network) -> int:
    """Return the number of orders that differ in more than the order of ranks within nodes."""
    fabric = network.fabric
    if fabric.num_gpus > MOST_ORDERS_TO_TRY:
        return MOST_ORDERS_TO_TRY + 1
    orders_within_nodes: int = factorial(fabric.gpus_per_node) ** len(fabric.nodes)
    return factorial(fabric.num_gpus) // orders_within_nodes


def _all_orders(network: Network) -> Iterator[Slots]:
    """Yield every order whose ranks are ascending within each node, the given one first."""
    per_node, num_gpus = network.fabric.gpus_per_node, network.fabric.num_gpus

    def filled(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
            return
        for here in combinations(left, per_node):
            chosen = set(here)
            for rest in filled(tuple(rank for rank in left if rank not in chosen)):
                yield (*here, *rest)

    for rank_at in filled(tuple(range(num_gpus))):
        yield np.argsort(np.array(rank_at))


def _node_sequences(network: Network) -> Iterator[Slots]:
    """Yield sequences of nodes in which near nodes follow one another: leaf after leaf, or to and fro along cables."""
    fabric = network.fabric
    yield np.argsort(np.asarray(fabric.leaf_of_node), kind="stable")
    if len(network.dimensions) < 2:
        return
    for axes in permutations(range(len(network.shape))):
        coordinates = network.coordinates[list(axes)].copy()
        for axis in range(1, len(axes)):
            # Every second row runs back, counted over all dimensions before this one.
            sizes = [network.shape[axes[before]] for before in range(axis)]
            row = np.ravel_multi_index(tuple(coordinates[:axis]), tuple(sizes))
            last = network.shape[axes[axis]] - 1
            coordinates[axis] = np.where(row % 2 == 1, last - coordinates[axis], coordinates[axis])
        yield np.lexsort(tuple(reversed(coordinates)))


def _nested_orders(network: Network, degrees: Sequence[int], *, most_numbers: int = MOST_NUMBERS) -> Iterator[Slots]:
    """Yield orders in which the degrees, or factors of them, fill the slots in every sequence."""
    digits = _digits(network.fabric.num_gpus, degrees, most_numbers)
    sizes = [size for _, size in digits]
    ranks = np.arange(network.fabric.num_gpus).reshape(sizes[::-1])
    for nodes in _node_sequences(network):
        slots = _of_nodes(network, nodes)
        for sequence in _sequences(digits):
            # The first digit varies fastest from slot to slot.
            axes = [len(digits) - 1 - digit for digit in reversed(sequence)]
            order = np.empty_like(slots)
            order[ranks.transpose(axes).ravel()] = slots
            yield order


def _digits(num_gpus: int, degrees: Sequence[int], most_numbers: int) -> list[tuple[int, int]]:
    """Return the prime factors of the degrees, each with the position of its degree; fewer where there are too many."""
    most = min(MOST_CANDIDATES, max(most_numbers // num_gpus, 24))
    factors = [_prime_factors(degree) for degree in degrees]
    while _num_sequences(factors) > most:
        longest = max(factors, key=len)
        if len(longest) == 1:
            break
        longest[-2:] = [longest[-2] * longest[-1]]
    return [(position, size) for position, sizes in enumerate(factors) for size in sizes]


def _num_sequences(factors: Sequence[Sequence[int]]) -> int:
    number, placed = 1, 0
    for sizes in factors:
        for index in range(len(sizes)):
            placed += 1
            number = number * placed // (index + 1)
    return number


def _sequences(digits: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield each sequence of the digits in which those of one degree keep their order."""
    of_degree: dict[int, list[int]] = {}
    for digit, (position, _) in enumerate(digits):
        of_degree.setdefault(position, []).append(digit)

    def extended(sequence: list[int], used: dict[int, int]) -> Iterator[list[int]]:
        if len(sequence) == len(digits):
            yield sequence
            return
        for position, members in of_degree.items():
            index = used.get(position, 0)
            if index < len(members):
                yield from extended([*sequence, members[index]], {**used, position: index + 1})

    return extended([], {})


def _prime_factors(number: int) -> list[int]:
    factors: list[int] = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _ascending(network: Network, orders: Slots) -> Slots:
    """Return the orders with the ranks of each node in ascending order of its GPUs."""
    per_node = network.fabric.gpus_per_node
    rank_at = np.argsort(orders, axis=1).reshape(len(orders), -1, per_node)
    sorted_ranks = np.sort(rank_at, axis=2).reshape(len(orders), -1)
    return np.argsort(sorted_ranks, axis=1)


Move = tuple[list[int], list[int]]  # the slots whose ranks change, and the slots from which these ranks come


def _rank_moves(network: Network) -> Iterator[Move]:
    """Yield exchanges of two ranks on different nodes, and of what two NVLink domains within nodes hold."""
    num_gpus, domain_gpus = network.fabric.num_gpus, network.fabric.nvlink_gpus
    if num_gpus * (num_gpus - 1) // 2 > MOST_MOVES:
        return
    for size in {1, min(domain_gpus, network.fabric.gpus_per_node)}:
        for first, second in combinations(range(0, num_gpus, size), 2):
            if network.node[first] != network.node[second]:
                slots = [*range(first, first + size)], [*range(second, second + size)]
                yield [*slots[0], *slots[1]], [*slots[1], *slots[0]]


def _node_moves(network: Network) -> Iterator[Move]:
    """Yield exchanges of two nodes, and reversals of rows of nodes."""
    num_nodes, per_node = len(network.fabric.nodes), network.fabric.gpus_per_node
    num_pairs = num_nodes * (num_nodes - 1) // 2
    if num_pairs > MOST_MOVES or num_pairs * network.fabric.num_gpus > MOST_NUMBERS:
        return
    slots = np.arange(network.fabric.num_gpus).reshape(-1, per_node)
    for first, second in combinations(range(num_nodes), 2):
        yield slots[[first, second]].ravel().tolist(), slots[[second, first]].ravel().tolist()
        if second - first > 2:
            row = np.arange(first, second + 1)
            yield slots[row].ravel().tolist(), slots[row[::-1]].ravel().tolist()


def _best_improved(
    network: Network, exchanges: Sequence[GroupExchange], candidates: Slots, moves: Sequence[Move]
) -> Slots:
    """Return the best of the candidates after improving the best few. The first is kept where none is better."""
    of_candidates = costs(network, exchanges, candidates)
    by_cost = np.lexsort((of_candidates.shared_bytes, of_candidates.seconds))
    num_starts = NUM_STARTS if network.fabric.num_gpus <= MANY else NUM_STARTS_OF_MANY
    starts = dict.fromkeys([of_candidates.best(), *by_cost[:num_starts].tolist()])
    improved = [_improved(network, exchanges, candidates[start], moves) for start in starts]
    finalists = np.stack([candidates[0], *improved])
    return np.asarray(finalists[costs(network, exchanges, finalists).best()])


def _improved(network: Network, exchanges: Sequence[GroupExchange], order: Slots, moves: Sequence[Move]) -> Slots:
    """Make the best move while that helps."""
    if not moves:
        return order
    num_rounds = max(MOST_IN_ROUNDS // (len(moves) * len(order)), 1)
    for _ in range(min(num_rounds, MOST_ROUNDS)):
        rank_at = np.argsort(order)
        moved = np.tile(rank_at, (len(moves) + 1, 1))
        for row, (changed, origin) in enumerate(moves, 1):
            moved[row, changed] = rank_at[origin]
        orders = _ascending(network, np.argsort(moved, axis=1))
        orders[0] = order
        best = costs(network, exchanges, orders).best()
        if best == 0:
            break
        order = orders[best]
    return order
