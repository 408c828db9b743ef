"""What Kafka refuses or fails to answer: errors by their meaning, and as one line with a remedy.

The library's errors have their names here; nobody outside this package names them otherwise.
"""

from typing import Final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from stream_app.errors import Unavailable
from stream_app.kafka.log_capture import STARTUP_LOG
from stream_app.settings import KafkaSettings

__all__ = [
    "FAILED",
    "FENCED",
    "NOT_COMMITTED",
    "NO_ANSWER",
    "KafkaError",
    "KafkaTimeoutError",
    "ProducerFenced",
    "unreachable",
]

# Whatever may go wrong with Kafka; anything else is a bug.
FAILED: Final = (KafkaError, TimeoutError, OSError)
# Nothing answers: it is worth waiting for it.
NO_ANSWER: Final = (KafkaConnectionError, TimeoutError, OSError)
# Another worker has the partition: a newer producer has taken the transactional id.
FENCED: Final = (ProducerFenced, InvalidProducerEpoch)
# Offsets that were not committed since partitions are changing hands.
NOT_COMMITTED: Final = (CommitFailedError, IllegalStateError)

_NOT_ALLOWED = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)


def unreachable(settings: KafkaSettings, error: BaseException) -> Unavailable:
    """One line for a cluster that cannot be used."""
    if STARTUP_LOG.refused or "uthentication" in f"{type(error).__name__} {error}":
        return Unavailable(
            f"kafka.sasl_username = {settings.sasl_username!r}: Kafka at {settings.bootstrap} "
            "refuses these credentials; check sasl_username, sasl_password and sasl_mechanism"
        )
    if STARTUP_LOG.certificate:
        return Unavailable(
            f"kafka.bootstrap = {settings.bootstrap!r}: its certificate is refused "
            f"({STARTUP_LOG.certificate}); check the address and kafka.tls_ca_file = "
            f"{settings.tls_ca_file!r}"
        )
    if isinstance(error, _NOT_ALLOWED):
        return Unavailable(
            f"kafka.sasl_username = {settings.sasl_username!r}: not allowed: "
            f"{error}; compare with: shufflebandit acls show"
        )
    if isinstance(error, NO_ANSWER):
        return Unavailable(
            f"kafka.bootstrap = {settings.bootstrap!r}: no Kafka answers there; check the address "
            "and security_protocol, or start a local one with: shufflebandit broker"
        )
    return Unavailable(f"kafka.bootstrap = {settings.bootstrap!r}: {type(error).__name__}: {error}")
