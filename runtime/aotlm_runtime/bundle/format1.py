"""Manifests of format 1, brought to the form of today's.

There the state was all cache: each tensor's offset and size were bytes for each position of the
context. What it says of the ABI keeps its version (1) and its digest, which is the library's.
"""

from typing import Any

VERSION = 1


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of format 1 as one of format 2.

    Raises:
        KeyError, TypeError, AttributeError: it is no manifest of format 1.
    """
    abi = dict(manifest["abi"])
    abi["state"] = [_state_tensor(dict(tensor)) for tensor in abi["state"]]
    abi["state_bytes"] = {"C": abi.pop("state_bytes_per_position")}
    return {**manifest, "format_version": VERSION + 1, "abi": abi}


def _state_tensor(tensor: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "appended",
        "can_be_cut": tensor.pop("rewindable"),
        "offset_bytes": {"C": tensor.pop("offset_bytes_per_position")},
        "size_bytes": {"C": tensor.pop("size_bytes_per_position")},
        **tensor,
    }
