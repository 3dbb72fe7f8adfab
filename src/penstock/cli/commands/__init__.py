"""One module per command of `penstock`. Each is imported only when its command runs."""
