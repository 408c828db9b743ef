"""The pictures of a run of the benchmarks."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_LEAST = 1e-2  # the shortest bar


def draw(results: dict[str, Any], folder: Path) -> None:
    """Both pictures, from what `__main__` wrote as JSON."""
    matplotlib.rcParams["svg.hashsalt"] = "shufflebandit"
    cores = results["machine"]["cores"]
    _ratios(results["outcomes"], cores, folder / "benchmarks.svg")
    _curves(results["curves"], cores, folder / "scaling.svg")


def _ratios(outcomes: list[dict[str, Any]], cores: int, path: Path) -> None:
    """Each cost against its peer's, in shares of what was aimed at: left of the line is reached."""
    outcomes = list(reversed(outcomes))
    shares = [o["ratio"] / o["target"] for o in outcomes]
    figure, axes = pyplot.subplots(figsize=(13, 0.36 * len(outcomes) + 1.2), layout="constrained")
    colours = ["tab:green" if share <= 1 else "tab:red" for share in shares]
    axes.barh(range(len(shares)), [max(share, _LEAST) for share in shares], color=colours)
    for row, o in enumerate(outcomes):
        if o["spread"]:
            axes.plot([x / o["target"] for x in o["spread"]], [row, row], "k|-", linewidth=0.7)
    labels = [f"{o['name'].partition(' (')[0]}\nagainst {o['peer'][:115]}" for o in outcomes]
    axes.set_yticks(range(len(shares)), labels, fontsize=6)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST / 2, 3 * max(shares))
    axes.margins(y=0.01)
    axes.set_xlabel(
        f"cost as a share of what was aimed at (1: just reached); all programs on {cores} cores; "
        "the figures are ours / peer,\nthe lines reach from the best round to the worst"
    )
    for row, o in enumerate(outcomes):
        axes.text(_LEAST / 1.8, row, f"{o['ratio']:.2g}", va="center", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _curves(curves: list[dict[str, Any]], cores: int, path: Path) -> None:
    figure, grid = pyplot.subplots(1, len(curves), figsize=(13, 3.2), layout="constrained",
                                   sharey=True)  # fmt: skip
    for axes, curve in zip(grid, curves, strict=True):
        axes.plot(curve["points"], curve["reports_per_second"], marker="o")
        axes.set_xscale("log")
        axes.set_xlabel(curve["name"], fontsize=9)
        axes.grid(alpha=0.3)
    grid[0].set_ylim(bottom=0)
    grid[0].set_ylabel("reports / s")
    figure.suptitle(f"One worker, from broker to committed sums; {cores} cores with Kafka")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
