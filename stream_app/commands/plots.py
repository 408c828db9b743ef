"""Pictures of simulations; matplotlib is the optional extra `plot`."""

from collections.abc import Sequence
from pathlib import Path

from stream_app.core.simulation import Result
from stream_app.errors import Unavailable


def plot_regret(results: Sequence[Result], path: Path, title: str) -> None:
    """Regret against users, both logarithmic, one curve per algorithm."""
    try:
        import matplotlib  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise Unavailable("--plot needs matplotlib: pip install 'shufflebandit[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - after the backend is chosen

    matplotlib.rcParams["svg.hashsalt"] = "shufflebandit"
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for result in sorted(results, key=lambda r: -r.regret_mean):
        label = f"{result.name}: {result.regret_mean:,.0f} ± {result.regret_sem:,.0f}"
        axes.plot(result.users, result.regret, label=label, linewidth=1.8)
    axes.set(xscale="log", yscale="log", xlabel="users", ylabel="regret (mean)", title=title)
    axes.set_xlim(left=10)
    axes.set_ylim(bottom=1)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small", frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
