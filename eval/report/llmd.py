"""A run as a Benchmark Report 0.2.1 of llm-d, so that other tools can read it.

Source of the format: llm-d/llm-d-benchmark, `benchmark-report`, schema version 0.2.1. What the
schema has no field for stands under `results.observability.bana`, where it allows any.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence

from bana.eval.distributions import measure_e2e_s
from bana.eval.report.lines import encode_json
from bana.eval.report.llmd_servers import describe_servers, describe_stack
from bana.eval.report.llmd_statistics import (
    COUNT,
    FRACTION,
    QUERIES_PER_SECOND,
    SECONDS,
    SECONDS_PER_TOKEN,
    TOKENS_PER_SECOND,
    Json,
    describe_distribution,
    describe_mean,
    describe_series,
    describe_values,
    drop_missing,
    tell_time,
)
from bana.eval.report.records import StoredRun
from bana.eval.report.text import clean_text
from bana.eval.report.timeline import trace_timeline
from bana.eval.requests import Ending, Observed
from bana.eval.runs import select_window
from bana.eval.summary import Summary

VERSION = "0.2.1"
# Prompts of a trace are neither: their lengths are sampled, their tokens are made.
SOURCES = {"synthetic": "random", "file": "sampled"}
MAX_SENTENCE = 600
FAILURES = (Ending.REJECTED, Ending.FAILED, Ending.CUT)
INCOMPLETE = (Ending.UNFINISHED, Ending.CANCELLED)


def describe_llmd(stored: StoredRun) -> Json:
    """The report's fields as builtins; latencies in seconds, counted from the schedule."""
    observed = select_window(stored.record.run)
    return {
        "version": VERSION,
        "run": _describe_run(stored),
        "scenario": drop_missing(
            {
                "stack": describe_stack(stored) or None,
                "load": _describe_load(stored, observed) if observed else None,
            }
        ),
        "results": {
            "request_performance": _describe_performance(stored, observed),
            "observability": _describe_observability(stored),
        },
    }


def _describe_run(stored: StoredRun) -> Json:
    summary, started_at = stored.summary, stored.origin.started_at
    time = {"duration": f"PT{summary.duration_s:.6f}S"}
    if started_at is not None:
        time["start"] = tell_time(started_at, 0.0)
        time["end"] = tell_time(started_at, summary.duration_s)
    return {
        # The same run written twice is the same report.
        "uid": hashlib.sha256(encode_json([summary, stored.origin])).hexdigest()[:32],
        "eid": clean_text(summary.fingerprint),
        "time": time,
        "description": clean_text(summary.sentence, MAX_SENTENCE),
    }


def _describe_load(stored: StoredRun, observed: Sequence[Observed]) -> Json:
    summary = stored.summary
    standardized = {
        "tool": "bana",
        "tool_version": importlib.metadata.version("bana"),
        "source": SOURCES.get(str(summary.workload.get("source")), "unknown"),
        "input_seq_len": _describe_length([o.prompt_tokens for o in observed]),
        "output_seq_len": _describe_length([o.asked_tokens for o in observed]),
        "multi_turn": {"enabled": True} if any(o.session for o in observed) else None,
        "rate_qps": summary.offered_rps or None,
    }
    native = {
        "target": summary.target,
        "seed": summary.seed,
        "workload": summary.workload,
        "settings": stored.origin.settings,
    }
    return {
        "metadata": {"cfg_id": clean_text(summary.fingerprint)},
        "standardized": drop_missing(standardized),
        "native": {"config": native},
    }


def _describe_length(lengths: Sequence[int]) -> Json | None:
    low, high = min(lengths), max(lengths)
    if high < 1:
        return {"distribution": "fixed", "value": 0}
    if low == high:
        return {"distribution": "fixed", "value": low}
    mean = sum(lengths) / len(lengths)
    return {"distribution": "other", "value": mean, "min": low, "max": high}


def _describe_performance(stored: StoredRun, observed: Sequence[Observed]) -> Json:
    summary, started_at = stored.summary, stored.origin.started_at
    aggregate = {
        "requests": _describe_requests(summary, observed),
        "latency": _describe_latency(summary, observed),
        "throughput": _describe_throughput(summary),
    }
    waits = describe_series(trace_timeline(stored).ttft_s, SECONDS, started_at)
    if waits is None:
        return {"aggregate": aggregate}
    return {"aggregate": aggregate, "time_series": {"latency": {"time_to_first_token": waits}}}


def _describe_requests(summary: Summary, observed: Sequence[Observed]) -> Json:
    endings = summary.overall.endings
    answered = [o.output_tokens for o in observed if o.ending is Ending.FINISHED]
    fields = {
        "total": summary.overall.offered,
        "failures": sum(endings.get(ending, 0) for ending in FAILURES),
        "incomplete": sum(endings.get(ending, 0) for ending in INCOMPLETE),
        "input_length": describe_values([o.prompt_tokens for o in observed], COUNT),
        "output_length": describe_values(answered, COUNT),
    }
    return drop_missing(fields)


def _describe_latency(summary: Summary, observed: Sequence[Observed]) -> Json:
    found = summary.overall.latencies
    whole = [(measure_e2e_s(o), o.output_tokens) for o in observed if o.output_tokens > 0]
    per_token_s = [e2e_s / tokens for e2e_s, tokens in whole if e2e_s is not None]
    return drop_missing(
        {
            "time_to_first_token": describe_distribution(found.ttft_s, SECONDS),
            "time_per_output_token": describe_distribution(found.tpot_s, SECONDS_PER_TOKEN),
            "inter_token_latency": describe_distribution(found.itl_s, SECONDS_PER_TOKEN),
            "normalized_time_per_output_token": describe_values(per_token_s, SECONDS_PER_TOKEN),
            "request_latency": describe_distribution(found.e2e_s, SECONDS),
        }
    )


def _describe_throughput(summary: Summary) -> Json:
    finished_rps = summary.overall.endings.get(Ending.FINISHED, 0) / summary.window_s
    total = summary.input_tokens_per_s + summary.output_tokens_per_s
    return {
        "input_token_rate": describe_mean(summary.input_tokens_per_s, TOKENS_PER_SECOND),
        "output_token_rate": describe_mean(summary.output_tokens_per_s, TOKENS_PER_SECOND),
        "total_token_rate": describe_mean(total, TOKENS_PER_SECOND),
        "request_rate": describe_mean(finished_rps, QUERIES_PER_SECOND),
    }


def _describe_observability(stored: StoredRun) -> Json:
    summary = stored.summary
    overall = summary.overall
    rejected = overall.endings.get(Ending.REJECTED, 0)
    dropped = rejected / overall.offered if overall.offered else None
    return drop_missing(
        {
            "components": describe_servers(stored) or None,
            "drop_rate": None if dropped is None else describe_mean(dropped, FRACTION),
            "bana": {
                "is_valid": summary.validity.is_valid,
                "is_interrupted": summary.is_interrupted,
                "attainment": overall.attainment,
                "goodput_rps": overall.goodput_rps,
                "missed": overall.missed,
                "ttft_from_send_s": overall.latencies.ttft_from_send_s,
                "e2e_from_send_s": overall.latencies.e2e_from_send_s,
                "jain_index": summary.jain_index,
            },
        }
    )
