import os

pytest_plugins = ["tests.chromium_fixtures", "tests.kafka_fixtures"]
# Workers of several tests share a machine: no endpoint unless a test asks for one.
os.environ["SHUFFLEBANDIT_METRICS_PORT"] = "0"
