"""The dashboard's entry: `streamlit run app.py`, usually by `batchscope dashboard`.

Talks to one exporter (BATCHSCOPE_URL, default http://127.0.0.1:9477) and to nobody else.
"""

from __future__ import annotations

from importlib.resources import files

import streamlit as st

from batchscope.dashboard.views import iterations, now

# Streamlit leaves 6 rem above the first element and 1 rem between any two: too much for a panel.
# And what refreshes by itself must not fade while it waits for its next figures.
TIGHT = """<style>
.stMainBlockContainer { padding-top: 4.2rem; padding-bottom: 2rem; max-width: 1760px; }
.stMainBlockContainer [data-testid="stVerticalBlock"] { gap: 0.6rem; }
.stMainBlockContainer [data-stale] { opacity: 1 !important; transition: none !important; }
</style>"""


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config(
        page_title="batchscope",
        page_icon=str(files(__package__ or "batchscope.dashboard") / "icon.svg"),
        layout="wide",
    )
    st.html(TIGHT)
    pages = [
        st.Page(now.page, title="Now", default=True),
        st.Page(iterations.page, title="Iterations", url_path="iterations"),
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
