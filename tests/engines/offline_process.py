# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Engines without a server: LLM() with its core in this process, and in one of its own.

    python -m tests.engines.offline_process RINGS

Rings are in RINGS/0 (multiprocessing off) and RINGS/1. Prints one JSON object: where batchscope was
imported from, this pid, and the tokens that came out of each.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.engines.tiny_model import CONFIG

PROMPTS = 12


def generated(model, rings, multiprocessing):
    """Tokens of some requests, by an LLM() of its own."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = multiprocessing
    os.environ["BATCHSCOPE_DIR"] = str(rings)
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        num_gpu_blocks_override=40,
        block_size=32,
    )
    sampling = SamplingParams(max_tokens=20, ignore_eos=True, detokenize=False, temperature=0)
    prompts = [{"prompt_token_ids": list(range(n + 5, n + 60))} for n in range(PROMPTS)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()  # else the second engine's gc.freeze() keeps it for ever
    return [list(out.outputs[0].token_ids) for out in outputs]


def main(rings):
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(CONFIG))
        # in this order: an engine core keeps what it read of the environment in its process
        got = {word: generated(model, Path(rings) / word, word) for word in ("1", "0")}
    import batchscope.adapters

    origin = batchscope.adapters.__file__
    print(json.dumps({"origin": origin, "pid": os.getpid(), "tokens": got}))


if __name__ == "__main__":
    main(*sys.argv[1:])
