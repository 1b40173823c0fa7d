"""How llama-server is called: arguments and environment from a spec. Pure.

What is written here was tried against llama.cpp 0c1e57098, the source inside llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onebit.engines.device import DeviceKind
from onebit.engines.spec import DraftKind, EngineSpec

_CONTEXT_STEP = 256  # llama-server rounds the context of a slot up to a multiple of this
_MAX_SOCKET_PATH = 107  # sizeof(sun_path) - 1 on Linux
_NGRAM_SIZE = (
    4  # n 4, m 16 gave 1.6 to 3.4 × on repetitive output, the defaults (12, 48) 1.1 to 2.2 × (docs/engines.md)
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: a Unix socket, or a TCP port on loopback (0: it chooses and says so)."""

    socket: Path | None = None
    port: int = 0


def address_for(run_dir: Path, name: str) -> Address:
    """A socket in the run folder, or a loopback port where the path would be too long for one."""
    socket = run_dir / f"{name}.sock"
    return Address(socket) if len(os.fsencode(socket)) <= _MAX_SOCKET_PATH else Address()


def slot_context(spec: EngineSpec) -> int:
    """Tokens of context that a slot really gets."""
    return -(-spec.context // _CONTEXT_STEP) * _CONTEXT_STEP


def arguments(spec: EngineSpec, address: Address) -> list[str]:
    """The command line. It holds no secret: everyone on the machine can read it."""
    listen = ["--host", str(address.socket)] if address.socket else ["--host", "127.0.0.1", "--port", str(address.port)]
    return [
        str(spec.build.path),
        *("-m", str(spec.model), "--alias", spec.alias),
        *listen,
        # Never the default of a unified KV pool: when that runs out, every active request dies.
        *("-np", str(spec.slots), "-c", str(spec.slots * slot_context(spec)), "--no-kv-unified"),
        *("-b", str(spec.batch), "-ub", str(spec.batch)),
        *("-t", str(spec.threads)),
        *_device(spec),
        *_prompt_cache(spec),
        *_draft(spec),
        *(arg for a in spec.adapters for arg in ("--lora-scaled", f"{a.path}:{a.scale:g}")),
        # Scale 0 until a request asks: --lora-init-without-apply applies them all the same in this version.
        *(arg for a in spec.choice for arg in ("--lora-scaled", f"{a.path}:0")),
        *(("--embeddings",) if spec.embeddings else ()),
        *(("--pooling", spec.pooling) if spec.embeddings and spec.pooling else ()),
        "--metrics",  # the router asks how many requests are in work after a client left
        *spec.extra,
    ]


def _prompt_cache(spec: EngineSpec) -> list[str]:
    """No prompts kept in main memory beside the slots, where that is the memory models are given from.

    By default they grow to 8 GiB (an engine of 28 MiB held 99 after 16 prompts of 400 tokens, 36 without); the slots
    keep the prompts of their last conversations all the same. `-- --cache-ram MIB` wins.

    Nor where requests choose adapters: llama-server does not note which set a prompt kept there was computed with, and
    takes it for any other set (llama.cpp#26207).
    """
    found = spec.build.device_for(spec.device)
    return ["--cache-ram", "0"] if spec.choice or found is None or found.software else []


def environment(spec: EngineSpec, api_key: str, base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: `base` without our secrets and without variables that would change the command line."""
    kept = {k: v for k, v in base.items() if not k.startswith(("ONEBIT_", "LLAMA_ARG_"))}
    return {**kept, **spec.build.env, "LLAMA_API_KEY": api_key}


def _device(spec: EngineSpec) -> list[str]:
    if spec.device.kind is DeviceKind.CPU:
        # A CPU build has no device to switch off, but takes the flag all the same.
        return ["--device", "none", "-ngl", "0"]
    found = spec.build.device_for(spec.device)
    if found is None:
        raise ValueError(f"{spec.build.path} does not serve {spec.device}")
    return ["--device", found.id, "-ngl", str(999 if spec.gpu_layers is None else spec.gpu_layers)]


def _draft(spec: EngineSpec) -> list[str]:
    draft = spec.draft
    if draft is None:
        return []
    if draft.kind is DraftKind.NGRAM:
        # --spec-draft-n-max does not bound n-gram drafts, size-m does.
        size_n, size_m = ("--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m")
        return ["--spec-type", "ngram-simple", size_n, str(_NGRAM_SIZE), size_m, str(draft.length)]
    model = ["-md", str(draft.model)] if draft.model else []
    return ["--spec-type", "draft-mtp", *model, "--spec-draft-n-max", str(draft.length)]
