"""The instances and where each stands: the state machine of `sglang_bana.status.InstanceState`.

Signs of life are answers over HTTP, to probes and requests alike, and, from local instances, load
reports of the scheduler process. One is late when older than `suspect_after_s`.

    reports   HTTP                           what follows
    on time   on time                        nothing
    on time   late                           it is busy: no new work while another is on time
    on time   HTTP_PATIENCE times that old   it is suspect: no new work, waiting requests move
    late      whatever                       it is suspect
    none      late                           it is suspect (an attached server tells nothing else)

Only a refused connection proves that an instance is gone. Time is passed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable
from enum import StrEnum

from bana.slo.errors import ConfigError
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.ids import tag_of
from sglang_bana.status import InstanceState

NOBODY_LISTENS = "nobody listens at its address"
# A thousand requests at once keep an HTTP server from everything else for many seconds.
HTTP_PATIENCE = 6


class Hearing(StrEnum):
    """What the signs of life of one instance say."""

    WELL = "well"
    BUSY = "busy"
    SILENT = "silent"


@dataclasses.dataclass(slots=True, eq=False)
class Instance:
    """One instance. `http_s` and `report_s` are when it last answered and last published.

    `takes_work`: its last probe said ready; one that drains or pauses is up and says no. `trouble`:
    why it does not, in words. `is_denied`: it does not accept our key. `is_busy`: its scheduler
    lives, and its HTTP is late. `was_probed`: some probe of it has ended, however. `deaths_total`:
    how often nobody listened any more where it had been up.
    """

    spec: UpstreamSpec
    tag: str
    state: InstanceState = InstanceState.STARTING
    http_s: float | None = None
    report_s: float | None = None
    dispatched_total: int = 0
    failures_total: int = 0
    deaths_total: int = 0
    is_bana: bool = False
    takes_work: bool = True
    trouble: str = ""
    is_denied: bool = False
    is_busy: bool = False
    was_probed: bool = False

    @property
    def name(self) -> str:
        """Its name in metrics, headers and status."""
        return self.spec.name

    def silent_s(self, now_s: float) -> float | None:
        """The age of the older of its last two signs, None before the first of each life."""
        if self.http_s is None:
            return None
        signs = [self.http_s]
        if self.spec.load_endpoint and self.report_s is not None:
            signs.append(self.report_s)
        return max(0.0, now_s - min(signs))

    def hear(self, now_s: float, suspect_after_s: float) -> Hearing:
        """The table in the head of this file, for one that has given a sign."""
        http_age_s = now_s - (self.http_s or 0.0)
        report_s = self.report_s if self.spec.load_endpoint else None
        report_age_s = http_age_s if report_s is None else now_s - report_s
        if report_age_s > suspect_after_s or http_age_s > HTTP_PATIENCE * suspect_after_s:
            return Hearing.SILENT
        return Hearing.BUSY if http_age_s > suspect_after_s else Hearing.WELL


Listener = Callable[[Instance, InstanceState], None]


class InstanceBoard:
    """All instances, sorted by name; `listen` hears of every change of state with the old one."""

    def __init__(self, specs: Iterable[UpstreamSpec], suspect_after_s: float) -> None:
        ordered = sorted(specs, key=lambda spec: spec.name)
        self._suspect_after_s = suspect_after_s
        self._listeners: list[Listener] = []
        self._instances = {spec.name: Instance(spec, tag_of(spec.name)) for spec in ordered}
        self._by_tag = {i.tag: i for i in self._instances.values()}
        if len(self._by_tag) != len(ordered) or not ordered:
            names = [spec.name for spec in ordered]
            raise ConfigError(
                f"instance names {names} must be at least one and distinct; rename one"
            )

    def listen(self, listener: Listener) -> None:
        """Call `listener(instance, old state)` after each change."""
        self._listeners.append(listener)

    def all(self) -> tuple[Instance, ...]:
        """Every instance, sorted by name."""
        return tuple(self._instances.values())

    def find(self, name: str) -> Instance | None:
        """The instance of that name."""
        return self._instances.get(name)

    def find_tag(self, tag: str) -> Instance | None:
        """The instance that an id names."""
        return self._by_tag.get(tag)

    def usable(self, excluded: Container[str] = ()) -> list[Instance]:
        """The instances outside `excluded` that may get new work, sorted by name.

        Those that say no are left out while another says yes, then those that are busy while
        another is not.
        """
        found = (i for i in self._instances.values() if i.name not in excluded)
        up = [i for i in found if i.state is InstanceState.UP]
        willing = [i for i in up if i.takes_work] or up
        return [i for i in willing if not i.is_busy] or willing

    def is_known(self) -> bool:
        """Whether each instance has been asked once, so that what is believed of it means much."""
        return all(i.was_probed for i in self._instances.values())

    def is_alive(self) -> bool:
        """Whether any instance is up, or may be."""
        alive = (InstanceState.UP, InstanceState.SUSPECT)
        return any(i.state in alive for i in self._instances.values())

    def has_lively(self, now_s: float) -> bool:
        """Whether any may get new work that was heard lately enough not to fall silent as well.

        What stops one often stops several, and the watch sees one of them first.
        """
        limit_s = self._suspect_after_s / 2
        return any(i.hear(now_s, limit_s) is not Hearing.SILENT for i in self.usable())

    def silent(self) -> list[Instance]:
        """The instances under suspicion."""
        return [i for i in self._instances.values() if i.state is InstanceState.SUSPECT]

    def observe_life(self, instance: Instance, now_s: float) -> None:
        """It answered, whatever it said."""
        instance.http_s = now_s
        if instance.state is InstanceState.DOWN:
            self._move(instance, InstanceState.STARTING)

    def observe_answer(
        self, instance: Instance, now_s: float, trouble: str = "it is not ready"
    ) -> None:
        """It answered a probe: it takes no work, because of `trouble`."""
        self.observe_life(instance, now_s)
        instance.takes_work, instance.is_denied, instance.trouble = False, False, trouble

    def observe_denial(self, instance: Instance, now_s: float, trouble: str) -> None:
        """It answered that our key is not accepted: whatever is sent there fails."""
        self.observe_answer(instance, now_s, trouble)
        instance.is_denied = True

    def observe_ready(self, instance: Instance, now_s: float) -> None:
        """It answered a probe and says that it takes work."""
        self.observe_life(instance, now_s)
        instance.takes_work, instance.is_denied, instance.trouble = True, False, ""
        if instance.state is InstanceState.STARTING:
            # Its first report may be under way still; silence counts from here.
            instance.report_s = now_s
            instance.is_busy = False
            self._move(instance, InstanceState.UP)

    def observe_head(self, instance: Instance, now_s: float) -> None:
        """It began to answer a request; what comes late out of an earlier life counts for none."""
        if instance.http_s is not None:
            instance.http_s = now_s

    def observe_report(self, instance: Instance, now_s: float) -> None:
        """It published a load report."""
        instance.report_s = now_s

    def observe_refusal(self, instance: Instance, trouble: str = NOBODY_LISTENS) -> None:
        """Nobody listens at its address, or it cannot be reached."""
        instance.trouble = trouble
        if instance.state in (InstanceState.UP, InstanceState.SUSPECT):
            instance.failures_total += 1
            instance.deaths_total += 1
            # Its next life has given no sign yet, however long it takes to start.
            instance.http_s = instance.report_s = None
            self._move(instance, InstanceState.DOWN)

    def excuse_silence(self, pause_s: float, now_s: float) -> None:
        """This process itself stood still for `pause_s` until now, and could hear nobody."""
        for instance in self._instances.values():
            if instance.http_s is not None:
                instance.http_s = min(now_s, instance.http_s + pause_s)
            if instance.report_s is not None:
                instance.report_s = min(now_s, instance.report_s + pause_s)

    def judge_silence(self, now_s: float) -> None:
        """Suspect the silent, trust again those that came back.

        Nobody hears of one before all are judged: what it leaves must not go to another silent one.
        """
        alive = (InstanceState.UP, InstanceState.SUSPECT)
        before = {i: i.state for i in self._instances.values() if i.state in alive}
        for instance in before:
            self._judge(instance, now_s)
        for instance, old in before.items():
            if instance.state is not old:
                self._tell(instance, old)

    def _judge(self, instance: Instance, now_s: float) -> None:
        hearing = instance.hear(now_s, self._suspect_after_s)
        instance.is_busy = hearing is not Hearing.WELL
        if hearing is not Hearing.SILENT:
            instance.state = InstanceState.UP
        elif instance.state is InstanceState.UP:
            instance.failures_total += 1
            instance.state = InstanceState.SUSPECT

    def _move(self, instance: Instance, state: InstanceState) -> None:
        old, instance.state = instance.state, state
        self._tell(instance, old)

    def _tell(self, instance: Instance, old: InstanceState) -> None:
        for listener in self._listeners:
            listener(instance, old)
