"""Arrays of one shape, made as samples are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import Unreadable
from augury.sources import Form
from augury.sources.decoded import DecodedSource
from augury.sources.folder import FolderSource
from augury.testing.sources import Made, SourceContract
from helpers import folder

FORM = Form(np.dtype(np.int16), (2, 3))


def lengths(data: bytes) -> NDArray[Any]:
    return np.full((2, 3), len(data), np.int16)


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        contents = folder(tmp_path / "data")
        return DecodedSource(FolderSource(tmp_path / "data"), lengths, FORM, "lengths"), [
            lengths(data).tobytes() for data in contents
        ]


def test_samples_labels_and_places_are_those_of_the_source_within(tmp_path):
    contents, inner = folder(tmp_path), FolderSource(tmp_path)
    source = DecodedSource(inner, lengths, FORM, "lengths")
    (data,) = source.read(np.array([3]))
    assert source.decode(data).tolist() == [[len(contents[3])] * 3] * 2
    assert not source.decode(data).flags.writeable
    assert source.catalog.uniform_size == 12
    assert source.catalog.location(3) == inner.catalog.location(3)
    assert source.catalog.classes == inner.catalog.classes
    np.testing.assert_array_equal(source.catalog.labels, inner.catalog.labels)
    source.close()
    assert inner.read(np.array([3])) == [contents[3]]


def test_what_cannot_be_decoded_names_the_sample_and_spoils_no_other(tmp_path):
    contents = folder(tmp_path)

    def picky(data: bytes) -> NDArray[Any]:
        if bytes(data) == contents[4]:
            raise ValueError("no picture")
        return lengths(data) if bytes(data) != contents[6] else np.zeros(5, np.int16)

    (tmp_path / "class0" / "008.bin").unlink()
    inner = FolderSource(tmp_path)
    (tmp_path / "class0" / "009.bin").unlink()
    source = DecodedSource(inner, picky, FORM, "picky")
    good, bad, other, missing = source.read(np.array([3, 4, 6, 8]))
    assert not isinstance(good, Unreadable)
    for error, reason in ((bad, "decoding failed: ValueError: no picture"), (other, "gave int16(5,)")):
        assert isinstance(error, Unreadable)
        assert not error.transient
        assert reason in str(error)
    assert isinstance(missing, Unreadable)
    assert (bad.id, bad.location) == (4, str(tmp_path / "class0" / "004.bin"))
    assert isinstance(bad.__cause__, ValueError)


def test_another_way_of_decoding_is_another_content(tmp_path):
    folder(tmp_path)
    inner = FolderSource(tmp_path)
    others = [
        DecodedSource(inner, lengths, form, identity).catalog.fingerprint
        for form, identity in ((FORM, "a"), (FORM, "b"), (Form(np.dtype(np.int16), (3, 2)), "a"))
    ]
    assert len({inner.catalog.fingerprint, *others}) == 4
    assert DecodedSource(FolderSource(tmp_path), lengths, FORM, "a").catalog.fingerprint == others[0]
