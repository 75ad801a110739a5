"""Contract suites that ship with the package: whoever writes a part inherits its tests.

Needs pytest and Hypothesis, so nothing outside of tests imports this.
"""

from augury.testing.policies import PolicyContract
from augury.testing.sources import SourceContract
from augury.testing.tiers import TierContract

__all__ = ["PolicyContract", "SourceContract", "TierContract"]
