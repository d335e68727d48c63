"""The table names every route of the installed SGLang, and refuses everything else."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from sglang_bana.router.endpoints import TABLE, Access, Kind, find_endpoint

_DECORATOR = re.compile(
    r"@(?:app|router)\.(get|post|put|delete|head|websocket|api_route)\(\s*"
    r"(?:os\.environ\.get\(\s*\"\w+\",\s*)?\"([^\"]+)\"[^)]*?(methods=\[[^\]]*\])?",
    re.DOTALL,
)
_METHOD = re.compile(r"\"(GET|POST|PUT|DELETE|HEAD)\"")


def _sglang_routes() -> set[tuple[str, str]]:
    files = importlib.metadata.files("sglang") or []
    wanted = ("entrypoints/http_server.py", "entrypoints/v1_loads.py", "entrypoints/elastic_ep.py")
    found: set[tuple[str, str]] = set()
    for file in files:
        if str(file).endswith(wanted):
            text = Path(str(file.locate())).read_text(encoding="utf-8")
            for verb, path, _ in _DECORATOR.findall(text):
                found |= {(path, method) for method in _methods(text, verb, path)}
    return found


def _methods(text: str, verb: str, path: str) -> list[str]:
    if verb != "api_route":
        return [verb.upper()]
    call = text[text.index(f'"{path}"') :]
    return _METHOD.findall(call[: call.index("]")])


def test_every_route_of_sglang_is_in_the_table_with_its_methods() -> None:
    routes = _sglang_routes()
    assert len(routes) > 90
    rows = {row.path: row for row in TABLE}
    missing = {(path, method) for path, method in routes if path not in rows}
    assert not missing
    unanswered = {
        (path, method)
        for path, method in routes
        if rows[path].kind is not Kind.LOCAL and method not in rows[path].methods
    }
    assert not unanswered


def test_the_table_invents_no_route_of_sglang() -> None:
    known = {path for path, _ in _sglang_routes()}
    own = {"/livez", "/readyz", "/metrics", "/bana/status", "/bana/drain", "/bana/roles"}
    assert {row.path for row in TABLE} - known == own


def test_rows_are_distinct_and_refusals_give_a_reason() -> None:
    assert len({row.path for row in TABLE}) == len(TABLE)
    assert all(row.reason for row in TABLE if row.kind is Kind.REFUSED)
    assert all(row.access is Access.ADMIN for row in TABLE if row.kind is Kind.BROADCAST)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("/generate", "/generate"),
        ("/v1/models/org/name", "/v1/models/{model:path}"),
        ("/v1/responses/resp_1", "/v1/responses/{response_id}"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/{response_id}/cancel"),
        ("/dumper/start", "/dumper/{method}"),
    ],
)
def test_paths_find_their_row(path: str, row: str) -> None:
    found = find_endpoint(path)
    assert found is not None
    assert found.path == row


@pytest.mark.parametrize(
    "path",
    [
        "/generate/",
        "//generate",
        "/v1/responses/a/b/cancel",
        "/flush%5Fcache",
        "/admin",
        "",
        "/v1/models/../../flush_cache",
        "/v1/models/a/%2e%2E/b",
        "/v1/responses/..%2f..%2fflush_cache",
    ],
)
def test_unknown_paths_have_no_row(path: str) -> None:
    assert find_endpoint(path) is None
