"""The commands that check an experiment: verify, audit."""

import click
from rich.markup import escape
from rich.table import Table

from stream_app.audit import recount
from stream_app.audit import verify as public
from stream_app.audit.verify import CheckResult
from stream_app.commands.connection import run, with_settings
from stream_app.commands.output import console, echo_json, json_option
from stream_app.errors import CheckFailed
from stream_app.settings import Settings

DELETED = "whose reports were deleted (shuffle.retain_reports_for_audit = true keeps them)"
# More batches than this are not listed one by one, nor are more differences.
_FEW = 40


@click.command()
@click.argument("name")
@json_option
@with_settings
def verify(name: str, as_json: bool, settings: Settings) -> None:
    """Check an experiment from its public topics; exit code 1 on any difference.

    Every sum's terms, id and certificate, and the agent's last state, computed again from the sums.
    """
    _finish(run(settings, public.verify(settings.kafka, name)), as_json, verified(name))


@click.command()
@click.argument("name")
@json_option
@with_settings
def audit(name: str, as_json: bool, settings: Settings) -> None:
    """Verify, then count every sum again from the reports; exit code 1 on any difference.

    Needs the right to read the reports, which are secret, and that they are still there
    (shuffle.retain_reports_for_audit): of a batch whose reports were deleted, only what the public
    topics show is checked.
    """
    _finish(run(settings, recount.audit(settings.kafka, name)), as_json, audited(name))


def verified(name: str) -> str:
    """What `verify` has shown if it found nothing."""
    return f"{name}: terms, certificates and the agent's state follow from its public sums"


def audited(name: str) -> str:
    """What `audit` has shown if it found nothing."""
    return f"{name}: every sum is that of its reports, and no batch ever showed two values"


def _finish(report: CheckResult, as_json: bool, claim: str) -> None:
    if as_json:
        echo_json(report.as_json())
    else:
        _print(report, claim)
    if report.differences:
        count = len(report.differences)
        raise CheckFailed(
            f"experiment {report.experiment}: {count} difference{'s' if count > 1 else ''}, "
            f"first: {report.differences[0]}"
        )


def _print(report: CheckResult, claim: str) -> None:
    if report.sums and len(report.sums) <= _FEW:
        console().print(_table(report))
    for line in report.differences[:_FEW]:
        click.echo(f"difference: {line}")
    if report.differences:
        return
    counted = f"{report.batches:,} batches, {report.reports:,} reports"
    if report.unchecked:
        click.echo(f"{verified(report.experiment)}, and no batch ever showed two values")
        click.echo(f"{report.experiment}: sums counted again from their reports: {counted}")
        click.echo(f"not counted again: {len(report.unchecked):,} batches, {DELETED}")
    else:
        click.echo(f"{claim} ({counted})")


def _table(report: CheckResult) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("batch", justify="right")
    table.add_column("arm")
    for heading in ("users", "total", "debiased", "mean"):
        table.add_column(heading, justify="right")
    for found in report.sums:
        users = found.terms.mechanism.promise.batch_size
        table.add_row(
            str(found.terms.sequence),
            escape(found.terms.arm),
            f"{users:,}",
            f"{found.total:,}",
            f"{found.estimate:,.1f}",
            f"{found.estimate / users:.4f}",
        )
    return table
