"""Scenarios: TOML in, a checked environment out, and one clear line for what cannot work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.sim.scenario import SHIPPED, build, divide, override, read
from clusters import PARAMETERS


def changed(*settings):
    parameters = PARAMETERS
    for setting in settings:
        parameters = override(parameters, setting)
    return parameters


@pytest.mark.parametrize(
    ("number", "epochs", "samples", "size"),
    [("1", 10, 10_000, 0.027), ("2", 10, 150_000, 1), ("3", 5, 300_000, 2), ("4", 5, 400_000, 3)],
)
def test_the_scenarios_of_the_thesis(number, epochs, samples, size):
    scenario = build(read(number))
    environment = scenario.environment
    assert (scenario.epochs, len(scenario.sizes), scenario.batch) == (epochs, samples, 100)
    assert scenario.sizes.mean() == pytest.approx(size, rel=0.02)
    assert scenario.drop_last
    assert scenario.distribution == "uniform"
    assert (environment.nodes, environment.compute, environment.preprocess) == (4, 100, 200)
    assert (environment.network, environment.source_network) == (10_000, 2_000)
    assert [each.capacity for each in environment.classes] == [1024, 51200, 102400]
    assert [each.threads for each in environment.classes] == [2, 2, 2]
    memory, ssd = {1: 16550, 2: 21164, 3: 21186, 4: 21415}, {1: 66, 2: 86, 3: 129, 4: 146}
    assert [each.read.measured for each in environment.classes] == [memory, memory, ssd]
    assert environment.source.measured == ssd
    assert scenario.name in read(number)["name"]


def test_a_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(
        'name = "größer"\nN = 2\nc = 1.5\nbeta = 2\nb_c = 0\nb_fs = 4\nE = 1\nB = 2\ndistribution = "whole"\n'
        "drop_last = false\n[sizes]\nF = 5\nmu = 1\nsigma = 0\n[t]\n1 = 66\n[d]\n0 = 1\n1 = 2.5\n[r.0]\n1 = 7\n"
        "[r.1]\n1 = 8\n[w.1]\n2 = 9\n[p]\n1 = 3\n",
        encoding="utf-8",
    )
    scenario = build(read(path), paper=True)
    assert scenario.name == "größer"
    assert (scenario.distribution, scenario.drop_last, scenario.batches) == ("whole", False, 3)
    staging, other = scenario.environment.classes
    assert (staging.threads, staging.write) == (1, None)
    assert (other.capacity, other.threads, other.write.measured) == (2.5, 3, {2: 9})
    assert scenario.environment.network == 0
    assert scenario.environment.paper
    assert scenario.sizes.tolist() == [1.0] * 5


def test_files_that_are_no_scenarios(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read: No such file.*1, 2, 3, 4"):
        read(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(tmp_path)
    (tmp_path / "x").write_text("N = = 3")
    with pytest.raises(ConfigError, match=r"x is not TOML: .*line 1"):
        read(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="x is not TOML"):
        read(tmp_path / "x")


def test_overriding_changes_one_parameter_and_nothing_that_was_given():
    before = repr(PARAMETERS)
    assert override(PARAMETERS, "d.1=20480")["d"] == {"0": 10, "1": 20480}
    assert override(PARAMETERS, "sizes.mu = 2.5")["sizes"]["mu"] == 2.5
    assert override(PARAMETERS, "drop_last=false")["drop_last"] is False
    assert override(PARAMETERS, "distribution=whole")["distribution"] == "whole"
    assert override(PARAMETERS, 'name="a=b"')["name"] == "a=b"
    assert override(PARAMETERS, "r.1.2=100")["r"]["1"] == {"1": 500, "2": 100}
    assert override(PARAMETERS, "w.1.1=3")["w"] == {"1": {"1": 3}}
    assert repr(PARAMETERS) == before


@pytest.mark.parametrize("setting", ["d.1", "=5", "d..1=5", "", ".=1"])
def test_what_sets_nothing(setting):
    with pytest.raises(ConfigError, match=r"does not set a parameter: write one like d.1=20480"):
        override(PARAMETERS, setting)


def test_a_value_is_no_table():
    with pytest.raises(ConfigError, match=r"'N.x=3': N is a value, not a table"):
        override(PARAMETERS, "N.x=3")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("Q=3", "unknown parameter of a scenario 'Q'"),
        ("betta=3", "did you mean 'beta'"),
        ("N=0", r"N = 0 \(nodes\) must be positive"),
        ("N=-2", r"N = -2 \(nodes\) must be positive"),
        ("N=1.5", r"N = 1.5 \(nodes\) must be a whole number"),
        ("N=many", r"N = 'many' \(nodes\) is not a number"),
        ("N=true", r"N = True \(nodes\) is not a number"),
        ("E=0", r"E = 0 \(epochs\) must be positive"),
        ("E=2.5", r"E = 2.5 \(epochs\) must be a whole number"),
        ("B=0", r"B = 0 \(samples per batch, over all nodes\) must be positive"),
        ("B=0.5", "must be a whole number"),
        ("c=0", "c = 0 .*must be positive"),
        ("c=inf", "c = inf .*is not a number"),
        ("beta=nan", "beta = nan .*is not a number"),
        ("b_fs=0", "b_fs = 0 .*must be positive"),
        ("b_c=-1", "b_c = -1 .*must be positive"),
        ("distribution=equal", "distribution = 'equal': choose uniform, whole, imbalanced"),
        ("drop_last=1", "drop_last = 1: write true or false"),
        ("t=5", r"needs a table \[t\] of MB/s by how many read at once, such as 1 = 66"),
        ("t.x=5", r"\[t\] takes lines like 2 = 86 .*not x = 5"),
        ("t.1.5=5", r"\[?t.1"),
        ("t.0=5", r"\[t\] takes lines .*not 0 = 5"),
        ("t.2=0", r"\[t\] takes lines .*not 2 = 0"),
        ("t.2=inf", r"\[t\] takes lines .*not 2 = inf"),
        ("t.2=true", r"\[t\] takes lines .*not 2 = True"),
        ("t.2=fast", r"\[t\] takes lines .*not 2 = 'fast'"),
        ("r.1=5", r"needs a table \[r.1\]"),
        ("w.1=5", r"needs a table \[w.1\]"),
        ("w.1.1=-5", r"\[w.1\] takes lines"),
        ("p.1=0", r"p.1 = 0: .*at least one thread"),
        ("p.1=1.5", r"p.1 = 1.5: .*at least one thread"),
        ("p.1=true", r"p.1 = True: .*at least one thread"),
        ("p=2", "p is a table with one entry per storage class, not 2"),
        ("d=2", "d is a table with one entry per storage class, not 2"),
        ("d.1=-1", r"d.1 = -1 is not a capacity in MB"),
        ("d.1=inf", r"d.1 = inf is not a capacity in MB"),
        ("d.1=big", r"d.1 = 'big' is not a capacity in MB"),
        ("d.3=5", r"numbers the storage classes 0, 1, 2, ..., not 0, 1, 3"),
        ("d.2=5", r"needs a table \[r.2\]"),
        ("p.7=5", r"p.7 belongs to no storage class: there is no d.7"),
        ("w.7.1=5", r"w.7 belongs to no storage class"),
        ("sizes=5", r"\[sizes\] needs F"),
        ("sizes.x=5", r"\[sizes\] needs F"),
        ("sizes.F=0", r"\[sizes\]: 0 samples .*make no sense: F is a whole number from 1 on"),
        ("sizes.F=10.5", r"\[sizes\]: 10.5 samples"),
        ("sizes.mu=0", r"\[sizes\]: .*mu positive"),
        ("sizes.sigma=-1", r"\[sizes\]: .*sigma not negative"),
        ("sizes.mu=big", "sizes.mu = 'big' is not a number"),
        ("B=101", "an epoch has no batch: 100 samples in batches of 101, the last dropped; lower B"),
    ],
)
def test_errors_say_what_is_wrong_and_where(setting, message):
    with pytest.raises(ConfigError, match=message) as error:
        build(changed(setting))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["N", "c", "beta", "b_c", "b_fs", "E", "B"])
def test_what_lacks_is_named(name):
    with pytest.raises(ConfigError, match=rf"lacks {name} \("):
        build({key: value for key, value in PARAMETERS.items() if key != name})


@pytest.mark.parametrize(
    ("name", "message"),
    [("t", r"\[t\]"), ("r", r"\[r.0\]"), ("d", r"needs at least d.0"), ("sizes", r"\[sizes\] needs F")],
)
def test_tables_that_lack_are_named(name, message):
    with pytest.raises(ConfigError, match=message):
        build({key: value for key, value in PARAMETERS.items() if key != name} | ({"p": {}} if name == "d" else {}))


def test_more_than_ten_classes():
    count = 12
    many = {name: {str(at): value for at in range(count)} for name, value in (("d", 5), ("r", {"1": 9}))}
    assert len(build(PARAMETERS | many).environment.classes) == count


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds(seed):
    with pytest.raises(ConfigError, match=f"the seed {seed}"):
        build(PARAMETERS, seed)


def test_sizes_of_a_real_dataset_take_the_place_of_drawn_ones():
    sizes = np.arange(1.0, 31.0)
    without = {key: value for key, value in PARAMETERS.items() if key != "sizes"}
    assert build(without, sizes=sizes).sizes is sizes
    assert build(without, sizes=sizes).batches == 3


@given(st.integers(1, 500), st.floats(0.01, 10), st.floats(0, 20), st.integers(0, 2**64 - 1))
def test_drawn_sizes_are_positive_and_follow_from_the_seed(count, mu, sigma, seed):
    parameters = PARAMETERS | {"sizes": {"F": count, "mu": mu, "sigma": sigma}, "B": 1}
    sizes = build(parameters, seed).sizes
    assert len(sizes) == count
    assert (sizes > 0).all()
    assert (sizes == build(parameters, seed).sizes).all()
    if sigma == 0:
        assert (sizes == mu).all()


def test_other_seeds_draw_other_sizes_of_the_same_distribution():
    parameters = changed("sizes.F=20000", "sizes.mu=5", "sizes.sigma=0.5")
    one, other = build(parameters, 1).sizes, build(parameters, 2).sizes
    assert not (one == other).any()
    for sizes in (one, other):
        assert sizes.mean() == pytest.approx(5, abs=0.02)
        assert sizes.std() == pytest.approx(0.5, abs=0.02)


@given(st.integers(0, 200), st.integers(1, 40))
def test_a_batch_is_divided_without_rest(batch, nodes):
    for scheme in ("uniform", "imbalanced"):
        parts = divide(batch, nodes, scheme)
        assert len(parts) == nodes
        assert np.concatenate([np.arange(batch)[part] for part in parts]).tolist() == list(range(batch))
        assert all(part.start <= part.stop for part in parts)
    assert divide(batch, nodes, "whole") == [slice(0, batch)] * nodes


def test_how_batches_are_divided():
    def lengths(*given):
        return [part.stop - part.start for part in divide(*given)]

    assert lengths(100, 4, "uniform") == [25] * 4
    assert lengths(10, 4, "uniform") == [2, 2, 2, 4]  # the last gets the rest
    assert lengths(3, 4, "uniform") == [0, 0, 0, 3]
    assert lengths(100, 4, "imbalanced") == [40, 40, 10, 10]
    assert lengths(90, 3, "imbalanced") == [60, 15, 15]
    assert lengths(7, 1, "imbalanced") == [7]


def test_batches_per_epoch():
    assert build(changed("B=30")).batches == 3
    assert build(changed("B=30", "drop_last=false")).batches == 4
    assert build(changed("B=50", "drop_last=false")).batches == 2
    assert build(changed("B=101", "drop_last=false")).batches == 1


def test_those_shipped_are_named():
    assert SHIPPED == ("1", "2", "3", "4")
