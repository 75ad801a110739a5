"""iCache's packages: groups of samples that lie in one file each and are read with one request.

    layout.py       the bytes of one package file
    directory.py    whose the directory is, and who may use it now
    store.py        the packages there are: written, read, checked and removed within a byte limit
    source.py       a source that reads from packages where it can, and from the source within otherwise
    tap.py          bytes that pass by on their way to training and are still to be packed
    packer.py       the threads that write the packages wanted

Which samples form a package is decided elsewhere, by a policy; here bytes are moved. Packages are an optimisation: one
that is missing, damaged or cannot be written makes training slower, never wrong.
"""

from augury.packages.directory import check_apart
from augury.packages.packer import Packer
from augury.packages.source import PackagedSource
from augury.packages.store import PackageStore

__all__ = ["PackageStore", "PackagedSource", "Packer", "check_apart"]
