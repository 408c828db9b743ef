"""What an operator sees in numbers: instruments, the experiments' gauges, the endpoint.

Every metric of the project is defined here. Nothing depends on the rewards of an open window:
counts, sizes and times only. Knows no Kafka; the stages and the monitor tell it what happened.
"""
