"""Models of the Hugging Face hub: fetched into its usual cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from huggingface_hub import metadata_load, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from aotlm.errors import AotlmError, UsageError

WANTED: Final = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "README.md"]
# other formats of the same weights, which some models keep beside them
UNWANTED: Final = ["*/*", "consolidated*.safetensors"]
IDENTIFIER: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
DEMO: Final = "demo"


def check_model(model: str, revision: str | None) -> None:
    """Refuse words that name no model, before anything is loaded or fetched.

    Raises:
        UsageError: a revision of something that has none, or a word that names nothing.
    """
    if model == DEMO or Path(model).expanduser().exists():
        if revision is not None:
            raise UsageError(f"{model} has no revisions; drop --revision {revision}")
    elif not is_hub_id(model):
        raise UsageError(
            f"{model} is no folder or file on this machine, no Hugging Face id (owner/name) and "
            "not `demo`; check its spelling"
        )


def is_hub_id(model: str) -> bool:
    """Say whether the word has the form of a hub id (owner/name, or a bare name)."""
    return IDENTIFIER.fullmatch(model) is not None and not model.endswith(".gguf")


def fetch_from_hub(model: str, revision: str | None) -> Path:
    """Return the folder of a model; its name is the commit that `revision` stands for.

    Raises:
        AotlmError: there is no such model or revision, it is gated, or the hub is unreachable.
    """
    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
            )
        )
    except GatedRepoError as error:  # before RepositoryNotFoundError, its base
        raise AotlmError(
            f"{model} is gated; accept its terms on its page, set HF_TOKEN and run again"
        ) from error
    except RevisionNotFoundError as error:
        raise AotlmError(f"{model} has no revision {revision}; see its page for those") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise AotlmError(
            f"there is no public model {model} on the hub; check the id, or set HF_TOKEN for a "
            "private one"
        ) from error
    except LocalEntryNotFoundError as error:
        raise AotlmError(
            f"the hub cannot be reached and {model} was never fetched before; check the network, "
            "or name a folder that holds the model"
        ) from error
    except Exception as error:  # the network fails in many ways
        raise AotlmError(
            f"{model} was not fetched: {first_line(error)}; check the network and run again, or "
            "name a folder that holds the model"
        ) from error


def card_licence(folder: Path) -> str | None:
    """Return the licence that the model card in the folder declares."""
    try:
        licence = (metadata_load(folder / "README.md") or {}).get("license")
    except (OSError, ValueError):
        return None
    return licence if isinstance(licence, str) else None


def first_line(error: Exception) -> str:
    """Return the first line of a message, shortened; the class's name where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(" .:") if lines else type(error).__name__
