import msgspec

from bana.eval.report.failures import MAX_KINDS, tally_failures
from bana.eval.requests import Ending, Limits, Observed, Phase

GOOD = Observed(0, 0.0, Ending.FINISHED, "default", Limits(), Phase.WINDOW, 10, 10)


def fail(error: str, ending: Ending = Ending.FAILED, status: int | None = 500) -> Observed:
    return msgspec.structs.replace(GOOD, ending=ending, error=error, status=status, code="E")


def test_kinds_are_counted_and_the_most_frequent_comes_first() -> None:
    seen = [GOOD, fail("a"), fail("b"), fail("b"), fail("b", Ending.CUT, 200)]
    tally = tally_failures(seen)
    assert [(k.failure.error, k.failure.ending, k.count) for k in tally.kinds] == [
        ("b", Ending.FAILED, 2),
        ("b", Ending.CUT, 1),
        ("a", Ending.FAILED, 1),
    ]
    assert (tally.further_kinds, tally.further_requests) == (0, 0)


def test_what_was_planned_or_finished_is_no_failure() -> None:
    cancelled = msgspec.structs.replace(GOOD, ending=Ending.CANCELLED)
    assert tally_failures([GOOD, cancelled]).kinds == ()


def test_kinds_are_bounded_and_the_rest_is_told() -> None:
    tally = tally_failures([fail(f"request {i} lost") for i in range(1000)] * 2)
    assert len(tally.kinds) == MAX_KINDS
    assert tally.further_kinds == 1000 - MAX_KINDS
    assert tally.further_requests == 2 * (1000 - MAX_KINDS)


def test_what_was_said_is_bounded_and_clean() -> None:
    (kind,) = tally_failures([fail("\x1b[2J" + "x" * 100_000)]).kinds
    assert len(kind.failure.error) == 160
    assert "\x1b" not in kind.failure.error
    (bare,) = tally_failures([msgspec.structs.replace(fail("x"), error=None, code=None)]).kinds
    assert (bare.failure.error, bare.failure.code) == ("", "")
