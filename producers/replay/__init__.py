"""Logged traffic played again: what would the private bandit have done with last month's log?

`sources` finds logs and `files` opens them, `formats` lists the formats that can be read (each is
one value, a `LogFormat`), `log` turns their columns into checked rows in chunks, `survey` measures
the log itself, `match` decides which rows an agent gets, `memory` and `stream` drive an agent
without and through Kafka, `session` is a whole replay, `report` and `page` say what came out.
"""
