"""Which engine a page is about, and what to say when there is none. Used by every page."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from batchscope.dashboard.client import Client, ClientError, Unreachable

Engine = dict[str, Any]

HOW_TO_START = """
Start the exporter on the machine of the engine, then this page fills by itself:

```sh
batchscope serve
```

Or see the whole road with a bundled engine and traffic: `make demo`. If the exporter runs
elsewhere, set `BATCHSCOPE_URL` (and `BATCHSCOPE_TOKEN`) before `batchscope dashboard`.
"""
HOW_TO_ATTACH = """
The exporter runs and no engine has written a ring yet. Install batchscope in the engine's
environment (it brings no dependencies) and start the engine with the adapter switched on:

```sh
pip install batchscope
BATCHSCOPE=1 <command that starts your engine>
```

An engine that was started with batchscope installed, but without that variable, is switched on by
`batchscope attach --all`; `batchscope doctor` says what is missing.

Engine and exporter must see the same folder: `$BATCHSCOPE_DIR`, else `/dev/shm/batchscope-<uid>`.
To see it without an engine of your own: `make demo`.
"""


@st.cache_resource
def client() -> Client:
    """One connection for all sessions."""
    return Client.from_environment()


def engines() -> list[Engine]:
    """Rows of engine_choices; none after saying, over the page's whole width, what to do."""
    try:
        found = client().query("engine_choices").to_pylist()
    except Unreachable:
        _say(f"No exporter answers at `{client().url}`", HOW_TO_START, icon=":material/power_off:")
    except ClientError as error:
        _say(str(error), "", icon=":material/error:")
    else:
        if not found:
            _say("No engine is attached", HOW_TO_ATTACH, icon=":material/hourglass_empty:")
        _warn_of_refused()
        return list(found)
    return []


def _warn_of_refused() -> None:
    """An engine that is there and can't be followed must not look like one that isn't there."""
    try:
        refused = client().refused()
    except ClientError:
        return
    for reason in refused[:3]:
        st.warning(f"The exporter can't follow a ring: {reason}", icon=":material/warning:")


def _say(sentence: str, advice: str, *, icon: str) -> None:
    with st.container(border=True, width=760):
        st.markdown(f"#### {icon} {sentence}")
        st.markdown(advice)


def pick(choices: list[Engine]) -> Engine:
    """The engine a person chose; remembered in the address, so that a reload or link shows it."""
    by_name = {_name(engine): engine for engine in choices}
    names = list(by_name)
    wanted = remembered("engine")
    name = st.selectbox(
        "Engine",
        names,
        index=names.index(wanted) if wanted in by_name else 0,
        format_func=lambda name: _label(by_name[name]),
        label_visibility="collapsed",
        key="engine",
        on_change=_forget,
    )
    remember("engine", name)
    return by_name[name]


def remembered(name: str) -> str | None:
    """A choice from the address, else from before this session changed pages."""
    kept: str | None = st.query_params.get(name) or st.session_state.get(f"kept_{name}")
    return kept


def remember(name: str, value: str | None) -> None:
    """Keep a choice in the address and in the session; None takes it out."""
    st.session_state[f"kept_{name}"] = value
    if st.query_params.get(name) == value:
        return
    if value is None:
        del st.query_params[name]
    else:
        st.query_params[name] = value


def _forget() -> None:
    """A zoom and a picked iteration belong to the engine they were made on."""
    st.session_state["zooms"] = []
    st.session_state.pop("picked", None)


def _name(engine: Engine) -> str:
    """What an engine is called in the address: the same in all of its lives."""
    rank = engine["dp_rank"]
    return str(engine["engine"]) if rank is None else f"{engine['engine']}/{rank}"


def _label(engine: Engine) -> str:
    model = f" · {engine['model_name']}" if engine["model_name"] else ""
    rank = f" · rank {engine['dp_rank']}" if engine["dp_rank"] else ""
    gone = "" if engine["state"] == "live" else f" ({engine['state']})"
    return f"{engine['engine']}{model}{rank}{gone}"


def config_of(engine: Engine) -> dict[str, Any]:
    """The engine's configuration; {} when unknown."""
    try:
        found = json.loads(engine["config"] or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def scope(engine: Engine) -> dict[str, Any]:
    """Parameters that pick this engine in a query."""
    return {"engine": engine["engine"], "dp_rank": engine["dp_rank"]}
