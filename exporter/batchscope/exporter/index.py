"""The page at /: what this server has, for whoever opens its address in a browser."""

from __future__ import annotations

LINKS = {
    "/metrics": "figures for Prometheus",
    "/openapi.json": "the description of this API",
    "/api/v1/queries": "every named question and its parameters",
    "/api/v1/engines": "engines that were ever seen",
    "/healthz": "whether the process answers",
}


def page() -> str:
    """HTML without scripts, styles or anything from elsewhere. The pages with charts are another
    command's.
    """
    items = "".join(f'<li><a href="{path}">{path}</a>: {what}' for path, what in LINKS.items())
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>batchscope</title>'
        f"<h1>batchscope</h1><ul>{items}</ul>"
        "<p>For charts run <code>batchscope dashboard</code>.</p></html>"
    )
