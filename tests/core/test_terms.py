"""Terms: canonical bytes, self-certifying ids, and a check that nothing weaker passes."""

import base64
import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.mechanisms import Mechanism, MechanismName, calibrate
from stream_app.core.promise import Calibration, Promise
from stream_app.core.terms import Limits, Terms, batch_id, canonical, check, parse
from stream_app.errors import InvalidInput

LIMITS = Limits()


def mechanism(
    name: str = "discrete-laplace", calibration: str = "exact", size: int = 100, honest: str = "0.9"
) -> Mechanism:
    promise = Promise(Decimal("0.5"), Decimal("0.000001"), size, Decimal(honest))
    return calibrate(promise, MechanismName(name), Calibration(calibration))


def terms(*arguments: Any, **named: Any) -> Terms:
    return Terms("demo", 7, "blue", mechanism(*arguments, **named), 1500)


KINDS = [("discrete-laplace", "exact"), ("binomial", "exact"), ("binomial", "paper")]


def test_canonical_bytes_and_id() -> None:
    """The form on the wire is pinned: another language must make these very bytes and this id."""
    expected = (
        b'{"arm":"blue","attribution_ms":1500,"batch_size":100,"calibration":"exact",'
        b'"delta":"0.000001","epsilon":"0.5","experiment":"demo","honest_fraction":"0.9",'
        b'"mechanism":"discrete-laplace","parameters":{"clip":26,"table_bits":64},'
        b'"sequence":7,"version":1}'
    )
    digest = base64.urlsafe_b64encode(hashlib.sha256(expected).digest()).decode().rstrip("=")

    assert expected == canonical(terms().as_json())
    assert f"7.{digest}" == terms().batch_id
    assert terms().batch_id == "7.7O2AnDXkVGc7YayaqRD7SRvph1gufAar5vo9ZT1g2qY"


def test_canonical_bytes_of_binomial_terms() -> None:
    """A numerator beyond 2**53 is a decimal string; other integers are numbers."""
    expected = (
        b'{"arm":"blue","attribution_ms":1500,"batch_size":100,"calibration":"exact",'
        b'"delta":"0.000001","epsilon":"0.5","experiment":"demo","honest_fraction":"0.9",'
        b'"mechanism":"binomial","parameters":{"success_bits":64,'
        b'"success_numerator":"9223372036854775808","trials":300},"sequence":7,"version":1}'
    )

    assert expected == canonical(terms("binomial").as_json())
    assert terms("binomial").batch_id == "7.3-nPdqGUJD6qXLCvF8Dw_52XHDWSvRWI8EbUkh5R5EI"


def test_canonical_form_is_plain_json() -> None:
    """Sorted keys, no spaces, UTF-8: what Python's json makes of the same terms."""
    raw = Terms("dëmo", 7, "blau 🙂", mechanism()).as_json()
    printed = json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert printed.encode() == canonical(raw)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 100, 10**6])
def test_round_trip(kind: tuple[str, str], size: int) -> None:
    """Through JSON and back, and accepted by the check, for each mechanism."""
    original = terms(*kind, size)
    raw = json.loads(canonical(original.as_json()))

    assert original == parse(raw)
    assert original == check(original.batch_id, raw, LIMITS)


TAMPERED = [
    ("arm", "green"),
    ("attribution_ms", 1501),
    ("batch_size", 101),
    ("calibration", "paper"),
    ("delta", "0.000002"),
    ("epsilon", "0.51"),
    ("experiment", "demo2"),
    ("honest_fraction", "0.89"),
    ("sequence", 8),
    ("parameters", {"clip": 27, "table_bits": 64}),
    ("parameters", {"clip": 26, "table_bits": 128}),
]


@pytest.mark.parametrize(("key", "value"), TAMPERED)
def test_tampered_terms(key: str, value: object) -> None:
    """Every field is under the id: another value hashes to another id and is refused."""
    raw = {**terms().as_json(), key: value}

    assert batch_id(raw) != terms().batch_id
    with pytest.raises(InvalidInput):
        check(terms().batch_id, raw, LIMITS)


@pytest.mark.parametrize("key", ["trials", "success_numerator", "success_bits"])
def test_tampered_binomial_parameters(key: str) -> None:
    """The same for each of the binomial's parameters."""
    raw = terms("binomial").as_json()
    changed = {"trials": 400, "success_numerator": "9223372036854775809", "success_bits": 65}[key]
    raw["parameters"][key] = changed

    with pytest.raises(InvalidInput):
        check(terms("binomial").batch_id, raw, LIMITS)


def test_all_fields_were_tampered_with() -> None:
    """The list above leaves no field out but `mechanism` and `version`, which are tested below."""
    assert set(terms().as_json()) == {key for key, _ in TAMPERED} | {"mechanism", "version"}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_versions(version: object) -> None:
    """Only version 1 is understood."""
    with pytest.raises(InvalidInput, match="exactly the keys"):
        parse({**terms().as_json(), "version": version})


def test_another_mechanism_needs_its_own_parameters() -> None:
    """Parameters of one mechanism are not those of the other; the message names what is due."""
    with pytest.raises(InvalidInput, match="parameters of binomial must be"):
        parse({**terms().as_json(), "mechanism": "binomial"})


WEAKER = [
    ("discrete-laplace", {"clip": 25}),
    ("discrete-laplace", {"clip": 1}),
    ("binomial", {"trials": 200}),
    ("binomial", {"success_numerator": str(2**60)}),
    ("binomial", {"success_numerator": "1"}),
    ("binomial", {"success_numerator": str(2**64 - 1)}),
]


@pytest.mark.parametrize(("name", "changes"), WEAKER)
def test_weaker_noise_with_a_matching_id(name: str, changes: dict[str, Any]) -> None:
    """Terms that are consistent, hashed rightly, but too weak: refused by their certificate."""
    raw = terms(name).as_json()
    raw["parameters"].update(changes)

    with pytest.raises(InvalidInput, match=r"its noise gives delta = .* more than the stated 0.00"):
        check(batch_id(raw), raw, LIMITS)


def test_a_larger_stated_honest_fraction_is_weaker() -> None:
    """Noise made for 90% honest users does not pass as noise that 50% are enough for."""
    raw = {**terms().as_json(), "honest_fraction": "0.5"}
    raw["parameters"] = mechanism("binomial").parameters
    raw["parameters"]["success_numerator"] = str(raw["parameters"]["success_numerator"])
    raw["mechanism"] = "binomial"

    with pytest.raises(InvalidInput, match="its noise gives delta"):
        check(batch_id(raw), raw, LIMITS)


@pytest.mark.parametrize("numerator", ["1", "18446744073709551615"])
def test_extreme_noise_of_one_user(numerator: str) -> None:
    """A batch of one user with almost no noise is refused, not a crash."""
    raw = terms("binomial", size=1).as_json()
    raw["parameters"] = {"trials": 1, "success_numerator": numerator, "success_bits": 64}

    with pytest.raises(InvalidInput, match="its noise gives delta"):
        check(batch_id(raw), raw, LIMITS)


@pytest.mark.parametrize(
    ("setting", "limits"),
    [
        ("epsilon", Limits(max_epsilon=Decimal("0.49"))),
        ("delta", Limits(max_delta=Decimal("0.0000009"))),
        ("honest_fraction", Limits(max_honest_fraction=Decimal("0.8"))),
        ("batch_size", Limits(max_batch_size=99)),
        ("attribution_ms", Limits(max_attribution_ms=1499)),
    ],
)
def test_limits(setting: str, limits: Limits) -> None:
    """Each limit refuses by its name, the value and the setting that would allow it."""
    with pytest.raises(InvalidInput, match=rf"{setting} = .* \(setting limits.max_{setting}\)"):
        check(terms().batch_id, terms().as_json(), limits)


def test_limits_are_inclusive() -> None:
    """Exactly at the limits is accepted."""
    limits = Limits(Decimal("0.5"), Decimal("0.000001"), Decimal("0.9"), 100, 1500)

    assert terms() == check(terms().batch_id, terms().as_json(), limits)


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


def test_id_names_its_sequence() -> None:
    """An id is readable: the sequence number, a dot, and 43 characters of base64url."""
    sequence, digest = terms().batch_id.split(".")

    assert sequence == "7"
    assert len(digest) == 43
    assert isinstance(terms().mechanism, DiscreteLaplace)
