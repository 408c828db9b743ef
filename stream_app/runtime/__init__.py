"""The transactional loop that any stage runs in: it knows Kafka's rules, and no stage's records."""
