"""From settings to engines: which devices, how many slots, which flags. Decided and refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onebit.config.model_settings import ModelSettings
from onebit.config.types import lora_parts
from onebit.engines.choice import check_beside_choice
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


def plan(
    settings: ModelSettings,
    info: ModelInfo,
    find: Find,
    inspect: Callable[[Path], ModelInfo],
    cores: int,
    choice: tuple[Adapter, ...] = (),
) -> Plan:
    """Decide the engines. `cores`: CPU cores this process may use; `choice`: adapters that requests may choose.

    Raises ConfigError (settings that contradict each other or the model), ModelFileError, NoBuild.
    """
    _check_model(info)
    _check_engine_args(settings)
    embeddings = settings.embeddings or info.embedding
    if choice:
        check_beside_choice(settings.engine_args, embeddings)
    draft = _draft(settings, info, inspect)
    adapters = _adapters(settings, info, inspect)
    context = _context(settings, info)
    chosen = _devices(settings, find)
    slots = _slots(settings, len(chosen), draft)
    threads = _each("--threads", settings.threads, len(chosen))
    gpu_layers = _each("--n-gpu-layers", settings.n_gpu_layers, len(chosen))
    alias = settings.alias or info.path.stem
    names = _names([device for device, _ in chosen])
    engines = []
    for rank, (device, build) in enumerate(chosen):
        drafts = draft if rank == 0 or not settings.adaptive else None
        engines.append(
            EngineSpec(
                name=names[rank],
                alias=alias,
                model=info.path,
                device=device,
                build=build,
                slots=slots[rank],
                context=context,
                batch=_batch(settings, device, build, context, slots[rank] if embeddings else 0),
                threads=threads[rank] or _threads(cores, chosen, rank),
                gpu_layers=gpu_layers[rank],
                draft=drafts,
                adapters=adapters,
                choice=choice,
                embeddings=embeddings,
                pooling=None if info.embedding else "mean",  # an embedding model says itself how it pools
                extra=settings.engine_args,
                rank=rank if settings.adaptive else 0,  # without it, all are equal
                row_limit=settings.adaptive_at if settings.adaptive and rank == 0 else None,
            )
        )
    return Plan(alias, context, tuple(engines), tuple(_notes(engines)))


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


def _check_engine_args(settings: ModelSettings) -> None:
    for arg in settings.engine_args:
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


def _draft(settings: ModelSettings, info: ModelInfo, inspect: Callable[[Path], ModelInfo]) -> Draft | None:
    mtp = settings.mtp or settings.mtp_model is not None
    if mtp and settings.draft:
        raise ConfigError("--mtp and --draft are two ways to draft", hint="choose one of them")
    if settings.draft_max is not None and not (mtp or settings.draft):
        raise ConfigError("--draft-max says how far to draft, but nothing drafts", hint="add --mtp or --draft ngram")
    if settings.draft == "ngram":
        return Draft(DraftKind.NGRAM, settings.draft_max or _NGRAM_LENGTH)
    if not mtp:
        return None
    if settings.mtp_model is not None:
        head = inspect(settings.mtp_model)
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
    return Draft(DraftKind.MTP, settings.draft_max or _MTP_LENGTH, settings.mtp_model)


def _adapters(settings: ModelSettings, info: ModelInfo, inspect: Callable[[Path], ModelInfo]) -> tuple[Adapter, ...]:
    adapters = []
    for text in settings.lora:
        path, scale = lora_parts(text)
        adapter = inspect(path)
        if adapter.kind is not ModelKind.ADAPTER:
            raise ModelFileError(
                f"{path} is not a LoRA adapter", hint="--lora takes a GGUF adapter for the served model"
            )
        if adapter.architecture != info.architecture:
            raise ModelFileError(f"the adapter {path} is for {adapter.architecture}, the model is {info.architecture}")
        adapters.append(Adapter(path, scale))
    return tuple(adapters)


def _context(settings: ModelSettings, info: ModelInfo) -> int:
    trained = info.context_length
    if settings.ctx_size is None:
        return min(_DEFAULT_CONTEXT, trained or _DEFAULT_CONTEXT)
    if settings.ctx_size == 0:
        return trained or _DEFAULT_CONTEXT
    stretched = any("rope" in arg or "yarn" in arg for arg in settings.engine_args)
    if trained and settings.ctx_size > trained and not stretched:
        raise ConfigError(
            f"--ctx-size {settings.ctx_size}: the model was trained for {trained} tokens",
            hint=f"use at most {trained} (0 takes that), or stretch it: -- --rope-scaling yarn …",
        )
    return settings.ctx_size


def _devices(settings: ModelSettings, find: Find) -> list[tuple[Device, Build]]:
    wanted = [Device.parse(text) for text in settings.device]
    if len(wanted) > 2 and settings.adaptive:
        raise ConfigError(
            f"--device {','.join(settings.device)}: --adaptive takes two, the first and the overflow",
            hint="name two devices, or leave --adaptive out: then all share the load evenly",
        )
    if not wanted:
        wanted = _found_devices(settings, find)
    if settings.adaptive and len(wanted) == 1:
        wanted *= 2
    return [(device, find(device)) for device in wanted]


def _found_devices(settings: ModelSettings, find: Find) -> list[Device]:
    """The best there is: graphics cards first. Software Vulkan is a CPU in disguise, so it does not count."""
    if settings.model == "demo":
        return [Device(DeviceKind.CPU)]
    cards = []
    for kind in _AUTO_ADAPTIVE if settings.adaptive else _AUTO:
        try:
            build = find(Device(kind))
        except NoBuild:
            continue
        found = build.device_for(Device(kind))
        if found is not None and not found.software:
            cards.append(Device(kind))
    return cards[: 2 if settings.adaptive else 1] or [Device(DeviceKind.CPU)]


def _each(flag: str, given: Sequence[int | None], engines: int) -> list[int | None]:
    """One value for each engine: the last one given stands for those behind it, None is the default."""
    if len(given) > engines:
        text = ",".join("-" if value is None else str(value) for value in given)
        raise ConfigError(
            f"{flag} {text}: there are fewer engines ({engines})",
            hint="give one number, or one for each engine (two with --adaptive)",
        )
    values = list(given) or [None]
    return values + values[-1:] * (engines - len(values))


def _slots(settings: ModelSettings, engines: int, draft: Draft | None) -> list[int]:
    given = _each("--parallel", settings.parallel, engines)
    if not settings.adaptive:
        return [slots or (1 if draft else _DEFAULT_SLOTS) for slots in given]
    first, overflow = given
    # With MTP the first engine is for a single user; more slots on it only when asked for.
    first = first or (1 if draft else settings.adaptive_at)
    rows = 1 if draft is None else draft.length + 1
    # A slot beyond the limit would cost its KV cache and never be used.
    return [max(1, min(first, settings.adaptive_at // rows)), overflow or _OVERFLOW_SLOTS]


def _batch(settings: ModelSettings, device: Device, build: Build, context: int, embedding_slots: int) -> int:
    """Prompt tokens worked off in one go. `embedding_slots`: 0 for an engine that makes no embeddings."""
    batch = settings.batch_size or (_CPU_BATCH if _on_cpu(device, build) else _GPU_BATCH)
    if not embedding_slots:
        return batch
    batch = settings.batch_size or max(batch, min(context, _EMBEDDING_BATCH))
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


def _notes(engines: Sequence[EngineSpec]) -> list[str]:
    notes = []
    for engine in engines:
        found = engine.build.device_for(engine.device)
        if found is not None and found.software:
            notes.append(f"{engine.name} runs on {found.description}: Vulkan in software, for trying things, slow")
    if len(engines) == 1 and engines[0].draft is not None and engines[0].slots > 1:
        notes.append("drafting pays for one user at a time; --adaptive puts an engine without it beside")
    return notes
