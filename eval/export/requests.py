"""A workload as a file that SGLang's bench_serving reads as its dataset `openai`.

`bana.eval.workload.openai_requests` says what a line holds and reads it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bana.eval.client.plan import Endpoint
from bana.eval.client.shapes import check_prompt
from bana.eval.requests import Message, Offered, Phase, Prompt, Workload
from bana.slo.errors import ConfigError

# bench_serving leaves out what has no messages, and counts the tokens of those it finds.
STAND_IN = (Message("user", "token ids"),)


def write_requests(workload: Workload, endpoint: Endpoint, path: Path) -> None:
    """Write every request of `workload`, as it is sent to `endpoint`, to the new file `path`.

    ConfigError for a workload that bench_serving cannot offer, and where nothing can be written.
    """
    _check_workload(workload)
    for offered in workload.requests:
        check_prompt(offered.prompt, endpoint)
    try:
        with path.open("xb") as file:
            for offered in workload.requests:
                file.write(msgspec.json.encode(_describe(offered, endpoint)) + b"\n")
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; name another file") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}); free space or name another file"
        ) from error


def _check_workload(workload: Workload) -> None:
    """Refuse what bench_serving knows nothing of."""
    around = [r.phase for r in workload.requests if r.phase is not Phase.WINDOW]
    if around:
        key = "warmup_s" if Phase.WARMUP in around else "cooldown_s"
        raise ConfigError(
            f"{len(around)} of {len(workload.requests)} requests are due outside of the window, "
            f"and bench_serving counts all: --set workload.arrivals.{key}=0"
        )
    cancelled = sum(r.cancel_after_s is not None for r in workload.requests)
    if cancelled:
        raise ConfigError(
            f"{cancelled} of {len(workload.requests)} requests are cancelled by their client, and "
            "bench_serving waits for every answer: remove workload.cancel"
        )


def _describe(offered: Offered, endpoint: Endpoint) -> dict[str, object]:
    return {
        "messages": _choose_messages(offered.prompt),
        "max_tokens": offered.output_tokens,
        "timestamp": offered.due_s * 1e3,
        **_describe_prompt(offered.prompt, endpoint),
        **offered.extra_body,
    }


def _choose_messages(prompt: Prompt) -> Sequence[Message]:
    if prompt.text is not None:
        return (Message("user", prompt.text),)
    return prompt.messages or STAND_IN


def _describe_prompt(prompt: Prompt, endpoint: Endpoint) -> dict[str, object]:
    """The fields that take the messages' place in the body that bench_serving sends."""
    ids = None if prompt.token_ids is None else [int(token) for token in prompt.token_ids]
    match endpoint:
        case Endpoint.CHAT:
            return {}
        case Endpoint.COMPLETIONS:
            return {"prompt": prompt.text if ids is None else ids}
        case Endpoint.GENERATE:
            # It puts the messages into `input_ids`, unless told otherwise.
            return {"input_ids": ids} if ids else {"input_ids": None, "text": prompt.text}
