"""Models that are no folder: refused at once where they cannot be had."""

from __future__ import annotations

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

from bana.slo.errors import ConfigError
from sglang_bana.cluster.hub import check_hub_model


class Unanswered(Exception):
    """Stands for whatever an HTTP library raises."""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SGLANG_USE_MODELSCOPE", raising=False)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)

    def set_answer(error: type[Exception] | None) -> None:
        def ask(*_: object, **__: object) -> None:
            if error is not None:
                raise error.__new__(error)

        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)

    return set_answer


@pytest.mark.parametrize("error", [None, EntryNotFoundError])
def test_repositories_that_exist_are_allowed(answer, error) -> None:
    answer(error)
    check_hub_model("org/model")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RepositoryNotFoundError, "unknown model 'org/model'"),
        (Unanswered, "Hugging Face does not answer"),
    ],
)
def test_what_cannot_be_had_is_refused(answer, error, expected: str) -> None:
    answer(error)
    with pytest.raises(ConfigError, match=expected):
        check_hub_model("org/model")


def test_what_is_no_name_is_refused_without_asking(answer) -> None:
    answer(Unanswered)
    with pytest.raises(ConfigError, match="unknown model 'a b'"):
        check_hub_model("a b")


def test_cached_models_need_no_network(answer, monkeypatch) -> None:
    answer(Unanswered)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: "/cache/config.json")
    check_hub_model("org/model")


@pytest.mark.parametrize("name", ["s3://bucket/model", "instance://host:1/model"])
def test_other_kinds_of_names_are_left_to_sglang(answer, name: str) -> None:
    answer(Unanswered)
    check_hub_model(name)
