"""The web page: what runs, what is behind, what failed, and putting it right.

`service` knows everything and does everything, and refuses in read-only mode; `web` shows it. Nothing in `web` reaches
the stream but through the service.
"""
