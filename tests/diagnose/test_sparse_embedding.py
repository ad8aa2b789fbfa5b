"""The advice to exchange only the used rows of an embedding."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import attributed, found
from tests.diagnose.rules.test_exposed_communication import reducing

from flatout.diagnose.find import diagnose
from flatout.diagnose.sparse_embedding import SparseEmbedding, sparse_embedding
from flatout.records.change import JobFacts


@pytest.mark.parametrize(
    ("embedding_bytes", "rows_used", "num_ranks", "is_advised"),
    [
        (30, 0.01, 2, True),
        (29, 0.01, 2, False),  # most gradients are those of other layers
        (90, 0.25, 2, True),  # both ranks send a quarter of the rows, if they use the same
        (90, 0.26, 2, False),
        (90, 0.01, 64, False),  # a rank would get 64 times these rows
        (90, 0.0, 2, False),  # no gradient reached the rows: nothing is known of them
        (90, None, 2, False),
        (None, 0.01, 2, False),
        (90, 0.01, None, False),
    ],
)
def test_it_is_advised_if_it_moves_fewer_bytes_whichever_rows_the_ranks_use(
    embedding_bytes: int | None, rows_used: float | None, num_ranks: int | None, is_advised: bool
) -> None:
    facts = JobFacts(
        gradient_bytes=100, embedding_bytes=embedding_bytes, embedding_rows_used=rows_used, num_ranks=num_ranks
    )
    assert (sparse_embedding(facts) is not None) == is_advised


def test_the_finding_says_what_the_embedding_takes_and_the_advice_comes_last() -> None:
    job = attributed(*reducing(4000))
    facts = JobFacts(num_ranks=2, gradient_bytes=1000, embedding_bytes=900, embedding_rows_used=0.02)
    finding = found(diagnose(job, facts=facts), "exposed-communication")
    assert finding.evidence["embedding_gradient_share"] == 0.9
    assert finding.evidence["embedding_rows_used_share"] == 0.02
    advice = SparseEmbedding(share_of_gradients=0.9, rows_used=0.02).advice
    assert advice in finding.changes[1:] and finding.safety == "exact"
    assert "90 % of the gradients' bytes are its own, and a step uses 2.0 % of its rows" in advice
    without = found(diagnose(job), "exposed-communication")
    assert not any("embedding" in text for text in (*without.changes, *without.evidence))
