"""The least values of many functions of one variable, by grids over its logarithm (MATH 4)."""

from collections.abc import Callable

import numpy as np

from stream_app.core.noise import Floats

# Points of a grid, with its ends: each grid is a fourth as wide as the one before.
_GRID_POINTS = 9
# With a last parabola, three come within 2e-3 of the best logarithm (a test holds it).
_GRIDS = 3


def minimise(
    function: Callable[[Floats], Floats], low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """The best theta and its value, element by element: finer and finer grids over log theta.

    A grid is one call, with a leading axis for its points; a parabola through the last three
    points ends the search. Every theta gives a valid bound, so an inexact minimum is only a
    little less sharp.
    """
    a = np.log(low)
    b = np.log(high)
    for _ in range(_GRIDS):
        points = np.linspace(a, b, _GRID_POINTS)
        values = function(np.exp(points))
        best = np.clip(np.argmin(values, axis=0), 1, _GRID_POINTS - 2)[None]
        a, x, b = (np.take_along_axis(points, best + i, axis=0)[0] for i in (-1, 0, 1))
    below, here, above = (np.take_along_axis(values, best + i, axis=0)[0] for i in (-1, 0, 1))
    bend = below - 2 * here + above
    shift = np.where(bend > 0, (below - above) / np.where(bend > 0, 2 * bend, 1), 0)
    points = np.stack([a, x, b, x + np.clip(shift, -1, 1) * (x - a)])
    values = np.stack([below, here, above, function(np.exp(points[3:]))[0]])
    first = np.argmin(values, axis=0)[None]
    return (
        np.exp(np.take_along_axis(points, first, axis=0)[0]),
        np.take_along_axis(values, first, axis=0)[0],
    )
