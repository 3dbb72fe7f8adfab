"""Spark sessions: Java, jars, settings, and the files that executors need."""
