"""Nonsense on every topic that a less trusted role can write, against real workers."""
