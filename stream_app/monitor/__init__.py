"""UNTRUSTED: shows what the public topics say, as a view, a page, an API and a terminal.

It reads `assignments` and `sums`, and may lose or repeat an event without harm.
"""
