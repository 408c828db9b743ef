"""Batch ids: one grammar, for those who trust an id and those who do not."""

import base64
import hashlib

import pytest

from stream_app.core.batch_id import (
    DIGEST_CHARACTERS,
    SEQUENCE_DIGITS,
    format_batch_id,
    parse_batch_id,
    sequence_of,
    stated_sequence,
)

DIGEST = "A" * DIGEST_CHARACTERS


@pytest.mark.parametrize("sequence", [0, 7, 10**SEQUENCE_DIGITS - 1])
def test_what_is_formatted_is_parsed(sequence: int) -> None:
    made = format_batch_id(sequence, b"terms")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"terms").digest()).decode().rstrip("=")

    assert parse_batch_id(made) == (sequence, digest)
    assert stated_sequence(made) == sequence_of(made) == sequence


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        f".{DIGEST}",
        f"7{DIGEST}",
        f"-7.{DIGEST}",
        f"٣.{DIGEST}",
        f" 7.{DIGEST}",
        f"7.{DIGEST}\n",
        f"7.{DIGEST[1:]}",
        f"7.{DIGEST}A",
        f"7.{DIGEST[1:]}=",
        f"{10**SEQUENCE_DIGITS}.{DIGEST}",
    ],
)
def test_what_is_not_an_id(text: str) -> None:
    assert parse_batch_id(text) is None


@pytest.mark.parametrize("text", ["", "7", "7.", f"٣.{DIGEST}", f"{10**SEQUENCE_DIGITS}.x", "x.7"])
def test_no_sequence_is_stated(text: str) -> None:
    """The shuffle stage calls such a report malformed."""
    assert stated_sequence(text) is None


@pytest.mark.parametrize("text", ["7.x", "007.\n", "7.7.7"])
def test_a_sequence_before_nonsense(text: str) -> None:
    """It may be late or unknown, but it has a number."""
    assert stated_sequence(text) == 7


def test_a_checked_id_may_have_a_longer_sequence() -> None:
    """Terms number batches up to 2**53 - 1."""
    assert sequence_of(format_batch_id(2**53 - 1, b"")) == 2**53 - 1
    with pytest.raises(ValueError, match="invalid literal"):
        sequence_of("x.y")
