"""Where the samples of .tar shards lie, learnt from the tar headers.

Nothing is unpacked, and of the data only the labels are read. Compressed tars have no offsets: refused.
"""

from __future__ import annotations

import os
import re
import tarfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.catalog import Catalog, Progress, Strings, digest_of
from augury.errors import CatalogError, ConfigError
from augury.sources import TAR, normal_extensions

_BLOCK = tarfile.BLOCKSIZE
_LABEL = "cls"
_NAME = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)", re.DOTALL)

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def split_name(name: str) -> tuple[str, str] | None:
    """A member's key and field: its name up to the first dot after the last slash, and the rest."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


@dataclass
class _Shard:
    """What one shard holds, a value per sample."""

    size: int
    changed: int
    keys: list[bytes] = field(default_factory=list)
    labels: list[bytes | None] = field(default_factory=list)
    fields: list[set[str]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    files: list[tuple[int, int]] = field(default_factory=list)
    """Offset and size of the (last) file that is not the label."""


def index_packed(
    path: Paths,
    labels: str = "auto",
    extensions: Iterable[str] | None = None,
    progress: Progress | None = None,
    threads: int = 8,
) -> Catalog:
    """Read the headers of all shards and describe them."""
    if labels not in ("auto", "none"):
        raise ConfigError(f'labels of .tar shards are "auto" (the .cls files) or "none", not {labels!r}')
    root, names = shards_of(path)
    endings = normal_extensions(extensions)
    shards = _scan([os.path.join(root, name) for name in names], endings, progress, threads)
    if not any(shard.keys for shard in shards):
        raise CatalogError(f"no samples in {len(names)} .tar files at {root} (members are named key.extension)")
    single = isinstance(path, str | os.PathLike) and os.path.isfile(path)
    options = {"labels": labels, "extensions": endings, "target": names[0] if single else None}
    return _describe(root, names, shards, options)


def shards_of(path: Paths) -> tuple[str, list[str]]:
    """The directory and the names of the shards below it, sorted bytewise."""
    if isinstance(path, str | os.PathLike):
        whole = os.path.abspath(path)
        if not os.path.exists(whole):
            raise ConfigError(f"{whole} does not exist")
        if os.path.isdir(whole):
            files = [os.path.join(whole, name) for name in os.listdir(whole) if not name.startswith(".")]
            files = [file for file in files if file.lower().endswith(TAR)]
            if not files:
                raise CatalogError(f"{whole} holds no .tar files")
        else:
            files = [whole]
    else:
        files = [os.path.abspath(each) for each in path]
        if not files:
            raise ConfigError("the list of .tar files is empty")
    for file in files:
        if not file.lower().endswith(".tar"):
            raise ConfigError(f"{file} is not a plain .tar: samples of a compressed one have no offsets; unpack it")
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    return root, sorted((os.path.relpath(file, root) for file in files), key=os.fsencode)


def _scan(paths: list[str], endings: list[str], progress: Progress | None, threads: int) -> list[_Shard]:
    shards: list[_Shard] = []
    stop = threading.Event()
    pool = ThreadPoolExecutor(threads, "augury-scan")
    try:
        for path in paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error
            shards.append(_Shard(status.st_size, status.st_mtime_ns))
        jobs = [pool.submit(_scan_shard, *each, endings, stop) for each in zip(paths, shards, strict=True)]
        pending = set(jobs)
        while pending:
            finished, pending = wait(pending, timeout=0.2)
            for job in finished:
                job.result()
            if progress is not None:
                progress(sum(len(shard.keys) for shard in shards), None)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return shards


def _scan_shard(path: str, shard: _Shard, endings: list[str], stop: threading.Event) -> None:
    seen: set[bytes] = set()
    try:
        with tarfile.open(path, "r:") as tar:
            for member, key, suffix in members_of(tar, endings):
                if stop.is_set():
                    return
                raw = os.fsencode(key)
                if not shard.keys or shard.keys[-1] != raw:
                    if raw in seen:
                        raise CatalogError(f"{path}: the files of {key} are not neighbours; pack them together")
                    seen.add(raw)
                    _begin(shard, raw, member)
                _add(shard, path, tar, member, suffix)
            _check_end(path, tar, shard.size)
    except (tarfile.TarError, OSError) as error:
        raise CatalogError(f"{path} is not a readable .tar: {error}") from error


def members_of(tar: tarfile.TarFile, endings: list[str]) -> Iterator[tuple[tarfile.TarInfo, str, str]]:
    """The files that count, with key and field."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # or it remembers every member of a large shard
        name = split_name(member.name)
        if not member.isreg() or name is None:
            continue
        if not endings or name[1] == _LABEL or f".{name[1]}" in endings:
            yield member, *name


def _begin(shard: _Shard, key: bytes, member: tarfile.TarInfo) -> None:
    shard.labels.append(None)
    shard.fields.append(set())
    shard.spans.append((member.offset, 0))
    shard.files.append((0, 0))
    shard.keys.append(key)


def _add(shard: _Shard, path: str, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> None:
    end = member.offset_data + member.size
    if end > shard.size:
        raise CatalogError(f"{path} is cut short: {member.name} ends at byte {end} of {shard.size}")
    if suffix in shard.fields[-1]:
        raise CatalogError(f"{path}: {member.name} occurs twice")
    shard.fields[-1].add(suffix)
    shard.spans[-1] = (shard.spans[-1][0], end - shard.spans[-1][0])
    if suffix == _LABEL:
        shard.labels[-1] = os.pread(_descriptor(tar), member.size, member.offset_data).strip()
    else:
        shard.files[-1] = (member.offset_data, member.size)


def _descriptor(tar: tarfile.TarFile) -> int:
    file: Any = tar.fileobj
    descriptor: int = file.fileno()
    return descriptor


def _check_end(path: str, tar: tarfile.TarFile, size: int) -> None:
    """`tarfile` takes a damaged header for the end; the true end is zeros, or the end of the file."""
    if os.pread(_descriptor(tar), _BLOCK, tar.offset).strip(b"\0"):
        raise CatalogError(f"{path} is damaged at byte {tar.offset} of {size}")


def _describe(root: str, names: list[str], shards: list[_Shard], options: dict[str, Any]) -> Catalog:
    spans = any(len(fields - {_LABEL}) != 1 for shard in shards for fields in shard.fields)
    places = [place for shard in shards for place in (shard.spans if spans else shard.files)]
    offsets, sizes = np.array(places, np.int64).T.copy()
    names_of = [key for shard in shards for key in shard.keys]
    shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), [len(shard.keys) for shard in shards])
    shard_sizes = np.array([shard.size for shard in shards], np.int64)
    changed = np.array([shard.changed for shard in shards], np.int64)
    raw = [label for shard in shards for label in shard.labels] if options["labels"] == "auto" else []
    labels, classes = _labels(raw, names_of)
    order = _by_label_and_name(labels, shard_of, names_of)
    sizes, offsets, shard_of = sizes[order], offsets[order], shard_of[order]
    keys = Strings.of(names_of[at] for at in order)
    return Catalog(
        sizes,
        kind="packed",
        root=root,
        labels=None if labels is None else labels[order],
        classes=classes,
        names=keys,
        shards=Strings.of(map(os.fsencode, names)),
        shard=shard_of,
        shard_sizes=shard_sizes,
        offsets=offsets,
        changed=changed,
        options=options | {"spans": spans},
        fingerprint=digest_of(b"packed", sizes, offsets, keys.blob, keys.ends, shard_of, shard_sizes, changed),
    )


def _by_label_and_name(labels: NDArray[np.int64] | None, shard_of: NDArray[np.int32], names: list[bytes]) -> list[int]:
    """The order of ids: the same on every machine, whatever the order in which the shards were written."""
    major = [0] * len(names) if labels is None else labels.tolist()
    shards = shard_of.tolist()
    return sorted(range(len(names)), key=lambda at: (major[at], shards[at], names[at]))


def _labels(raw: list[bytes | None], keys: list[bytes]) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Numbers as they are; otherwise names of classes, numbered in their order."""
    present = [label for label in raw if label is not None]
    if not present:
        return None, []
    if len(present) != len(raw):
        raise CatalogError(
            f"sample {os.fsdecode(keys[raw.index(None)])} has no .cls file, but others have: use labels='none'"
        )
    try:
        return np.array([int(label) for label in present], np.int64), []
    except ValueError:
        classes = sorted(set(present))
        number = {name: index for index, name in enumerate(classes)}
        return np.array([number[label] for label in present], np.int64), list(map(os.fsdecode, classes))
