"""Experiment files: every sample is one."""

from pathlib import Path

import pytest

from stream_app.definitions import load_experiment

EXPERIMENTS = Path(__file__).parent.parent / "deploy" / "experiments"


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda f: f.name)
def test_sample_files_parse(file: Path) -> None:
    """Every sample file is a valid experiment with means to simulate."""
    experiment = load_experiment(file)

    assert experiment.simulation is not None
