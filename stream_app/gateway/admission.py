"""Who may report: anybody, or whoever has a token of the product's own backend.

It knows public keys by experiment, from this gateway's own settings; the agent has no part in it.
It does not know users, and keeps nothing: a token fits one batch and one report id, so the window
itself is the list of what is spent.
"""

import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stream_app.errors import ConfigurationError
from stream_app.settings import AdmissionRule, GatewaySettings, Settings
from stream_app.wire.token import Verifier, load_verifiers


class TokenFault(StrEnum):
    """Why a report is not admitted."""

    MISSING = "token_missing"
    INVALID = "token_invalid"


class Admission:
    """What this gateway asks of a report beside its form. Immutable; any thread may use it."""

    def __init__(self, verifiers: Mapping[str, Verifier] | None, *, keeps_tokens: bool) -> None:
        self.keeps_tokens = keeps_tokens  # the shuffle stage wants to see them, too
        self._verifiers = verifiers  # None: anybody may report

    @property
    def verifies(self) -> bool:
        """Whether it costs something: tens of microseconds a report."""
        return self._verifiers is not None

    def fault(self, experiment: str, report: Mapping[str, Any]) -> TokenFault | None:
        """What is wrong with a well-formed report's token; None if it may come in."""
        token = report.get("token")
        if self._verifiers is None:
            return TokenFault.MISSING if self.keeps_tokens and token is None else None
        if token is None:
            return TokenFault.MISSING
        # An experiment without a key admits nobody: whoever defines experiments is not trusted.
        verifier = self._verifiers.get(experiment)
        if verifier is None or not verifier.admits(report["batch"], report["id"], token):
            return TokenFault.INVALID
        return None


def admission(settings: Settings) -> Admission:
    """As the settings say. Raises ConfigurationError."""
    keeps_tokens = getattr(settings.shuffle, "tokens", "off") == "required"
    if rule(settings.gateway) is AdmissionRule.OPEN:
        return Admission(None, keeps_tokens=keeps_tokens)
    verifiers = load_verifiers(settings.tokens.keys)
    if not verifiers:
        raise ConfigurationError(
            "tokens.keys = '': gateway.admission = 'tokens' needs a public key for each "
            "experiment, as experiment=file; make one with: shufflebandit tokens keygen"
        )
    return Admission(verifiers, keeps_tokens=keeps_tokens)


def rule(settings: GatewaySettings) -> AdmissionRule:
    """Who may report. Raises ConfigurationError if the public can, and nobody has said so."""
    if settings.admission is not AdmissionRule.UNSET:
        return settings.admission
    if not loopback(settings.host):
        raise ConfigurationError(
            f"gateway.admission: not set, and gateway.host = {settings.host!r} is open to others; "
            "set it to 'tokens' (one report per user of yours), or to 'open' if anybody may send "
            "any number of reports"
        )
    return AdmissionRule.OPEN


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
