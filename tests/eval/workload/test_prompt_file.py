from __future__ import annotations

import json
from pathlib import Path

import pytest

from bana.eval.requests import Message
from bana.eval.workload.prompt_file import FileTurn, read_prompt_file
from bana.slo.errors import ConfigError


def write(folder: Path, *records: object) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_each_kind_of_line_is_understood(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        {"prompt": "one", "id": 3},
        {"text": "two"},
        {"turns": ["three", "four"]},
        {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "five"}]},
        {
            "conversations": [
                {"from": "gpt", "value": "hello"},
                {"from": "system", "value": "be"},
                {"from": "human", "value": "six"},
                {"from": "gpt", "value": "seven"},
                {"from": "human", "value": "eight"},
            ]
        },
    )
    be = Message("system", "be")

    assert [c.turns for c in read_prompt_file(name, "")] == [
        (FileTurn((Message("user", "one"),)),),
        (FileTurn((Message("user", "two"),)),),
        (FileTurn((Message("user", "three"),)), FileTurn((Message("user", "four"),))),
        (FileTurn((be, Message("user", "five"))),),
        (
            FileTurn((be, Message("user", "six")), "seven"),
            FileTurn((Message("user", "eight"),)),
        ),
    ]


def test_the_field_can_be_named(tmp_path: Path) -> None:
    name = write(tmp_path, {"input": "long", "text": "short"})

    assert read_prompt_file(name, "input")[0].turns[0].asked == (Message("user", "long"),)
    with pytest.raises(ConfigError, match="did you mean 'input'"):
        read_prompt_file(name, "inputs")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([1], "a JSON list"),
        ({"promt": "x"}, "fields 'promt': expected one of"),
        ({"prompt": ""}, "'' where a prompt"),
        ({"prompt": 3}, "3 where a prompt"),
        ({"turns": []}, "[] where a list"),
        ({"turns": "x"}, "'x' where a list"),
        ({"turns": ["x", None]}, "None where a prompt"),
        ({"messages": ["x"]}, "a message is a JSON str"),
        ({"messages": [{"content": "x"}]}, "no role"),
        ({"messages": [{"role": "user"}]}, "None where a prompt"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "asks nothing"),
    ],
)
def test_a_line_that_asks_nothing_is_refused_with_its_place(
    tmp_path: Path, record: object, said: str
) -> None:
    name = write(tmp_path, {"prompt": "fine"}, record)

    with pytest.raises(ConfigError) as caught:
        read_prompt_file(name, "")

    assert "prompts.jsonl:2: " in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_no_json_or_empty_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt": "tr')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:2: .*truncated"):
        read_prompt_file(str(path), "")
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_prompt_file(str(path), "")
