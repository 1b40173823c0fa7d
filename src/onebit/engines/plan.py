"""From settings to engines: which devices, how many slots, which flags. Decided and refused before anything starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onebit.config.schema import ServeConfig
from onebit.engines.device import Build, Device, DeviceKind
from onebit.engines.spec import Adapter, Draft, DraftKind, EngineSpec
from onebit.errors import ConfigError, ModelFileError, NoBuild
from onebit.models.gguf_file import ModelInfo, ModelKind

Find = Callable[[Device], Build]
"""Finds a build for a device, or raises NoBuild."""

_DEFAULT_CONTEXT = 4096  # Ollama's default too: KV for 8 slots of it fits beside most models
_DEFAULT_SLOTS = 4  # llama-server's own number
_OVERFLOW_SLOTS = (
    16  # the second engine is for crowds: at 16 requests ROCm made 68 tok/s, Vulkan 43 (a 27B model on Strix Halo)
)
_MTP_LENGTH = 3  # llama.cpp's default; the gain on Strix Halo was largest at 2 to 4
_NGRAM_LENGTH = 16  # m 16 with n 4: 1.6 to 3.4 × on repetitive output, 0.85 to 1.0 on free text
_CPU_BATCH, _GPU_BATCH = (
    128,
    512,
)  # a batch must end before a client's leaving is noticed: 1 s at 128, 20 s at 2048
_EMBEDDING_BATCH = 2048  # an encoder takes its whole input in one batch
_AUTO = (DeviceKind.CUDA, DeviceKind.ROCM, DeviceKind.VULKAN, DeviceKind.METAL)
# The first takes few requests fast, the second many: Vulkan wins up to 8 rows (matrix-vector path), ROCm from 16 on.
_AUTO_ADAPTIVE = (DeviceKind.VULKAN, DeviceKind.ROCM, DeviceKind.CUDA, DeviceKind.METAL)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be started, and what the user should know of it."""

    alias: str
    context: int  # tokens in each slot
    engines: tuple[EngineSpec, ...]
    notes: tuple[str, ...]


def plan(config: ServeConfig, info: ModelInfo, find: Find, inspect: Callable[[Path], ModelInfo], cores: int) -> Plan:
    """Decide the engines. `cores`: CPU cores this process may use.

    Raises ConfigError (settings that contradict each other or the model), ModelFileError, NoBuild.
    """
    _check_model(info)
    _check_engine_args(config)
    draft = _draft(config, info, inspect)
    adapters = _adapters(config, info, inspect)
    context = _context(config, info)
    chosen = _devices(config, find)
    slots = _slots(config, len(chosen), draft)
    alias = config.alias or info.path.stem
    names = _names([device for device, _ in chosen])
    embeddings = config.embeddings or info.embedding
    engines = []
    for rank, (device, build) in enumerate(chosen):
        drafts = draft if rank == 0 or not config.adaptive else None
        engines.append(
            EngineSpec(
                name=names[rank],
                alias=alias,
                model=info.path,
                device=device,
                build=build,
                slots=slots[rank],
                context=context,
                batch=_batch(config, device, build, context, slots[rank] if embeddings else 0),
                threads=config.threads or _threads(cores, chosen, rank),
                gpu_layers=config.n_gpu_layers,
                draft=drafts,
                adapters=adapters,
                embeddings=embeddings,
                pooling=None if info.embedding else "mean",  # an embedding model says itself how it pools
                extra=config.engine_args,
                rank=rank if config.adaptive else 0,  # without it, all are equal
                row_limit=config.adaptive_at if config.adaptive and rank == 0 else None,
            )
        )
    return Plan(alias, context, tuple(engines), tuple(_notes(config, engines)))


# What the ledger, the client and the supervisor rely on is set by our own flags only.
_OWN_FLAGS = {
    **dict.fromkeys(("-m", "--model"), "--model"),
    **dict.fromkeys(("-np", "--parallel"), "--parallel"),
    **dict.fromkeys(("-c", "--ctx-size"), "--ctx-size"),
    **dict.fromkeys(("-a", "--alias"), "--alias"),
    **dict.fromkeys(("-dev", "--device"), "--device"),
    **dict.fromkeys(
        ("--api-key", "--api-key-file", "--host", "--port", "--api-prefix"), "--host, --port and --api-key"
    ),
    **dict.fromkeys(("--spec-type", "--embedding", "--embeddings"), "--mtp, --draft and --embeddings"),
}


def _check_engine_args(config: ServeConfig) -> None:
    for arg in config.engine_args:
        own = _OWN_FLAGS.get(arg.split("=", 1)[0])
        if own is not None:
            raise ConfigError(f"{arg} stands after --, but it is onebit's to set", hint=f"use onebit's own: {own}")


def _check_model(info: ModelInfo) -> None:
    if info.kind is ModelKind.ADAPTER:
        raise ModelFileError(f"{info.path} is a LoRA adapter, not a model", hint="serve its model with --lora FILE")
    if info.kind is ModelKind.MTP_HEAD:
        raise ModelFileError(
            f"{info.path} holds only a multi-token prediction head",
            hint="serve the model it belongs to with --mtp-model FILE",
        )
    if info.kind is not ModelKind.MODEL:
        raise ModelFileError(f"{info.path} ({info.architecture}) is not a model that can be served by itself")


def _draft(config: ServeConfig, info: ModelInfo, inspect: Callable[[Path], ModelInfo]) -> Draft | None:
    mtp = config.mtp or config.mtp_model is not None
    if mtp and config.draft:
        raise ConfigError("--mtp and --draft are two ways to draft", hint="choose one of them")
    if config.draft_max is not None and not (mtp or config.draft):
        raise ConfigError("--draft-max says how far to draft, but nothing drafts", hint="add --mtp or --draft ngram")
    if config.draft == "ngram":
        return Draft(DraftKind.NGRAM, config.draft_max or _NGRAM_LENGTH)
    if not mtp:
        return None
    if config.mtp_model is not None:
        head = inspect(config.mtp_model)
        if not head.has_mtp_head:
            raise ModelFileError(
                f"{head.path} holds no multi-token prediction head",
                hint=f"it needs the tensor blk.{max(0, head.block_count - 1)}.nextn.eh_proj.weight;"
                " --draft ngram needs no head",
            )
        if head.architecture != info.architecture:
            raise ModelFileError(
                f"the head {head.path} is for {head.architecture}, the model {info.path} is {info.architecture}"
            )
    elif not info.has_mtp_head:
        raise ModelFileError(
            f"{info.path} has no multi-token prediction head (tensor"
            f" blk.{max(0, info.block_count - 1)}.nextn.eh_proj.weight), so --mtp cannot work with it",
            hint="use --draft ngram (any model), a head-only file with --mtp-model FILE,"
            " or a GGUF of this model converted with its head",
        )
    return Draft(DraftKind.MTP, config.draft_max or _MTP_LENGTH, config.mtp_model)


def _adapters(config: ServeConfig, info: ModelInfo, inspect: Callable[[Path], ModelInfo]) -> tuple[Adapter, ...]:
    adapters = []
    for text in config.lora:
        scaled = re.fullmatch(r"(.+):(-?\d+(?:\.\d+)?)", text)
        path = Path(scaled[1] if scaled else text).expanduser()
        adapter = inspect(path)
        if adapter.kind is not ModelKind.ADAPTER:
            raise ModelFileError(
                f"{path} is not a LoRA adapter", hint="--lora takes a GGUF adapter for the served model"
            )
        if adapter.architecture != info.architecture:
            raise ModelFileError(f"the adapter {path} is for {adapter.architecture}, the model is {info.architecture}")
        adapters.append(Adapter(path, float(scaled[2] if scaled else 1)))
    return tuple(adapters)


def _context(config: ServeConfig, info: ModelInfo) -> int:
    trained = info.context_length
    if config.ctx_size is None:
        return min(_DEFAULT_CONTEXT, trained or _DEFAULT_CONTEXT)
    if config.ctx_size == 0:
        return trained or _DEFAULT_CONTEXT
    stretched = any("rope" in arg or "yarn" in arg for arg in config.engine_args)
    if trained and config.ctx_size > trained and not stretched:
        raise ConfigError(
            f"--ctx-size {config.ctx_size}: the model was trained for {trained} tokens",
            hint=f"use at most {trained} (0 takes that), or stretch it: -- --rope-scaling yarn …",
        )
    return config.ctx_size


def _devices(config: ServeConfig, find: Find) -> list[tuple[Device, Build]]:
    wanted = [Device.parse(text) for text in config.device]
    if len(wanted) > 2 and config.adaptive:
        raise ConfigError(
            f"--device {','.join(config.device)}: --adaptive takes two, the first and the overflow",
            hint="name two devices, or leave --adaptive out: then all share the load evenly",
        )
    if not wanted:
        wanted = _found_devices(config, find)
    if config.adaptive and len(wanted) == 1:
        wanted *= 2
    return [(device, find(device)) for device in wanted]


def _found_devices(config: ServeConfig, find: Find) -> list[Device]:
    """The best there is: graphics cards first. Software Vulkan is a CPU in disguise, so it does not count."""
    if config.model == "demo":
        return [Device(DeviceKind.CPU)]
    cards = []
    for kind in _AUTO_ADAPTIVE if config.adaptive else _AUTO:
        try:
            build = find(Device(kind))
        except NoBuild:
            continue
        found = build.device_for(Device(kind))
        if found is not None and not found.software:
            cards.append(Device(kind))
    return cards[: 2 if config.adaptive else 1] or [Device(DeviceKind.CPU)]


def _slots(config: ServeConfig, engines: int, draft: Draft | None) -> list[int]:
    given = list(config.parallel)
    if len(given) > engines:
        raise ConfigError(
            f"--parallel {','.join(map(str, given))}: there are fewer engines ({engines})",
            hint="give one number, or one for each engine (two with --adaptive)",
        )
    if not config.adaptive:
        given = given or [1 if draft else _DEFAULT_SLOTS]
        return given + given[-1:] * (engines - len(given))
    first, overflow = (given * 2)[:2] if given else (config.adaptive_at, _OVERFLOW_SLOTS)
    # With MTP the first engine is for a single user; more slots on it only when asked for.
    if draft is not None and not given:
        first = 1
    rows = 1 if draft is None else draft.length + 1
    # A slot beyond the limit would cost its KV cache and never be used.
    return [max(1, min(first, config.adaptive_at // rows)), overflow]


def _batch(config: ServeConfig, device: Device, build: Build, context: int, embedding_slots: int) -> int:
    """Prompt tokens worked off in one go. `embedding_slots`: 0 for an engine that makes no embeddings."""
    batch = config.batch_size or (_CPU_BATCH if _on_cpu(device, build) else _GPU_BATCH)
    if not embedding_slots:
        return batch
    batch = config.batch_size or max(batch, min(context, _EMBEDDING_BATCH))
    # With mean pooling llama.cpp aborts at its start unless the batch divides evenly among the slots
    # (3 slots: 1023 and 1026 work, 1024 does not).
    return -(-batch // embedding_slots) * embedding_slots


def _threads(cores: int, chosen: Sequence[tuple[Device, Build]], rank: int) -> int:
    """All cores but one, which the router needs, shared out among the engines that compute on them.

    Two OpenMP engines that each took all cores made one token take over a second (two cores, measured).
    """
    free = max(1, cores - 1)
    if not _on_cpu(*chosen[rank]):
        return min(4, free)  # it only launches kernels
    return max(1, free // sum(_on_cpu(device, build) for device, build in chosen))


def _on_cpu(device: Device, build: Build) -> bool:
    found = build.device_for(device)
    return found is None or found.software


def _names(devices: Sequence[Device]) -> list[str]:
    """`cpu`, `vulkan`; two on one device: `cpu-1`, `cpu-2`. A name becomes a file name."""
    plain = [str(d).replace(":", "") for d in devices]
    return plain if len(set(plain)) == len(plain) else [f"{name}-{i + 1}" for i, name in enumerate(plain)]


def _notes(config: ServeConfig, engines: Sequence[EngineSpec]) -> list[str]:
    notes = []
    for engine in engines:
        found = engine.build.device_for(engine.device)
        if found is not None and found.software:
            notes.append(f"{engine.name} runs on {found.description}: Vulkan in software, for trying things, slow")
    if len(engines) == 1 and engines[0].draft is not None and engines[0].slots > 1:
        notes.append("drafting pays for one user at a time; --adaptive puts an engine without it beside")
    if config.host not in ("127.0.0.1", "::1", "localhost") and not (config.api_key or config.api_key_file):
        notes.append(f"anyone who can reach {config.host} can use this server: set ONEBIT_API_KEY or --api-key-file")
    return notes
