"""One machine's shared cache: a daemon on a Unix socket, and the clients of every worker, rank, job and user.

    protocol.py   the messages and how they travel; both sides
    shelves.py    cached bytes by content digest, in memory; who holds them, what each is charged
    files.py      the same on disk, kept across restarts
    shares.py     how jobs divide the memory and the disk
    holding.py    one job's claims on the shelves
    job.py        one job: its policies decide, its bytes lie on the shelves
    session.py    one client's requests, checked and answered
    daemon.py     the process: socket, credentials, quotas, readiness, the end
    place.py      the socket's directory, lock and modes
    config.py     where the socket is and what the node may use: file, environment, arguments
    client.py     the other end of the socket, with the memory that the node copies into
    remote.py     a cache that lives in the node, as a loader sees it; goes on without it and comes back
    gather.py     batches of bytes through such a cache

Recipes decide in the node as they do embedded (`step.py`, the policies). Sources are read by clients only.
"""
