"""The commands, by theme. Each is a thin edge: parse, call, print."""
