"""Adapters on live weights: applied, changed, removed; the base always comes back, and nothing is half done."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onebit.errors import AdapterError
from onebit.kernels.lora import fused, torch_check
from onebit.kernels.lora.adapter import Adapter, Factors
from onebit.kernels.lora.lora_set import LoraSet
from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.readers import read_adapter
from onebit.kernels.lora.torch_check import agrees_with_torch
from tests.kernels_lora.files import Tensors, factors, model_weights, stock_loop, write_kohya, write_peft


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Adapter, Adapter]:
    """Two adapters of peft, with alpha / rank = 2 and 1."""
    return (
        read_adapter(write_peft(tmp_path / "pirate", rank=4, seed=1)),
        read_adapter(write_peft(tmp_path / "formal", rank=8, seed=2)),
    )


def _same(left: Tensors, right: Tensors) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def _set(weights: Tensors, *adapters: Adapter) -> LoraSet:
    lora = LoraSet(weights)
    for adapter in adapters:
        lora.add(adapter)
    return lora


def test_this_machines_torch_has_the_reference_order() -> None:
    """If this fails the others that compare with torch mean nothing here; exactness to the reference is unharmed."""
    assert agrees_with_torch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_the_stock_loop(tmp_path: Path, dtype: torch.dtype) -> None:
    base, weights = model_weights(dtype), model_weights(dtype)
    adapters = [read_adapter(write_peft(tmp_path / str(i), rank=4, dtype=dtype, seed=i)) for i in (1, 2)]
    _set(weights, *adapters).apply({"1": 0.7, "2": -0.25})
    wanted = stock_loop(base, (factors(4, dtype, 1), 0.7 * 8 / 4), (factors(4, dtype, 2), -0.25 * 8 / 4))
    assert _same(weights, wanted)


def test_float32_factors_on_bfloat16_weights(tmp_path: Path) -> None:
    """What peft holds after loading with its defaults: the delta is not rounded before it is added."""
    weights = model_weights(torch.bfloat16)
    adapter = read_adapter(write_peft(tmp_path / "a", dtype=torch.bfloat16)).widened()
    _set(weights, adapter).apply({"a": 1.0})
    wide = {name: (b.float(), a.float()) for name, (b, a) in factors(4, torch.bfloat16).items()}
    assert _same(weights, stock_loop(model_weights(torch.bfloat16), (wide, 2.0)))


def test_a_hundred_changes_leave_no_trace(pair: tuple[Adapter, Adapter]) -> None:
    weights, base = model_weights(torch.bfloat16), model_weights(torch.bfloat16)
    lora = _set(weights, *pair)
    for step in range(50):
        lora.apply({"pirate": 0.1 * step, "formal": 1.0})
        lora.apply({"formal": 0.3})
    lora.remove()
    assert _same(weights, base)
    assert lora.active == {}


def test_a_set_does_not_depend_on_what_was_before(pair: tuple[Adapter, Adapter]) -> None:
    one, other = model_weights(), model_weights()
    lora = _set(one, *pair)
    lora.apply({"formal": 2.0})
    lora.apply({"pirate": 0.5, "formal": 1.0})
    _set(other, *pair).apply({"pirate": 0.5, "formal": 1.0})
    assert _same(one, other)


def test_changed_in_place(pair: tuple[Adapter, Adapter]) -> None:
    """Whoever holds the tensor (a module, a captured graph) sees the merge."""
    weights = model_weights()
    held = dict(weights)
    _set(weights, *pair).apply({"pirate": 1.0})
    assert all(held[name] is weights[name] for name in weights)
    assert not _same(held, model_weights())


def test_applied_for_a_block(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights()
    lora = _set(weights, *pair)
    lora.apply({"formal": 1.0})
    before = {name: weight.clone() for name, weight in weights.items()}
    with lora.applied({"pirate": 1.0}):
        assert not _same(weights, before)
    assert _same(weights, before)
    assert lora.active == {"formal": 1.0}


def test_a_module(pair: tuple[Adapter, Adapter]) -> None:
    root = nn.Module()
    for name, weight in model_weights().items():
        node = root
        for part in name.split(".")[:-1]:
            if not hasattr(node, part):
                node.add_module(part, nn.Module())
            node = getattr(node, part)
        node.register_parameter("weight", nn.Parameter(weight))
    lora = LoraSet(root)
    lora.add(pair[0])
    lora.apply({"pirate": 1.0})
    assert _same(root.state_dict(), stock_loop(model_weights(), (factors(4), 2.0)))


def test_kohya_names_and_convolutions(tmp_path: Path) -> None:
    weights = model_weights() | {"conv_in.weight": torch.randn(6, 3, 3, 3)}
    base = {name: weight.clone() for name, weight in weights.items()}
    down, up = torch.randn(2, 3, 3, 3), torch.randn(6, 2, 1, 1)
    extra = {"lora_unet_conv_in.lora_down.weight": down, "lora_unet_conv_in.lora_up.weight": up}
    adapter = read_adapter(write_kohya(tmp_path / "style.safetensors", alpha=2.0, extra=extra))
    _set(weights, adapter).apply({"style": 1.0})
    wanted = stock_loop(base, (factors(4), 0.5), ({"conv_in": (up.reshape(6, 2), down.reshape(2, -1))}, 1.0))
    assert _same(weights, wanted)


def test_a_weight_stored_in_by_out(tmp_path: Path) -> None:
    """GPT-2's Conv1D: peft transposes B @ A, this merges Aᵀ and Bᵀ."""
    weights = {name: w.T.contiguous() if "proj" in name else w for name, w in model_weights().items()}
    adapter = read_adapter(write_peft(tmp_path / "a", fan_in_fan_out=True))
    _set(weights, adapter).apply({"a": 1.0})
    wanted = stock_loop(model_weights(), (factors(4), 2.0))
    assert _same(weights, {name: w.T if "proj" in name else w for name, w in wanted.items()})


def test_numpy_arrays(pair: tuple[Adapter, Adapter]) -> None:
    arrays = {name: weight.numpy() for name, weight in model_weights().items()}
    lora = LoraSet(arrays)
    lora.add(pair[0])
    lora.apply({"pirate": 1.0})
    wanted = stock_loop(model_weights(), (factors(4), 2.0))
    assert all(np.array_equal(arrays[name], wanted[name].numpy()) for name in arrays)


# --- refusals ------------------------------------------------------------------------------------------------


def test_a_module_the_model_has_not(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights()
    del weights["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(AdapterError, match=r"adapter pirate: the model has no .*layers\.1\.mlp\.down_proj"):
        _set(weights, *pair)


def test_a_shape_that_does_not_fit(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights() | {"model.layers.0.self_attn.q_proj.weight": torch.zeros(24, 17)}
    message = r"adapter pirate: .*q_proj does not fit .*: B 24×4 @ A 4×16 for a weight of 24×17"
    with pytest.raises(AdapterError, match=message):
        _set(weights, *pair)


def test_weights_that_cannot_be_merged_into(pair: tuple[Adapter, Adapter]) -> None:
    for weight, message in (
        (torch.zeros(24, 16, dtype=torch.int8), "torch.int8 is not merged"),
        (torch.zeros(16, 24).T, "not contiguous"),
        (torch.zeros(24, 16, device="meta"), "no kernel for the device meta"),
    ):
        weights = model_weights() | {"model.layers.0.self_attn.q_proj.weight": weight}
        with pytest.raises(AdapterError, match=message):
            _set(weights, *pair)


def test_one_weight_under_two_names(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights()
    weights["model.layers.1.self_attn.q_proj.weight"] = weights["model.layers.0.self_attn.q_proj.weight"]
    with pytest.raises(AdapterError, match=r"share memory \(tied weights\)"):
        _set(weights, *pair)


def test_weights_that_overlap() -> None:
    memory = np.zeros(30 * 8, np.float32)
    weights = {"x.weight": memory[:160].reshape(20, 8), "y.weight": memory[80:].reshape(20, 8)}
    b, a = (Matrix(np.ones(shape, np.float32), Number.F32) for shape in ((20, 2), (2, 8)))
    adapter = Adapter("one", Path(), "peft", {name: Factors(name, b, a, 2.0) for name in ("x", "y")}, {})
    with pytest.raises(AdapterError, match=r"x\.weight and y\.weight share memory"):
        LoraSet(weights).add(adapter)
    apart = {"x.weight": memory[:160].reshape(20, 8), "y.weight": np.zeros((20, 8), np.float32)}
    LoraSet(apart).add(adapter)


def _one(module: str, out: int = 8, into: int = 8, **more: Any) -> Adapter:
    """An adapter named `module` on that module alone."""
    rng = np.random.default_rng(1)
    b, a = (Matrix(rng.standard_normal(shape, np.float32), Number.F32) for shape in ((out, 2), (2, into)))
    return Adapter(module, Path(), "peft", {module: Factors(module, b, a, 2.0, **more)}, {})


def test_one_half_of_a_tied_pair() -> None:
    """Merged into the head, an adapter would change the embedding as well; peft only warns."""
    model = nn.ModuleDict({"emb": nn.Embedding(8, 8), "head": nn.Linear(8, 8, bias=False), "free": nn.Linear(8, 8)})
    model["head"].weight = model["emb"].weight
    for weights in (model, model.state_dict()):
        lora = LoraSet(weights)
        with pytest.raises(AdapterError, match=r"adapter head: .*head\.weight.* share memory \(tied weights\)"):
            lora.add(_one("head"))
        lora.add(_one("free"))
    view = {"whole.weight": (whole := np.zeros((16, 8), np.float32)), "part.weight": whole[:8]}
    with pytest.raises(AdapterError, match="share memory"):
        LoraSet(view).add(_one("part"))


def test_one_module_under_two_names_is_used_as_one() -> None:
    """ALBERT's layers: an adapter on it means all of its uses. Under both names at once it would be merged twice."""
    layer = nn.Linear(8, 8, bias=False)
    lora, base = LoraSet(nn.ModuleDict({"first": layer, "second": layer})), layer.weight.detach().clone()
    lora.add(_one("first"))
    lora.apply({"first": 1.0})
    assert not torch.equal(layer.weight, base)
    with pytest.raises(AdapterError, match=r"first\.weight and second\.weight share memory"):
        lora.add(_one("second"))
    lora.discard("first")
    lora.add(_one("second"))  # nothing writes there under the other name any more
    assert torch.equal(layer.weight, base)


@pytest.mark.parametrize("how", ["to", "assign", "replaced", "gone"])
def test_a_model_that_was_moved(how: str) -> None:
    """What is merged into the memory of before would change nothing."""
    model = nn.ModuleDict({"x": nn.Linear(8, 8)})
    weights = dict(model.state_dict())
    lora = LoraSet(model if how in ("to", "assign") else weights)
    lora.add(_one("x"))
    lora.apply({"x": 1.0})
    if how == "to":
        model.to(torch.bfloat16)
    elif how == "assign":
        model.load_state_dict({name: w.clone() for name, w in weights.items()}, assign=True)
    elif how == "replaced":
        weights["x.weight"] = weights["x.weight"].clone()
    else:
        del weights["x.weight"]
    for strengths in ({"x": 0.5}, {}):
        with pytest.raises(AdapterError, match=r"x\.weight is not where it was when this set was made"):
            lora.apply(strengths)
    assert lora.active == {"x": 1.0}


@pytest.mark.parametrize("saved", [False, True])
def test_layers_say_how_they_store_their_weights(saved: bool) -> None:
    """An adapter on GPT-2's Conv1D and on Linear layers; peft saves the `fan_in_fan_out` of the last one for all."""
    layers = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    model = nn.ModuleDict({"conv": layers.Conv1D(8, 8), "linear": nn.Linear(8, 8)})
    weights = {name: model.get_parameter(f"{name}.weight").detach() for name in ("conv", "linear")}
    base = {name: weight.clone() for name, weight in weights.items()}
    for name in base:
        lora = LoraSet(model)
        adapter = _one(name, transposed=saved)
        lora.add(adapter)
        lora.apply({name: 1.0})
        (one,) = adapter.factors.values()
        delta = torch.from_numpy(one.b.load().as_float32() @ one.a.load().as_float32())
        wanted = base[name] + (delta.T if name == "conv" else delta)
        torch.testing.assert_close(weights[name], wanted)


def test_a_set_needs_no_file_any_more(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "pirate")
    weights, kept = model_weights(), model_weights()
    later, whole = _set(weights, read_adapter(folder, keep=False)), _set(kept, read_adapter(folder))
    (folder / "adapter_model.safetensors").unlink()
    later.apply({"pirate": 1.0})
    whole.apply({"pirate": 1.0})
    assert _same(weights, kept)


def test_tensors_by_name_are_compared_with_torch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch_check, "agrees_with_torch", lambda: asked.append(1))
    LoraSet({"x": np.zeros((2, 2), np.float32)})
    assert not asked
    LoraSet({"x": torch.zeros(2, 2)})
    assert asked


def test_names_and_strengths(pair: tuple[Adapter, Adapter]) -> None:
    lora = _set(model_weights(), pair[0])
    with pytest.raises(AdapterError, match="there is an adapter pirate already"):
        lora.add(pair[0])
    with pytest.raises(AdapterError, match="there is no adapter formal") as caught:
        lora.apply({"formal": 1.0})
    assert caught.value.hint == "adapters of this set: pirate"
    with pytest.raises(AdapterError, match="its strength is nan"):
        lora.apply({"pirate": math.nan})


def test_discard(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights()
    lora = _set(weights, *pair)
    lora.apply({"pirate": 1.0, "formal": 0.5})
    lora.discard("pirate")
    assert lora.names == ("formal",)
    assert _same(weights, stock_loop(model_weights(), (factors(8, seed=2), 0.5)))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_a_result_that_is_not_finite_changes_nothing(pair: tuple[Adapter, Adapter], name: str) -> None:
    weights = model_weights(torch.float16)
    lora = _set(weights, *pair)
    lora.apply({"formal": 1.0})
    before = {name: weight.clone() for name, weight in weights.items()}
    with pytest.raises(AdapterError, match=r"merging pirate:1e\+06 into .* beyond what the type holds"):
        lora.apply({"pirate": 1e6})
    assert _same(weights, before)
    assert lora.active == {"formal": 1.0}


def test_a_base_with_nans_is_named(pair: tuple[Adapter, Adapter]) -> None:
    weights = model_weights()
    weights["model.layers.1.mlp.down_proj.weight"][3, 3] = math.nan
    lora = _set(weights, pair[0])
    with pytest.raises(AdapterError, match=r"into model\.layers\.1\.mlp\.down_proj\.weight .* has some itself"):
        lora.apply({"pirate": 1.0})
    assert torch.equal(
        weights["model.layers.0.mlp.down_proj.weight"], model_weights()["model.layers.0.mlp.down_proj.weight"]
    )


@pytest.mark.parametrize("times", [[3], [3, 4], [3, 5, 6]], ids=["once", "and while it is put back", "twice more"])
def test_interrupted_in_the_middle(
    pair: tuple[Adapter, Adapter], monkeypatch: pytest.MonkeyPatch, times: list[int]
) -> None:
    weights = model_weights()
    lora = _set(weights, *pair)
    lora.apply({"formal": 1.0})
    before = {name: weight.clone() for name, weight in weights.items()}
    begin, calls = fused._job, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in times:
            raise KeyboardInterrupt
        return begin(*args, **kwargs)

    monkeypatch.setattr(fused, "_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lora.apply({"pirate": 1.0})
    assert _same(weights, before)
    assert lora.active == {"formal": 1.0}
