"""Checks for whoever does not believe the service: `verify` from what is public, and `recount`.

`verify` may not even name a report's format; only `recount` reads reports, and whoever runs it is
trusted with them.
"""
