"""How the dashboard is started: the Streamlit command line. Used by the CLI and by tests."""

from __future__ import annotations

import sys
from pathlib import Path

SETTINGS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",  # watching every module costs seconds, nothing changes
    "browser.gatherUsageStats": "false",  # nothing leaves loopback
    "client.toolbarMode": "minimal",
    "runner.magicEnabled": "false",
    "theme.light.primaryColor": "#2b6cb0",
    "theme.dark.primaryColor": "#63b3ed",
}


def command(*, port: int, address: str = "127.0.0.1") -> list[str]:
    """Argument vector that serves the dashboard; the exporter is named by BATCHSCOPE_URL."""
    settings = {"server.port": str(port), "server.address": address, **SETTINGS}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    return [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(Path(__file__).with_name("app.py")),
        *flags,
    ]
