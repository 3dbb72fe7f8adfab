"""Workers: threads, one asyncio loop, or processes that call the handler."""
