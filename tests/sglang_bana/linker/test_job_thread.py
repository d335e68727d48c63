"""Jobs are done in order, are bounded, and end."""

from __future__ import annotations

import logging
import threading

import pytest

from sglang_bana.engine.linker.job_thread import JobThread

from .stand import PATIENCE_S


def test_jobs_are_done_one_by_one_in_order() -> None:
    done: list[int] = []
    jobs = JobThread("test", done.append, most=100)
    assert all(jobs.offer(number) for number in range(100))
    assert jobs.settle(PATIENCE_S)
    assert done == list(range(100))


def test_more_than_allowed_are_refused_until_there_is_room() -> None:
    gate = threading.Event()
    jobs = JobThread("test", lambda _: gate.wait(PATIENCE_S), most=2)
    assert [jobs.offer(number) for number in range(3)] == [True, True, False]
    assert not jobs.settle(0.01)
    gate.set()
    assert jobs.settle(PATIENCE_S)
    assert jobs.offer(3)
    assert jobs.settle(PATIENCE_S)


def test_what_is_not_counted_takes_no_place() -> None:
    gate = threading.Event()
    jobs = JobThread("test", lambda _: gate.wait(PATIENCE_S), most=2)
    assert all(jobs.follow(number) for number in range(9))
    assert [jobs.offer(number) for number in range(3)] == [True, True, False]
    gate.set()
    assert jobs.settle(PATIENCE_S)
    assert jobs.offer(3)
    assert jobs.close(PATIENCE_S)
    assert not jobs.follow(4)


def test_a_job_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("no")
        done.append(number)

    jobs = JobThread("test", work, most=9)
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            assert jobs.offer(number)
        assert jobs.settle(PATIENCE_S)
    assert done == [0, 2]
    assert "test failed at a job" in caplog.text


def test_what_was_taken_is_done_before_the_end_and_nothing_after_it() -> None:
    done: list[int] = []
    jobs = JobThread("test", done.append, most=9)
    assert jobs.offer(1)
    assert jobs.close(PATIENCE_S)
    assert done == [1]
    assert not jobs.offer(2)
    assert JobThread("never", done.append, most=1).close(0.0)
