from __future__ import annotations

from typing import Any

from bana.eval.client.outbox import MAX_AHEAD, Outbox
from bana.eval.client.shapes import Shaper


def test_requests_come_in_their_order_whether_written_ahead_or_not(
    make_plan: Any, make_workload: Any
) -> None:
    requests = make_workload(MAX_AHEAD * 2).requests
    outbox = Outbox(requests, Shaper(make_plan("http://h")), "run")

    letters = [outbox.take() for _ in range(MAX_AHEAD)]
    assert outbox.write_ahead()
    letters += [outbox.take() for _ in range(MAX_AHEAD)]

    assert [letter.offered for letter in letters] == list(requests)
    assert [letter.request_id for letter in letters[:2]] == ["run-0", "run-1"]
    assert b"x-request-id: run-9\r\n" in letters[9].request
    assert not outbox.write_ahead()


def test_what_is_written_ahead_is_bounded(make_plan: Any, make_workload: Any) -> None:
    outbox = Outbox(make_workload(MAX_AHEAD + 2).requests, Shaper(make_plan("http://h")), "run")

    assert not outbox.write_ahead()
    outbox.take()
    assert outbox.write_ahead()
    assert not outbox.write_ahead()
