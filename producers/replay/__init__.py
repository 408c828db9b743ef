"""Logged traffic played again: what would the private bandit have done with last month's log?

`files` finds and opens logs, `tables` reads their columns, `log` turns them into checked rows in
chunks, `survey` measures the log itself, `match` decides which rows an agent gets, `memory` and
`stream` drive an agent without and through Kafka, `report` and `page` say what came out.
"""
