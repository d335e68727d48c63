"""One instance with a store at a time, over tiers that hold the documents from the beginning.

filler: computes the documents ─▶ folder 1, folder 2 ──┬─▶ step A: reads, adds ─▶ taken away
                                                       └─▶ step B: reads, adds ─▶ taken away
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from bana.eval.bench.children import confined, pin_process
from bana.eval.bench.closed import ClosedLoad, ClosedResult, run_closed
from bana.eval.bench.clusters import FLUSH_PATH, FRONT_DOOR, Cluster, StatusEntry, cluster, fetch
from bana.eval.bench.config_file import write_config
from bana.eval.bench.errors import BenchError
from bana.eval.bench.fixture import FIXTURE, make_fixture
from bana.eval.bench.harness import Session
from bana.eval.bench.kvstream.prompts import Prompt, draw_documents, draw_warm_up
from bana.eval.bench.kvstream.rounds import list_bodies, summarise_round
from bana.eval.bench.kvstream.scene import (
    Seen,
    Tree,
    configure_filler,
    configure_step,
    list_flags,
)
from bana.eval.bench.kvstream.settings import KvStreamSettings
from bana.eval.bench.kvstream.steps import StepPlan
from bana.eval.bench.placement import Placement, plan_engine_placement
from bana.eval.bench.quiet import QuietWatch, read_report
from bana.eval.bench.slo.sides import require_memory
from bana.eval.bench.trials import Values
from bana.radix_global.admin_messages import StoreReport
from bana.radix_global.messages import WantOutcome
from bana.slo.restore_plan import RestoreReason

GENERATE = "/generate"
FILLER = "filler"
REPAIRS = 3
CUT = (WantOutcome.NO_ROOM, WantOutcome.LATE, WantOutcome.FAILED)
ATTACHED = "attached"
UNPRICED = f"hold_{RestoreReason.UNPRICED}"
POLL_S = 0.25
# Nothing has happened in a store for so long: its savers and writers are done.
QUIET_S = 2.0


class StepServer:
    """A step whose instance is up."""

    def __init__(self, ready: Cluster, settings: KvStreamSettings, tiers: int) -> None:
        self._ready = ready
        self._settings = settings
        self._tiers = tiers

    def ask(self, prompts: Sequence[Prompt], concurrency: int) -> ClosedResult:
        """Answers to all, in their order, so many out at a time."""
        bodies = list_bodies(self._settings, prompts)
        load = ClosedLoad(GENERATE, bodies, concurrency, self._settings.round_timeout_s)
        result = run_closed(self._ready.front_door, load)
        self._ready.require_undisturbed()
        return result

    def empty(self) -> None:
        """Flush what SGLang caches, once all that is to be written is written."""
        self.settle()
        for instance in self._ready.instances:
            fetch(instance, FLUSH_PATH, b"")

    def settle(self) -> None:
        """Return when the store has had nothing to do for a while; at once without one."""
        if self._tiers:
            watch = QuietWatch(time.monotonic(), QUIET_S)
            self._wait(
                lambda status: watch.note(status, time.monotonic()),
                "the store was not done with what it had to read and write",
            )

    def await_pages(self, pages: int) -> None:
        """Return when the instance has its store, and each tier is known to hold so many."""

        def is_there(status: StatusEntry) -> bool:
            link, report = status.instances[0].link, read_report(status)
            if report is None or report.is_recovering:
                return False
            held = [place.pages for place in report.places[1:]]
            return link is not None and link.state == ATTACHED and min(held) >= pages

        if self._tiers:
            self._wait(is_there, f"not every tier holds {pages} pages")

    def count_held(self) -> int:
        """How many pages every tier is known to hold at least."""
        return min(place.pages for place in self._hear().places[1:])

    def read_page_bytes(self) -> int:
        """How large a page is."""
        return self._hear().slot_bytes

    def count_events(self) -> Values:
        """What has happened until now: pages written to each tier, and never written; requests that
        waited in vain, and wants that got less than was known of them.
        """
        if not self._tiers:
            return {}
        report, link = self._hear(), self._ready.read_status().instances[0].link
        counts: dict[str, float] = {
            f"wants_{end}": report.counts.get(f"wants_{end}", 0) for end in CUT
        }
        counts["late_holds"] = 0 if link is None else link.counts["late_holds"]
        for place in report.places[1:]:
            counts[f"tier_{place.place}_written"] = place.counts.get("writes_written", 0)
            counts[f"tier_{place.place}_crowded_out"] = place.counts.get("writes_crowded_out", 0)
        return counts

    def require_sound(self) -> None:
        """BenchError where restoring went wrong, though every answer may have come."""
        link = self._ready.read_status().instances[0].link
        counts = {} if link is None else link.counts
        wrong = {name: counts[name] for name in ("faults", "failed_loads") if counts.get(name)}
        if wrong:
            raise BenchError(f"the instance's side of the store counts {wrong}; see its log")

    def require_priced(self) -> None:
        """BenchError where it was decided without knowing what computing costs."""
        link = self._ready.read_status().instances[0].link
        unpriced = 0 if link is None else link.counts[UNPRICED]
        if unpriced:
            raise BenchError(f"the instance decided {unpriced} times without a price; see its log")

    def _hear(self) -> StoreReport:
        """What the store says of itself."""
        heard: list[StoreReport] = []

        def has_spoken(status: StatusEntry) -> bool:
            heard.extend(filter(None, [read_report(status)]))
            return bool(heard)

        self._wait(has_spoken, "the store said nothing of itself")
        return heard[-1]

    def _wait(self, is_so: Callable[[StatusEntry], bool], trouble: str) -> None:
        limit_s = self._settings.settle_timeout_s
        end_s = time.monotonic() + limit_s
        while not is_so(status := self._ready.read_status()):
            if time.monotonic() > end_s:
                store = status.store
                held = {p.name: p.pages for p in store.report.places} if store is not None else {}
                raise BenchError(f"{trouble} within {limit_s:g} s; pages held: {held}")
            time.sleep(POLL_S)


class Stand:
    """The tiers' folders and whoever is up over them; one at a time."""

    def __init__(
        self, session: Session, settings: KvStreamSettings, placement: Placement, folder: Path
    ) -> None:
        self.documents = draw_documents(settings, session.request.seed)
        self._session = session
        self._settings = settings
        self._folder = folder
        self._placement = placement
        self._tiers = [folder / f"tier{n}" for n, _ in enumerate(settings.tier_speeds, 1)]
        self._filled: frozenset[Path] = frozenset()
        self._started = 0
        self._model = "" if settings.model == FIXTURE else settings.model

    def fill(self) -> Values:
        """Compute all documents and write them to all tiers; what was seen of them meanwhile."""
        settings = self._settings
        config = configure_filler(settings, self._tiers)
        with self._serve(FILLER, config, len(self._tiers)) as server:
            wanted = server.count_held() + settings.documents * settings.document_pages
            ttfts = [self._time_document(server, document) for document in self.documents]
            for _ in range(REPAIRS):
                if server.count_held() >= wanted:
                    break
                # A busy machine's engine drops what it could not save in time.
                server.empty()
                server.ask(self.documents, 1)
                server.settle()
            server.await_pages(wanted)
            page_bytes = server.read_page_bytes()
        self._filled = frozenset(self._list_files())
        return {"prefill_s": statistics.median(ttfts), "page_bytes": float(page_bytes)}

    @contextlib.contextmanager
    def open(self, step: StepPlan, seen: Seen, settings: KvStreamSettings) -> Iterator[StepServer]:
        """The step, up, warm and with nothing cached, over tiers that hold the documents only.

        `settings` may differ from the stand's in how fast its tiers are.
        """
        if not self._filled:
            self._session.say("filling the tiers again")
            self.fill()
        config = configure_step(step, settings, seen, self._tiers)
        try:
            with self._serve(step.name, config, step.tiers) as server:
                server.await_pages(settings.documents * settings.document_pages)
                yield server
        finally:
            self._take_away()

    @contextlib.contextmanager
    def _serve(self, name: str, config: Tree, tiers: int) -> Iterator[StepServer]:
        settings, placement = self._settings, self._placement
        require_memory(name, settings.side_bytes, psutil.virtual_memory().available)
        self._session.say(f"starting {name} (up to {settings.start_timeout_s:g} s)")
        self._started += 1
        own = f"{name}-{self._started}"
        file = self._folder / f"{own}.toml"
        write_config(file, config)
        words = ["--config", str(file), "--model", self._find_model(), "--", *list_flags(settings)]
        timeout_s = settings.start_timeout_s
        with cluster(own, words, placement.server, self._folder, timeout_s) as ready:
            for pid in (ready.child.pid, ready.find_pid(FRONT_DOOR)):
                pin_process(pid, placement.client)
            server = StepServer(ready, settings, tiers)
            self._warm_up(server, own)
            yield server

    def _warm_up(self, server: StepServer, name: str) -> None:
        """Prompts like no other's: computed, then restored."""
        prompts = draw_warm_up(self._settings, self._session.request.seed, name)
        server.await_pages(0)
        for _ in range(2):
            server.ask(prompts, 1)
            server.empty()

    def _time_document(self, server: StepServer, document: Prompt) -> float:
        """Seconds to compute it while nothing else is done; its pages are written afterwards."""
        result = server.ask([document], 1)
        server.settle()
        return summarise_round(self._settings, result)["ttft_mean_s"]

    def _find_model(self) -> str:
        if not self._model:
            self._model = str(make_fixture(self._folder, self._placement.client))
        return self._model

    def _list_files(self) -> list[Path]:
        return [file for tier in self._tiers for file in tier.iterdir()]

    def _take_away(self) -> None:
        """Leave of the tiers what the filler wrote; BenchError where some of that is gone."""
        found = self._list_files()
        for file in found:
            if file not in self._filled:
                file.unlink()
        if lost := self._filled.difference(found):
            raise BenchError(
                f"{len(lost)} segments of the documents were evicted from the tiers; raise "
                "tier_capacity_bytes in eval/bench/kvstream/settings.py"
            )


@contextlib.contextmanager
def open_stand(session: Session, settings: KvStreamSettings) -> Iterator[Stand]:
    """Nobody is up yet, and nothing left at the end; the client on a core of its own."""
    # Before this process is confined: afterwards it sees the client's core only.
    placement = plan_engine_placement()
    with tempfile.TemporaryDirectory(prefix="bb-") as name, confined(placement.client):
        yield Stand(session, settings, placement, Path(name))
