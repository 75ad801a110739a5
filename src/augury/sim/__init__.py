"""What would happen: the live policies over orders, without a byte of data.

Nothing here reads a source, fills a tier or fetches. The decisions are those of the live objects, never of
replicas.
"""
