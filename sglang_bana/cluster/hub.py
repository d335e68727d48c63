"""Whether a model that is no folder here can be had at all, asked before anything is started."""

from __future__ import annotations

import os

from bana.slo.errors import ConfigError

ANSWER_TIMEOUT_S = 10.0
CONFIG_NAME = "config.json"


def check_hub_model(name: str) -> None:
    """ConfigError when `name` is neither cached nor on the Hugging Face hub, or that is unknown.

    Names of other kinds (`s3://…`, ModelScope) are left to SGLang.
    """
    if "://" in name or os.environ.get("SGLANG_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        if isinstance(hub.try_to_load_from_cache(name, CONFIG_NAME), str):
            return
        hub.get_hf_file_metadata(hub.hf_hub_url(name, CONFIG_NAME), timeout=ANSWER_TIMEOUT_S)
    except EntryNotFoundError:
        # The repository is there; what SGLang makes of its files is its own affair.
        return
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise ConfigError(
            f"unknown model {name!r}: no folder, and no repository on Hugging Face that this user "
            "may read; correct --model, or set HF_TOKEN for a private one"
        ) from error
    except Exception as error:
        # The hub's client may use any HTTP library: whatever it raises means no answer.
        raise ConfigError(
            f"model {name!r} is no folder and not in the cache, and Hugging Face does not answer "
            f"({type(error).__name__}: {error}); give a folder, smollm2, or connect this machine"
        ) from error
