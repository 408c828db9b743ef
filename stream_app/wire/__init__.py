"""What stands on each topic: formats, and the only validation of what comes in.

Everything is JSON, keyed by the experiment's name; producers/PROTOCOL.md describes it for clients
in other languages. Parsers raise InvalidInput and nothing else, whatever the bytes. Nothing here
knows a consumer, a producer or a clock.

Each topic has a module of its own, so that an import says what a room may see: `report`,
`report_columns` and `checkpoint` are for the trusted side only.
"""
