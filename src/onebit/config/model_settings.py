"""What describes one model and its engines. The fields are the flags of `onebit serve` and the keys below `models:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from onebit.config.types import DeviceName, File, LoraFile, ModelName, Seconds, split

_MAX_SLOTS = 1024  # a bound against typing errors: each slot costs a KV cache
MAX_ENGINES = 8

Slots = Annotated[int, Field(ge=1, le=_MAX_SLOTS)]
Layers = Annotated[int, Field(ge=0, le=9999)]
Threads = Annotated[int, Field(ge=1, le=1024)]


class EngineDefaults(BaseModel):
    """All about a model but which one it is; at the top level these are defaults for every model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ctx_size: Annotated[
        int | None,
        Field(
            ge=0,
            le=1 << 24,
            description="tokens of context in EACH slot; 0: as many as the model was trained for",
        ),
    ] = None
    lora: Annotated[
        tuple[LoraFile, ...],
        BeforeValidator(split),
        Field(description="LoRA adapter file(s) to apply, each `FILE` or `FILE:SCALE`"),
    ] = ()
    embeddings: Annotated[bool, Field(description="offer /v1/embeddings too")] = False
    device: Annotated[
        tuple[DeviceName, ...],
        BeforeValidator(split),
        Field(
            max_length=MAX_ENGINES,
            description="where to run: cpu, vulkan, rocm, cuda, metal, with an index vulkan:1; several share the load"
            " evenly, two with adaptive are first and overflow",
        ),
    ] = ()
    parallel: Annotated[
        tuple[Slots | None, ...],
        BeforeValidator(split),
        Field(
            max_length=MAX_ENGINES,
            description="slots that decode together; `8,16` for the two engines of adaptive",
        ),
    ] = ()
    adaptive: Annotated[bool, Field(description="two engines: the first fills, the second takes the overflow")] = False
    adaptive_at: Annotated[
        int,
        Field(ge=1, le=_MAX_SLOTS, description="requests on the first engine before the second is used"),
    ] = 8
    profile: Annotated[
        str,
        Field(
            min_length=1,
            description="what `onebit bench profile` measured of the two engines of adaptive, which then decides"
            " instead of adaptive_at: `auto` takes it when there is one, `off` never, or a file",
        ),
    ] = "auto"
    hold_gain: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="with a profile: a request waits beside a free slot when the others gain more than this share",
        ),
    ] = 0.1
    mtp: Annotated[bool, Field(description="multi-token prediction: the model's own head drafts tokens")] = False
    mtp_model: Annotated[File | None, Field(description="a head-only GGUF to draft with; implies mtp")] = None
    draft: Annotated[
        Literal["ngram"] | None, Field(description="draft without a head: ngram repeats what came before")
    ] = None
    draft_max: Annotated[
        int | None,
        Field(ge=1, le=64, description="tokens drafted at most; default: 3 with mtp, 16 with ngram"),
    ] = None
    n_gpu_layers: Annotated[
        tuple[Layers | None, ...],
        BeforeValidator(split),
        Field(
            max_length=MAX_ENGINES,
            description="layers on the GPU, one number or one for each engine; default: all",
        ),
    ] = ()
    threads: Annotated[
        tuple[Threads | None, ...],
        BeforeValidator(split),
        Field(
            max_length=MAX_ENGINES,
            description="CPU threads, one number or one for each engine; default: the cores but one, shared out",
        ),
    ] = ()
    batch_size: Annotated[
        int | None,
        Field(
            ge=32,
            le=16384,
            description="prompt tokens worked off in one go; default: 128 on a CPU, 512 on a GPU",
        ),
    ] = None
    llama_server: Annotated[File | None, Field(description="a llama-server executable to use")] = None
    start_timeout: Annotated[Seconds, Field(description="seconds an engine may take to load its model")] = 900.0
    engine_args: Annotated[tuple[str, ...], Field(description="further arguments for llama-server, untouched")] = ()
    idle_unload: Annotated[
        Seconds | None,
        Field(description="time without a request after which a model gives its memory back; default: never"),
    ] = None
    preload: Annotated[
        bool | None,
        Field(description="load at the start, not at the first request; default: yes for the one model of --model"),
    ] = None
    pin: Annotated[
        bool | None,
        Field(
            description="never unload it to make room; default: yes for the one model of --model without idle_unload"
        ),
    ] = None


class ModelSettings(EngineDefaults):
    """One model and its engines."""

    model: Annotated[str, Field(min_length=1, description="GGUF file, `demo`, `hf:owner/repo:quant` or URL")] = "demo"
    alias: Annotated[ModelName | None, Field(description="the model's name for clients; default: the file's name")] = (
        None
    )
