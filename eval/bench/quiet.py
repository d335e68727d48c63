"""When a store has nothing more to do: told by reports that come late on a busy machine."""

from __future__ import annotations

from bana.eval.bench.clusters import StatusEntry
from bana.radix_global.admin_messages import StoreReport

# What the front door last heard is no older than that.
FRESH_S = 2.0


class QuietWatch:
    """Whether nothing has happened for `quiet_s`, by reports made after `begun_s`."""

    def __init__(self, begun_s: float, quiet_s: float) -> None:
        self._begun_s = begun_s
        self._quiet_s = quiet_s
        self._done: tuple[int, ...] | None = None
        self._since_s = 0.0

    def note(self, status: StatusEntry, now_s: float) -> bool:
        """Take in what a cluster says `now_s`; True once it has been quiet."""
        done, as_of_s = list_done(status), now_s - find_age_s(status)
        if done is None or as_of_s < self._begun_s:
            self._done = None
            return False
        if done != self._done:
            self._done, self._since_s = done, as_of_s
        return as_of_s - self._since_s >= self._quiet_s


def read_report(status: StatusEntry) -> StoreReport | None:
    """What the store says of itself, None where it has not said so of late."""
    store = status.store
    return None if store is None or store.silent_s > FRESH_S else store.report


def find_age_s(status: StatusEntry) -> float:
    """How old what is told of the store and of its clients is."""
    ages_s = [instance.silent_s for instance in status.instances]
    ages_s.append(status.store.silent_s if status.store else None)
    return max(float("inf") if age_s is None else age_s for age_s in ages_s)


def list_done(status: StatusEntry) -> tuple[int, ...] | None:
    """What has been done so far, which changes with each page; None while there is work."""
    links = [i.link for i in status.instances if i.link is not None]
    report = read_report(status)
    if report is None or len(links) < len(status.instances):
        return None
    arena, *tiers = report.places
    waiting = arena.counts.get("pages_being_written", 0)
    waiting += arena.counts.get("wanted_pages_being_read", 0)
    waiting += sum(tier.counts.get("write_backlog_bytes", 0) for tier in tiers)
    if waiting or any(link.wants for link in links):
        return None
    saved = [link.counts["saved_pages"] for link in links]
    written = [tier.counts.get("writes_written", 0) for tier in tiers]
    return (*saved, arena.pages, *written)
