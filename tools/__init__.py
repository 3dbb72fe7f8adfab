"""What a checkout needs before its tests and benchmarks can run: Python packages, real programs, jars.

Comes in: pyproject.toml, `kafka/pom.xml`, `kafkajs/package.json`, `quixstreams/requirements.txt`. Goes out: `.venv`,
and real parts in the cache folder that `tools.parts` finds again. Nothing here is shipped with the package.
"""
