"""`bana store`: the store of KV pages, alone or a cluster's: what it holds, and what to do with it.

What changes something says first how much it is about, and asks, unless told --yes; --dry-run only
says it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bana.cli.options import AsJson, ConfigFile, RunDirectory, Settings

if TYPE_CHECKING:
    from bana.radix_global.admin_messages import AskPin, AskWarm, Done, Mode
    from sglang_bana.store.asking import StoreAddress

QUICK_S = 10.0
LONG_S = 600.0
VERIFY_S = 86_400.0
MIB = 2**20

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[
    float, typer.Option("--timeout", min=1, max=86_400, metavar="SECONDS", help="How long to wait.")
]
KeyFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A file of page keys, one a line, the first page first."),
]

store_app = typer.Typer(help="The store of KV pages that instances share.", no_args_is_help=True)


@store_app.callback()
def _group() -> None:
    """The store of KV pages that instances share."""


@store_app.command()
def serve(
    *,
    run_dir: RunDirectory = None,
    config: ConfigFile = None,
    set_: Settings = None,
) -> None:
    """Run a store's daemon alone, in the foreground, until it is interrupted."""
    from bana.cli.options import load_settings
    from sglang_bana.store.alone import serve_alone

    flags: dict[str, tuple[str, object]] = {"launch.run_dir": ("--run-dir", run_dir)}
    serve_alone(load_settings(config, set_, flags).config, os.environ)


@store_app.command()
def status(*, run_dir: RunDirectory = None, json_: AsJson = False) -> None:
    """What the store holds, who uses it, and what happened."""
    from bana.radix_global.admin_messages import AskStatus, Status
    from sglang_bana.store.asking import ask_store

    answer = ask_store(_find(run_dir), lambda n, _: AskStatus(n), Status, QUICK_S)
    if json_:
        _print_json(answer.report)
        return
    report = answer.report
    print(f"store: pid {report.pid}, up {report.uptime_s:.0f} s, epoch {report.epoch:x}")
    if report.is_recovering:
        print("its tiers are still being looked through: more pages will be found")
    if report.waiting_pins:
        print(f"{report.waiting_pins} pins of before wait for their pages")
    print(f"slots: {report.free_slots} free of {report.slots}, {report.slot_bytes} bytes each")
    _print_table(
        ("place", "pages", "held MiB", "of MiB", "MiB/s", "waiting"),
        [
            (
                place.name,
                str(place.pages),
                f"{place.held_bytes / MIB:.1f}",
                f"{place.capacity_bytes / MIB:.1f}",
                f"{place.bytes_per_s / MIB:.1f}" if place.bytes_per_s else "-",
                str(place.backlog_pages),
            )
            for place in report.places
        ],
    )
    for owner in report.owners:
        print(
            f"client {owner.name} (pid {owner.pid}): {owner.state}, {owner.wants} wants, "
            f"{owner.leased_pages} pages leased, {owner.reserved_slots} slots reserved, "
            f"namespace {owner.namespace}"
        )
    for client in report.refused:
        print(f"client {client.name} (pid {client.pid}): refused: {client.reason}")
    for name, count in sorted(report.counts.items()):
        if count:
            print(f"    {name} {count}")


@store_app.command("ls")
def list_namespaces(*, run_dir: RunDirectory = None, json_: AsJson = False) -> None:
    """How much each namespace holds in each place."""
    from bana.radix_global.admin_messages import AskNamespaces, AskStatus, Namespaces, Status
    from sglang_bana.store.asking import ask_store

    address = _find(run_dir)
    found = ask_store(address, lambda n, _: AskNamespaces(n), Namespaces, LONG_S)
    if json_:
        _print_json({"rows": found.rows, "omitted": found.omitted})
        return
    places = ask_store(address, lambda n, _: AskStatus(n), Status, QUICK_S).report.places
    names = {place.place: place.name for place in places}
    _print_table(
        ("namespace", "place", "pages", "MiB", "what it is"),
        [
            (
                f"{row.namespace:08x}",
                names.get(row.place, str(row.place)),
                str(row.pages),
                f"{row.size_bytes / MIB:.1f}",
                row.name or "not in use since the store was started",
            )
            for row in found.rows
        ],
    )
    if found.omitted:
        print(f"{found.omitted} smaller ones are left out")


@store_app.command("keys")
def list_keys(
    file: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="A file: text, the messages of a chat as JSON, or token ids."
        ),
    ],
    *,
    rank: Annotated[int, typer.Option(min=0, help="Of which rank (tensor parallelism).")] = 0,
    cache_salt: Annotated[str, typer.Option(help="The salt of the tenant's key.")] = "",
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """The keys of a prompt's whole pages, a line each: what `warm`, `pin` and `inspect` take."""
    from sglang_bana.cluster.control import find_live_run
    from sglang_bana.store.prompt_keys import find_prompt_keys

    found = find_prompt_keys(find_live_run(run_dir, os.environ), file, rank, cache_salt)
    keys = [key.hex() for key in found]
    if json_:
        _print_json(keys)
        return
    for key in keys:
        print(key)


@store_app.command()
def inspect(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A page's key, 32 hexadecimal digits.")],
    *,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> int:
    """What is known of one page; 1 when it is not known."""
    import msgspec

    from bana.radix_global.admin_messages import AskPage, PageFacts
    from sglang_bana.store.asking import ask_store
    from sglang_bana.store.key_files import parse_key

    page = parse_key(key, "KEY")
    facts = ask_store(_find(run_dir), lambda n, _: AskPage(n, page), PageFacts, QUICK_S)
    plain = msgspec.structs.asdict(facts) | {"parent": facts.parent.hex()}
    del plain["number"]
    if json_:
        _print_json(plain)
    else:
        for name, value in plain.items():
            print(f"{name:<12} {', '.join(value) if isinstance(value, tuple) else value}")
    return 0 if facts.is_known else 1


@store_app.command("purge", hidden=True)
@store_app.command()
def clear(
    *,
    namespace: Annotated[
        str | None, typer.Option(metavar="TAG", help="Only these pages, as `ls` names them.")
    ] = None,
    older: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only pages older than that: 90s, 15m, 2h, 7d."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout: Wait = LONG_S,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """Give up pages in the arena and on all tiers, but for those in use (also: purge)."""
    from bana.radix_global.admin_messages import AskClear, Done, Mode
    from sglang_bana.store.asking import ask_store
    from sglang_bana.store.key_files import parse_age, parse_namespace

    tag = None if namespace is None else parse_namespace(namespace)
    age_s = None if older is None else parse_age(older)
    address = _find(run_dir)

    def order(mode: Mode) -> Done:
        return ask_store(address, lambda n, s: AskClear(n, s, mode, tag, age_s), Done, timeout)

    plan = order(Mode.PLAN)
    if _may_go_on(plan, "to be given up", _Consent(dry_run, yes, json_)):
        _report(order(Mode.CARRY_OUT), "given up", json_=json_)


@store_app.command()
def warm(
    file: KeyFile,
    *,
    dry_run: DryRun = False,
    timeout: Wait = LONG_S,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """Bring a prefix from the tiers into the arena, and wait until it is there."""
    from bana.radix_global.admin_messages import AskWarm, Mode

    mode = Mode.PLAN if dry_run else Mode.CARRY_OUT
    done = _bring(AskWarm, file, mode, timeout, run_dir)
    _report(done, "to be read" if dry_run else "in the arena", json_=json_)


@store_app.command()
def pin(
    file: KeyFile,
    *,
    dry_run: DryRun = False,
    timeout: Wait = LONG_S,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """Bring a prefix into the arena and keep it there, in later lives of the store too."""
    from bana.radix_global.admin_messages import AskPin, Mode

    mode = Mode.PLAN if dry_run else Mode.CARRY_OUT
    done = _bring(AskPin, file, mode, timeout, run_dir)
    _report(done, "to be pinned" if dry_run else "pinned", json_=json_)


@store_app.command()
def unpin(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The last key of the pin (default: all).")
    ] = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """End a pin, or all: their pages may leave the arena like any others."""
    from bana.radix_global.admin_messages import AskUnpin, Done, Mode
    from sglang_bana.store.asking import ask_store
    from sglang_bana.store.key_files import parse_key

    end = b"" if key is None else parse_key(key, "KEY")
    address = _find(run_dir)

    def order(mode: Mode) -> Done:
        return ask_store(address, lambda n, s: AskUnpin(n, s, mode, end), Done, QUICK_S)

    if _may_go_on(order(Mode.PLAN), "to be unpinned", _Consent(dry_run, yes, json_)):
        _report(order(Mode.CARRY_OUT), "unpinned", json_=json_)


@store_app.command()
def verify(
    *,
    rate: Annotated[
        float, typer.Option(min=0.1, max=1e6, metavar="MIB/S", help="Of each tier, at most.")
    ] = 100.0,
    dry_run: DryRun = False,
    timeout: Wait = VERIFY_S,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> int:
    """Read every page of every tier and give up those that are bad; 1 when some were."""
    from bana.radix_global.admin_messages import AskVerify, Done, Mode
    from sglang_bana.store.asking import ask_store

    mode = Mode.PLAN if dry_run else Mode.CARRY_OUT
    done = ask_store(_find(run_dir), lambda n, s: AskVerify(n, s, mode, rate * MIB), Done, timeout)
    _report(done, "to be read" if dry_run else "read and found whole", json_=json_)
    return 0 if set(done.pages) <= {"read"} else 1


def _bring(
    ask: type[AskWarm | AskPin], file: str, mode: Mode, timeout_s: float, run_dir: str | None
) -> Done:
    """What became of bringing the prefix in `file` into the arena."""
    from bana.radix_global.admin_messages import Done
    from sglang_bana.store.asking import ask_store
    from sglang_bana.store.key_files import read_keys

    keys = read_keys(file)
    return ask_store(
        _find(run_dir), lambda n, s: ask(n, s, mode, keys, timeout_s), Done, timeout_s + QUICK_S
    )


class _Consent(NamedTuple):
    """What the command line says of agreeing, and of how to print."""

    dry_run: bool
    yes: bool
    json: bool


def _may_go_on(plan: Done, what: str, consent: _Consent) -> bool:
    """Show what would be done, and ask; False where it is not to be done."""
    from bana.slo.errors import ConfigError

    if consent.dry_run:
        _report(plan, what, json_=consent.json)
        return False
    if consent.yes:
        return True
    _report(plan, what, json_=False)
    if not os.isatty(0):
        raise ConfigError("nobody can be asked here; give --yes to go on, or --dry-run")
    return typer.confirm("go on?")


def _report(done: Done, what: str, *, json_: bool) -> None:
    if json_:
        _print_json(
            {"mode": done.mode, "pages": done.pages, "size_bytes": done.size_bytes}
            | {"remark": done.remark}
        )
        return
    counted = ", ".join(f"{name} {count}" for name, count in done.pages.items()) or "none"
    print(f"pages {what}: {counted}; {done.size_bytes / MIB:.1f} MiB")
    if done.remark:
        print(done.remark)


def _find(run_dir: str | None) -> StoreAddress:
    from sglang_bana.store.asking import find_store

    return find_store(run_dir, os.environ)


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())
