"""A model's weights as `LoraSet` changes them: numpy arrays, tensors on the CPU, tensors on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.errors import AdapterError
from onebit.kernels.lora import fused
from onebit.kernels.lora.numbers import Matrix, matrix_of
from onebit.kernels.lora.places import NOWHERE, Place
from onebit.kernels.lora.terms import Mode, Term

if TYPE_CHECKING:
    import torch


class Weight(Protocol):
    """One weight, changed in place: whatever refers to its memory sees the change."""

    shape: tuple[int, ...]
    transposed: bool | None  # stored in × out (GPT-2's Conv1D), or not; None: its kind does not say

    def place(self) -> Place:
        """Where it lies: two names of one memory (tied weights) overlap."""

    def problem(self) -> str | None:
        """Why nothing can be merged into it, if so."""

    def copy(self) -> Any:
        """Its values, for `restore`."""

    def restore(self, base: Any) -> None:
        """Overwrite it with a copy."""

    def matrix(self) -> Matrix:
        """It as a matrix (out × in) in the CPU's memory, if it is there."""

    def on_device(self) -> torch.Tensor | None:
        """The matrix where it lies on a GPU, else None."""

    def finite(self) -> bool:
        """Whether it has no NaN and no infinity."""


class ArrayWeight:
    """A numpy array; bfloat16 cannot be told from uint16 there, so it is not taken."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape: tuple[int, ...] = array.shape
        self.transposed: bool | None = None

    def place(self) -> Place:
        """See `Weight`."""
        return Place("cpu", *np.lib.array_utils.byte_bounds(self._array)) if self._array.size else NOWHERE

    def problem(self) -> str | None:
        """Its type, or memory with gaps."""
        try:
            matrix_of(self._array)
        except (TypeError, ValueError) as exc:
            return str(exc)
        return None if self._array.flags.writeable else "it is read-only"

    def copy(self) -> NDArray[Any]:
        """See `Weight`."""
        return self._array.copy()

    def restore(self, base: NDArray[Any]) -> None:
        """See `Weight`."""
        self._array[...] = base

    def matrix(self) -> Matrix:
        """See `Weight`."""
        return matrix_of(self._array)

    def on_device(self) -> None:
        """See `Weight`."""

    def finite(self) -> bool:
        """See `Weight`."""
        return bool(np.isfinite(self._array).all())


class TensorWeight:
    """A torch tensor, on the CPU (the C kernel) or on a GPU (Triton)."""

    def __init__(
        self, tensor: torch.Tensor, transposed: bool | None = None, holder: tuple[int, str] | None = None
    ) -> None:
        """`transposed` as in `Weight`, `holder` as in `Place`."""
        self._tensor = tensor.detach()
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.transposed = transposed
        self._holder = holder

    def place(self) -> Place:
        """See `Weight`."""
        tensor = self._tensor
        try:
            begin = tensor.data_ptr() if tensor.numel() else 0
            strides = tensor.stride()
        except RuntimeError:  # sparse and other kinds, whose memory is not one piece
            return NOWHERE
        if not begin:  # empty, or on "meta"
            return NOWHERE
        last = sum((n - 1) * step for n, step in zip(tensor.shape, strides, strict=True))
        return Place(str(tensor.device), begin, begin + (last + 1) * tensor.element_size(), self._holder)

    def problem(self) -> str | None:
        """Its type, memory with gaps, or a device without a kernel."""
        import torch

        if self._tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"{self._tensor.dtype} is not merged; float32, bfloat16 and float16 are"
        if not self._tensor.is_contiguous():
            return "the memory is not contiguous"
        device = self._tensor.device.type
        return None if device in ("cpu", "cuda") else f"there is no kernel for the device {device}"

    def copy(self) -> torch.Tensor:
        """See `Weight`."""
        return self._tensor.clone()

    def restore(self, base: torch.Tensor) -> None:
        """See `Weight`."""
        self._tensor.copy_(base)

    def matrix(self) -> Matrix:
        """See `Weight`."""
        return matrix_of(self._tensor)

    def on_device(self) -> torch.Tensor | None:
        """The matrix for a launch on its GPU, or None where it lies in the CPU's memory."""
        return None if self._tensor.device.type == "cpu" else self._tensor.view(self.shape[0], -1)

    def finite(self) -> bool:
        """See `Weight`."""
        return bool(self._tensor.isfinite().all())


def merge_all(work: Mapping[str, tuple[Weight, Sequence[Term]]], mode: Mode, threads: int) -> str | None:
    """Merge into many weights: those on a GPU in one launch. Returns the name of one that is not finite now."""
    on_cpu = {name: weight for name, (weight, _) in work.items() if weight.on_device() is None}
    bad = fused.merge_many([(on_cpu[name].matrix(), work[name][1]) for name in on_cpu], mode, threads=threads)
    if bad is not None:
        return list(on_cpu)[bad]
    on_gpu = [(name, weight, terms) for name, (weight, terms) in work.items() if weight.on_device() is not None]
    if on_gpu:
        from onebit.kernels.lora import triton_merge

        matrices = [(matrix, terms) for _, weight, terms in on_gpu if (matrix := weight.on_device()) is not None]
        triton_merge.merge([(m, triton_merge.terms_on(m.device, terms)) for m, terms in matrices], mode)
    return next((name for name, weight, _ in on_gpu if not weight.finite()), None)


def weights_of(model: torch.nn.Module | Mapping[str, Any]) -> dict[str, Weight]:
    """The weights by name. Raises AdapterError for what is neither a module nor arrays and tensors by name."""
    torch = sys.modules.get("torch")  # who has tensors has imported it
    if torch is not None and isinstance(model, torch.nn.Module):
        _compare_with_torch()
        return _parameters(model)
    if not isinstance(model, Mapping):
        raise AdapterError(f"{type(model).__name__} is neither a torch module nor weights by name")
    found: dict[str, Weight] = {}
    for name, value in model.items():
        if isinstance(value, np.ndarray):
            found[name] = ArrayWeight(value)
        elif torch is not None and isinstance(value, torch.Tensor):
            _compare_with_torch()
            found[name] = TensorWeight(value)
    return found


def _parameters(model: torch.nn.Module) -> dict[str, Weight]:
    found: dict[str, Weight] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            transposed = _transposed(module) if name == "weight" else None
            found[f"{path}.{name}" if path else name] = TensorWeight(parameter, transposed, (id(module), name))
    return found


def _transposed(module: torch.nn.Module) -> bool | None:
    """As peft decides it when it attaches an adapter."""
    import torch

    if isinstance(module, torch.nn.Linear):
        return False
    transformers = sys.modules.get("transformers.pytorch_utils")  # who has such a layer has imported it
    return True if transformers is not None and isinstance(module, transformers.Conv1D) else None


def _compare_with_torch() -> None:
    from onebit.kernels.lora.torch_check import agrees_with_torch

    agrees_with_torch()  # once a process
