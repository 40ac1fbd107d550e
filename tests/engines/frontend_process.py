# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""The real OutputProcessor of the vLLM on the path, watched; without a model or a server.

    PYTHONPATH=.cache/vllm/0.16.0 .venvs/vllm/bin/python -m tests.engines.frontend_process FOLDER

Prints one JSON object: per request what its own stream got, step by step, and how it ended. The
ring is in FOLDER.
"""

import asyncio
import json
import os
import sys
import time

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ["VLLM_PLUGINS"] = ""

import vllm
from tests.engines.vllm_parts import called
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from batchscope.adapters.vllm import frontend

READY_S = 1234.5
CAME_S = 0.25
TOKENS = 7


class FrontEnd:
    """A processor, streams that are emptied after every step, and what came out of each."""

    def __init__(self, folder, *, interval=1, before=()):
        tokenizer = NoTokenizer() if vllm.__version__.startswith("0.8") else None
        self.processor = called(
            OutputProcessor, tokenizer=tokenizer, log_stats=True, stream_interval=interval
        )
        self.streams, self.got, self.ends = {}, {}, {}
        for name, kind in before:
            self.arrive(name, kind)
            self.step({name: 3})
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
        env |= {"BATCHSCOPE_REQUEST_IDS": "plain"}
        self.got.clear()
        self.handle = frontend.attach(self.processor, env)
        assert self.handle.attached

    def arrive(self, name, kind="DELTA", *, n=1):
        """A request, or one with n answers `0_name` to `n-1_name`."""
        params = SamplingParams(output_kind=RequestOutputKind[kind], n=n, max_tokens=20)
        core = core_request(name, params, name)
        stream = called(RequestOutputCollector, output_kind=params.output_kind, request_id=name)
        parent = None
        if n > 1:
            parent = called(ParentRequest, request=core, request_id=name, sampling_params=params)
        for index in range(n):
            if parent:
                child, own = parent.get_child_info(index)
                core = core_request(child, own, name)
            self.streams[core.request_id] = stream
            self.processor.add_request(core, None, parent, index, stream)

    def step(self, tokens, *, end=()):
        """One step of the core: request -> tokens; those in `end` are at their last."""
        outputs = [
            EngineCoreOutput(
                request_id=name,
                new_token_ids=list(range(10, 10 + n)),
                finish_reason=FinishReason.LENGTH if name in end else None,
            )
            for name, n in tokens.items()
        ]
        self.processor.process_outputs(outputs, READY_S, IterationStats())
        for stream in {id(s): s for s in self.streams.values()}.values():
            while (output := stream.get_nowait()) is not None:
                self.note(output)

    def note(self, output):
        for answer in output.outputs:
            key = f"{output.request_id}/{answer.index}"
            self.got.setdefault(key, []).append(len(answer.token_ids))

    def abort(self, *names):
        try:
            self.processor.abort_requests(list(names), internal=True)
        except TypeError:
            self.processor.abort_requests(list(names))


def core_request(name, params, external):
    """The message that goes to the core, with those of these fields that this version has."""
    fields = EngineCoreRequest.__struct_fields__
    required = fields[: len(fields) - len(EngineCoreRequest.__struct_defaults__)]
    known = {
        "request_id": name,
        "external_req_id": external,
        "prompt_token_ids": [1, 2, 3, 4, 5],
        "sampling_params": params,
        "arrival_time": time.time() - CAME_S,
    }
    known = {field: value for field, value in known.items() if field in fields}
    return EngineCoreRequest(**{**dict.fromkeys(required), **known})


class NoTokenizer:
    """What 0.8 asks even where nothing is turned into text."""

    def get_lora_tokenizer(self, _):
        return None


async def main(folder):
    plain = FrontEnd(f"{folder}/plain", before=[("early", "DELTA"), ("early-whole", "FINAL_ONLY")])
    plain.arrive("a")
    plain.arrive("b", "CUMULATIVE")
    plain.arrive("whole", "FINAL_ONLY")
    plain.arrive("many", n=2)
    plain.arrive("many-whole", "FINAL_ONLY", n=2)
    plain.arrive("gone")
    names = [
        "early",
        "early-whole",
        "a",
        "b",
        "whole",
        "0_many",
        "1_many",
        "0_many-whole",
        "1_many-whole",
    ]
    for number in range(TOKENS):
        plain.step(dict.fromkeys([*names, *(["gone"] if number < 3 else [])], 1))
        if number == 2:
            plain.abort("gone")
    plain.step({"0_many-whole": 1, "a": 0}, end=["0_many-whole"])
    plain.step({"a": 3, "1_many-whole": 2}, end=["1_many-whole"])
    rest = [n for n in names if "many-whole" not in n]
    plain.step(dict.fromkeys(rest, 1), end=rest)
    spaced = FrontEnd(f"{folder}/spaced", interval=3)
    spaced.arrive("s")
    for number in range(TOKENS + 1):
        spaced.step({"s": 1}, end=["s"] if number == TOKENS else [])
    said = {"version": vllm.__version__, "plain": plain.got, "spaced": spaced.got}
    said["faults"] = plain.handle.faults.count + spaced.handle.faults.count
    plain.handle.detach()
    spaced.handle.detach()
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
