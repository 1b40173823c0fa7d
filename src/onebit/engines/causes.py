"""Why an engine ended, in one sentence: from its exit status and its last lines. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from onebit.engines.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class Cause:
    """`retry`: could the same start go better a second time?"""

    text: str
    retry: bool = True


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    text: str  # may use the regex's groups and the fields {model}, {device}, {build}
    retry: bool = False


def _p(regex: str, text: str, *, retry: bool = False) -> _Pattern:
    return _Pattern(re.compile(regex, re.IGNORECASE), text, retry)


# Ordered: the first match wins, and what names the root comes before what merely follows from it ("failed to load
# model" follows almost everything). The quoted strings were seen from llama.cpp 0c1e57098, glibc and the Vulkan,
# HIP and CUDA backends' sources.
_PATTERNS = (
    _p(r"(?P<check>GGML_ASSERT\(.+\) failed)", "llama.cpp stopped at a check of its own: {check}", retry=True),
    _p(
        r"error while loading shared libraries: (?P<lib>[^:\s]+)",
        "the build {build} lacks the shared library {lib}",
    ),
    _p(r"invalid argument: (?P<arg>\S+)", "this build of llama-server does not know the flag {arg}"),
    _p(r"invalid device: (?P<dev>\S+)", "there is no device {dev} here (asked for: {device})"),
    _p(
        r"failed to create MTP context|model (?:does not|doesn't) (?:have|support) (?:an )?MTP|no MTP",
        "{model} has no multi-token prediction head, so --mtp cannot work with it",
    ),
    _p(
        r"ErrorOutOfDeviceMemory|cudaMalloc failed|hipErrorOutOfMemory|out of (?:device )?memory|unable to allocate"
        r"|failed to allocate (?:compute )?buffer|insufficient memory|std::bad_alloc",
        "not enough memory on {device}: use a smaller context (-c), fewer slots (--parallel) or a smaller model",
        retry=True,
    ),
    _p(
        r"couldn't bind HTTP server socket.*port: (?P<port>\d+)|address already in use",
        "the engine could not bind its address: something else uses it",
        retry=True,
    ),
    _p(
        r"data is not within the file bounds|file is corrupted or incomplete",
        "{model} is truncated: fetch it again",
    ),
    _p(r"invalid magic characters|invalid GGUF|bad magic", "{model} is not a GGUF file"),
    _p(
        r"unknown model architecture: '?(?P<arch>[\w-]+)",
        "this build of llama.cpp does not know the architecture {arch}",
    ),
    _p(
        r"failed to (?:apply|load) lora adapter|lora adapter.*(?:fail|incompatible|mismatch)",
        "a LoRA adapter does not fit {model}",
    ),
    _p(r"failed to load model|error loading model(?:: (?P<why>.+))?", "llama-server could not load {model}"),
)

_SIGNALS = {
    signal.SIGILL: Cause("the build {build} uses CPU instructions this machine does not have", retry=False),
    signal.SIGKILL: Cause("it was killed (SIGKILL): by hand, or by the kernel because memory ran out"),
    signal.SIGSEGV: Cause("it crashed (SIGSEGV)"),
    signal.SIGABRT: Cause("it aborted (SIGABRT)"),
    signal.SIGBUS: Cause("it crashed (SIGBUS): the model file was cut short while in use, or the disk failed"),
}


def diagnose(returncode: int, lines: Sequence[str], spec: EngineSpec) -> Cause:
    """The cause of an exit. `returncode` as subprocess gives it (negative: a signal), `lines`: the last output."""
    names = {"model": str(spec.model), "device": str(spec.device), "build": str(spec.build.path)}
    if returncode < 0:
        number = -returncode
        known = _SIGNALS.get(signal.Signals(number)) if number in signal.valid_signals() else None
        # An abort is how ggml reports a failed allocation: let the text speak first.
        if number != signal.SIGABRT or (found := _match(lines, names)) is None:
            return (
                Cause(known.text.format(**names), known.retry) if known else Cause(f"it was ended by signal {number}")
            )
        return found
    found = _match(lines, names)
    if found is not None:
        return found
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return Cause(f"it exited with status {returncode}: {last[:200]}")


def _match(lines: Sequence[str], names: dict[str, str]) -> Cause | None:
    for pattern in _PATTERNS:
        for line in lines:
            hit = pattern.regex.search(line)
            if hit:
                groups = {k: v or "" for k, v in hit.groupdict().items()}
                return Cause(pattern.text.format(**names, **groups), pattern.retry)
    return None
