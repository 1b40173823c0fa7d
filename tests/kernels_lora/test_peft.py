"""The same bits as installed peft, where it is installed (the extra `bench`; in CI): whole models, saved and loaded."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from onebit.kernels.lora.lora_set import LoraSet
from onebit.kernels.lora.readers import read_adapter

peft: Any = importlib.import_module("peft") if "ONEBIT_TEST_TORCH" in os.environ else pytest.importorskip("peft")


def _model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"up": nn.Linear(96, 160), "down": nn.Linear(160, 96, bias=False)}).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("rslora", [True, False])
def test_merged_weights_have_pefts_bits(tmp_path: Path, dtype: torch.dtype, autocast: bool, rslora: bool) -> None:
    for name, rank in (("a", 8), ("b", 16)):
        config = peft.LoraConfig(
            r=rank, lora_alpha=5, use_rslora=rslora, target_modules=["up", "down"], alpha_pattern={"down": 3}
        )
        model = peft.get_peft_model(_model(dtype), config, autocast_adapter_dtype=False)
        for parameter in model.parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter, std=0.05)
        model.save_pretrained(str(tmp_path / name))
    theirs = peft.PeftModel.from_pretrained(
        _model(dtype), str(tmp_path / "a"), adapter_name="a", autocast_adapter_dtype=autocast
    )
    theirs.load_adapter(str(tmp_path / "b"), adapter_name="b", autocast_adapter_dtype=autocast)
    merged = theirs.merge_and_unload(adapter_names=["a", "b"])
    ours = _model(dtype)
    lora = LoraSet(ours)
    for name in ("a", "b"):
        adapter = read_adapter(tmp_path / name)
        lora.add(adapter.widened() if autocast else adapter)
    lora.apply({"a": 1.0, "b": 1.0})
    for name, weight in merged.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name]), name
