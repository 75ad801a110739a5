"""Makes `helpers` importable, and checks after every test that no thread of ours is left behind."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("augury", deadline=None)  # a busy machine is no fault
settings.load_profile("augury")


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    yield
    from helpers import threads

    if threads():  # of a loader that was dropped unclosed: what is unreachable must take its threads along
        gc.collect()
    assert threads() == []
