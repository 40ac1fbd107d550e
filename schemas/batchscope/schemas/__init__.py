"""The vocabulary that every part shares: records, the ring file, enums, metrics, SLOs, tables.

Standard library only, and it imports nothing else of ours: this is what enters an engine's process.
"""
