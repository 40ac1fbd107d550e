"""Beside the engine: rings in, tables, metrics, spans and an API out."""
