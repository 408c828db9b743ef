"""`python -m tests.figures`: the figure of the theorems, from real runs, into deploy/figures/."""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from stream_app.core.simulation import private_runs
from tests.core.build import experiment
from tests.core.test_theorems import dependent_bound, sigma

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "deploy" / "figures"


def theorems() -> None:
    """Regret of the paper's two algorithms against 1/eps, with the proofs' explicit bounds."""
    matplotlib.rcParams["svg.hashsalt"] = "shufflebandit"
    gaps = [0.4]
    horizon = 10**8
    epsilons = ["0.02", "0.05", "0.1", "0.2", "0.4", "0.8"]
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    inverse = [1 / float(e) for e in epsilons]
    for preset, colour, power in (("sdp-ae", "tab:orange", 2), ("vb-sdp-ae", "tab:blue", 1)):
        measured = []
        for epsilon in epsilons:
            value = experiment(preset, horizon, means=(0.8, 0.4), epsilon=epsilon)
            measured.append(private_runs(value, 40, np.random.default_rng(3)).regret.mean())
        bounds = [dependent_bound(preset, gaps, horizon, sigma(e)) for e in epsilons]
        axes.plot(inverse, measured, "o-", color=colour, label=f"{preset}, measured (40 runs)")
        axes.plot(inverse, bounds, "--", color=colour, label=f"{preset}, theorem's bound")
        slope = [measured[0] * (x / inverse[0]) ** power for x in inverse]
        axes.plot(inverse, slope, ":", color=colour, alpha=0.7, label=f"slope {power}")
    axes.set(
        xscale="log", yscale="log", xlabel="1 / eps", ylabel="regret",
        title="Two arms, gap .4, T = 1e8, delta = 1e-6, honest fraction 1",
    )  # fmt: skip
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small", frameon=False, ncols=2)
    figure.savefig(FIGURES / "theorems.svg", metadata={"Date": None})


if __name__ == "__main__":
    theorems()
