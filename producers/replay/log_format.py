"""What a format of logs is: everything that the rest of a replay has to know of it, in one value.

`formats` lists the values. The command line, the detection of a file's format, the names of columns
and arms and the report's warnings all come from there: no other module names a format.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from producers.replay.columns import Columns
from producers.replay.files import Source
from producers.replay.records import Table

# The names to expect where neither an option nor the format says them.
_USUAL_COLUMNS = Columns("arm", "reward")


def _as_logged(arm: str, arms: Sequence[str]) -> str:
    """The log calls its arms as the experiment does."""
    return arm


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One way to write a log."""

    name: str  # as --format takes it
    # A general format by its name in a sentence; a dialect in a sentence of its own, for --help.
    description: str
    # The rows of a file with the columns that are named. The mapping has the option that asks for
    # each column, for the message if it is not there. Raises ConfigurationError, InvalidInput.
    read: Callable[[Source, dict[str, str]], Iterator[Table]]
    column_names: Callable[[Source], list[str]]
    # A general format as one product writes it.
    dialect: bool = False
    # Files that are called so are of this format, and a folder's other files are not logs.
    endings: tuple[str, ...] = ()
    # How a file without a known ending begins; the longest match wins. None: not told by it.
    first_bytes: bytes | None = None
    # What columns are called where no option says it.
    columns: Columns = _USUAL_COLUMNS
    # What the experiment, whose arms are given, calls an arm of the log.
    arm_name: Callable[[str, Sequence[str]], str] = _as_logged
    # For the report, when --where left no row out.
    unfiltered_warning: str | None = None
