"""Differentially private multi-armed bandits in the shuffle model, as a Kafka service."""
