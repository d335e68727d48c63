"""The roles of all instances: changed at run time, and kept over a restart of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.roles import Role, Work, suits
from sglang_bana.config import write_private
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.status import RoleTable


class Roles:
    """Who is chosen for what. `is_mixed`: not everybody is there for both.

    `file` keeps what was changed; one that cannot be read is shown as `fault`, and the instances
    have the roles that they were launched with.
    """

    def __init__(self, board: InstanceBoard, file: Path) -> None:
        self._board = board
        self._file = file
        self._roles = {instance.name: instance.spec.role for instance in board.all()}
        self._unsuited: dict[Work, frozenset[str]] = {}
        self.is_mixed = False
        self.fault: str | None = None
        self._listeners: list[Callable[[], None]] = []
        self._roles.update(self._read_file())
        self._note()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def of(self, instance: Instance) -> Role:
        """The role of this instance now."""
        return self._roles[instance.name]

    def table(self) -> RoleTable:
        """Every instance's role."""
        return RoleTable(dict(self._roles))

    def change(self, wanted: Mapping[str, Role]) -> None:
        """Give these instances these roles, from the next decision on.

        ConfigError for an unknown name, OSError where it cannot be kept: then nothing changes.
        """
        for name in wanted:
            if name not in self._roles:
                raise ConfigError(describe_unknown("instance", name, self._roles))
        roles = {**self._roles, **wanted}
        write_private(self._file, RoleTable(roles))
        self._roles, self.fault = roles, None
        self._note()
        for listener in self._listeners:
            listener()

    def usable(self, work: Work, excluded: Collection[str] = ()) -> list[Instance]:
        """Who may get such work: those whose role it is, or whoever is up where there is none."""
        suited = self.suited(work, excluded)
        return suited or self._board.usable(excluded)

    def suited(self, work: Work, excluded: Collection[str] = ()) -> list[Instance]:
        """Those outside `excluded` that take new work, and whose role it is."""
        found = self._board.usable(self._unsuited[work].union(excluded))
        return [instance for instance in found if instance.takes_work]

    def may_do(self, instance: Instance, work: Work) -> bool:
        """Whether its role lets it do such work."""
        return instance.name not in self._unsuited[work]

    def warnings(self) -> tuple[str, ...]:
        """What an operator should know: a file that is of no use, work that is nobody's."""
        nobody = (
            f"no instance has the role {role} or both: whoever is up does its work; "
            f"give it to one with `bana roles set NAME {role}`"
            for work, role in ((Work.PROMPT, Role.PREFILL), (Work.ANSWER, Role.DECODE))
            if len(self._unsuited[work]) == len(self._roles)
        )
        return (*nobody, *(() if self.fault is None else (self.fault,)))

    def _note(self) -> None:
        self.is_mixed = any(role is not Role.BOTH for role in self._roles.values())
        self._unsuited = {
            work: frozenset(n for n, role in self._roles.items() if not suits(role, work))
            for work in Work
        }

    def _read_file(self) -> Mapping[str, Role]:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=RoleTable).roles
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            self.fault = (
                f"the roles kept in {self._file} cannot be read ({error}): instances have those "
                "of the launch; set them anew with `bana roles set NAME ROLE`"
            )
            return {}
        return {name: role for name, role in kept.items() if name in self._roles}
