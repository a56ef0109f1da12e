"""Which other threads may look at what a program reads."""

from __future__ import annotations

import threading

_ON_ITS_OWN = {"tqdm._monitor"}  # draws progress bars anew


def others_may_look() -> bool:
    """Whether more than one thread runs Python code. Those that autograd has made run while the one that asks it waits."""

    def counts(thread: threading.Thread) -> bool:
        return not isinstance(thread, threading._DummyThread) and type(thread).__module__ not in _ON_ITS_OWN

    return sum(map(counts, threading.enumerate())) > 1
