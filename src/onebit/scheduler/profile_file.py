"""Profiles on disk: one JSON file per pair of engines, written by `onebit bench profile`, read by the router."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from onebit import paths
from onebit.engines.spec import EngineSpec
from onebit.errors import ProfileError
from onebit.scheduler.profile import Grid, Profile, ProfileKey

VERSION = 1
_MAX_BYTES = 4 << 20  # a grid of 64 × 64 for five draft lengths is under 1 MiB


def describe(spec: EngineSpec) -> str:
    """All that changes an engine's speed, as one line: part of a profile's key."""
    found = spec.build.device_for(spec.device)
    words = [
        f"{spec.device} ({found.description if found else 'CPU'})",
        f"llama-server {spec.build.version}",
        f"-t {spec.threads} -b {spec.batch}",
    ]
    if spec.gpu_layers is not None:
        words.append(f"-ngl {spec.gpu_layers}")
    if spec.draft is not None:
        words.append(f"drafts by {spec.draft.kind}" + (f" with {spec.draft.model.name}" if spec.draft.model else ""))
    words += [f"--lora {adapter.path.name}:{adapter.scale:g}" for adapter in spec.adapters]
    return ", ".join([*words, *spec.extra])


def key_of(fingerprint: str, first: EngineSpec, second: EngineSpec) -> ProfileKey:
    """The key of two engines' profile. `fingerprint`: the model file's (`onebit.models.fingerprint`)."""
    return ProfileKey(fingerprint, describe(_plain(first)), describe(second))


def _plain(spec: EngineSpec) -> EngineSpec:
    """Drafting is an axis of the profile, not a part of its key."""
    return replace(spec, draft=None)


def path_of(key: ProfileKey) -> Path:
    """Where the profile of these engines is kept."""
    text = json.dumps(asdict(key), sort_keys=True)
    return paths.profiles_dir() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def find(key: ProfileKey) -> Profile | None:
    """The stored profile of these engines, None when there is none. Raises ProfileError for a damaged one."""
    path = path_of(key)
    return read(path) if path.exists() else None


class _Bad(Exception):
    """What is wrong in a file, in words."""


def read(path: Path) -> Profile:
    """Read a profile. Raises ProfileError: missing, unreadable, not a profile, of another version."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise _Bad("it is over 4 MiB")
        return _parse(json.loads(data))
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror}") from None
    except _Bad as error:
        what = str(error)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        what = "it is damaged"
    raise ProfileError(f"{path} is not a profile that this onebit reads: {what}", hint="onebit bench profile makes one")


def _parse(data: Any) -> Profile:
    if data["version"] != VERSION:
        raise _Bad(f"it has format version {data['version']!r}, this onebit writes {VERSION}")
    key = ProfileKey(**{name: str(data["key"][name]) for name in ("model", "first", "second")})
    grids = {
        int(draft): Grid({(int(a), int(b)): float(t) for a, b, t in grid}) for draft, grid in data["grids"].items()
    }
    lengths = data.get("lengths")
    return Profile(key, grids, None if lengths is None else (int(lengths["tokens"]), int(lengths["prompt_tokens"])))


def write(profile: Profile, measured_on: Mapping[str, Any], path: Path | None = None) -> Path:
    """Store a profile whole or not at all. `measured_on`: facts for people. Returns its path; raises ProfileError."""
    path = path or path_of(profile.key)
    data = {
        "version": VERSION,
        "key": asdict(profile.key),
        "measured_on": dict(measured_on),
        "lengths": profile.lengths and dict(zip(("tokens", "prompt_tokens"), profile.lengths, strict=True)),
        "unit": "[requests on the first engine, on the second, tok/s in total], by draft length",
        "grids": {
            str(draft): [[a, b, round(total, 3)] for (a, b), total in sorted(grid.points.items())]
            for draft, grid in sorted(profile.grids.items())
        },
    }
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "w") as stream:
            json.dump(data, stream, indent=1)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise ProfileError(f"cannot write the profile {path}: {error.strerror}") from None
    return path
