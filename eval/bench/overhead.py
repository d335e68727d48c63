"""What neutral bana costs: saturated output tokens/s beside stock SGLang addressed directly.

    server cores: instance of bana, instance of stock; one is loaded while the other sleeps
    client core:  client, front doors, launchers

Both are started several times, in alternating order, since a process keeps its own luck with
memory; rounds alternate within each start.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random

import msgspec

from bana.eval.bench.children import confined, pin_process
from bana.eval.bench.closed import ClosedLoad, run_closed
from bana.eval.bench.clusters import (
    FLUSH_PATH,
    FRONT_DOOR,
    STOCK_SCHEDULER,
    Cluster,
    cluster,
    fetch,
)
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.overhead_round import GENERATE, draw_bodies, summarise_round
from bana.eval.bench.overhead_settings import (
    NEUTRAL,
    SCALES,
    OverheadSettings,
    describe_overhead_settings,
)
from bana.eval.bench.pairs import (
    Pair,
    PairPlan,
    Run,
    figure_difference,
    figure_level,
    figure_ratio,
)
from bana.eval.bench.placement import Placement, plan_engine_placement
from bana.eval.bench.trials import Values
from bana.eval.client.target import Target
from bana.slo.figures import Aim, Figure, Judged, judge_figure

MEDIAN_AIM = Aim(0.98, judged=Judged.MEDIAN)
BOUND_AIM = Aim(0.95)
WARM_UP_ROUND = 999
SEEDS_A_START = 10


class Side(StrEnum):
    """Whose tokens are counted; `stock_again` is the second half of a control pair."""

    BANA = "bana"
    STOCK = "stock"
    STOCK_AGAIN = "stock_again"


class _Servers(msgspec.Struct, frozen=True):
    """Both clusters, ready, and where their processes may run."""

    bana: Cluster
    stock: Cluster
    placement: Placement

    def choose(self, side: Side) -> tuple[Cluster, Target]:
        """The cluster of a side, and where its load goes."""
        if side is Side.BANA:
            return self.bana, self.bana.front_door
        return self.stock, self.stock.instances[0]

    def move_front_door(self, cores: frozenset[int]) -> None:
        """Confine bana's front door to `cores`."""
        pin_process(self.bana.find_pid(FRONT_DOOR), cores)


class TakenPairs(msgspec.Struct, frozen=True):
    """The pairs of one start, or of all."""

    neutral: list[Pair]
    control: list[Pair]
    shared: list[Pair]


def measure_overhead(session: Session) -> dict[str, Figure]:
    """All figures of this benchmark."""
    taken = take_pairs(session, SCALES[session.request.scale])
    return _judge(taken, session.request.seed)


def take_pairs(session: Session, settings: OverheadSettings) -> TakenPairs:
    """All pairs of all starts; bana's side runs the policies that the settings name."""
    taken = [_take_start(session, settings, start) for start in range(settings.starts)]
    return TakenPairs(
        neutral=[pair for one in taken for pair in one.neutral],
        control=[pair for one in taken for pair in one.control],
        shared=[pair for one in taken for pair in one.shared],
    )


def _take_start(session: Session, settings: OverheadSettings, start: int) -> TakenPairs:
    """Start both servers and take the pairs of one start."""
    kinds = (Side.BANA, Side.STOCK) if start % 2 == 0 else (Side.STOCK, Side.BANA)
    where = f"start {start + 1}/{settings.starts}"
    with (
        tempfile.TemporaryDirectory(prefix="bb-") as folder,
        _started(session, settings, Path(folder), kinds) as servers,
    ):
        for side in kinds:
            _run_round(settings, servers, side, session.seed_of(WARM_UP_ROUND))

        def measure(run: Run) -> Values:
            seed = session.seed_of(start * SEEDS_A_START + run.index)
            return _run_round(settings, servers, Side(run.side), seed)

        def take(name: str, sides: tuple[Side, Side], pairs: int) -> list[Pair]:
            if not pairs:
                return []
            return session.run_pairs(PairPlan(f"{name}, {where}", *sides, pairs), measure)

        neutral = take("bana and stock", (Side.BANA, Side.STOCK), settings.pairs)
        again = (Side.STOCK, Side.STOCK_AGAIN)
        control = take("stock and stock", again, settings.control_pairs)
        does_decide = bool(servers.bana.read_counts().get("passes"))
        if does_decide is (settings.policies == NEUTRAL):
            told = ", ".join(settings.policies)
            raise BenchError(f"bana decided {'passes' if does_decide else 'no pass'} under {told}")
        servers.move_front_door(servers.placement.server)
        shared = take("shared cores", (Side.BANA, Side.STOCK), settings.shared_pairs)
    return TakenPairs(neutral, control, shared)


@contextlib.contextmanager
def _started(
    session: Session, settings: OverheadSettings, folder: Path, kinds: Sequence[Side]
) -> Iterator[_Servers]:
    """Both clusters, started in the order of `kinds`."""
    placement = plan_engine_placement()
    with confined(placement.client), contextlib.ExitStack() as stack:
        ready = {}
        for kind in kinds:
            session.say(f"starting {kind} (up to {settings.start_timeout_s:g} s)")
            ready[kind] = stack.enter_context(
                cluster(
                    kind,
                    _list_words(settings, kind),
                    placement.server,
                    folder,
                    settings.start_timeout_s,
                )
            )
        servers = _Servers(ready[Side.BANA], ready[Side.STOCK], placement)
        _check_proofs(servers)
        for started in ready.values():
            pin_process(started.child.pid, placement.client)
            pin_process(started.find_pid(FRONT_DOOR), placement.client)
        yield servers


def _list_words(settings: OverheadSettings, side: Side) -> list[str]:
    policies = settings.policies if side is Side.BANA else ()
    sets = [word for entry in policies for word in ("--set", entry)]
    return ["--model", settings.model, "--set", f"engine.scheduler={side}", *sets]


def _check_proofs(servers: _Servers) -> None:
    """Each side must run what it stands for, and differ in nothing but the scheduler."""
    bana, stock = servers.bana.wait_proof(), servers.stock.wait_proof()
    if stock.scheduler_class != STOCK_SCHEDULER:
        raise BenchError(f"stock runs {stock.scheduler_class}, expected {STOCK_SCHEDULER}")
    if bana.scheduler_class == STOCK_SCHEDULER:
        raise BenchError(f"bana runs {STOCK_SCHEDULER}: the comparison would be with itself")
    for name in ("attention_backend", "platform", "device", "page_size", "sglang_version"):
        ours, theirs = getattr(bana, name), getattr(stock, name)
        if ours != theirs:
            raise BenchError(f"the sides differ in {name}: {ours} and {theirs}")


def _run_round(settings: OverheadSettings, servers: _Servers, side: Side, seed: int) -> Values:
    """One saturated round on flushed caches."""
    loaded, target = servers.choose(side)
    for instance in loaded.instances:
        fetch(instance, FLUSH_PATH, b"")
    bodies = draw_bodies(settings, Random(seed))
    load = ClosedLoad(GENERATE, bodies, settings.concurrency, settings.round_timeout_s)
    result = run_closed(target, load)
    for cluster_ in (servers.bana, servers.stock):
        cluster_.require_undisturbed()
    return summarise_round(result, settings.output_tokens)


def _judge(taken: TakenPairs, seed: int) -> dict[str, Figure]:
    def ratio(pairs: list[Pair]) -> Figure:
        return figure_ratio(pairs, "tokens_per_s", seed, None)

    def level(values: list[dict[str, float]]) -> Figure:
        return figure_level([v["tokens_per_s"] for v in values], seed, "tokens/s")

    return {
        "throughput_vs_stock": judge_throughput(ratio(taken.neutral)),
        "throughput_vs_stock[front door on the instance's cores]": ratio(taken.shared),
        "control_stock_vs_stock": ratio(taken.control),
        "first_token_added_p50_ms": figure_difference(
            taken.neutral, "first_token_p50_ms", seed, "ms", None
        ),
        "bana_tokens_per_s": level([pair.first for pair in taken.neutral]),
        "stock_tokens_per_s": level([pair.second for pair in taken.neutral]),
    }


def judge_throughput(figure: Figure) -> Figure:
    """Held against both of its aims: the median, and the lower bound."""
    spread = (figure.value, figure.low, figure.high, figure.unit)
    median, bound = judge_figure(*spread, MEDIAN_AIM), judge_figure(*spread, BOUND_AIM)
    return msgspec.structs.replace(
        figure,
        aim=f"{median.aim} and {bound.aim} (low)",
        met=median.met is True and bound.met is True,
    )


OVERHEAD = Bench(
    help="neutral bana against stock SGLang: saturated output tokens/s",
    settings=describe_overhead_settings,
    measure=measure_overhead,
)
