"""What the store's tiers give together: reads from two at once, beside each alone.

two tiers     over one of them, equally fast
tier sum      over the sum of what each gives alone in the same repetition; with equal tiers, at
              3:1, and, policy by policy, when one slows down to a quarter on the way
reader        unthrottled, beside plain preadv into the same arena
cached reads  verified reads from the page cache beside plain preadv (`reads`)
peers         the same beside LMCache's and SGLang's file stores (`peers`)
passes        what the store adds to a scheduling pass (`passes`)
overlap       how much of a layer-wise load a forward pass hides (`overlap`)
index         operations a second and bytes a page of the prefix index (`index_part`)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Bench, Scale, Session
from bana.eval.bench.index import AIMED_PAGES, IndexSettings
from bana.eval.bench.pairs import PairPlan, Run, figure_level, figure_ratio
from bana.eval.bench.store.index_part import describe_index, measure_index_apart
from bana.eval.bench.store.overlap import OverlapSettings, describe_overlap, measure_overlap
from bana.eval.bench.store.passes import PassSettings, describe_passes, measure_passes
from bana.eval.bench.store.peers import describe_peers, measure_peers
from bana.eval.bench.store.reads import ReadSettings, judge_reads, open_reads, take_speeds
from bana.eval.bench.store.stand import ReadRun, StandSettings, StoreStand, TierSpeed, open_stand
from bana.eval.bench.trials import Values
from bana.radix_global.reader.policies import DEFAULT_READER
from bana.slo.figures import Aim, Figure, judge_figure
from bana.slo.stats import bootstrap_paired

MIB = 2**20
TWO_TIERS_AIM = Aim(1.95)
SUM_AIM = Aim(0.95)
PASSES = 5
SUM_SHAPES = {"equal": (1.0, 1.0), "3_to_1": (1.5, 0.5)}
POLICIES = (DEFAULT_READER, "fixed_split", "sequential")
SLOW_FACTOR = 4.0
# Of the time that both tiers would need at full speed.
SLOWS_AFTER = 0.25


class StoreSettings(msgspec.Struct, frozen=True):
    """One scale: tiers of `tier_bytes_per_s` on average, `pairs` and repetitions of each figure.

    No reader gives more than its tiers do: beyond `most_share` the rates alone were disturbed.
    """

    stand: StandSettings
    tier_bytes_per_s: float
    pairs: int
    reads: ReadSettings
    passes: PassSettings
    overlap: OverlapSettings
    index: IndexSettings
    most_share: float = 1.02

    @property
    def slows_at_s(self) -> float:
        """When, after its start, a run's second tier slows down."""
        return SLOWS_AFTER * self.stand.total_bytes / (2 * self.tier_bytes_per_s)


SCALES = {
    Scale.QUICK: StoreSettings(
        stand=StandSettings(total_bytes=32 * MIB, page_bytes=MIB // 4),
        tier_bytes_per_s=100e6,
        pairs=1,
        # A smoke runs beside anything; it is to end, not to judge.
        most_share=10.0,
        reads=ReadSettings(
            total_bytes=64 * MIB, page_bytes=(65_536,), threads=(1, 2), rounds=1, buffer_bytes=MIB
        ),
        passes=PassSettings(pairs=3),
        overlap=OverlapSettings(rounds=3, pages=8, most_uneven=1000.0),
        index=IndexSettings(pages=100_000, windows=2, window_s=1.0),
    ),
    Scale.DEFAULT: StoreSettings(
        stand=StandSettings(total_bytes=512 * MIB, page_bytes=2 * MIB),
        tier_bytes_per_s=250e6,
        pairs=11,
        reads=ReadSettings(),
        passes=PassSettings(pairs=51),
        overlap=OverlapSettings(rounds=51),
        index=IndexSettings(pages=AIMED_PAGES),
    ),
    Scale.FULL: StoreSettings(
        stand=StandSettings(total_bytes=1024 * MIB, page_bytes=2 * MIB),
        tier_bytes_per_s=250e6,
        pairs=25,
        reads=ReadSettings(rounds=25),
        passes=PassSettings(pairs=101),
        overlap=OverlapSettings(rounds=151),
        index=IndexSettings(pages=AIMED_PAGES, windows=15),
    ),
}
Part = Callable[[Session, StoreSettings], Mapping[str, Figure]]


def measure_store(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark, part by part."""
    settings = SCALES[session.request.scale]
    figures: dict[str, Figure] = {}
    for name, part in PARTS.items():
        if session.wants(name):
            figures |= part(session, settings)
    return figures


def measure_tiers(session: Session, settings: StoreSettings) -> Mapping[str, Figure]:
    """Two tiers beside one, and beside the sum of each alone."""
    seed = session.request.seed
    with open_stand(settings.stand) as stand:
        stand.read(_both(settings, (1.0, 1.0)))  # touches every slot and file once
        figures = _take_two_tiers(session, settings, stand)
        sums = {
            shape: _repeat(session, f"sum of tiers {shape}", settings, _Sum(stand, weights))
            for shape, weights in SUM_SHAPES.items()
        }
        slowing = _repeat(session, "one slows", settings, _Slowing(stand))
    shares = judge_sums(sums, seed) | judge_slowing(settings, slowing, seed)
    require_possible(shares, settings.most_share)
    return figures | shares


def measure_reader(session: Session, settings: StoreSettings) -> Mapping[str, Figure]:
    """What the reader leaves of plain reads from the page cache, with as many threads."""
    unthrottled = msgspec.structs.replace(settings.stand, latency_s=0.0)
    whole = ReadRun({1: TierSpeed(float("inf"))}, unthrottled.pages)
    with open_stand(unthrottled) as stand:
        stand.read(whole)  # touches every slot and file once

        def measure(run: Run) -> Values:
            read = partial(stand.read, whole) if run.side == "reader" else stand.read_plain
            # One pass takes a tenth of a second, which anything else on the machine can double.
            return {"bytes_per_s": statistics.median(read() for _ in range(PASSES))}

        plan = PairPlan("reader and preadv", "reader", "preadv", settings.pairs)
        pairs = session.run_pairs(plan, measure)
    return {
        "reader_share_of_preadv": figure_ratio(pairs, "bytes_per_s", session.request.seed, None)
    }


def measure_cached_reads(session: Session, settings: StoreSettings) -> Mapping[str, Figure]:
    """Verified reads beside preadv, by page size and number of threads."""
    figures: dict[str, Figure] = {}
    reads = settings.reads
    for page_bytes in reads.page_bytes:
        with open_reads(reads, page_bytes) as sides:
            for threads in reads.threads:
                shape = f"{page_bytes}b_{threads}t"
                take = partial(take_speeds, reads, threads, sides)
                speeds = session.run_trial(f"cached reads {shape}", take)
                judged = judge_reads(speeds, session.request.seed)
                figures |= {f"{name}[{shape}]": figure for name, figure in judged.items()}
    return figures


def measure_beside_peers(session: Session, _settings: StoreSettings) -> Mapping[str, Figure]:
    """Verified reads beside those of other stores, which has settings of its own."""
    return measure_peers(session)


def measure_beside_engine(session: Session, settings: StoreSettings) -> Mapping[str, Figure]:
    """What an engine sees of the store: added time of a pass, and loads behind layers."""
    passes = measure_passes(session, settings.passes)
    return passes | measure_overlap(session, settings.overlap)


def measure_index_size(session: Session, settings: StoreSettings) -> Mapping[str, Figure]:
    """What the prefix index carries."""
    return measure_index_apart(session, settings.index)


PARTS: Mapping[str, Part] = {
    "tiers": measure_tiers,
    "reader": measure_reader,
    "cached_reads": measure_cached_reads,
    "peers": measure_beside_peers,
    "engine": measure_beside_engine,
    "index": measure_index_size,
}


class _Sum:
    """One repetition of tiers with such weights: each alone, and both."""

    def __init__(self, stand: StoreStand, weights: tuple[float, float]) -> None:
        self._stand = stand
        self._weights = weights

    def runs(self, settings: StoreSettings) -> dict[str, ReadRun]:
        """The runs by name; alone a tier reads half of the pages."""
        both = _both(settings, self._weights)
        solos = {f"solo_{tier}": _alone(settings, s, tier) for tier, s in both.speeds.items()}
        return {**solos, "both": both}

    def read(self, run: ReadRun) -> float:
        """Bytes a second of one run."""
        return self._stand.read(run)


class _Slowing(_Sum):
    """One repetition of tiers of which the second slows down: its rates alone, and each policy."""

    def __init__(self, stand: StoreStand) -> None:
        super().__init__(stand, (1.0, 1.0))

    def runs(self, settings: StoreSettings) -> dict[str, ReadRun]:
        rate = settings.tier_bytes_per_s
        slowing = TierSpeed(rate, settings.slows_at_s, rate / SLOW_FACTOR)
        speeds = {1: TierSpeed(rate), 2: slowing}
        policies = {name: ReadRun(speeds, settings.stand.pages, name) for name in POLICIES}
        slow = _alone(settings, TierSpeed(rate / SLOW_FACTOR), 2)
        solos = super().runs(settings)
        del solos["both"]
        return {**solos, "solo_2_slow": slow, **policies}


def _take_two_tiers(
    session: Session, settings: StoreSettings, stand: StoreStand
) -> dict[str, Figure]:
    both = _both(settings, (1.0, 1.0))
    sides = {"two": both, "one": msgspec.structs.replace(both, speeds={1: both.speeds[1]})}

    def measure(run: Run) -> Values:
        return {"bytes_per_s": stand.read(sides[run.side])}

    pairs = session.run_pairs(PairPlan("two tiers and one", "two", "one", settings.pairs), measure)
    seed = session.request.seed
    return {
        "two_tiers_vs_one": figure_ratio(pairs, "bytes_per_s", seed, TWO_TIERS_AIM),
        "two_tiers_bytes_per_s": figure_level(
            [pair.first["bytes_per_s"] for pair in pairs], seed, "bytes/s"
        ),
    }


def _repeat(session: Session, name: str, settings: StoreSettings, repetition: _Sum) -> list[Values]:
    """All repetitions, each with its runs in the other order than the last."""

    def measure(index: int) -> Values:
        runs = list(repetition.runs(settings).items())
        ordered = runs if index % 2 == 0 else runs[::-1]
        return {key: repetition.read(run) for key, run in ordered}

    return [
        session.run_trial(f"{name} {index + 1}/{settings.pairs}", partial(measure, index))
        for index in range(settings.pairs)
    ]


def judge_sums(trials: Mapping[str, Sequence[Values]], seed: int) -> dict[str, Figure]:
    """What both tiers gave over the sum of what each gave alone, by shape."""
    return {
        f"share_of_tier_sum[{shape}]": judge_share(
            [trial["both"] for trial in some],
            [trial["solo_1"] + trial["solo_2"] for trial in some],
            seed,
            SUM_AIM,
        )
        for shape, some in trials.items()
    }


def judge_slowing(
    settings: StoreSettings, trials: Sequence[Values], seed: int
) -> dict[str, Figure]:
    """Each policy's rate over what both tiers could have given, one of them ever slower."""
    ideal = [ideal_rate(settings, trial) for trial in trials]
    return {
        f"share_of_tier_sum_when_one_slows[{name}]": judge_share(
            [trial[name] for trial in trials],
            ideal,
            seed,
            SUM_AIM if name == DEFAULT_READER else None,
        )
        for name in POLICIES
    }


def ideal_rate(settings: StoreSettings, trial: Values) -> float:
    """Bytes a second if both tiers always gave what they give alone, slowed down or not."""
    total_bytes = settings.stand.pages * settings.stand.page_bytes
    before = trial["solo_1"] + trial["solo_2"]
    after = trial["solo_1"] + trial["solo_2_slow"]
    left_bytes = max(0.0, total_bytes - before * settings.slows_at_s)
    return total_bytes / (min(settings.slows_at_s, total_bytes / before) + left_bytes / after)


def judge_share(
    given: Sequence[float], possible: Sequence[float], seed: int, aim: Aim | None
) -> Figure:
    """The paired ratio, held against its aim."""
    spread = bootstrap_paired(given, possible, seed)
    return judge_figure(spread.value, spread.low, spread.high, "ratio", aim)


def require_possible(shares: Mapping[str, Figure], most_share: float) -> None:
    """BenchError when one of these is more than the tiers can have given."""
    for name, share in shares.items():
        if share.value > most_share:
            raise BenchError(
                f"{name} is {share.value:.3f} of what the tiers give alone, allowed: <= "
                f"{most_share}; those runs were disturbed: leave the machine alone and repeat "
                "with --fresh"
            )


def _both(settings: StoreSettings, weights: tuple[float, float]) -> ReadRun:
    rate = settings.tier_bytes_per_s
    speeds = {tier: TierSpeed(weight * rate) for tier, weight in enumerate(weights, start=1)}
    return ReadRun(speeds, settings.stand.pages)


def _alone(settings: StoreSettings, speed: TierSpeed, tier: int) -> ReadRun:
    return ReadRun({tier: speed}, max(1, settings.stand.pages // 2))


def describe_store_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    settings = SCALES[scale]
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "tiers": "directories in the page cache behind throttles, read into an arena in shared "
        "memory by the reader of the store daemon, in one process",
        "shapes": {name: list(weights) for name, weights in SUM_SHAPES.items()},
        "one_slows": f"to 1/{SLOW_FACTOR:g} after {SLOWS_AFTER:g} of the time both would need",
        "peers": describe_peers(scale),
        "passes": describe_passes(settings.passes),
        "overlap": describe_overlap(settings.overlap),
        "index": describe_index(settings.index),
        "solo": "alone a tier reads half of the pages, under the default policy",
    }


STORE = Bench(
    help="the store: tiers together, reads beside preadv and peers, passes, overlap, the index",
    settings=describe_store_settings,
    measure=measure_store,
    parts=tuple(PARTS),
)
