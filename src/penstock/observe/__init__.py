"""Watching what runs: lag in records and in seconds, time to drain and to loss, history, alerts, metrics and traces.

What comes in is what the stream, the checkpoint stores, the dead letters and the folders of pipelines say; nothing here
changes any of them. What goes out are facts (`facts.Snapshot`), series of the past (`history`), and alerts.
"""
