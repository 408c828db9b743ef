"""Commands about one batch's noise: calibrate, certify."""

from decimal import Decimal
from typing import Any, BinaryIO

import click
import orjson
from rich.table import Table

from stream_app.commands.output import console, echo_json, json_option
from stream_app.core import wording
from stream_app.core.mechanisms import Mechanism, MechanismName, rebuild
from stream_app.core.mechanisms import calibrate as calibrated
from stream_app.core.promise import Calibration, Promise
from stream_app.definitions import decimal
from stream_app.errors import CheckFailed, ConfigurationError


def certificate(mechanism: Mechanism) -> dict[str, Any]:
    """Everything that a stranger needs to recompute the promise."""
    promise = mechanism.promise
    return {
        "mechanism": str(mechanism.name),
        "calibration": str(mechanism.calibration),
        "epsilon": float(promise.epsilon),
        "delta": float(promise.delta),
        "batch_size": promise.batch_size,
        "honest_fraction": float(promise.honest_fraction),
        "bits": mechanism.max_ones,
        "variance": mechanism.variance,
        "certified_delta": mechanism.certified_delta,
        "parameters": mechanism.parameters,
    }


@click.command()
@click.option("--epsilon", required=True, metavar="NUMBER", help="Privacy loss, above 0.")
@click.option("--delta", required=True, metavar="NUMBER", help="Failure probability, in (0, 1).")
@click.option("--batch-size", required=True, type=int, help="Users in the batch, 1 to 1e9.")
@click.option(
    "--mechanism",
    type=click.Choice([str(name) for name in MechanismName]),
    default=str(MechanismName.DISCRETE_LAPLACE),
    show_default=True,
)
@click.option(
    "--calibration",
    type=click.Choice([str(name) for name in Calibration]),
    default=str(Calibration.EXACT),
    show_default=True,
)
@click.option(
    "--honest-fraction",
    default="0.9",
    show_default=True,
    metavar="NUMBER",
    help="Share of a batch's users that add their noise, in (0, 1].",
)
@json_option
def calibrate(
    epsilon: str,
    delta: str,
    batch_size: int,
    mechanism: str,
    calibration: str,
    honest_fraction: str,
    as_json: bool,
) -> None:
    """Noise for one batch, with its certificate.

    Example: shufflebandit calibrate --epsilon 0.5 --delta 1e-6 --batch-size 1000
    """
    promise = Promise(
        decimal("epsilon", epsilon),
        decimal("delta", delta),
        batch_size,
        decimal("honest_fraction", honest_fraction),
    )
    found = calibrated(promise, MechanismName(mechanism), Calibration(calibration))
    stated = certificate(found)
    if as_json:
        echo_json(stated)
        return
    table = Table(show_header=False, box=None)
    for key, value in stated.items():
        if key != "parameters":
            table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    for key, number in found.parameters.items():
        table.add_row(f"  {key}", str(number))
    table.add_row("paper's calibration", _paper_comparison(promise, found))
    console().print(table)
    click.echo(wording.promise(promise, found.certified_delta))


def _paper_comparison(promise: Promise, found: Mechanism) -> str:
    try:
        paper = calibrated(promise, MechanismName.BINOMIAL, Calibration.PAPER)
    except ConfigurationError as error:
        return str(error)
    return (
        f"variance {paper.variance:.6g}, {paper.variance / found.variance:.3g} times this one; "
        f"delta {paper.certified_delta:.3g}; {paper.max_ones} bits a report"
    )


@click.command()
@click.argument("file", type=click.File("rb"), metavar="CERTIFICATE.json")
@json_option
def certify(file: BinaryIO, as_json: bool) -> None:
    """Recompute a certificate; exit code 1 if it does not hold.

    What it certifies is a batch's sum, not its reports, whether shuffled or not.

    The certificate is what `shufflebandit calibrate --json` prints; `-` reads standard input.
    """
    stated = _read_certificate(file.read())
    promise = Promise(
        decimal("epsilon", str(stated["epsilon"])),
        decimal("delta", str(stated["delta"])),
        stated["batch_size"],
        decimal("honest_fraction", str(stated["honest_fraction"])),
    )
    found = rebuild(
        MechanismName(stated["mechanism"]),
        Calibration(stated["calibration"]),
        promise,
        stated["parameters"],
    )
    actual = certificate(found)
    problems = [
        f"{key} is {stated[key]}, recomputed {actual[key]}"
        for key in ("bits", "variance", "certified_delta")
        if abs(stated[key] - actual[key]) > 1e-12 * abs(actual[key])
    ]
    if Decimal(found.certified_delta) > promise.delta:
        problems.append(f"delta is {found.certified_delta:.6g}, above the promised {promise.delta}")
    if as_json:
        echo_json({"holds": not problems, "differences": problems, "recomputed": actual})
    if problems:
        raise CheckFailed(f"the certificate does not hold: {'; '.join(problems)}")
    if not as_json:
        click.echo(f"holds: {wording.promise(promise, found.certified_delta)}")
        click.echo(wording.ONE_REPORT)


def _read_certificate(data: bytes) -> dict[str, Any]:
    shape: dict[str, type | tuple[type, ...]] = {
        "mechanism": str,
        "calibration": str,
        "epsilon": (int, float),
        "delta": (int, float),
        "batch_size": int,
        "honest_fraction": (int, float),
        "bits": int,
        "variance": (int, float),
        "certified_delta": (int, float),
        "parameters": dict,
    }
    try:
        stated = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"certificate: not JSON: {error}") from None
    if not isinstance(stated, dict):
        raise ConfigurationError("certificate: must be a JSON object, as calibrate --json prints")
    for key, kind in shape.items():
        if not isinstance(stated.get(key), kind) or isinstance(stated[key], bool):
            raise ConfigurationError(f"certificate: {key} = {stated.get(key)!r}: missing or wrong")
    for key, names in (("mechanism", MechanismName), ("calibration", Calibration)):
        if stated[key] not in list(names):
            raise ConfigurationError(
                f"certificate: {key} = {stated[key]!r}: must be one of {', '.join(names)}"
            )
    wanted = MechanismName(stated["mechanism"]).family.parameter_names
    parameters = stated["parameters"]
    if set(parameters) != wanted or any(type(v) is not int for v in parameters.values()):
        raise ConfigurationError(
            f"certificate: parameters must be whole numbers {', '.join(sorted(wanted))}"
        )
    return stated
