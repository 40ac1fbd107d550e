"""Whether a receiver takes what it is sent: said in the log when that changes, not per batch."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

log = logging.getLogger(__name__)


class Reception:
    """What became of the last batch; one thread notes it. what: plural, e.g. spans."""

    def __init__(self, what: str, url: str) -> None:
        self._what, self._url = what, _without_password(url)
        self._takes = True

    def note(self, *, taken: bool) -> None:
        """A batch was taken or not; a warning where the one before it fared otherwise."""
        if taken == self._takes:
            return
        self._takes = taken
        if taken:
            log.warning("the OTLP receiver %s takes %s again", self._url, self._what)
        else:
            how = "they are dropped and counted until it does"
            log.warning("the OTLP receiver %s takes no %s; %s", self._url, self._what, how)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
