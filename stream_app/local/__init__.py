"""A Kafka and a whole service on one machine, for demonstrations, development and tests."""
