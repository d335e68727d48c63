"""What the doctor says of a configured store, one thing wrong at a time."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.memory_room import Room
from sglang_bana.cluster.finding import Finding
from sglang_bana.config import StoreConfig, StoreTierConfig, TierKind
from sglang_bana.store import disks, doctor, mooncake
from sglang_bana.store.disks import find_disk
from sglang_bana.store.doctor import examine_store

GIB = 2**30


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB of memory, 50 of them in /dev/shm."""
    monkeypatch.setattr(doctor, "measure_room", lambda folder: Room(100 * GIB, 50 * GIB))


def examine(*paths: Path, **changes: Any) -> list[Finding]:
    tiers = tuple(StoreTierConfig(path=str(path), capacity_bytes=2**20) for path in paths)
    return list(examine_store(StoreConfig(enabled=True, **{"tiers": tiers, **changes})))


def test_without_a_store_there_is_nothing_to_say() -> None:
    assert examine_store(StoreConfig()) == ()


def test_what_is_as_it_should_be_is_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    arena, tier, other = examine(tmp_path / "there", tmp_path / "new")
    assert (arena.severity, tier.severity) == ("ok", "ok")
    assert "5.0 GiB of arena" in arena.evidence
    assert "50.0 GiB in /dev/shm" in arena.evidence
    assert tier.name == "store tier directory-1"
    # Both are on one disk, which is all that is wrong.
    assert other.severity == "warning"
    assert "store tier directory-1 is on the same one" in other.evidence
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arena_bytes": 51 * GIB}, "--shm-size"),
        (
            {
                "arena_bytes": 45 * GIB,
                "tiers": (StoreTierConfig(TierKind.MEMORY, capacity_bytes=60 * GIB),),
            },
            "memory tiers' capacity_bytes",
        ),
    ],
)
def test_an_arena_that_does_not_fit_is_bad(changes: dict[str, Any], words: str) -> None:
    (arena,) = examine(**changes)
    assert arena.severity == "bad"
    assert words in arena.remedy


def test_without_shared_memory_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> Room:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(doctor, "measure_room", fail)
    (arena,) = examine()
    assert (arena.severity, "No such file" in arena.evidence) == ("bad", True)


def test_a_folder_that_cannot_be_had_is_bad(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "open")
    found = {
        name: examine(tmp_path / name)[1] for name in ("open", "file", "link", "no/such", "file/x")
    }
    assert {finding.severity for finding in found.values()} == {"bad"}
    assert "mode 755 (at most 700)" in found["open"].evidence
    assert "chmod 700" in found["open"].remedy
    for name in ("file", "link"):
        assert "no folder of its own" in found[name].evidence
    assert found["no/such"].remedy == f"mkdir -p {tmp_path / 'no'}"


def test_a_disk_that_is_too_small_is_bad(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    most = int(free.f_bavail * free.f_frsize * 0.6)
    tiers = tuple(
        StoreTierConfig(path=str(tmp_path / name), capacity_bytes=most, name=name) for name in "ab"
    )
    _, first, second = examine(tiers=tiers)
    assert (first.severity, second.severity) == ("ok", "bad")
    assert "capacity_bytes" in second.remedy


def test_the_file_system_of_another_host_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(disks, "MOUNTS", mounts)
    number = f"{os.major(device)}:{os.minor(device)}"
    for kind, is_network in (("nfs4", True), ("fuse.sshfs", True), ("ext4", False)):
        mounts.write_text(
            "1 0 0:1 / /proc rw shared:1 - proc proc rw\n"
            f"2 0 {number} / /a\\040b rw,relatime shared:2 master:1 - {kind} host:/x rw\n"
        )
        assert find_disk(tmp_path / "t").is_network is is_network
        finding = examine(tmp_path / "t")[1]
        assert finding.severity == "ok"
        assert finding.evidence.endswith(f"{kind}, of another host" if is_network else kind)
    mounts.write_text("")
    assert find_disk(tmp_path).kind == ""


@pytest.fixture
def pool() -> StoreTierConfig:
    """A pool whose master listens on a free port of this host, or does not."""
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
    return StoreTierConfig(TierKind.MOONCAKE, options={"master": f"127.0.0.1:{port}"})


def test_a_pool_needs_its_package_and_a_master_that_answers(
    pool: StoreTierConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake, "MODULE", "a_module_that_is_not_there")
    arena, tier = examine(tiers=(pool,))
    assert "0.2 GiB of memory tiers" in arena.evidence
    assert (tier.name, tier.severity) == ("store tier mooncake-1", "bad")
    assert "pip install" in tier.remedy
    monkeypatch.setattr(mooncake, "MODULE", "pytest")
    (_, tier) = examine(tiers=(pool,))
    assert (tier.severity, tier.remedy[:21]) == ("bad", "start mooncake_master")
    master = str(pool.options["master"])
    with socket.create_server(("127.0.0.1", int(master.rpartition(":")[2]))):
        (_, tier) = examine(tiers=(pool,))
    assert (tier.severity, tier.evidence) == ("ok", f"mooncake master {master} answers")


def test_a_pool_of_other_hosts_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "MODULE", "pytest")
    # All of 127/8 is this host, but only its first address is taken for it.
    with socket.create_server(("127.0.0.2", 0)) as master:
        address = f"127.0.0.2:{master.getsockname()[1]}"
        elsewhere = StoreTierConfig(TierKind.MOONCAKE, options={"master": address})
        (_, tier) = examine(tiers=(elsewhere,))
    assert (tier.severity, tier.remedy) == ("warning", "keep them in a network of your own")
