"""The adapters that requests may choose: checked before anything starts, and what an engine must not do beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onebit.config.adapters_section import ListedAdapter
from onebit.engines.spec import Adapter
from onebit.errors import ConfigError, ModelFileError
from onebit.models.gguf_file import ModelInfo, ModelKind

# With these, a prompt computed with one adapter could be taken for another's (see llama_server._prompt_cache), or the
# adapters' numbers would not be ours to know.
_NOT_BESIDE = frozenset({"-cram", "--cache-ram", "--lora", "--lora-scaled", "-kvu", "--kv-unified"})


def check_beside_choice(engine_args: Sequence[str], embeddings: bool) -> None:
    """Raises ConfigError for what does not go with adapters to choose from. `engine_args`: the user's, after --."""
    if embeddings:
        raise ConfigError(
            "`embeddings` does not go with `adapters`: llama-server would take one adapter's prompt for another's",
            hint="list the model twice, once with its adapters and once, under another name, with `embeddings: true`",
        )
    for arg in engine_args:
        if arg.split("=", 1)[0] in _NOT_BESIDE:
            raise ConfigError(f"{arg} stands after --, which does not go with `adapters`", hint="leave one of them out")


def check_choice(
    listed: Sequence[ListedAdapter], info: ModelInfo, inspect: Callable[[Path], ModelInfo]
) -> tuple[Adapter, ...]:
    """The adapters for the engines of the model `info`, in the order listed.

    Raises ConfigError or ModelFileError with the line of the config that names what cannot be used.
    """
    return tuple(_checked(one, info, inspect) for one in listed)


def _checked(listed: ListedAdapter, info: ModelInfo, inspect: Callable[[Path], ModelInfo]) -> Adapter:
    if {":", ","} & set(str(listed.path)):
        raise ConfigError(
            f"{listed.place}: llama-server takes no adapter whose path holds a colon or a comma: {listed.path}",
            hint="rename it",
        )
    try:
        adapter = inspect(listed.path)
    except ModelFileError as error:
        raise ModelFileError(f"{listed.place}: {error.message}", hint=error.hint) from error
    if adapter.kind is not ModelKind.ADAPTER:
        raise ModelFileError(
            f"{listed.place}: {listed.path} is not a LoRA adapter", hint="`adapters` lists GGUF adapters for the model"
        )
    if adapter.architecture != info.architecture:
        raise ModelFileError(
            f"{listed.place}: the adapter {listed.path} is for {adapter.architecture}, the model is {info.architecture}"
        )
    if adapter.invoked:
        raise ModelFileError(
            f"{listed.place}: {listed.path} is an activated adapter (aLoRA), whose prompts llama-server keeps together"
            " with those of other adapters",
            hint="use a plain LoRA, or serve this one as a model of its own with `lora`",
        )
    return Adapter(listed.path, listed.scale)


def about(listed: ListedAdapter, adapter: ModelInfo) -> str:
    """What an adapter does, in words: as the config says, or its file, or its name."""
    return listed.about or adapter.description or adapter.name or listed.name
