"""The dashboard's entry: `streamlit run app.py`, usually by `batchscope dashboard`.

Talks to one exporter (BATCHSCOPE_URL, default http://127.0.0.1:9477) and to nobody else.
"""

from __future__ import annotations

import streamlit as st

from batchscope.dashboard.views import iterations, now

TIGHT = """<style>
.stMainBlockContainer { padding-top: 4.2rem; padding-bottom: 2rem; max-width: 1760px; }
.stMainBlockContainer [data-testid="stVerticalBlock"] { gap: 0.6rem; }
.stMainBlockContainer h5 { padding: 0.4rem 0 0; }
</style>"""
"""Streamlit leaves 6 rem above the first element and 1 rem between any two: a panel has less to give."""


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config(page_title="batchscope", page_icon=":material/stacked_bar_chart:", layout="wide")
    st.html(TIGHT)
    pages = [
        st.Page(now.page, title="Now", url_path="now", default=True),
        st.Page(iterations.page, title="Iterations", url_path="iterations"),
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
