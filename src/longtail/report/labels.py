"""What tables call methods: ours, and those of packages that say so (``longtail.labels``)."""

from __future__ import annotations

from functools import cache

from longtail.names import METHOD_NAMES
from longtail.support import doors

GROUP = "longtail.labels"


@cache
def method_names() -> dict[str, str]:
    """From the name of a method to what tables call it, in the order of tables.

    Multi-task training, which bounds the others, stands last.
    """
    named = dict(METHOD_NAMES)
    last = named.pop("multitask")
    for _, labels in doors.load_all(GROUP):
        named |= labels
    return named | {"multitask": last}
