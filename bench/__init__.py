"""The project's figures, each produced by one module here and printed with its conditions."""
