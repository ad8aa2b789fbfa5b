"""What the recorder notes of the embeddings whose gradients DDP exchanges."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from flatout.inside.phases.facts import _embedding_facts

ROWS = 10_000


def trained(*, sparse: bool = False, every: int = 50) -> object:
    """A model of two embeddings and a layer, of whose larger embedding a step used one row of `every`."""
    words, places = torch.nn.Embedding(ROWS, 4, sparse=sparse), torch.nn.Embedding(10, 4, sparse=sparse)
    model = torch.nn.ModuleList([words, places, torch.nn.Linear(4, 1)])
    loss = model[2](words(torch.arange(0, ROWS, every)) + places(torch.tensor(3))).sum()
    loss.backward()
    return model


def test_the_bytes_of_the_largest_and_the_share_of_its_used_rows() -> None:
    """Every third row is looked at: one in 50 of these was used too, as 3 and 50 have no common factor."""
    facts = _embedding_facts([trained()])
    assert facts["embedding_bytes"] == ROWS * 4 * 4
    assert facts["embedding_rows_used"] == pytest.approx(1 / 50, rel=0.02)


def test_an_output_layer_that_shares_the_weight_uses_all_rows() -> None:
    words = torch.nn.Embedding(100, 4)
    head = torch.nn.Linear(4, 100, bias=False)
    head.weight = words.weight
    torch.log_softmax(head(words(torch.tensor([1, 2]))), dim=-1)[:, 0].sum().backward()
    assert _embedding_facts([torch.nn.ModuleList([words, head])])["embedding_rows_used"] == 1.0


def test_sparse_frozen_and_absent_embeddings_are_not_noted_and_gradients_that_are_gone_are_unknown() -> None:
    assert _embedding_facts([trained(sparse=True)]) == {}
    assert _embedding_facts([torch.nn.Embedding(3, 2).requires_grad_(False), torch.nn.Linear(2, 2)]) == {}
    assert _embedding_facts([]) == {}
    assert _embedding_facts([torch.nn.Embedding(3, 2)])["embedding_rows_used"] is None
