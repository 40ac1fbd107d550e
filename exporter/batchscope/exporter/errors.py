"""What can go wrong for an operator, as a small tree. cli and api turn each into one sentence."""

from __future__ import annotations


class BatchscopeError(Exception):
    """Base of all errors whose message is meant to be read as it is: one sentence, no traceback."""


class ConfigError(BatchscopeError):
    """A flag, variable, file or value that can't be used."""


class StoreError(BatchscopeError):
    """The store can't be opened, written or read."""


class SchemaVersionError(StoreError):
    """The store was written by a newer batchscope."""


class QueryError(BatchscopeError):
    """An unknown query, an unknown parameter, or a value that doesn't fit."""


class QueryTimeoutError(QueryError):
    """A query ran longer than it may."""
