"""What a log says by itself: rates by arm and by day, and whether its arms were chosen at random.

Everything is summed up chunk by chunk. These are the log's own rewards, without any noise: as
secret as the log.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from scipy import stats

from producers.replay.log import Floats, LoggedRows

# A warning that is wrong has this probability, for each of the tests.
LEVEL = 1e-3
_DAY_S = 86_400
# Of a log with these, no mode is worth a word: the largest propensity over the least.
_EVEN_RATIO = 1.05
_Z95 = 1.959964  # the normal distribution's quantile of 97.5%
# Keep a division by an arm's sum defined: without rows, and where every propensity is 1.
_LEAST_WORTH = 1e-300
_LEAST_VARIANCE = 1e-9


@dataclass(slots=True)
class Day:
    """One day's rows by arm."""

    counts: Floats
    rewards: Floats


@dataclass(slots=True)
class Survey:
    """The sums over all rows so far; arrays have one entry per arm."""

    rows: int = 0
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    rewards: Floats = field(default_factory=lambda: np.zeros(0))
    # Of 1/p, of (1/p)(1/p - 1), of reward/p; and the least p.
    inverse: Floats = field(default_factory=lambda: np.zeros(0))
    spread: Floats = field(default_factory=lambda: np.zeros(0))
    lifted: Floats = field(default_factory=lambda: np.zeros(0))
    least: Floats = field(default_factory=lambda: np.zeros(0))
    most: float = 0.0  # the largest p
    weighted: bool = False
    days: dict[int, Day] = field(default_factory=dict)
    last_s: float | None = None
    backwards: int = 0  # rows that are earlier than the row before

    def add(self, chunk: LoggedRows, arms: int) -> None:
        """Count some more rows; `arms` is how many are known by now."""
        self._grow(arms)
        self.rows += len(chunk)
        self.counts += np.bincount(chunk.arms, minlength=arms)
        self.rewards += np.bincount(chunk.arms, chunk.rewards, arms)
        if chunk.propensities is not None:
            self._add_propensities(chunk, chunk.propensities, arms)
        if chunk.times is not None:
            self._add_times(chunk, chunk.times, arms)

    def _add_propensities(self, chunk: LoggedRows, propensities: Floats, arms: int) -> None:
        self.weighted = True
        inverse = 1 / propensities
        self.inverse += np.bincount(chunk.arms, inverse, arms)
        self.spread += np.bincount(chunk.arms, inverse * (inverse - 1), arms)
        self.lifted += np.bincount(chunk.arms, inverse * chunk.rewards, arms)
        np.minimum.at(self.least, chunk.arms, propensities)
        self.most = max(self.most, float(propensities.max()))

    def _add_times(self, chunk: LoggedRows, times: Floats, arms: int) -> None:
        before = times[0] if self.last_s is None else self.last_s
        self.backwards += int(np.sum(np.diff(times, prepend=before) < 0))
        self.last_s = float(times[-1])
        days = (times // _DAY_S).astype(np.int64)
        for number in np.unique(days).tolist():
            of = days == number
            day = self.days.setdefault(number, Day(np.zeros(arms), np.zeros(arms)))
            day.counts = _padded(day.counts, arms) + np.bincount(chunk.arms[of], minlength=arms)
            day.rewards = _padded(day.rewards, arms) + np.bincount(
                chunk.arms[of], chunk.rewards[of], arms
            )

    def _grow(self, arms: int) -> None:
        for name in ("counts", "rewards", "inverse", "spread", "lifted"):
            setattr(self, name, _padded(getattr(self, name), arms))
        self.least = _padded(self.least, arms, 1.0)

    @property
    def rates(self) -> Floats:
        """Each arm's mean reward; with propensities, each row weighed by 1/p. nan without rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.weighted:
                weighed: Floats = self.lifted / self.inverse
                return weighed
            plain: Floats = self.rewards / self.counts
            return plain

    def intervals(self) -> list[tuple[float, float]]:
        """Each rate's 95% interval; weighed rows count as (sum w)^2 / sum w^2 plain ones."""
        worth = self.counts
        if self.weighted:
            worth = self.inverse**2 / np.maximum(self.spread + self.inverse, _LEAST_WORTH)
        pairs = zip(self.rates.tolist(), worth.tolist(), strict=True)
        return [wilson(rate, rows) for rate, rows in pairs]

    def choice_p(self) -> float:
        """P-value of the log's arms being chosen as said: uniformly, or with the propensities.

        Uniform: Pearson's chi-square on the counts. With propensities: sum 1/p over an arm's rows
        has the same mean for every arm (the rows there were), and variance sum (1/p)(1/p - 1).
        """
        seen = self.counts > 0
        if not self.weighted:
            expected = self.rows / len(self.counts)
            return _p_value(float(np.sum((self.counts - expected) ** 2)) / expected, len(seen) - 1)
        variance = np.maximum(self.spread[seen], _LEAST_VARIANCE)
        centre = np.average(self.inverse[seen], weights=1 / variance)
        statistic = float(np.sum((self.inverse[seen] - centre) ** 2 / variance))
        return _p_value(statistic, int(seen.sum()) - 1)

    def shares_p(self) -> float:
        """P-value of every day having the same shares of arms (chi-square on days by arms)."""
        return _p_value(*_chi_square(np.array([day.counts for day in self.days.values()])))

    def drift_p(self) -> float:
        """P-value of every day having the same rate, each arm on its own (for rewards 0 or 1)."""
        statistic = 0.0
        degrees = 0.0
        for arm in range(len(self.counts)):
            ones = np.array([day.rewards[arm] for day in self.days.values()])
            table = np.stack([ones, [day.counts[arm] for day in self.days.values()] - ones])
            one, freedom = _chi_square(table)
            statistic += one
            degrees += freedom
        return _p_value(statistic, degrees)

    def day_table(self) -> list[dict[str, Any]]:
        """Rows and rate of each day, of all arms and by arm."""
        return [
            {
                "day": datetime.fromtimestamp(number * _DAY_S, UTC).date().isoformat(),
                "rows": int(day.counts.sum()),
                "rate": float(day.rewards.sum() / day.counts.sum()),
                "rates": [
                    float(r / n) if n else None
                    for r, n in zip(day.rewards, day.counts, strict=True)
                ],
            }
            for number, day in sorted(self.days.items())
        ]

    def warnings(self, mode: str) -> list[str]:
        """What makes this log unfit for a mode, each in one sentence."""
        found = []
        chance = self.choice_p()
        if chance < LEVEL and self.weighted:
            found.append(
                "the arms were not chosen with the logged propensities "
                f"(chi-square p = {chance:.1g}): the weights do not make up for it"
            )
        elif chance < LEVEL:
            found.append(
                f"the arms were not chosen uniformly (chi-square p = {chance:.1g}): if the choice "
                "depended on the user, rates are biased; log propensities and use --mode weighted"
            )
        if (
            self.weighted
            and mode != "weighted"
            and self.most > _EVEN_RATIO * float(self.least.min())
        ):
            found.append(
                f"propensities go from {self.least.min():.3g} to {self.most:.3g}: if they "
                f"depend on the user, --mode {mode} is biased; --mode weighted is not"
            )
        return found + self._time_warnings(mode)

    def _time_warnings(self, mode: str) -> list[str]:
        found = []
        if self.backwards:
            found.append(f"{self.backwards:,} rows are earlier than the row before them")
        if len(self.days) < 2:
            return found
        if (chance := self.shares_p()) < LEVEL:
            found.append(
                f"the arms' shares change from day to day (chi-square p = {chance:.1g}): "
                "a good day makes its arms look good"
            )
        if (chance := self.drift_p()) < LEVEL:
            worse = ": --mode queue compares arms at different times" if mode == "queue" else ""
            found.append(f"rates change from day to day (chi-square p = {chance:.1g}){worse}")
        return found


def wilson(rate: float, rows: float) -> tuple[float, float]:
    """A 95% interval for a rate (Wilson 1927); rewards between 0 and 1 only narrow it."""
    if not rows or math.isnan(rate):
        return 0.0, 1.0
    centre = rate + _Z95**2 / (2 * rows)
    reach = _Z95 * math.sqrt(rate * (1 - rate) / rows + _Z95**2 / (4 * rows**2))
    whole = 1 + _Z95**2 / rows
    return max(0.0, (centre - reach) / whole), min(1.0, (centre + reach) / whole)


def _padded(array: Floats, size: int, fill: float = 0.0) -> Floats:
    return np.concatenate([array, np.full(size - len(array), fill)])


def _chi_square(table: Floats) -> tuple[float, float]:
    """Pearson's statistic and its degrees of freedom for a table of counts."""
    table = table[np.ix_(table.sum(1) > 0, table.sum(0) > 0)]
    if min(table.shape, default=0) < 2:
        return 0.0, 0.0
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(np.sum((table - expected) ** 2 / expected)), float(degrees)


def _p_value(statistic: float, degrees: float) -> float:
    return float(stats.chi2.sf(statistic, degrees)) if degrees > 0 else 1.0
