"""What the cluster_cache benchmark offers: prompts that share beginnings, in four ways.

documents     long texts with questions on them        LooGLE, or families of equal size
sessions      prompts that grow turn by turn           recorded agents, or conversations
hot           few prefixes, one of them in most        families by Zipf's law
low_sharing   hardly any prefix comes twice            one family of few members
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.gaps import find_seed
from bana.eval.bench.slo.workloads import DATA_VARIABLE
from bana.eval.requests import Phase, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.scale import scale_rate
from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    ConstantLength,
    FamilySpec,
    PromptForm,
    PromptSpec,
    TraceFormat,
    TraceSpec,
    TurnsSpec,
    UniformLength,
    WorkloadSpec,
)

DOCUMENTS_FILE = "datasets/loogle/longdep_qa.jsonl"
SESSIONS_FOLDER = "traces/lmcache_miniswe"
CHARS_PER_TOKEN = 4
# Trace seconds from one seed's rows to the next, and those in which rows may begin.
SHIFT_S = 20.0
SHIFTS = 4


class Shared(StrEnum):
    """In which way prompts share their beginnings."""

    DOCUMENTS = "documents"
    SESSIONS = "sessions"
    HOT = "hot"
    LITTLE = "low_sharing"


WORKLOADS = tuple(Shared)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how many prompts and what they share are; ids in `low_id`..`high_id`.

    A recorded session's text is shortened by `session_scale` and cut at `most_tokens`.
    """

    documents: int = 12
    document_tokens: int = 384
    question_tokens: int = 24
    hot_prefixes: int = 4
    hot_zipf: float = 1.5
    little_share: float = 0.12
    session_scale: float = 0.15
    session_turns: int = 8
    session_think_s: float = 5.0
    most_tokens: int = 768
    output_tokens: int = 4
    low_id: int = 1_000
    high_id: int = 40_000

    @property
    def prompt_tokens(self) -> int:
        """A document and its question."""
        return self.document_tokens + self.question_tokens


class Draw(msgspec.Struct, frozen=True):
    """Which requests: about `requests` of repetition `seed` after `warmup_requests`, by gaps of
    `cv`, at `rate_rps`.
    """

    seed: int
    cv: float
    rate_rps: float
    requests: int
    warmup_requests: int


class Record(msgspec.Struct, frozen=True):
    """A long text and what is asked about it, as a list in Python's notation."""

    input: Annotated[str, msgspec.Meta(min_length=1)]
    qa_pairs: str


def find_data(shared: Shared, environ: Mapping[str, str]) -> Path | None:
    """The recorded texts of this workload, None where there are none here."""
    names = {Shared.DOCUMENTS: DOCUMENTS_FILE, Shared.SESSIONS: SESSIONS_FOLDER}
    folder = environ.get(DATA_VARIABLE, "")
    if not folder or shared not in names:
        return None
    path = Path(folder) / names[shared]
    return path if path.exists() else None


def name_source(shared: Shared, contents: Contents, environ: Mapping[str, str]) -> str:
    """What a report says about where prompts come from; never a path of this machine."""
    data = find_data(shared, environ)
    match shared, data is not None:
        case Shared.DOCUMENTS, True:
            return f"{DOCUMENTS_FILE}, cut into {contents.documents} documents, its questions"
        case Shared.SESSIONS, True:
            return (
                f"{SESSIONS_FOLDER}, row by row, lengths times {contents.session_scale:g}, times "
                "drawn"
            )
        case Shared.SESSIONS, False:
            return f"synthesised conversations of up to {contents.session_turns} turns"
        case Shared.LITTLE, _:
            return f"random ids; {contents.little_share:.0%} of the prompts share their first half"
        case Shared.HOT, _:
            return f"random ids; {contents.hot_prefixes} prefixes, Zipf {contents.hot_zipf:g}"
        case _:
            return f"random ids; {contents.documents} prefixes, equally often"


def offer_requests(
    shared: Shared, contents: Contents, draw: Draw, data: Path | None, folder: Path
) -> Workload:
    """The schedule, equal for equal arguments; `folder` is for what is written on the way."""
    seed = find_seed(draw.seed, draw.cv, draw.requests, draw.warmup_requests)
    spec = WorkloadSpec(
        arrivals=ArrivalSpec(
            kind=ArrivalKind.GAMMA,
            rate_rps=1.0,
            cv=draw.cv,
            duration_s=float(draw.requests),
            warmup_s=float(draw.warmup_requests),
        ),
        prompts=_describe_prompts(shared, contents, data, folder),
        turns=_describe_turns(shared, contents, data),
        trace=_describe_trace(shared, contents, draw, data),
    )
    workload = build_workload(spec, seed)
    count = sum(request.phase is Phase.WINDOW for request in workload.requests)
    if not count:
        raise BenchError(f"{shared.value}: a draw holds no request in its window; ask for more")
    return scale_rate(workload, draw.rate_rps * workload.window_s / count)


def _describe_prompts(
    shared: Shared, contents: Contents, data: Path | None, folder: Path
) -> PromptSpec:
    ids = PromptSpec(
        token_id_low=contents.low_id,
        token_id_high=contents.high_id,
        input_tokens=ConstantLength(contents.prompt_tokens),
        output_tokens=ConstantLength(contents.output_tokens),
    )
    match shared:
        case Shared.DOCUMENTS if data is not None:
            file = folder / "documents.jsonl"
            write_documents(file, contents, data)
            return PromptSpec(
                form=PromptForm.TEXT,
                file=str(file),
                field="prompt",
                output_tokens=ConstantLength(contents.output_tokens),
            )
        case Shared.SESSIONS if data is not None:
            return PromptSpec(
                max_input_tokens=contents.most_tokens, max_output_tokens=contents.output_tokens
            )
        case Shared.SESSIONS:
            first = UniformLength(contents.document_tokens // 2, contents.document_tokens)
            return msgspec.structs.replace(ids, input_tokens=first)
        case Shared.HOT:
            families = FamilySpec(
                count=contents.hot_prefixes,
                shared_tokens=contents.document_tokens,
                zipf=contents.hot_zipf,
            )
        case Shared.LITTLE:
            half = contents.prompt_tokens // 2
            families = FamilySpec(count=1, shared_tokens=half, share=contents.little_share)
        case _:
            families = FamilySpec(count=contents.documents, shared_tokens=contents.document_tokens)
    return msgspec.structs.replace(ids, families=families)


def _describe_turns(shared: Shared, contents: Contents, data: Path | None) -> TurnsSpec | None:
    if shared is not Shared.SESSIONS or data is not None:
        return None
    return TurnsSpec(
        think_s=contents.session_think_s,
        low=1,
        high=contents.session_turns,
        new_tokens=ConstantLength(contents.question_tokens),
    )


def _describe_trace(
    shared: Shared, contents: Contents, draw: Draw, data: Path | None
) -> TraceSpec | None:
    if shared is not Shared.SESSIONS or data is None:
        return None
    return TraceSpec(
        path=str(data),
        format=TraceFormat.AGENT_SESSIONS,
        offset_s=draw.seed % SHIFTS * SHIFT_S,
        length_scale=contents.session_scale,
    )


def write_documents(file: Path, contents: Contents, data: Path) -> None:
    """Each document with each of its questions, a line each."""
    lines = [msgspec.json.encode({"prompt": p}) for p in list_questions(contents, data)]
    file.write_bytes(b"\n".join(lines) + b"\n")


def list_questions(contents: Contents, data: Path) -> Iterator[str]:
    """As many documents as wanted, in equal numbers from each record; BenchError without enough."""
    records = [msgspec.json.decode(line, type=Record) for line in data.read_bytes().splitlines()]
    chars = contents.document_tokens * CHARS_PER_TOKEN
    for number in range(contents.documents):
        record, place = records[number % len(records)], number // len(records)
        text = record.input[place * chars : (place + 1) * chars]
        if len(text) < chars:
            raise BenchError(
                f"{DOCUMENTS_FILE} holds fewer than {contents.documents} documents of {chars} "
                "characters; ask for fewer in eval/bench/cluster_cache/settings.py"
            )
        for pair in ast.literal_eval(record.qa_pairs):
            question = str(pair["Q"])[: contents.question_tokens * CHARS_PER_TOKEN]
            yield f"{text}\n\nQuestion: {question}\nAnswer:"
