"""The facts that Flatout ships: vendors' numbers, prices, grids and known failures, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from flatout.catalog import all_gpu_facts, all_models, all_systems
from flatout.catalog.carbon import all_grids
from flatout.catalog.fabrics import network_prices as all_network_prices
from flatout.catalog.failures import known_failures
from flatout.catalog.links import all_gpu_links, all_nics, all_pcie
from flatout.catalog.prices import Price, Range, all_prices
from flatout.nccl_tuner.candidates import all_settings, all_spaces, start_of_choices
from flatout.plan.counts import num_active_parameters, num_parameters
from flatout.plan.huggingface import from_values
from flatout.plan.models.uniform import layer_kinds
from generators.markdown import linked, number, table
from generators.repository import ROOT

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


def gpus() -> str:
    """Return the catalogue of GPUs, and where its numbers are from."""
    header = ["GPU", "Memory", "Memory GB/s", *DTYPES, "SMs or CUs", "Links GB/s", "W"]
    facts = all_gpu_facts()
    rows = [
        [
            gpu.name,
            f"{gpu.memory_bytes >> 30} GiB",
            number(gpu.memory_bytes_per_s, 1e9),
            *(number(gpu.peak_flops_per_s.get(dtype), 1e12) for dtype in DTYPES),
            number(gpu.num_sms),
            number(gpu.link_bytes_per_s, 1e9),
            number(gpu.tdp_w),
        ]
        for gpu in facts
    ]
    sources = [
        [gpu.name, ", ".join(f"`{name}`" for name in gpu.reported_names), gpu.note, linked(gpu.source), gpu.date]
        for gpu in facts
    ]
    source_header = ["GPU", "Reported names", "Note", "Source", "Compared"]
    return f"{table(header, rows)}\n\n## Sources\n\n{table(source_header, sources)}"


def links() -> str:
    """Return PCIe, links between GPUs, and adapters, with their sources."""
    return f"### PCIe\n\n{_pcie()}\n\n### Links between GPUs\n\n{_gpu_links()}\n\n### Network adapters\n\n{_adapters()}"


def _pcie() -> str:
    generations = {lane.generation: lane for lane in all_pcie()}
    rows = [
        [
            str(lane.generation),
            f"{lane.gt_per_s:g}",
            f"{lane.lane_gb_per_s:g}",
            number(lane.bytes_per_s(16), 1e9),
            lane.source,
        ]
        for lane in generations.values()
    ]
    return table(["Generation", "GT/s", "GB/s a lane", "GB/s of 16 lanes", "Source"], rows)


def _gpu_links() -> str:
    rows = [
        [
            link.name,
            ", ".join(f"`{name}`" for name in link.on),
            str(link.num_links),
            f"{link.link_gb_per_s:g}",
            linked(link.source),
        ]
        for link in all_gpu_links()
    ]
    return table(["Link", "GPUs", "Links", "GB/s a link", "Source"], rows)


def _adapters() -> str:
    rows = [
        [
            nic.name,
            f"{nic.gbit_per_s:g}",
            "-" if nic.pcie_generation is None else f"{nic.pcie_generation}.0 x{nic.pcie_lanes}",
            ", ".join(f"`{name}`" for name in nic.hca_types),
            nic.note,
            linked(nic.source),
        ]
        for nic in all_nics()
    ]
    return table(["Adapter", "Gb/s", "PCIe", "hca_type", "Note", "Source"], rows)


def systems() -> str:
    """Return the systems that a cluster may be named after."""
    rows = [
        [
            ", ".join(f"`{alias}`" for alias in one.aliases),
            one.gpu,
            str(one.nvlink_domain),
            f"{one.nic_gbit_per_s:g}",
            one.source,
        ]
        for one in {system.aliases: system for system in all_systems().values()}.values()
    ]
    return table(["Name", "GPU", "GPUs in an NVLink domain", "Network of a node, Gb/s", "Source"], rows)


def models() -> str:
    """Return the named models: parameters and source."""
    rows = [[f"`{name}`", f"{num_parameters(model):,}", model.source] for name, model in all_models().items()]
    return table(["Name", "Parameters", "Source"], rows)


def model_types() -> str:
    """Return each supported type of a config.json: a published model, and its parameters by both counts."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/model_counts.json").read_bytes())["models"]
    configs = msgspec.json.decode((ROOT / "tests/data/models/configs.json").read_bytes())
    rows = []
    for name, config in sorted(configs.items(), key=lambda item: (item[1]["model_type"], item[0])):
        workload = from_values(Path(f"{name}.json"), config)
        counted = stored[name]
        theirs = f"{counted['parameters']:,}" if counted["parameters"] else "not in transformers"
        if counted["source"] != "transformers" and counted["parameters"]:
            theirs = f"published: {theirs}"
        kinds = sorted({kind.mixing for kind in layer_kinds(workload)} - {"none"})
        rows.append(
            [
                f"`{config['model_type']}`",
                name.removeprefix("default-") + (" (defaults)" if name.startswith("default-") else ""),
                ", ".join([*kinds, *(f"{tower.name} tower" for tower in workload.towers)]),
                f"{num_parameters(workload):,}",
                theirs,
                f"{num_active_parameters(workload):,}",
            ]
        )
    return table(["Type", "Model", "Layers", "Parameters", "By transformers", "Active per token"], rows)


def prices() -> str:
    """Return prices by GPU and terms, then the other factors, each with its source."""
    known = all_prices()
    header = ["", "Low", "Typical", "High", "How known", "Source", "Date"]
    rents = table(["GPU", "Terms", *header[1:]], [[one.gpu, one.terms, *_range(one)] for one in known.gpus])
    meanings = {
        "electricity": "Electricity, USD a kWh",
        "pue": "PUE: data centre over servers",
        "host": "Host: server over its GPUs",
        "busy_power_share": "Power of a busy GPU, of its limit",
        "idle_power_share": "Power of an idle GPU, of its limit",
    }
    factors = table(header, [[text, *_range(getattr(known, name))] for name, text in meanings.items()])
    return f"{rents}\n\n## Other factors\n\n{factors}"


def _range(one: Range | Price) -> list[str]:
    return [*(f"{value:g}" for value in (one.low, one.typical, one.high)), one.provenance, one.source, one.date]


def network_prices() -> str:
    """Return prices of switches and links, each with its source."""
    known = all_network_prices()
    header = ["", "Low, USD", "Typical", "High", "Source", "Date"]
    rows = [
        [part.name, f"{part.low:,g}", f"{part.typical:,g}", f"{part.high:,g}", part.source, part.date]
        for part in (*known.switch, *known.link)
    ]
    return table(header, rows)


def grids() -> str:
    """Return each grid with its grams, and where they are from."""
    found = all_grids()
    rows = [
        [f"`{grid.zone}`", grid.name, f"{grid.g_per_kwh:g}", ", ".join(f"`{name}`" for name in grid.aliases)]
        for grid in found
    ]
    told = f"Source: {found[0].source}. Compared on {found[0].date}."
    return f"{table(['Code', 'Grid', f'g in {found[0].year}', 'Other names'], rows)}\n\n{told}"


def known_failures_table() -> str:
    """Return the failures that are known by their words: name, class, restart, meaning and way out."""
    return table(
        ["Name", "Class", "Restart", "What it means", "Way out"],
        [
            [f"`{known.name}`", known.failure_class, known.restart, known.means, known.way_out.replace("|", "\\|")]
            for known in known_failures()
        ],
    )


def nccl_spaces() -> str:
    """Return the candidates of each transport."""
    rows = []
    for space in all_spaces():
        starts = [" ".join(f"{name}={value}" for name, value in start.environment.items()) for start in space.start]
        settings = "; ".join(f"`{words}`" for words in starts)
        others = start_of_choices(space, "default", {}, has_plugin=True).candidates[1:]
        names = [candidate.name for candidate in others]
        rows.append([f"`{space.transport}`", settings, "; ".join(names), space.source])
    return table(["Transport", "Settings of the process", "Choices and options", "Source"], rows)


def nccl_settings() -> str:
    """Return when NCCL reads each setting."""
    rows = [[f"`{setting.name}`", f"once a {setting.reads}", setting.source] for setting in all_settings()]
    return table(["Setting", "Read", "Source"], rows)


GENERATORS: Mapping[str, Callable[[], str]] = {
    "gpus": gpus,
    "links": links,
    "systems": systems,
    "models": models,
    "model_types": model_types,
    "prices": prices,
    "network_prices": network_prices,
    "grids": grids,
    "known_failures_table": known_failures_table,
    "nccl_spaces": nccl_spaces,
    "nccl_settings": nccl_settings,
}
