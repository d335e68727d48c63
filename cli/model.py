"""`bana model`: the embedded models, fetched ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer

from bana.cli.options import AsJson

model_app = typer.Typer(help="The embedded models.", no_args_is_help=True)


@model_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The embedded model, for example smollm2.")],
    *,
    json_: AsJson = False,
) -> None:
    """Fetch an embedded model into the cache; one that is there already is left alone."""
    import msgspec

    from bana.cli.fetching import show_fetch
    from sglang_bana.cluster.models import SilentProgress, fetch_model

    if json_:
        path = fetch_model(name, SilentProgress())
        print(msgspec.json.encode({"name": name, "path": str(path)}).decode())
        return
    with show_fetch() as progress:
        path = fetch_model(name, progress)
    print(f"{name}: {path}")


@model_app.command("list")
def list_models(*, json_: AsJson = False) -> None:
    """The embedded models and whether they are in the cache."""
    import os

    import msgspec

    from sglang_bana.cluster import models

    cache = models.locate_cache(os.environ)
    rows = [
        {
            "name": name,
            "is_cached": models.is_cached(name),
            "path": str(models.locate_folder(model, cache)),
        }
        for name, model in sorted(models.EMBEDDED_MODELS.items())
    ]
    if json_:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    for row in rows:
        state = "in the cache" if row["is_cached"] else "not fetched yet"
        print(f"{row['name']}: {state}: {row['path']}")
