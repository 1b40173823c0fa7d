"""`adapters:` below a model: the LoRA adapters that a request to it may choose, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from onebit.config.types import File

MAX_ADAPTERS = 1024
MAX_SCALE = 100.0  # a typing error; adapters are used at scales of about 1
WORDS = ("auto", "none")
"""What a request may say instead of a name."""


def _adapter_name(name: str) -> str:
    if name in WORDS:
        raise ValueError(f"{name} is what a request says instead of an adapter's name")
    return name


# No colon (`MODEL:ADAPTER`) and no comma: the names stand in a header, separated by commas.
AdapterName = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"), AfterValidator(_adapter_name)
]
Scale = Annotated[float, Field(ge=-MAX_SCALE, le=MAX_SCALE, allow_inf_nan=False)]


class AdapterEntry(BaseModel):
    """One adapter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[File, Field(description="a LoRA adapter as GGUF, made for this model")]
    about: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=1000,
            description='what it does, for `"lora": "auto"`; default: the description in the file, or its name',
        ),
    ] = None
    scale: Annotated[Scale, Field(description="how strongly it is applied where a request does not say")] = 1.0


@dataclass(frozen=True, slots=True)
class ListedAdapter:
    """An adapter as a model of the config lists it."""

    name: str
    path: Path
    scale: float
    about: str | None = None
    place: str = field(default="", compare=False)  # "onebit.yaml:9: models.chat.adapters.pirate"
