"""Prints the tables of SECURITY.md: rights, Sybil attacks, poisoning. `python deploy/threats.py`.

The batch of the tables is the README's: eps 0.5, delta 1e-6, 1000 users, and the default honest
fraction of 0.9. Its noise is calibrated as always; then only some users are honest. The others'
reports are known to the attacker, who subtracts them, so that what is left is the sum of the honest
users' shares. Binomial shares are certified by `accounting`. Of discrete Laplace shares the exact
distribution is computed, from the table that clients draw from.
"""

import math
from collections.abc import Callable, Iterable
from decimal import Decimal

import numpy as np

from stream_app.core import accounting
from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Promise
from stream_app.kafka import acls
from stream_app.settings import Settings

Table = Callable[[], str]
# The README's batch.
EPSILON = Decimal("0.5")
DELTA = Decimal("0.000001")
USERS = 1000
# From all honest, by the default fraction of 0.9, to the attacker's dream.
HONEST = (1000, 950, 900, 800, 500, 200, 1)
# From the first batches of small experiments to the last ones of large experiments.
SIZES = (32, 100, 1000, 10_000, 1_000_000)
# Share of a batch that is false: small enough to go unseen.
FORGED = 0.01
# Beyond this eps is no protection worth a number.
_LARGEST = 20.0


def epsilon_left(delta: Callable[[float], float], wanted: float) -> float:
    """The least eps at which delta is as promised; infinite if there is none worth a number."""
    low = 0.0
    high = _LARGEST
    if delta(high) > wanted:
        return math.inf
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > wanted else (low, middle)
    return high


def mechanism_for(name: MechanismName, users: int) -> Mechanism:
    """The noise of a batch of so many users, with the default honest fraction."""
    return calibrate(Promise(EPSILON, DELTA, users), name)


def delta_of_shuffled_reports(mechanism: DiscreteLaplace) -> float:
    """A lower bound of delta at eps for all m reports in random order, instead of their sum.

    Of the many things that they show: how many of them say one more than no noise would, if all
    other users have a reward of 0. Almost every share is 0, so a user with a reward is one of
    those almost surely, and most of the others' shares are not (two laws of one count, MATH 1).
    """
    masses = mechanism.share_masses
    none = float(masses[mechanism.clip])
    one = float(masses[mechanism.clip + 1])
    others = accounting.total_masses(np.array([1 - one, one]), mechanism.promise.batch_size - 1)
    without = np.append(others, 0.0) * (1 - one) + np.insert(others, 0, 0.0) * one
    rewarded = np.append(others, 0.0) * (1 - none) + np.insert(others, 0, 0.0) * none
    growth = math.exp(float(EPSILON))
    both = (without - growth * rewarded, rewarded - growth * without)
    return max(float(np.maximum(0.0, difference).sum()) for difference in both)


def reach(mechanism: Mechanism) -> float:
    """By how many users' whole rewards one false report can move the debiased sum.

    It counts from 0 to `bits`, less the mean of a share; in place of a reward of 0 or of 1.
    """
    lowest = mechanism.debias(0) / mechanism.promise.batch_size
    return max(lowest + mechanism.max_ones, 1 - lowest)


def forged_to_move(mean: str, users: int, name: MechanismName) -> int:
    """How many false reports move a batch's mean by so much."""
    return math.ceil(float(mean) * users / reach(mechanism_for(name, users)))


def upward(value: float, digits: int = 3) -> str:
    """So many digits, not less than the value but for the last 1e-8 of it."""
    if math.isinf(value):
        return "none"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale * (1 - 1e-8)) / scale:.{digits}g}"


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rights() -> str:
    """What each role may do on the topics."""
    rows = []
    for role in acls.roles():
        by_operation: dict[str, list[str]] = {}
        for right in acls.rights(Settings(), role):
            if right.resource is acls.Resource.topics:
                name = f"`{right.name.rpartition('.')[2]}`"
                by_operation.setdefault(right.operation.name, []).append(name)
        reads, writes = (", ".join(by_operation.pop(o, [])) or "-" for o in ("Read", "Write"))
        others = "; ".join(f"{o}: {', '.join(names)}" for o, names in by_operation.items())
        rows.append([role, reads, writes, others or "-"])
    return _markdown(("role", "reads", "writes", "also"), rows)


def sybil() -> str:
    """What is left of the promise, by the number of honest users in a batch."""
    header = ["honest users"]
    columns = []
    for name in MechanismName:
        mechanism = mechanism_for(name, USERS)
        header += [f"{name}: eps at delta {DELTA:.0e}", f"delta at eps {EPSILON}"]
        deltas = [mechanism.delta_left(honest) for honest in HONEST]
        columns.append([upward(epsilon_left(delta, float(DELTA))) for delta in deltas])
        columns.append([upward(delta(float(EPSILON))) for delta in deltas])
    rows = [[f"{n:,} of {USERS:,}", *rest] for n, *rest in zip(HONEST, *columns, strict=True)]
    return _markdown(header, rows)


def poisoning() -> str:
    """How far false reports can move a sum."""
    header = ["batch size"]
    columns = []
    for name in MechanismName:
        header += [
            f"{name}: report from 0 to",
            "moves the sum by",
            f"{FORGED:.0%} move the mean by",
        ]
        made = [mechanism_for(name, users) for users in SIZES]
        columns.append([str(mechanism.max_ones) for mechanism in made])
        columns.append([upward(reach(mechanism), 2) for mechanism in made])
        columns.append([upward(FORGED * reach(mechanism), 2) for mechanism in made])
    return _markdown(header, ([f"{s:,}", *rest] for s, *rest in zip(SIZES, *columns, strict=True)))


if __name__ == "__main__":
    print("\n\n".join((rights(), sybil(), poisoning())))
