"""Every exception that a user can meet, by whose fault it is. Knows nothing of the rest.

The command line prints the message as one line and exits with `exit_code`.
"""


class ShufflebanditError(Exception):
    """Base of all errors that are shown as one line, without a traceback."""

    exit_code = 1


class ConfigurationError(ShufflebanditError):
    """A setting, file or argument is wrong: the message names it, its value and the remedy."""

    exit_code = 2


class InvalidInput(ShufflebanditError):
    """A record that came in breaks its format or its promise."""

    exit_code = 2


class IllegalTransition(ShufflebanditError):
    """An event that the state machine cannot take now; its state is unchanged."""


class Unavailable(ShufflebanditError):
    """Something outside is missing or unreachable: Kafka, a port, a program."""

    exit_code = 3


class CheckFailed(ShufflebanditError):
    """A check that was asked for found differences."""
