"""`python -m batchscope.exporter.cli`: the command line without an installed script."""

from __future__ import annotations

import sys

from batchscope.exporter.cli import main

sys.exit(main())
