"""The pure core: privacy, confidence, schedules, agents, windows. No I/O, clock or environment."""
