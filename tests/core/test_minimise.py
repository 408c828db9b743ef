"""The search over theta: near the minimum, and never a value that was not probed."""

import numpy as np
import pytest

from stream_app.core.confidence import minimise


@pytest.mark.parametrize("centre", [0.003, 0.3, 40.0])
def test_golden_section(centre: float) -> None:
    """Within 1e-3 of the minimiser in log theta, element by element, and its value is probed."""
    centres = centre * np.array([1.0, 1.3, 2.0])

    def bowl(theta: np.ndarray) -> np.ndarray:
        return 2 + theta / centres + centres / theta

    theta, value = minimise(bowl, centres / 11, centres * 23)

    assert np.log(theta / centres) == pytest.approx([0, 0, 0], abs=2e-3)
    assert value == pytest.approx([4, 4, 4], abs=1e-5)
    assert value.tolist() == bowl(theta).tolist()


@pytest.mark.parametrize("end", [0.5, 2.0])
def test_golden_section_at_the_edge(end: float) -> None:
    """A minimum at an end of the range is found up to the last step."""
    theta, _ = minimise(lambda t: np.abs(np.log(t) - np.log(end)), np.array([0.5]), np.array([2.0]))

    assert theta[0] == pytest.approx(end, rel=1e-3)
