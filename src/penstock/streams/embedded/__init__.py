"""The embedded log's broker, from the client's side: find the one that serves a data folder, or start it.

`finding` tells whether the address in a folder is that of its living broker; `starting` starts one, once, however many
ask at the same time; `lifeline` keeps it from thinking that nobody is there, and starts it again when it dies.
"""
