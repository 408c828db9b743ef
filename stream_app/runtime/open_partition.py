"""What the parts of a session share: what it consumes, and a partition that it owns."""

from dataclasses import dataclass, field

from stream_app.kafka import TopicPartition, TransactionalWriter, topic
from stream_app.runtime.stage import Partition, Restartable, Stage
from stream_app.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class RecordSource:
    """What a stage consumes, and the name of those who share it."""

    topic: str
    group: str

    @classmethod
    def of(cls, settings: KafkaSettings, stage: Stage) -> "RecordSource":
        """The group's name has the topics' prefix: two deployments do not meet, or fence."""
        return cls(topic(settings, stage.input), f"{settings.topic_prefix}.{stage.group}")

    def partition(self, number: int) -> TopicPartition:
        """Of the input."""
        return TopicPartition(self.topic, number)

    def transactional_id(self, number: int) -> str:
        """One for each input partition: whoever starts with it fences the owner before."""
        return f"{self.group}-{number}"


@dataclass(slots=True, eq=False)
class OpenPartition:
    """One partition that this session owns."""

    number: int
    state: Partition
    writer: TransactionalWriter
    control_position: int = 0  # what is before it, the state has been told
    committed: int | None = None  # the restart offset that was committed last
    restartable: Restartable | None = field(init=False)  # the state, if it is that

    def __post_init__(self) -> None:
        # Once: to ask a protocol takes longer than to feed a chunk.
        self.restartable = self.state if isinstance(self.state, Restartable) else None
