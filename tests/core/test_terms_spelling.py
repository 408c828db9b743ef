"""Terms in another spelling, with other keys, or of arbitrary JSON: refused, and nothing worse."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.terms import check, parse
from stream_app.errors import InvalidInput
from tests.core.build_terms import KINDS, LIMITS, terms

SPELLINGS = [
    ("epsilon", 0.5),
    ("epsilon", "0.50"),
    ("epsilon", ".5"),
    ("epsilon", "5e-1"),
    ("epsilon", " 0.5"),
    ("epsilon", "0.5\n"),
    ("epsilon", "+0.5"),
    ("epsilon", "00.5"),
    ("epsilon", "٠.5"),
    ("epsilon", "-0.5"),
    ("epsilon", "0"),
    ("epsilon", "NaN"),
    ("epsilon", "Infinity"),
    ("epsilon", "9" * 40),
    ("epsilon", None),
    ("epsilon", True),
    ("delta", "1e-6"),
    ("delta", 1e-6),
    ("delta", "0.0000010"),
    ("delta", "0." + "0" * 61 + "1"),
    ("honest_fraction", "1.0"),
    ("honest_fraction", 1),
    ("honest_fraction", "1.1"),
    ("batch_size", True),
    ("batch_size", 100.0),
    ("batch_size", "100"),
    ("batch_size", 0),
    ("batch_size", -1),
    ("batch_size", 2**53),
    ("batch_size", 10**400),
    ("batch_size", 10**9 + 1),
    ("sequence", True),
    ("sequence", 7.0),
    ("sequence", -1),
    ("sequence", 2**53),
    ("sequence", 10**4000),
    ("attribution_ms", False),
    ("attribution_ms", -1),
    ("arm", ""),
    ("arm", "x" * 201),
    ("arm", 5),
    ("experiment", None),
    ("experiment", ["demo"]),
    ("mechanism", "laplace"),
    ("mechanism", []),
    ("mechanism", {}),
    ("calibration", "Exact"),
    ("calibration", None),
    ("parameters", None),
    ("parameters", []),
    ("parameters", {}),
    ("parameters", {"clip": 26}),
    ("parameters", {"clip": 26, "table_bits": 64, "extra": 1}),
    ("parameters", {"clip": 26.0, "table_bits": 64}),
    ("parameters", {"clip": True, "table_bits": 64}),
    ("parameters", {"clip": "26", "table_bits": 64}),
    ("parameters", {"clip": 10**30, "table_bits": 64}),
    ("parameters", {"clip": 26, "table_bits": 65}),
]


@pytest.mark.parametrize(("key", "value"), SPELLINGS)
def test_non_canonical_spellings(key: str, value: object) -> None:
    """A value that is wrong, or right in another spelling, is refused as invalid input."""
    with pytest.raises(InvalidInput):
        parse({**terms().as_json(), key: value})


@pytest.mark.parametrize(
    "numerator", ["9223372036854775808.5", "1.5", "0", str(2**64), 2**63, "-1"]
)
def test_non_canonical_numerators(numerator: object) -> None:
    """The one wide integer is a decimal string of a whole number in range."""
    raw = terms("binomial").as_json()
    raw["parameters"]["success_numerator"] = numerator
    with pytest.raises(InvalidInput):
        parse(raw)


@pytest.mark.parametrize("version", [True, 1.0])
def test_version_in_another_spelling(version: object) -> None:
    """version must be the integer 1: `true` and 1.0 hash to other bytes elsewhere."""
    with pytest.raises(InvalidInput):
        parse({**terms().as_json(), "version": version})


@pytest.mark.parametrize("key", ["arm", "experiment"])
def test_text_that_is_not_unicode(key: str) -> None:
    """A lone surrogate (Python's json lets it in) has no UTF-8: invalid input, nothing else."""
    with pytest.raises(InvalidInput):
        check("7.x", {**terms().as_json(), key: "\ud800"}, LIMITS)


@pytest.mark.parametrize("missing", sorted(terms().as_json()))
def test_missing_and_extra_keys(missing: str) -> None:
    """Exactly the known keys."""
    raw = terms().as_json()
    with pytest.raises(InvalidInput, match="exactly the keys"):
        parse({key: value for key, value in raw.items() if key != missing})
    with pytest.raises(InvalidInput, match="exactly the keys"):
        parse({**raw, missing + "_": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_arbitrary_json(value: object) -> None:
    """Whatever JSON comes, it is terms or InvalidInput."""
    with pytest.raises(InvalidInput):
        parse(value)


NEAR = st.one_of(
    JSON,
    st.sampled_from(["0.5", "1", "binomial", "discrete-laplace", "paper", "exact", "0.1", "99"]),
    st.integers(0, 200),
    st.decimals(0, 100, places=6, allow_nan=False).map(str),
)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(sorted(terms().as_json())), NEAR))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_terms_with_arbitrary_fields(kind: tuple[str, str], changes: dict[str, Any]) -> None:
    """Any fields replaced by anything: the terms are accepted as they stand, or InvalidInput."""
    raw = {**terms(*kind).as_json(), **changes}
    try:
        outcome = parse(raw).as_json()
    except InvalidInput:
        outcome = None

    assert outcome in (raw, None)


@given(st.text(max_size=100))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_arbitrary_ids(stated: str) -> None:
    """An id that is not the terms' own is refused."""
    with pytest.raises(InvalidInput, match="its terms hash to"):
        check(stated, terms().as_json(), LIMITS)
