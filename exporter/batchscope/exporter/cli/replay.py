"""`batchscope replay`: offer a trace or a law to a server, open loop, and measure at the client.

batchscope replay http://127.0.0.1:8000 chat --rate 2 --duration 60
batchscope replay --engine cost trace.jsonl --sweep 0.9 --slo 'ttft<=1s,tbt_p99<=100ms'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchscope.exporter.cli import exporter_client
from batchscope.exporter.errors import ConfigError
from batchscope.schemas.slo import Slo, SloError

if TYPE_CHECKING:
    from batchscope.exporter.cli.playing import Player
    from batchscope.workload.traffic import Wish

TIMEOUT_S, CAP, VOCABULARY = 600.0, 4096, 512


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.usage = "%(prog)s [URL] TRAFFIC [option ...]"
    parser.add_argument(
        "words",
        nargs="+",
        metavar="[URL] TRAFFIC",
        help="a server and a trace file, chat, code, poisson, constant, gamma:CV, onoff:ON_S:OFF_S",
    )
    _add_target(parser.add_argument_group("whom to ask"))
    _add_traffic(parser.add_argument_group("traffic"))
    _add_figures(parser.add_argument_group("figures"))


def _add_target(group: Any) -> None:
    group.add_argument(
        "--engine",
        choices=["cost", "torch"],
        help="instead of URL: the cost model in virtual time, or a server of the bundled engine",
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="of the bundled engine"
    )
    group.add_argument(
        "--send",
        choices=["ids", "text", "chat"],
        default="ids",
        help="prompts as token ids (exact lengths), as text, as chats: a word for a token",
    )
    group.add_argument("--model", help="name to ask for (default: the first the server lists)")
    group.add_argument("--vocabulary", type=_count, default=VOCABULARY, metavar="N")
    group.add_argument(
        "--plain",
        action="store_true",
        help="only OpenAI's own fields: answers end where the model ends them",
    )
    group.add_argument("--timeout", type=_positive, default=TIMEOUT_S, metavar="S")
    group.add_argument(
        "--max-under-way", type=_count, default=CAP, metavar="N", help="beyond it none is sent"
    )


def _add_traffic(group: Any) -> None:
    group.add_argument("--rate", type=_positive, metavar="R", help="requests per second")
    group.add_argument("--time-scale", type=_positive, metavar="S", help="0.5: twice the rate")
    group.add_argument("--duration", type=_positive, metavar="S", help="seconds of traffic")
    group.add_argument("--requests", type=_count, metavar="N", help="how many at most")
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)s)")
    group.add_argument("--arrivals", default="poisson", metavar="LAW", help="for a file of lengths")
    group.add_argument("--prompt-tokens", default="512", metavar="N[:M]", help="for a law")
    group.add_argument("--output-tokens", default="128", metavar="N[:M]", help="for a law")
    group.add_argument("--length-scale", type=_scale, metavar="S", help="of every length, as 1/16")
    group.add_argument("--max-prompt-tokens", type=_count, metavar="N", help="cut longer ones")
    group.add_argument("--max-output-tokens", type=_count, metavar="N", help="cut longer ones")


def _add_figures(group: Any) -> None:
    group.add_argument(
        "--warm-up", type=float, default=0.0, metavar="S", help="left out of figures"
    )
    group.add_argument("--slo", metavar="TARGETS", help="what is good: ttft<=1s,tbt_p99<=...")
    group.add_argument(
        "--sweep",
        type=_share,
        metavar="SHARE",
        help="find the highest rate at which this share of requests meets the SLO (0.9)",
    )
    group.add_argument("--precision", type=_positive, default=0.05, help="of the rate (0.05)")
    group.add_argument("--most-points", type=_count, default=16, metavar="N", help="of a sweep")
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="Parquet, a row a request")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    group.add_argument(
        "--post", action="store_true", help="hand the figures to the exporter, beside the engine's"
    )
    group.add_argument("--name", help="what the run is called there")
    exporter_client.add_exporter(group)


def run(args: argparse.Namespace) -> int:
    """Replay, print what was seen; 1 when not one request that counts was answered."""
    from batchscope.exporter.cli import played, swept
    from batchscope.workload.trace import TraceError

    _refuse_nonsense(args)
    try:
        slo = None if args.slo is None else Slo.parse(args.slo)
        with _player(args) as player:
            if args.sweep is not None:
                assert slo is not None
                return swept.run(args, player, _wish(args), slo)
            return played.run(args, player, _wish(args), slo)
    except (TraceError, SloError) as error:
        raise ConfigError(str(error)) from None


def _refuse_nonsense(args: argparse.Namespace) -> None:
    """What can be refused before anything starts."""
    wanted = 1 if args.engine else 2
    if len(args.words) != wanted:
        what = "TRAFFIC alone" if args.engine else "URL and TRAFFIC, or --engine and TRAFFIC"
        raise ConfigError(f"say {what}; got {' '.join(args.words)}")
    refusals = {
        "--sweep needs an SLO: --slo 'ttft<=1s,tbt_p99<=100ms'": args.sweep and not args.slo,
        "--set is for the bundled engine: --engine": args.set and not args.engine,
        "--sweep finds the rate: leave --time-scale out": args.sweep and args.time_scale,
        "--post hands in one run: leave --sweep out": args.sweep and args.post,
        "--output is of one run: leave --sweep out": args.sweep and args.output,
        "the exporter saw nothing of virtual time": args.post and args.engine == "cost",
        f"{args.output} is there already": args.output and args.output.exists(),
        "a warm-up can't be below 0": args.warm_up < 0,
    }
    for why, applies in refusals.items():
        if applies:
            raise ConfigError(why)
    if args.output:
        import batchscope.workload.parquet  # noqa: F401 - not after an hour: it may be missing
    if args.post:
        exporter_client.get(exporter_client.url_of(args), "/healthz")


def _wish(args: argparse.Namespace) -> Wish:
    from batchscope.workload.traffic import Wish

    return Wish(
        source=args.words[-1],
        rate_per_s=args.rate,
        time_scale=args.time_scale,
        requests=args.requests,
        duration_s=args.duration,
        seed=args.seed,
        arrivals=args.arrivals,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        length_scale=args.length_scale,
        max_prompt_tokens=args.max_prompt_tokens,
        max_output_tokens=args.max_output_tokens,
    )


@contextmanager
def _player(args: argparse.Namespace) -> Iterator[Player]:
    if args.engine is None:
        yield _server(args, args.words[0])
        return
    from batchscope.exporter.cli import bundled

    given = bundled.settings(args.set)
    if args.engine == "cost":
        yield bundled.virtual(given, seed=args.seed, quiet=_quiet())
        return
    with bundled.serving(args.engine, given) as url:
        yield _server(args, url)


def _server(args: argparse.Namespace, url: str) -> Player:
    from batchscope.exporter.cli import playing
    from batchscope.workload.orders import Dialect

    headers = playing.authorization()
    base = url.rstrip("/").removesuffix("/v1")
    dialect = Dialect(
        model=args.model or playing.model_of(base, headers),
        run="",
        prompt=args.send,
        vocab=args.vocabulary,
        seed=args.seed,
        extensions=not args.plain,
    )
    return playing.Server(
        url=base,
        dialect=dialect,
        most=args.max_under_way,
        timeout_s=args.timeout,
        headers=headers,
        quiet=_quiet(),
    )


def _quiet() -> bool:
    """A bar is for people; a log would get a line of it twice a second."""
    return not sys.stderr.isatty()


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _scale(text: str) -> float:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, as 0.5 or 1/16, not {text}")
    return float(value)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return value
