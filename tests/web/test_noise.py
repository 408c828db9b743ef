"""The noise that a real Chromium draws, against the exact distributions."""

from decimal import Decimal

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from scipy import stats

from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise
from stream_app.core.terms import Terms
from tests.core.build import share_pmf
from tests.web.test_browser import visited

pytestmark = pytest.mark.slow

DRAWS = 200_000
# How often each count of ones comes for reward 0; the generator is the page's own.
HISTOGRAM = """(async (terms, times) => {
  const { Draws, parse, sampler } = await import("/shufflebandit.js");
  const noise = parse(terms), share = sampler(noise, new Draws());
  const counts = new Array(noise.bits).fill(0);
  for (let i = 0; i < times; i++) counts[share()] += 1;
  return counts;
})"""


def mechanism(name: str, size: int, epsilon: str = "1") -> Mechanism:
    promise = Promise(Decimal(epsilon), Decimal("0.000001"), size, Decimal("0.9"))
    return calibrate(promise, MechanismName(name), Calibration.EXACT)


MECHANISMS = {
    "laplace": mechanism("discrete-laplace", 2),
    "laplace, spread": mechanism("discrete-laplace", 40, "0.3"),
    "fair bits": mechanism("binomial", 2),
    "one biased bit": mechanism("binomial", 1000),
}


def exact(made: Mechanism) -> NDArray[np.float64]:
    """Each count's probability: negative binomials convolved by mpmath, or scipy's binomial."""
    if isinstance(made, DiscreteLaplace):
        return share_pmf(made.promise.honest, made.promise.effective_epsilon, made.clip)
    chances: NDArray[np.float64] = stats.binom(made.trials, made.success).pmf(
        np.arange(made.max_ones)
    )
    return chances


def p_value(counts: NDArray[np.float64], chances: NDArray[np.float64]) -> float:
    """Pearson's chi-square; counts that are expected less than 10 times are put together."""
    wanted = counts.sum() * chances
    common = wanted >= 10
    counts = np.append(counts[common], counts[~common].sum())
    wanted = np.append(wanted[common], wanted[~common].sum())
    kept = wanted > 0
    scaled = wanted[kept] * counts.sum() / wanted[kept].sum()
    return float(stats.chisquare(counts[kept], scaled).pvalue)


async def test_the_noise_has_the_exact_distribution() -> None:
    """200 000 draws of each mechanism in Chromium; false-failure probability 4e-7 in all."""
    found = {}
    async with visited() as (_, browser, url):
        page = await browser.page()
        await page.open(url, "window.ready")
        for name, made in MECHANISMS.items():
            terms = orjson.dumps(Terms("x", 0, "a", made).as_json()).decode()
            drawn = np.array(await page.run(f"{HISTOGRAM}({terms}, {DRAWS})"), dtype=np.float64)
            assert drawn.sum() == DRAWS
            found[name] = p_value(drawn, exact(made))

    print(found)
    assert min(found.values()) > 1e-7


def test_the_check_can_fail() -> None:
    """A hundredth of the draws one off is told from the exact distribution."""
    chances = exact(MECHANISMS["laplace"])
    off = chances.copy()
    middle = len(off) // 2
    off[middle] -= 0.01
    off[middle + 1] += 0.01
    rng = np.random.default_rng(3)

    assert p_value(rng.multinomial(DRAWS, chances).astype(float), chances) > 1e-7
    assert p_value(rng.multinomial(DRAWS, off / off.sum()).astype(float), chances) < 1e-7
