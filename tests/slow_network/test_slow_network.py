"""Ranks on an emulated slow network: what messages cost, what compression brings, and what is predicted of both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.slow_network.fixture import MakeNetwork
from tests.slow_network.ranks import run_ranks
from tests.slow_network.resumes import resumed

from flatout.predict.collective_time import collective_s, link_of
from flatout.predict.gradient_exchange import PLAIN, exchange_of, int8_by_all_gather
from flatout.probe.ceilings.fit import fitted

pytestmark = pytest.mark.usefixtures("warm")

HERE = Path(__file__).parent
MIB = 1 << 20
HEADERS = 1.03  # of the packets, and what is sent back to acknowledge them
SIZES_MIB = (0.5, 1, 2, 4)


def slowest(ranks: list[dict[str, Any]], name: str) -> float:
    return max(rank[name]["s"] for rank in ranks)


def most_bytes(ranks: list[dict[str, Any]], name: str) -> float:
    return max(rank[name]["bytes"] for rank in ranks)


def test_large_messages_run_at_the_links_rate_and_are_predicted_from_others(
    slow_network: MakeNetwork, tmp_path: Path
) -> None:
    """The benchmark `slow_network_exchange` holds 1 Gbit/s and 1 to 64 MiB to 10 %; a busy machine only allows this."""
    network = slow_network(bits_per_s=1e8)
    words = [f"all_reduce:{int(size * MIB)}:3" for size in (*SIZES_MIB, 3)]
    times = run_ranks(network, [HERE / "collectives.py", *words], tmp_path)[0]
    sizes = [size * MIB for size in SIZES_MIB]
    fit = fitted(sizes, [times[f"all_reduce:{int(size)}"] for size in sizes])  # with two ranks, bus bytes are the size
    assert fit is not None
    latency_s, bytes_per_s, _ = fit
    assert bytes_per_s == pytest.approx(network.bytes_per_s, rel=0.4)
    link = link_of("all_reduce", latency_s, bytes_per_s, 2)
    assert collective_s(link, "all_reduce", 3 * MIB, 2) == pytest.approx(times[f"all_reduce:{3 * MIB}"], rel=0.4)


def test_a_relay_delays_every_message(slow_network: MakeNetwork, tmp_path: Path) -> None:
    network = slow_network(bits_per_s=1e8, delay_s=0.05)
    times = run_ranks(network, [HERE / "collectives.py", "all_reduce:4096:3"], tmp_path)[0]
    assert 2 * network.delay_s <= times["all_reduce:4096"] <= 20 * network.delay_s


def test_bf16_halves_the_bytes_and_the_time(slow_network: MakeNetwork, tmp_path: Path) -> None:
    network = slow_network(bits_per_s=1e8)
    ranks = run_ranks(network, [HERE / "hooks.py", 4, 3, "plain", "bf16"], tmp_path)
    assert most_bytes(ranks, "plain") == pytest.approx(4 * MIB, rel=HEADERS - 1)
    assert most_bytes(ranks, "bf16") == pytest.approx(2 * MIB, rel=HEADERS - 1)
    assert (
        1.25 < slowest(ranks, "plain") / slowest(ranks, "bf16") < 3
    )  # the bytes are exact, a busy machine's times not


def test_with_eight_ranks_int8_by_all_gather_gains_nothing_and_by_all_to_all_a_quarter_is_sent(
    slow_network: MakeNetwork, tmp_path: Path
) -> None:
    network = slow_network(num_nodes=8, bits_per_s=1e8)
    ranks = run_ranks(network, [HERE / "hooks.py", 2, 1, "plain", "bf16", "int8", "int8-all-gather"], tmp_path)
    predicted = {name: exchange_of(name, 2 * MIB, 8).wire_bytes(8) for name in ("bf16", "int8")}
    predicted |= {"plain": exchange_of(PLAIN, 2 * MIB, 8).wire_bytes(8)}
    predicted |= {"int8-all-gather": int8_by_all_gather(2 * MIB, 8).wire_bytes(8)}
    for name, num_bytes in predicted.items():
        assert most_bytes(ranks, name) == pytest.approx(num_bytes, rel=0.08), name  # small packets have more headers
    assert predicted["int8-all-gather"] > predicted["plain"] > 3.9 * predicted["int8"]
    # Four times the bytes on the same link; eight ranks on two busy cores hide some of it.
    assert slowest(ranks, "int8-all-gather") > 1.3 * slowest(ranks, "int8")


def test_a_training_with_low_rank_gradients_resumes_with_the_same_bits_over_the_network(
    slow_network: MakeNetwork, tmp_path: Path
) -> None:
    """The benchmark `slow_network_resume` does so with every hook. Only the first two steps exchange 1 MiB each."""
    network = slow_network(bits_per_s=1e8)
    patch = json.dumps({"name": "ddp_hook", "parameters": {"hook": "powersgd", "rank": 1, "start": 2}})
    done = resumed(network, tmp_path, ["--patch", patch], until=7, interrupted_after=5)
    assert done.second.start == 4
    assert done.has_same_bits
    assert done.whole.num_bytes - done.second.num_bytes == pytest.approx(2 * MIB, rel=0.15)


def test_a_job_on_the_network_is_diagnosed_and_compression_is_predicted_to_pay(
    slow_network: MakeNetwork, tmp_path: Path
) -> None:
    import subprocess

    from flatout.change.catalogue import all_changes
    from flatout.change.collectives import with_collectives
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.predict.predict import predict_all
    from flatout.profile import read_recording
    from flatout.profile.read_facts import read_facts
    from flatout.records.prediction import Prediction

    network = slow_network(bits_per_s=1e8)
    out = tmp_path / "recording"
    nodes = [f"{node.holder.pid}={node.address}" for node in network.nodes]
    job = [sys.executable, str(HERE / "launch.py"), *nodes, "--", str(HERE / "training.py"), "--mib", "1"]
    command = [sys.executable, "-m", "flatout", "profile", "--out", str(out), "--warmup", "5", "--", *job]
    done = subprocess.run([*command, "--steps", "100"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    diagnosed = diagnose_paths([out], with_tracks=True)
    costs = {finding.name: finding.share_of_step for finding in diagnosed.diagnosis.findings}
    assert costs["exposed-communication"] > 0.5
    recording = read_recording(out)
    facts = with_collectives(read_facts(out, recording), diagnosed.job)
    assert (facts.backend, facts.num_ranks, facts.wrapper) == ("gloo", 2, "ddp")
    predicted = predict_all(diagnosed.job, all_changes(facts), facts)
    half = predicted["ddp-compression=bf16"]
    assert isinstance(half, Prediction)
    assert "gradients take 50% of their bytes" in half.how
    assert 1.05 < half.speedup < 2.1  # a busy machine's steps hide some of it
