"""The instances and where each stands: the state machine of `sglang_bana.status.InstanceState`.

Signs of life are answers over HTTP and, for local instances, load reports of the scheduler
process; an instance is as silent as the quieter of the two. Time is passed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from bana.slo.errors import ConfigError
from sglang_bana.config import UpstreamSpec
from sglang_bana.router.ids import tag_of
from sglang_bana.status import InstanceState

NOBODY_LISTENS = "nobody listens at its address"


@dataclasses.dataclass(slots=True, eq=False)
class Instance:
    """One instance. `http_s` and `report_s` are when it last answered and last published.

    `takes_work`: its last probe said ready; one that drains or pauses is up and says no. `trouble`:
    why it does not, in words. `is_denied`: it does not accept our key.
    """

    spec: UpstreamSpec
    tag: str
    state: InstanceState = InstanceState.STARTING
    http_s: float | None = None
    report_s: float | None = None
    dispatched_total: int = 0
    failures_total: int = 0
    is_bana: bool = False
    takes_work: bool = True
    trouble: str = ""
    is_denied: bool = False

    @property
    def name(self) -> str:
        """Its name in metrics, headers and status."""
        return self.spec.name

    def silent_s(self, now_s: float) -> float | None:
        """The age of its last sign of life, None before the first of each of its lives."""
        if self.http_s is None:
            return None
        signs = [self.http_s]
        if self.spec.load_endpoint and self.report_s is not None:
            signs.append(self.report_s)
        return max(0.0, now_s - min(signs))


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

    def usable(self) -> list[Instance]:
        """The instances that may get new work, sorted by name.

        Those that say no are left out while another says yes.
        """
        up = [i for i in self._instances.values() if i.state is InstanceState.UP]
        return [i for i in up if i.takes_work] or up

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
            self._move(instance, InstanceState.UP)

    def observe_report(self, instance: Instance, now_s: float) -> None:
        """It published a load report."""
        instance.report_s = now_s

    def observe_refusal(self, instance: Instance, trouble: str = NOBODY_LISTENS) -> None:
        """Nobody listens at its address, or it cannot be reached."""
        instance.trouble = trouble
        if instance.state in (InstanceState.UP, InstanceState.SUSPECT):
            instance.failures_total += 1
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
        """Suspect the silent, trust again those that came back."""
        for instance in self._instances.values():
            silent_s = instance.silent_s(now_s)
            if silent_s is None:
                continue
            is_silent = silent_s > self._suspect_after_s
            if instance.state is InstanceState.UP and is_silent:
                instance.failures_total += 1
                self._move(instance, InstanceState.SUSPECT)
            elif instance.state is InstanceState.SUSPECT and not is_silent:
                self._move(instance, InstanceState.UP)

    def _move(self, instance: Instance, state: InstanceState) -> None:
        old, instance.state = instance.state, state
        for listener in self._listeners:
            listener(instance, old)
