"""The web console: what runs, what is behind, what failed, and how to fix it.

`service` reads and changes everything, and refuses changes in read-only mode; `web` shows it. `web` reaches the stream
only through the service.
"""
