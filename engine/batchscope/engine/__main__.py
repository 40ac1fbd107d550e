"""`python -m batchscope.engine`: the engine behind an OpenAI-compatible server.

Each setting of EngineConfig is a flag. With --split a second process decodes what this one has
prefilled; --role and --link PATH do the same for two that are started apart. Plugins (entry points
of the group below) are handed the engine before its first step; it knows nothing of what they do.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import Field, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from batchscope.engine.checkpoint import model_config
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.loop import EngineLoop
from batchscope.engine.pair import decode, decode_engine, dialling
from batchscope.engine.policies import POLICIES
from batchscope.engine.prefill import PrefillLoop
from batchscope.engine.text import tokenizer_for

PLUGINS = "batchscope.engine.plugins"
GRACE_S = 5
"""After an interrupt; a stream that still goes on then is cut, its request aborted."""
CHOICES = {
    "policy": sorted(POLICIES),
    "runner": ["torch", "cost"],
    "role": ["both", "prefill", "decode"],
    "attention": ["auto", "gather", "flex"],
    "reservation": ["max_tokens", "max_model_len"],
}
HELP = {
    "block_size": "KV tokens in a block",
    "num_blocks": "blocks of the KV pool",
    "max_num_seqs": "requests that run at once",
    "max_num_batched_tokens": "tokens of an iteration",
    "max_model_len": "tokens of a request, prompt and output",
    "enable_prefix_caching": "keep the KV of shared beginnings",
    "watermark_blocks": "blocks that admissions leave free",
    "policy": "who runs in an iteration",
    "reservation": "the length up to which orca sets KV aside",
    "admit_delay": "iterations between two that admit",
    "admit_min_free": "slots that must be free before one is filled",
    "runner": "torch computes, cost only waits as long as a 7 B model would",
    "role": "part of a split",
    "unaccepted_ratio": "share of the pool that may wait for a decode engine",
    "backlog_ratio": "share of the pool a decode engine takes ahead",
    "seed": "of random weights",
    "device": "of torch: cpu, cuda",
    "attention": "copy pages together, or read them in place",
    "weights": "folder of a Llama, Qwen2 or Qwen3; none: random ones",
}
"""Of the settings of EngineConfig, which has them at length."""


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; 2 with one sentence when the settings can't be served."""
    told = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(told)
    try:
        engine = Engine(_config(args))
        for plugin in entry_points(group=PLUGINS):
            plugin.load()(engine)
        _run(engine, args, told)
    except (ValueError, OSError) as why:
        print(f"engine: {why}", file=sys.stderr)
        return 2
    return 0


def _run(engine: Engine, args: argparse.Namespace, told: list[str]) -> None:
    """In its role. Raises ValueError, OSError for a part that can't be played."""
    if args.split:
        with decode_engine([flag for flag in told if flag != "--split"]) as reach:
            _serve(PrefillLoop(engine, reach, max_waiting=args.max_waiting), args)
    elif args.role == "both":
        _serve(EngineLoop(engine, max_waiting=args.max_waiting), args)
    elif args.role == "decode":
        decode(engine, args.link)
    else:
        reach = dialling(args.link)
        _serve(PrefillLoop(engine, reach, max_waiting=args.max_waiting), args)


def _serve(loop: EngineLoop, args: argparse.Namespace) -> None:
    import uvicorn

    from batchscope.engine.server import make_app

    config = loop.engine.config
    tokenizer = tokenizer_for(config.weights, vocab_size=config.model.vocab_size)
    name = args.served_model_name or Path(config.weights or f"mini-{config.runner}").name
    app = make_app(loop, model=name, tokenizer=tokenizer)
    settings = uvicorn.Config(app, host=args.host, port=args.port, log_level="warning")
    settings.timeout_graceful_shutdown = GRACE_S
    with contextlib.suppress(KeyboardInterrupt), settings.bind_socket() as bound:
        host, port = bound.getsockname()[:2]
        print(f"engine: {name} at http://{host}:{port}/v1", flush=True)
        uvicorn.Server(settings).run(sockets=[bound])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batchscope.engine",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen on")
    parser.add_argument("--port", type=int, default=8000, help="to listen on; 0: a free one")
    parser.add_argument("--max-waiting", type=int, default=256, help="requests, then 429")
    parser.add_argument("--served-model-name", default=None, help="instead of the weights' name")
    parser.add_argument("--dtype", default="auto", help="of the weights as computed")
    parser.add_argument("--split", action="store_true", help="decode in a process of its own")
    parser.add_argument(
        "--link", metavar="PATH", help="where decode engine and prefill engine meet"
    )
    for setting in fields(EngineConfig):
        if setting.name != "model":
            _add(parser, setting)
    return parser


def _add(parser: argparse.ArgumentParser, setting: Field[Any]) -> None:
    flag, default = "--" + setting.name.replace("_", "-"), setting.default
    more: dict[str, Any] = {"default": default, "help": HELP[setting.name]}
    if isinstance(default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **more)
    else:
        kind = type(default) if isinstance(default, (int, float)) else str
        parser.add_argument(flag, type=kind, choices=CHOICES.get(setting.name), **more)


def _config(args: argparse.Namespace) -> EngineConfig:
    if (args.role == "both") != (args.link is None) or (args.split and args.link):
        raise ValueError("--role prefill or decode and --link PATH go together, or --split alone")
    if args.split:
        args.role = "prefill"
    told = {f.name: getattr(args, f.name) for f in fields(EngineConfig) if f.name != "model"}
    weights, dtype = args.weights, args.dtype
    shape = model_config(weights, dtype=dtype) if weights else ModelConfig(dtype=dtype)
    return EngineConfig(model=shape, **told)


if __name__ == "__main__":
    sys.exit(main())
