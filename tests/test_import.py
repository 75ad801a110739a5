"""What `import augury` costs and offers: NumPy and nothing else, and exactly these names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import augury

NAMES = [
    "ArraySource",
    "AuguryError",
    "AuguryWarning",
    "BadFeedback",
    "Batch",
    "Cache",
    "Catalog",
    "DatasetSource",
    "FolderSource",
    "Loader",
    "PackedSource",
    "Recipe",
    "SlowSource",
    "__version__",
    "open_source",
    "transforms",
]
HEAVY = ["torch", "redis", "typer", "rich", "matplotlib", "hypothesis", "pytest", "xxhash", "PIL", "simplejpeg"]


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_loads_nothing_heavy():
    assert not loaded_by("import augury") & set(HEAVY)


def test_policies_recipes_and_the_simulator_load_numpy_only():
    assert not loaded_by("import augury.recipes, augury.sim.replay, augury.trace") & set(HEAVY)


def test_transforms_load_no_image_library_before_they_are_made():
    assert not loaded_by("import augury; augury.transforms.Compose") & set(HEAVY)


def test_the_command_line_loads_no_torch_and_no_command():
    loaded = loaded_by("import augury.cli")
    assert not loaded & {"torch", "matplotlib", "numpy"}
    assert not {name for name in loaded if name.startswith("augury.commands.")}


def test_public_names():
    assert augury.__all__ == NAMES
    assert dir(augury) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name):
    assert getattr(augury, name) is not None


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="loder"):
        augury.loder  # noqa: B018
