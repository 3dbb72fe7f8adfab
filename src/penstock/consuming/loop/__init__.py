"""The loop of a consumer: read, track, dispatch to workers, process their reports, save."""
