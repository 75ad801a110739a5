"""From nothing to the first batch, with a catalog of a million samples: seconds and memory, beside torch's DataLoader.

    python bench/first_batch.py [--quick] [--json FILE]

A million files would take a while to make: the samples are slices of one packed file, as tar shards are. torch's side
has what it needs ready as well: the list of (path, offset, size, label) that such datasets keep, pickled.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, report, say

SIZE = 512

PEAK = """
def peak():
    with open("/proc/self/status") as file:  # unlike getrusage, not what the parent process had
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))
"""

AUGURY = (
    PEAK
    + """
import sys, time, json
began = time.perf_counter()
import augury
from augury.sources.packed import PackedSource
loader = augury.Loader(PackedSource(sys.argv[1], catalog=sys.argv[2]), 256, ram="64MB", output="numpy")
batch = next(iter(loader))
taken = time.perf_counter() - began
loader.close()
print(json.dumps({"seconds": taken, "peak MB": peak()}))
"""
)

TORCH = (
    PEAK
    + """
import os, pickle, sys, time, json
began = time.perf_counter()
import torch

class Items(torch.utils.data.Dataset):
    def __init__(self, index):
        with open(index, "rb") as file:
            self.items = pickle.load(file)
    def __len__(self):
        return len(self.items)
    def __getitem__(self, at):
        path, offset, size, label = self.items[at]
        file = os.open(path, os.O_RDONLY)
        data = os.pread(file, size, offset)
        os.close(file)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8), label, peak()

loader = torch.utils.data.DataLoader(Items(sys.argv[2]), 256, shuffle=True, num_workers=2)
batch = next(iter(loader))
taken = time.perf_counter() - began
print(json.dumps({"seconds": taken, "peak MB": peak(), "peak MB of a worker": float(batch[2].max())}))
"""
)


def prepare(folder: Path, samples: int) -> tuple[Path, Path, Path]:
    """A tar file of many small samples, its catalog, and torch's list."""
    import tarfile

    from augury.sources.packed import PackedSource

    shard = folder / "train.tar"
    data = os.urandom(SIZE)
    with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
        import io

        for at in range(samples):
            member = tarfile.TarInfo(f"{at:08d}.bin")
            member.size = SIZE
            tar.addfile(member, io.BytesIO(data))
    source = PackedSource(shard)
    catalog = source.catalog
    catalog.save(folder / "catalog")
    assert catalog.offsets is not None
    listed = [(str(shard), int(offset), SIZE, 0) for offset in catalog.offsets]
    index = folder / "index.pickle"
    index.write_bytes(pickle.dumps(listed))
    return shard, folder / "catalog", index


def run(program: str, *arguments: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main() -> None:
    options = arguments(__doc__ or "")
    samples = 50_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        say(f"making {samples:,} samples ...")
        shard, catalog, index = prepare(Path(folder), samples)
        best: dict[str, dict[str, Any]] = {}
        for _ in range(3):
            for name, program, listing in (("augury", AUGURY, catalog), ("torch, 2 workers", TORCH, index)):
                say(f"{name} ...")
                measured = run(program, shard, listing)
                if name not in best or measured["seconds"] < best[name]["seconds"]:
                    best[name] = measured
    mine, peer = best["augury"], best["torch, 2 workers"]
    report(
        {
            "benchmark": "first batch",
            "samples": samples,
            **{name: {key: round(value, 3) for key, value in figures.items()} for name, figures in best.items()},
            "torch / augury, seconds": round(peer["seconds"] / mine["seconds"], 2),
            "torch / augury, peak memory": round(peer["peak MB"] / mine["peak MB"], 2),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
