"""What training says of samples, turned into one importance score per id.

Empty so far: the recipes that exist need no scores. A scorer will know nothing of caches or orders.
"""
