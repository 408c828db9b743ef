"""What Kafka refuses or fails to answer, as one line with a remedy."""

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from stream_app.errors import Unavailable
from stream_app.kafka.log_capture import STARTUP_LOG
from stream_app.settings import KafkaSettings

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
    if isinstance(error, TimeoutError | KafkaConnectionError | OSError):
        return Unavailable(
            f"kafka.bootstrap = {settings.bootstrap!r}: no Kafka answers there; check the address "
            "and security_protocol, or start a local one with: shufflebandit broker"
        )
    return Unavailable(f"kafka.bootstrap = {settings.bootstrap!r}: {type(error).__name__}: {error}")
