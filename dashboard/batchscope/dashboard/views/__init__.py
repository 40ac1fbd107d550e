"""Pages of the dashboard; each has one `page()` that app.py mounts."""
