"""The waiting requests in columns: places, growth, and prices as the model gives them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from bana.slo.budget import Budget
from bana.slo.steps import StepModel
from sglang_bana.engine.scheduling.waiting_room import (
    FIRST_SLOTS,
    Standing,
    WaitingRoom,
)

MODEL = StepModel(
    prefill_base_s=0.01,
    prefill_token_s=0.001,
    attended_token_s=1e-6,
    decode_base_s=0.02,
    decode_request_s=0.001,
    context_token_s=1e-6,
)
CHUNK_TOKENS = 64


@dataclass(eq=False)
class Guest:
    """What a room knows of a request."""

    bana: Standing

    @property
    def slot(self) -> int:
        return self.bana.slot


def stand(sequence: int) -> Guest:
    budget = Budget("standard", float(sequence), 10.0 + sequence % 7, 0.1)
    return Guest(Standing(budget, sequence))


def seat_all(room: WaitingRoom, count: int) -> list[Guest]:
    seated: list[Guest] = []
    for sequence in range(count):
        guest = stand(sequence)
        room.seat(guest, sequence % 3, lambda: seated)
        room.measure(guest.slot, 100 + sequence, sequence % 90)
        seated.append(guest)
    return seated


@pytest.mark.parametrize("count", [1, FIRST_SLOTS, 5 * FIRST_SLOTS + 3])
def test_everyone_keeps_an_own_row_while_the_room_grows(count: int) -> None:
    room = WaitingRoom()
    seated = seat_all(room, count)
    Random(3).shuffle(seated)
    rows = room.view(room.find(seated), MODEL, CHUNK_TOKENS)
    standings = [guest.bana for guest in seated]
    assert rows.sequence.tolist() == [s.sequence for s in standings]
    assert rows.arrival_s.tolist() == [s.budget.arrival_s for s in standings]
    assert rows.deadline_s.tolist() == [s.budget.deadline_s for s in standings]
    assert rows.prompt_tokens.tolist() == [100 + s.sequence for s in standings]
    assert room.books(room.find(seated)).tolist() == [s.sequence % 3 for s in standings]


def test_prices_are_those_of_the_model() -> None:
    room = WaitingRoom()
    seated = seat_all(room, 200)
    rows = room.view(room.find(seated), MODEL, CHUNK_TOKENS)
    expected = [
        MODEL.estimate_prefill_s(100 + n - n % 90, n % 90, CHUNK_TOKENS)
        for n in (guest.bana.sequence for guest in seated)
    ]
    assert rows.service_s == pytest.approx(expected)


def test_places_of_those_who_left_are_given_again() -> None:
    room = WaitingRoom()
    staying = stand(0)
    room.seat(staying, 0, list)
    room.measure(staying.slot, 7, 3)
    slots = set()
    for sequence in range(1, 20 * FIRST_SLOTS):
        passing = stand(sequence)
        room.seat(passing, 0, lambda: [staying])
        slots.add(passing.slot)
    assert staying.slot not in slots
    assert len(slots) < FIRST_SLOTS
    assert (room.new_tokens(staying.slot), room.prefix_tokens(staying.slot)) == (4, 3)


def test_who_enters_again_is_found_in_its_new_place() -> None:
    room = WaitingRoom()
    guest, other = stand(0), stand(1)
    for each in (guest, other, guest):
        room.seat(each, 0, list)
    assert room.find([other, guest]).tolist() == [other.slot, guest.slot]
    assert guest.slot != other.slot


def test_a_new_guest_inherits_no_mark() -> None:
    room = WaitingRoom()
    first = stand(0)
    room.seat(first, 0, list)
    room.demote(np.array([first.slot]))
    slot = first.slot
    for sequence in range(1, FIRST_SLOTS + 1):
        guest = stand(sequence)
        room.seat(guest, 0, list)
        rows = room.view(np.array([guest.slot]), MODEL, CHUNK_TOKENS)
        assert (rows.started.tolist(), rows.demoted.tolist()) == ([False], [False])
    assert guest.slot == slot


def test_whoever_begins_stays_demoted() -> None:
    room = WaitingRoom()
    guest = stand(0)
    room.seat(guest, 0, list)
    room.demote(np.array([guest.slot]))
    room.mark_started(guest.slot)
    rows = room.view(np.array([guest.slot]), MODEL, CHUNK_TOKENS)
    assert (rows.started.tolist(), rows.demoted.tolist()) == ([True], [True])
    room.mark_fresh(guest.slot)
    assert not room.view(np.array([guest.slot]), MODEL, CHUNK_TOKENS).started.any()


def test_work_is_counted_in_whole_pages_of_each_prompt() -> None:
    room = WaitingRoom()
    seated = seat_all(room, 3)
    for standing, (prompt, prefix) in zip(seated, ((17, 0), (33, 16), (16, 0)), strict=True):
        room.measure(standing.slot, prompt, prefix)
    assert room.sum_new_tokens(room.find(seated), page_tokens=16) == 32 + 32 + 16


def test_one_token_is_always_left_to_compute() -> None:
    room = WaitingRoom()
    standing = stand(0)
    room.seat(standing, 0, list)
    room.measure(standing.slot, 40, 64)
    assert room.new_tokens(standing.slot) == 1
