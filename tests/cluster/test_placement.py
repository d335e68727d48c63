"""Which cores and GPUs instances get."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from sglang_bana.cluster.placement import (
    Demand,
    Machine,
    Share,
    format_binding,
    format_cores,
    plan_placement,
    select_visible,
)


def place(cores: int, gpus: int, instances: int, ranks: int):
    machine = Machine(tuple(range(cores)), tuple(str(gpu) for gpu in range(gpus)))
    return plan_placement(machine, Demand(instances, ranks))


def test_cores_are_split_into_neighbours_for_each_rank() -> None:
    placement = place(8, 0, 2, 2)
    assert [format_binding(share) for share in placement.shares] == ["0-1|2-3", "4-5|6-7"]
    assert placement.on_cpu
    assert placement.warnings == ()


def test_cores_that_do_not_divide_are_still_all_used() -> None:
    sizes = [len(share.all_cores) for share in place(7, 0, 3, 1).shares]
    assert sizes == [3, 2, 2]


def test_too_few_cores_are_shared_and_that_is_said() -> None:
    placement = place(2, 0, 2, 2)
    assert [format_binding(share) for share in placement.shares] == ["0|1", "0|1"]
    assert "4 worker processes share 2 cores" in placement.warnings[0]
    assert "at most 1 --instances" in placement.warnings[0]


def test_more_ranks_of_an_instance_than_cores_are_refused() -> None:
    assert place(4, 0, 3, 4).on_cpu
    refused = r"64 ranks needs as many cores, usable are 2 \(0-1\); lower SGLang's --tp-size"
    with pytest.raises(ConfigError, match=refused):
        place(2, 0, 1, 64)


def test_gpus_are_dealt_out_and_never_shared() -> None:
    placement = place(8, 4, 2, 2)
    assert [share.gpus for share in placement.shares] == [("0", "1"), ("2", "3")]
    assert not placement.on_cpu
    assert all(share.cores == () for share in placement.shares)


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 instances of 2 GPUs need 4 GPUs, visible are 3"):
        place(8, 3, 2, 2)


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (0, None, ()),
        (0, "0", ()),
        (2, None, ("0", "1")),
        (4, "2,0", ("2", "0")),
        (4, "", ()),
        (4, "1,9,2", ("1",)),
        (4, "-1,2", ()),
        (4, "GPU-8932f937,2", ("GPU-8932f937", "2")),
    ],
)
def test_visible_devices_are_read_as_cuda_does(count, visible, expected) -> None:
    assert select_visible(count, visible) == expected


@given(st.integers(1, 96), st.integers(1, 12), st.integers(1, 4))
def test_every_rank_has_a_core_and_none_is_shared_without_need(cores, instances, ranks) -> None:
    assume(ranks <= cores)
    placement = place(cores, 0, instances, ranks)
    slots = [rank for share in placement.shares for rank in share.cores]
    assert len(slots) == instances * ranks
    assert all(slots)
    used = [core for rank in slots for core in rank]
    if instances * ranks <= cores:
        assert sorted(used) == list(range(cores))
    else:
        assert set(used) == set(range(cores))


@given(st.sets(st.integers(0, 60), min_size=1))
def test_a_core_list_names_exactly_its_cores(cores) -> None:
    named: set[int] = set()
    for span in format_cores(cores).split(","):
        low, _, high = span.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == cores


def test_share_lists_each_core_once() -> None:
    assert Share(cores=((0,), (0,), (1,))).all_cores == (0, 1)
