# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""P2 on a real vLLM: an engine core with a model, observed and not, in one run (bench/abba.py).

    .venv/bin/python -m bench vllm_impact          starts the following where vLLM is
    .venvs/vllm/bin/python -m bench.vllm_impact QUADS

The engine runs in this process (multiprocessing off), so that its thread's CPU time can be read:
scheduler, forward pass and output processing of 64 requests in steady decode. The model is a random
one, as large as makes an iteration last as long on a CPU as a real one does on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.engines.tiny_model import CONFIG, OFFLINE

from batchscope.schemas.ring import LEVEL_MEMBERS, roster, set_level
from bench import in_vllm
from bench.abba import BLOCK_STEPS, compared, table, timed

__all__ = ["run", "table"]

MEMBERS, PROMPT_TOKENS, BLOCK_TOKENS = 64, 32, 32
LARGER = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
LARGER |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
SETTINGS = OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def run(*, quads: int = 12) -> dict[str, Any] | None:
    """{members, block_steps, quads, version} and what `compared` gives; None without a vLLM."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = SETTINGS | {"BATCHSCOPE_DIR": folder}
        return in_vllm.figures("bench.vllm_impact", str(quads), env=env)


class Subject:
    """A real engine, observed by the plugin that it loads itself."""

    def __init__(self, model: Path, rings: Path) -> None:
        from vllm import LLM

        self.rings = rings
        llm = LLM(
            str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=640,
            max_num_seqs=MEMBERS,
            max_num_batched_tokens=MEMBERS * PROMPT_TOKENS,
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=False,
            distributed_executor_backend="uni",
        )
        self.engine = llm.llm_engine
        self._names: list[str] = []
        self._made = 0

    def refill(self) -> None:
        """As many running requests as there are slots, all at the same short context."""
        from vllm import SamplingParams

        self.engine.abort_request(self._names)
        sampling = SamplingParams(max_tokens=600, ignore_eos=True, detokenize=False, temperature=0)
        self._names = [f"r{self._made + number}" for number in range(MEMBERS)]
        self._made += MEMBERS
        for number, name in enumerate(self._names):
            prompt = [(number * 7 + i) % 500 for i in range(PROMPT_TOKENS)]
            self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def block(self, level: int) -> tuple[float, float]:
        """(median interval, median CPU time) of a block's settled steps, ns."""
        self.refill()
        for resident in roster(self.rings):
            set_level(self.rings, resident.ring_uuid, level)
        return timed(self.engine.step)


def main(quads: str) -> None:
    """Measure here, in vLLM's own environment; the figures are the last line."""
    import vllm

    rings = Path(os.environ["BATCHSCOPE_DIR"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG | LARGER))
        subject = Subject(Path(folder), rings)
        subject.block(LEVEL_MEMBERS)
        attached = [each for each in roster(rings) if each.state == "attached"]
        assert attached, "nothing to compare: the adapter is not on"
        figures = compared(subject.block, quads=int(quads))
    about = {"members": MEMBERS, "block_steps": BLOCK_STEPS, "quads": int(quads)}
    print(json.dumps(about | {"version": vllm.__version__} | figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
