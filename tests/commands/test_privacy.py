"""`calibrate` and `certify`, as a user meets them."""

import json

import pytest

from tests.support.command_line import run


def test_calibrate_then_certify_holds() -> None:
    """What calibrate prints as JSON is a certificate that certify confirms."""
    for mechanism in ("binomial", "discrete-laplace"):
        options = ("--epsilon", 0.5, "--delta", "1e-6", "--batch-size", 1000)
        made = run("calibrate", *options, "--mechanism", mechanism, "--json")
        checked = run("certify", "-", "--json", stdin=made.stdout)

        assert (0, 0) == (made.returncode, checked.returncode)
        assert json.loads(checked.stdout)["holds"] is True


def test_tampered_certificate_fails() -> None:
    """A certificate with less noise than it claims does not hold: exit code 1, one line."""
    made = json.loads(
        run("calibrate", "--epsilon", 1, "--delta", "1e-6", "--batch-size", 100, "--json").stdout
    )
    made["parameters"]["clip"] -= 1
    checked = run("certify", "-", stdin=json.dumps(made))

    assert 1 == checked.returncode
    assert 1 == checked.stderr.count("\n")
    assert "does not hold" in checked.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mechanism": 3}', "{"])
def test_broken_certificate_is_refused(text: str) -> None:
    """What is not a certificate is refused with exit code 2 and one line."""
    checked = run("certify", "-", stdin=text)

    assert 2 == checked.returncode
    assert "certificate" in checked.stderr
    assert "Traceback" not in checked.stderr


def test_calibrate_text_compares_with_the_paper() -> None:
    """The text output names the parameters and the paper's variance."""
    done = run("calibrate", "--epsilon", 0.5, "--delta", "1e-6", "--batch-size", 1000)

    assert 0 == done.returncode
    assert "paper's calibration" in done.stdout
    assert "times this one" in done.stdout
