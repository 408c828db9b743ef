"""Terms: canonical bytes, self-certifying ids, and a check that nothing weaker passes."""

import base64
import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest

from stream_app.core.discrete_laplace import DiscreteLaplace
from stream_app.core.terms import Limits, Terms, batch_id, canonical, check, parse
from stream_app.errors import InvalidInput
from tests.core.build_terms import KINDS, LIMITS, mechanism, terms


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
        ("batch_size", Limits(min_batch_size=101)),
        ("attribution_ms", Limits(max_attribution_ms=1499)),
    ],
)
def test_limits(setting: str, limits: Limits) -> None:
    """Each limit refuses by its name, the value and the setting that would allow it."""
    with pytest.raises(
        InvalidInput, match=rf"{setting} = .* \(setting limits.(max|min)_{setting}\)"
    ):
        check(terms().batch_id, terms().as_json(), limits)


def test_limits_are_inclusive() -> None:
    """Exactly at the limits is accepted."""
    limits = Limits(Decimal("0.5"), Decimal("0.000001"), Decimal("0.9"), 100, 1500)

    assert terms() == check(terms().batch_id, terms().as_json(), limits)


def test_id_names_its_sequence() -> None:
    """An id is readable: the sequence number, a dot, and 43 characters of base64url."""
    sequence, digest = terms().batch_id.split(".")

    assert sequence == "7"
    assert len(digest) == 43
    assert isinstance(terms().mechanism, DiscreteLaplace)
