"""Compile the Triton kernel for sm_90 without a GPU, and print how often each kind of instruction stands in its PTX.

A program of its own: in the process of the other tests Triton interprets.
"""

from __future__ import annotations

import json
import re
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from onebit.kernels.lora.terms import Mode
from onebit.kernels.lora.triton_kernel import merge_tile
from onebit.kernels.lora.triton_merge import _blocks

mode = Mode[sys.argv[1]]
block_m, block_n, block_k, warps = _blocks(mode)
constants = {"W_T": tl.bfloat16, "F_T": tl.bfloat16, "DELTA_T": tl.bfloat16, "MODE": int(mode), "TENSOR_CORES": True}
constants |= {"BM": block_m, "BN": block_n, "BK": block_k}
signature = {"tile_table": "*i32", "module_table": "*i64", "term_table": "*i64", "scales": "*fp32"}
source = ASTSource(merge_tile, signature | dict.fromkeys(constants, "constexpr"), constants)
options = {"num_warps": warps, "enable_fp_fusion": mode is not Mode.EXACT}
ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
kinds = {"fma": r"\bfma\.rn\.f32", "mul": r"\bmul\.(rn\.)?f32", "add": r"\badd\.(rn\.)?f32", "mma": r"mma"}
print(json.dumps({kind: len(re.findall(pattern, ptx)) for kind, pattern in kinds.items()}))
