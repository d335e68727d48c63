from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bana.eval.workload.spec import TraceFormat, TraceSpec
from bana.eval.workload.traces import read_trace
from bana.slo.errors import ConfigError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = "\n".join(
    [
        HEADER,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "",
        "2023-11-16 18:16:50.9951690,9,1",
        "",
    ]
)


def mooncake(**entries: Any) -> str:
    record = {"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
    return json.dumps({**record, **entries})


def session(**entries: Any) -> str:
    record = {"timestamp": 5_000_000, "input": "ask", "output": "say", "session_id": "s"}
    return json.dumps({**record, **entries})


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_azure_rows_are_read_with_their_times(tmp_path: Path) -> None:
    trace = read_trace(TraceSpec(str(write(tmp_path, "a.csv", AZURE))))

    assert trace.format is TraceFormat.AZURE
    assert [(r.input_tokens, r.output_tokens) for r in trace.rows] == [
        (374, 44),
        (396, 109),
        (9, 1),
    ]
    assert [r.time_s for r in trace.rows] == pytest.approx([0, 4.314579, 64.314579], abs=2e-6)


def test_azure_columns_may_be_in_any_order_quoted_and_with_a_time_zone(tmp_path: Path) -> None:
    text = (
        '\ufeffGeneratedTokens,Region,"TIMESTAMP",ContextTokens\r\n'
        '3,"a, b",2024-05-10 00:00:00.5+00:00,7\r\n'
    )
    trace = read_trace(TraceSpec(str(write(tmp_path, "a.csv", text))))

    assert (trace.rows[0].input_tokens, trace.rows[0].output_tokens) == (7, 3)


def test_mooncake_rows_are_read_with_their_ids(tmp_path: Path) -> None:
    text = "\n".join([mooncake(timestamp=1000), mooncake(timestamp=3500, hash_ids=[0, 7])])
    trace = read_trace(TraceSpec(str(write(tmp_path, "m.jsonl", text))))

    assert trace.format is TraceFormat.MOONCAKE
    assert [r.time_s for r in trace.rows] == [0, 2.5]
    assert trace.rows[1].hash_ids == (0, 7)


def test_sessions_of_a_folder_are_joined_and_sorted_by_time(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "\n".join([session(timestamp=9_000_000), session(input="first")]))
    write(tmp_path, "b.jsonl", session(timestamp=6_000_000, session_id="t"))
    trace = read_trace(TraceSpec(str(tmp_path)))

    assert trace.format is TraceFormat.AGENT_SESSIONS
    assert [(r.time_s, r.session) for r in trace.rows] == [(0, "s"), (1, "t"), (4, "s")]
    assert trace.rows[0].text == "first"


def test_a_segment_begins_at_its_offset_and_ends_after_its_rows(tmp_path: Path) -> None:
    text = "\n".join(mooncake(timestamp=1000 * i, output_length=i + 1) for i in range(10))
    path = str(write(tmp_path, "m.jsonl", text))
    trace = read_trace(TraceSpec(path, offset_s=2.5, max_requests=4))

    assert [r.output_tokens for r in trace.rows] == [4, 5, 6, 7]
    assert [r.time_s for r in trace.rows] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="offset_s=99"):
        read_trace(TraceSpec(path, offset_s=99))


def test_another_block_size_can_be_stated(tmp_path: Path) -> None:
    path = str(write(tmp_path, "m.jsonl", mooncake(input_length=30)))

    assert len(read_trace(TraceSpec(path, block_tokens=16)).rows) == 1


A, M, S = TraceFormat.AZURE, TraceFormat.MOONCAKE, TraceFormat.AGENT_SESSIONS
ROW = "2023-11-16 18:15:46.68,374,44"
EARLIER = "2023-11-16 18:15:45.68,374,44"


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (A, "TIMESTAMP,ContextTokens\n", ":1: column 'GeneratedTokens' is missing"),
        (A, "", "is empty"),
        (A, HEADER, "no rows"),
        (A, f"{HEADER}\n{ROW}\n2023-11-16 18:15:47,374", ":3: 2 cells, expected 3"),
        (A, f"{HEADER}\n{ROW},1", ":2: 4 cells"),
        (A, f"{HEADER}\nyesterday,374,44", ":2: TIMESTAMP 'yesterday'"),
        (A, f"{HEADER}\n\n2023-11-16 18:15:46,-3,44", ":3: ContextTokens '-3'"),
        (A, f"{HEADER}\n2023-11-16 18:15:46,3,0", ":2: GeneratedTokens '0'"),
        (A, f"{HEADER}\n2023-11-16 18:15:46,3.5,4", ":2: ContextTokens '3.5'"),
        (A, f"{HEADER}\n2023-11-16 18:15:46,nan,4", ":2: ContextTokens 'nan'"),
        (A, f"{HEADER}\n2023-11-16 18:15:46,1_0,4", ":2: ContextTokens '1_0'"),
        (A, f"{HEADER}\n2023-11-16 18:15:46,{'9' * 400},4", ":2: ContextTokens '999"),
        (A, f"{HEADER}\n{ROW}\n{EARLIER}", ":3: earlier than the line before"),
        (A, f'{HEADER}\n"2023', ":2: no CSV"),
        (A, b"\x89PNG\r\n\x1a\n\x00\xff\xfe", ":1: no UTF-8 text"),
        (M, "", "no rows"),
        (M, mooncake()[:30], ":1: "),
        (M, f"{mooncake()}\n{mooncake()[:-1]}", ":2: "),
        (M, mooncake(input_length="600"), ":1: Expected `int`, got `str`"),
        (M, mooncake(input_length=-1), ":1: Expected `int` >= 1"),
        (M, mooncake(output_length=0), ":1: Expected `int` >= 1"),
        (M, mooncake(timestamp=None), ":1: Expected `float`, got `null`"),
        (M, mooncake(timestamp=-1), ":1: Expected `float` >= 0"),
        (M, mooncake().replace("600", "1e999"), ":1: "),
        (M, mooncake().replace("600", "NaN"), ":1: "),
        (M, mooncake(hash_ids=[0]), ":1: 1 hash_ids, expected 2"),
        (M, mooncake(hash_ids=[0, -1]), ":1: Expected `int` >= 0"),
        (M, mooncake(hash_ids="01"), ":1: Expected `array`"),
        (M, "[1]", ":1: Expected `object`"),
        (M, '{"timestamp": 1}', ":1: Object missing required field"),
        (M, f"{mooncake()}\n{mooncake(timestamp=4)}", ":2: timestamp is earlier"),
        (M, b"\x00\xff", ":1: no UTF-8 text"),
        (S, "", "no rows"),
        (S, session()[:20], ":1: "),
        (S, session(input=""), ":1: Expected `str` of length >= 1"),
        (S, session(input=["a"]), ":1: Expected `str`"),
        (S, session(timestamp=1.5), ":1: Expected `int`"),
        (S, session(timestamp=-1), ":1: Expected `int` >= 0"),
        (S, session(session_id=3), ":1: Expected `str`"),
        (S, '{"timestamp": 1}', ":1: Object missing required field `input`"),
    ],
)
def test_a_malformed_line_is_refused_with_its_place(
    tmp_path: Path, kind: TraceFormat, content: str | bytes, said: str
) -> None:
    path = write(tmp_path, "trace", content)

    with pytest.raises(ConfigError) as caught:
        read_trace(TraceSpec(str(path), format=kind))

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_known_trace_is_refused_with_the_known_formats(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", '{"prompt": "hello"}')

    with pytest.raises(ConfigError, match=r"x\.jsonl:1: .*azure, mooncake, agent_sessions"):
        read_trace(TraceSpec(str(path)))
    with pytest.raises(ConfigError, match="is empty"):
        read_trace(TraceSpec(str(write(tmp_path, "e.jsonl", "\n\n"))))
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(TraceSpec(str(tmp_path / "absent.jsonl")))


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \*\.jsonl"):
        read_trace(TraceSpec(str(tmp_path)))
    with pytest.raises(ConfigError, match="cannot read"):
        read_trace(TraceSpec(str(tmp_path), format=M))
