"""Which paths the front door answers, and how: the explicit table of every endpoint.

Every route of SGLang 0.5.23 is here with a kind or with the reason why it is refused; a test
holds the table against the installed server. Unknown paths are refused.
"""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import unquote

import msgspec


class Kind(StrEnum):
    """Who answers: one instance by policy, the owner of an id, every instance, bana, or nobody."""

    BALANCED = "balanced"
    STICKY = "sticky"
    BROADCAST = "broadcast"
    LOCAL = "local"
    REFUSED = "refused"


class Access(StrEnum):
    """Whose key opens it. CONTROL: the launcher's control key or the admin key."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"
    CONTROL = "control"


class RidCarrier(StrEnum):
    """Where the engine takes its request id from.

    EXPANDED: `rid`, to which SGLang adds `_0`, `_1`, … for batches. PER_ITEM: `rid`, which has to
    be a list for batches. RESPONSE: `request_id`. HEADER: `x-override-rid`, honoured only by
    instances that enable header overrides. SESSION: the `session_id` of a session to open, unless
    the client chose one; nothing to abort. NONE: the engine chooses one that nobody learns, so
    only closing the connection aborts.
    """

    EXPANDED = "expanded"
    PER_ITEM = "per_item"
    RESPONSE = "response"
    HEADER = "header"
    SESSION = "session"
    NONE = "none"


class SloCarrier(StrEnum):
    """Where `custom_params` lives in the body; NONE: only the class defaults and headers count."""

    SAMPLING_PARAMS = "sampling_params"
    TOP_LEVEL = "top_level"
    NONE = "none"


class Media(StrEnum):
    """What a body is: JSON is checked before any engine sees it, OPAQUE passes as it is."""

    JSON = "json"
    OPAQUE = "opaque"


class Endpoint(msgspec.Struct, frozen=True):
    """One row. `prompt_fields` are the body fields that hold the prompt, in a template's order.

    `accepts_salt` tells whether the body may carry a `cache_salt`, `streams` whether it is
    answered with a stream unless the body says otherwise, `empties_cache` whether an instance that
    did it has lost what it kept of earlier prompts.
    """

    path: str
    methods: tuple[str, ...]
    kind: Kind
    access: Access = Access.USER
    rid: RidCarrier = RidCarrier.NONE
    slo: SloCarrier = SloCarrier.NONE
    prompt_fields: tuple[str, ...] = ()
    accepts_salt: bool = False
    media: Media = Media.JSON
    streams: bool = False
    empties_cache: bool = False
    reason: str = ""

    @property
    def is_promised(self) -> bool:
        """Whether its requests hold a prompt, and so have an SLO and a prefix to be cached."""
        return bool(self.prompt_fields) or self.media is Media.OPAQUE


_GET = ("GET", "HEAD")
_POST = ("POST",)
_BOTH = ("GET", "POST")
_WRITE = ("POST", "PUT")


def _balanced(
    path: str, methods: tuple[str, ...], *prompt_fields: str, rid: RidCarrier = RidCarrier.NONE
) -> Endpoint:
    return Endpoint(path, methods, Kind.BALANCED, rid=rid, prompt_fields=prompt_fields)


def _openai(path: str, *prompt_fields: str) -> Endpoint:
    return Endpoint(
        path,
        _POST,
        Kind.BALANCED,
        rid=RidCarrier.EXPANDED,
        slo=SloCarrier.TOP_LEVEL,
        prompt_fields=prompt_fields,
        accepts_salt=True,
    )


def _ollama(path: str, *prompt_fields: str) -> Endpoint:
    return Endpoint(path, _POST, Kind.BALANCED, prompt_fields=prompt_fields, streams=True)


def _sticky(path: str, methods: tuple[str, ...]) -> Endpoint:
    return Endpoint(path, methods, Kind.STICKY)


def _broadcast(
    path: str, methods: tuple[str, ...] = _POST, *, empties_cache: bool = False
) -> Endpoint:
    return Endpoint(path, methods, Kind.BROADCAST, access=Access.ADMIN, empties_cache=empties_cache)


def _local(path: str, access: Access = Access.PUBLIC, methods: tuple[str, ...] = _GET) -> Endpoint:
    return Endpoint(path, methods, Kind.LOCAL, access=access)


def _refused(path: str, methods: tuple[str, ...], reason: str) -> Endpoint:
    return Endpoint(path, methods, Kind.REFUSED, reason=reason)


_RANKS = "it addresses the ranks of one server; call that instance directly"
_WEBSOCKET = "WebSockets are not relayed; use /v1/audio/transcriptions"
_VERTEX = "its parameters bypass the SLO checks; use /generate"
_DUMPER = "it is a debugging aid of one server; call that instance directly"

TABLE: tuple[Endpoint, ...] = (
    # Generation.
    Endpoint(
        "/generate",
        _WRITE,
        Kind.BALANCED,
        rid=RidCarrier.EXPANDED,
        slo=SloCarrier.SAMPLING_PARAMS,
        prompt_fields=("text", "input_ids", "input_embeds"),
        accepts_salt=True,
    ),
    _openai("/v1/completions", "prompt"),
    _openai("/v1/chat/completions", "tools", "messages"),
    _openai("/invocations", "tools", "messages"),
    Endpoint(
        "/v1/responses",
        _POST,
        Kind.BALANCED,
        rid=RidCarrier.RESPONSE,
        prompt_fields=("tools", "instructions", "input"),
        accepts_salt=True,
    ),
    _balanced("/v1/messages", _POST, "tools", "system", "messages", rid=RidCarrier.HEADER),
    _ollama("/api/chat", "tools", "messages"),
    _ollama("/api/generate", "system", "prompt"),
    Endpoint("/v1/audio/transcriptions", _POST, Kind.BALANCED, media=Media.OPAQUE),
    # Embedding, scoring and text tools.
    _balanced("/v1/embeddings", _POST, "input", rid=RidCarrier.PER_ITEM),
    _balanced("/v1/classify", _POST, "input", rid=RidCarrier.PER_ITEM),
    _balanced("/encode", _WRITE, "text", "input_ids", rid=RidCarrier.PER_ITEM),
    _balanced("/classify", _WRITE, "text", "input_ids", rid=RidCarrier.PER_ITEM),
    _balanced("/v1/score", _POST, "query", "items"),
    _balanced("/v1/rerank", _WRITE, "query", "documents"),
    _balanced("/v1/decisions", _POST, "input"),
    _balanced("/v1/systemone", _POST, "input"),
    _balanced("/v1/tokenize", _POST),
    _balanced("/tokenize", _POST),
    _balanced("/v1/detokenize", _POST),
    _balanced("/detokenize", _POST),
    _balanced("/v1/messages/count_tokens", _POST),
    _balanced("/parse_function_call", _POST),
    _balanced("/separate_reasoning", _POST),
    # What is being served.
    _balanced("/v1/models", _GET),
    _balanced("/v1/models/{model:path}", _GET),
    _balanced("/model_info", _GET),
    _balanced("/get_model_info", _GET),
    _balanced("/server_info", _GET),
    _balanced("/get_server_info", _GET),
    _balanced("/api/tags", _GET),
    _balanced("/api/show", _POST),
    # State that one instance holds.
    Endpoint("/open_session", _BOTH, Kind.STICKY, rid=RidCarrier.SESSION),
    _sticky("/close_session", _BOTH),
    _sticky("/v1/responses/{response_id}", _GET),
    _sticky("/v1/responses/{response_id}/cancel", _POST),
    # Administration of every instance.
    _broadcast("/flush_cache", _BOTH, empties_cache=True),
    _broadcast("/pause_generation"),
    _broadcast("/continue_generation"),
    _broadcast("/load_lora_adapter"),
    _broadcast("/load_lora_adapter_from_tensors"),
    _broadcast("/unload_lora_adapter"),
    _broadcast("/update_weights_from_disk", empties_cache=True),
    _broadcast("/update_weights_from_tensor", empties_cache=True),
    _broadcast("/begin_weight_update"),
    _broadcast("/end_weight_update"),
    _broadcast("/update_weight_version"),
    _broadcast("/get_weights_by_name", _BOTH),
    _broadcast("/weights_checker", _BOTH),
    _broadcast("/release_memory_occupation", _BOTH, empties_cache=True),
    _broadcast("/resume_memory_occupation", _BOTH),
    _broadcast("/set_internal_state", _WRITE),
    _broadcast("/configure_logging", _BOTH),
    _broadcast("/set_trace_level", _BOTH),
    _broadcast("/freeze_gc", _BOTH),
    _broadcast("/slow_down", _BOTH),
    _broadcast("/start_profile", _BOTH),
    _broadcast("/stop_profile", _BOTH),
    _broadcast("/start_expert_distribution_record", _BOTH),
    _broadcast("/stop_expert_distribution_record", _BOTH),
    _broadcast("/dump_expert_distribution_record", _BOTH),
    _broadcast("/add_external_corpus"),
    _broadcast("/remove_external_corpus"),
    _broadcast("/list_external_corpora", _GET),
    _broadcast("/hicache/storage-backend/clear"),
    _broadcast("/hicache/storage-backend", ("GET", "PUT", "DELETE")),
    _broadcast("/get_hicache_l3_cache_layout", _GET),
    # bana's own answers.
    _local("/livez"),
    _local("/readyz"),
    _local("/ready"),
    _local("/health"),
    _local("/health_generate"),
    _local("/ping"),
    _local("/"),
    _local("/metrics", Access.USER),
    _local("/v1/loads", Access.USER),
    _local("/abort_request", Access.USER, _POST),
    _local("/bana/status", Access.CONTROL),
    _local("/bana/roles", Access.CONTROL, ("GET", "HEAD", "POST")),
    _local("/bana/drain", Access.CONTROL, ("POST", "DELETE")),
    # What cannot be answered for a cluster.
    _refused("/v1/realtime", ("WEBSOCKET", "GET"), _WEBSOCKET),
    _refused("/vertex_generate", _POST, _VERTEX),
    _refused("/dumper/{method}", _POST, _DUMPER),
    _refused("/pd_role_switch", _POST, _RANKS),
    _refused("/scale_elastic_ep", _POST, _RANKS),
    _refused("/is_scaling_elastic_ep", _GET, _RANKS),
    _refused("/init_weights_update_group", _POST, _RANKS),
    _refused("/destroy_weights_update_group", _POST, _RANKS),
    _refused("/update_weights_from_distributed", _POST, _RANKS),
    _refused("/update_weights_from_ipc", _POST, _RANKS),
    _refused("/init_weights_send_group_for_remote_instance", _POST, _RANKS),
    _refused("/send_weights_to_remote_instance", _POST, _RANKS),
    _refused("/get_remote_instance_transfer_engine_info", _GET, _RANKS),
    _refused("/remote_instance_transfer_engine_info", _GET, _RANKS),
)

# What these tell includes the server's own keys, which have to be taken out.
TELLS_SECRETS = frozenset({"/server_info", "/get_server_info"})

_EXACT = {row.path: row for row in TABLE if "{" not in row.path}


def _compile(path: str) -> re.Pattern[str]:
    pattern = re.sub(r"\{\w+:path\}", ".+", path)
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", pattern))


_PATTERNS = tuple((_compile(row.path), row) for row in TABLE if "{" in row.path)


def find_endpoint(path: str) -> Endpoint | None:
    """The row that answers `path`, None when nobody does.

    A path with `.` or `..` segments has none: a proxy before an instance might resolve them.
    """
    row = _EXACT.get(path)
    if row is not None:
        return row
    if not {".", ".."}.isdisjoint(unquote(path).split("/")):
        return None
    return next((row for pattern, row in _PATTERNS if pattern.fullmatch(path)), None)
