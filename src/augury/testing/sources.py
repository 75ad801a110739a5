"""The contract of sources, as a test class to inherit.

    from augury.testing import SourceContract

    class TestMine(SourceContract):
        def make(self, tmp_path):
            return MySource(...), [b"bytes of sample 0", b"bytes of sample 1", ...]

How a source finds its samples, and what it says of damaged ones, is its own business and is not tested here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from augury.errors import Closed, Unreadable
from augury.ids import NONE, Ids, as_ids
from augury.sources import Source

Made: TypeAlias = tuple[Source, list[bytes]]


class SourceContract:
    """Tests of the `Source` protocol. `make` returns a source and the bytes expected under each id."""

    sizes_are_bounds = False
    """True where the catalog's sizes are an estimate, as for wrapped datasets."""

    def make(self, tmp_path: Path) -> Made:
        """A fresh source of at least four samples, and what it should read."""
        raise NotImplementedError("a subclass of SourceContract makes the source")

    @pytest.fixture
    def made(self, tmp_path: Path) -> Iterator[Made]:
        source, expected = self.make(tmp_path)
        assert len(expected) >= 4, "make a source of at least four samples"
        yield source, expected
        source.close()

    def test_single_samples_are_read(self, made: Made) -> None:
        source, expected = made
        for id in range(len(expected)):
            assert _read(source, [id]) == [expected[id]]

    def test_a_batch_comes_in_the_order_asked_for(self, made: Made) -> None:
        source, expected = made
        ids = np.random.default_rng(0).permutation(len(expected))
        assert _read(source, ids) == [expected[id] for id in ids]

    def test_an_id_may_be_asked_for_twice(self, made: Made) -> None:
        source, expected = made
        ids = [1, 0, 1, 1, 3]
        assert _read(source, ids) == [expected[id] for id in ids]

    def test_nothing_asked_nothing_read(self, made: Made) -> None:
        source, _ = made
        assert source.read(NONE) == []
        assert source.requests(NONE) == []

    def test_many_threads_may_read(self, made: Made) -> None:
        source, expected = made
        batches = [np.random.default_rng(seed).integers(0, len(expected), 7) for seed in range(40)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda ids: _read(source, ids), batches))
        assert answers == [[expected[id] for id in ids] for ids in batches]

    def test_the_catalog_knows_the_sizes(self, made: Made) -> None:
        source, expected = made
        lengths = np.array([len(data) for data in expected])
        assert len(source.catalog) == len(expected)
        assert source.catalog.sizes.shape == lengths.shape
        if self.sizes_are_bounds:
            assert (source.catalog.sizes > 0).all()
        else:
            np.testing.assert_array_equal(source.catalog.sizes, lengths)
            assert source.catalog.total_bytes == lengths.sum()

    def test_the_catalog_names_every_sample(self, made: Made) -> None:
        source, expected = made
        locations = [source.catalog.location(id) for id in range(len(expected))]
        assert all(isinstance(location, str) and location for location in locations)
        assert len(set(locations)) == len(expected)

    def test_the_fingerprint_is_steady(self, made: Made) -> None:
        source, _ = made
        assert source.catalog.fingerprint
        assert source.catalog.fingerprint == source.catalog.fingerprint

    def test_every_sample_has_a_label_or_none_has(self, made: Made) -> None:
        source, expected = made
        labels = source.catalog.labels
        assert labels is None or len(labels) == len(expected)
        if labels is not None and source.catalog.classes:
            assert set(np.unique(labels)) <= set(range(len(source.catalog.classes)))

    def test_requests_are_the_ids_in_groups(self, made: Made) -> None:
        source, expected = made
        ids = as_ids([*range(len(expected)), 0, 0])
        groups = source.requests(ids)
        assert all(len(group) for group in groups)
        assert sorted(np.concatenate(groups)) == sorted(ids)

    def test_every_sample_decodes(self, made: Made) -> None:
        source, expected = made
        for data in source.read(np.arange(len(expected))):
            assert not isinstance(data, Unreadable)
            item = source.decode(data)
            if source.form is not None:
                assert (item.dtype, item.shape) == source.form
                assert item.tobytes() == bytes(data)
            if source.self_labelled:
                assert len(item) == 2

    def test_a_form_says_the_size(self, made: Made) -> None:
        source, _ = made
        if source.form is not None:
            size = source.form.dtype.itemsize * int(np.prod(source.form.shape, dtype=np.int64))
            assert source.catalog.uniform_size == size

    @pytest.mark.parametrize("beyond", [-1, None, 1 << 40])
    def test_ids_out_of_range_are_refused(self, made: Made, beyond: int | None) -> None:
        source, expected = made
        wrong = len(expected) if beyond is None else beyond
        with pytest.raises(IndexError, match=str(wrong)):
            source.read(as_ids([0, wrong]))

    def test_closing_is_final_and_may_be_repeated(self, made: Made) -> None:
        source, _ = made
        source.read(as_ids([0]))
        source.close()
        source.close()
        with pytest.raises(Closed):
            source.read(as_ids([0]))

    def test_a_copy_for_another_process_reads_the_same(self, made: Made) -> None:
        source, expected = made
        source.read(as_ids([0]))
        try:
            pickled = pickle.dumps(source)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pytest.skip(f"cannot be pickled: {error}")
        twin: Source = pickle.loads(pickled)
        assert _read(twin, np.arange(len(expected))) == expected
        assert twin.catalog.fingerprint == source.catalog.fingerprint
        twin.close()
        assert _read(source, [0]) == expected[:1]


def _read(source: Source, ids: list[int] | Ids) -> list[bytes]:
    answers = source.read(as_ids(ids))
    for answer in answers:
        if isinstance(answer, Unreadable):
            raise answer
    return [bytes(answer) for answer in answers if not isinstance(answer, Unreadable)]
