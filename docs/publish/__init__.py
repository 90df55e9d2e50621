"""Turns records into pages: plain Python that MkDocs' hook (hooks.py) merely calls."""
