"""Every setting of `onebit serve`, once: its type, its bounds, its default, what it does.

A setting has one name. `max_wait` is `max_wait` in onebit.yaml, `--max-wait` on the command line and
`ONEBIT_MAX_WAIT` in the environment; the documentation is generated from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from onebit.errors import ConfigError

_MAX_SLOTS = 1024  # a bound against typing errors: each slot costs a KV cache


def _split(value: object) -> object:
    """`a,b` on a command line is `[a, b]` in YAML; a single value is a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, int):
        return [value]
    return value


def _bytes(value: object) -> object:
    """`64MiB`, `64M` or a number of bytes."""
    if not isinstance(value, str):
        return value
    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    text = value.strip().lower().removesuffix("b").removesuffix("i")
    number, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "")
    try:
        return int(float(number) * units[unit])
    except (ValueError, OverflowError):
        raise ValueError("a size is a number with an optional unit: 64MiB, 512K, 1G") from None


def _seconds(value: object) -> object:
    """`90`, `90s`, `2m` or `1h`."""
    units = {"s": 1, "m": 60, "h": 3600}
    if isinstance(value, str) and value.strip() and value.strip()[-1] in units:
        text = value.strip()
        try:
            return float(text[:-1]) * units[text[-1]]
        except ValueError:
            raise ValueError("a time is a number with an optional unit: 90, 90s, 2m, 1h") from None
    return value


def _is_file(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    return path


def _home(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=86_400)]
Size = Annotated[int, BeforeValidator(_bytes), Field(ge=1024, le=1 << 40)]
File = Annotated[Path, BeforeValidator(_home), AfterValidator(_is_file)]


class ServeConfig(BaseModel):
    """The settings of `onebit serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # --- the model
    model: Annotated[str, Field(min_length=1, description="GGUF file, `demo`, `hf:owner/repo:quant` or URL")] = "demo"
    alias: Annotated[
        str | None,
        Field(min_length=1, max_length=128, description="the model's name for clients; default: the file's name"),
    ] = None
    ctx_size: Annotated[
        int | None,
        Field(
            ge=0,
            le=1 << 24,
            description="tokens of context in EACH slot; 0: as many as the model was trained for",
        ),
    ] = None
    lora: Annotated[
        tuple[str, ...],
        BeforeValidator(_split),
        Field(description="LoRA adapter file(s) to apply, each `FILE` or `FILE:SCALE`"),
    ] = ()
    embeddings: Annotated[bool, Field(description="offer /v1/embeddings too")] = False

    # --- the engines
    device: Annotated[
        tuple[str, ...],
        BeforeValidator(_split),
        Field(
            max_length=8,
            description="where to run: cpu, vulkan, rocm, cuda, metal, with an index vulkan:1; several share the load"
            " evenly, two with adaptive are first and overflow",
        ),
    ] = ()
    parallel: Annotated[
        tuple[Annotated[int, Field(ge=1, le=_MAX_SLOTS)], ...],
        BeforeValidator(_split),
        Field(max_length=8, description="slots that decode together; `8,16` for the two engines of adaptive"),
    ] = ()
    adaptive: Annotated[bool, Field(description="two engines: the first fills, the second takes the overflow")] = False
    adaptive_at: Annotated[
        int,
        Field(ge=1, le=_MAX_SLOTS, description="requests on the first engine before the second is used"),
    ] = 8
    mtp: Annotated[bool, Field(description="multi-token prediction: the model's own head drafts tokens")] = False
    mtp_model: Annotated[File | None, Field(description="a head-only GGUF to draft with; implies mtp")] = None
    draft: Annotated[
        Literal["ngram"] | None, Field(description="draft without a head: ngram repeats what came before")
    ] = None
    draft_max: Annotated[
        int | None,
        Field(ge=1, le=64, description="tokens drafted at most; default: 3 with mtp, 16 with ngram"),
    ] = None
    n_gpu_layers: Annotated[int | None, Field(ge=0, le=9999, description="layers on the GPU; default: all")] = None
    threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="CPU threads of each engine; default: the cores but one, shared out"),
    ] = None
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

    # --- the endpoint
    host: Annotated[str, Field(min_length=1, description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="port to listen on; 0: any free one")] = 8080
    api_key: Annotated[SecretStr | None, Field(description="key(s) clients must send, comma-separated")] = None
    api_key_file: Annotated[File | None, Field(description="file with one key a line")] = None
    max_waiting: Annotated[
        int, Field(ge=0, le=1_000_000, description="requests that may wait in line before new ones get 429")
    ] = 1024
    max_wait: Annotated[Seconds, Field(description="time a request may wait for a slot before it gets 503")] = 600.0
    max_body: Annotated[Size, Field(description="largest request body")] = 64 << 20
    grace: Annotated[Seconds, Field(description="time running requests get to finish after the first Ctrl-C")] = 30.0

    def keys(self) -> tuple[str, ...]:
        """All API keys. Raises ConfigError when the key file cannot be read or holds none."""
        keys = [k.strip() for k in self.api_key.get_secret_value().split(",")] if self.api_key is not None else []
        if self.api_key_file:
            try:
                lines = self.api_key_file.read_text().splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the key file {self.api_key_file}: {error}") from None
            keys += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        keys = [k for k in keys if k]
        if not keys and (self.api_key is not None or self.api_key_file is not None):
            raise ConfigError(
                "an API key was asked for, but it is empty",
                hint="set ONEBIT_API_KEY or put one key a line into the key file; without either the server is open",
            )
        return tuple(keys)
