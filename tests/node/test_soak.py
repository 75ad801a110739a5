"""A few faults of bench/node_soak.py: clients and node killed, stopped and lied to, and every byte checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
FAULTS = 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a node needs Linux")
def test_a_soak_finds_no_wrong_byte_no_hang_and_nothing_left_behind(tmp_path):
    told = tmp_path / "result.json"
    command = [sys.executable, str(BENCH / "node_soak.py"), "--faults", str(FAULTS), "--seed", "3", "--json", str(told)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert told.exists(), ended.stderr[-4000:]
    result = json.loads(told.read_text())
    assert result["violations"] == []
    assert ended.returncode == 0
    assert result["faults in all"] >= FAULTS
    assert result["batches checked"] > 100
    assert result["steady client's remains checked"]
    assert result["users"] == (2 if os.geteuid() == 0 else 1)
