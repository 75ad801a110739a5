"""capture_embeddings: what flows into a layer with the last minibatch of training, and no change to the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from augury.errors import ConfigError
from augury.torch import capture_embeddings


class Net(nn.Module):
    """Pictures of 1x4x4 to six features, to five, to three classes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.hidden = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(self.pool(self.features(x)).flatten(1))))

    def penultimate(self, x):
        return torch.relu(self.hidden(self.pool(self.features(x)).flatten(1)))


@pytest.fixture
def model():
    return Net()


def pictures(seed=1, count=7):
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_by_default_it_is_what_flows_into_the_last_linear_layer(model):
    x = pictures()
    seen = capture_embeddings(model)
    model(x)
    rows = seen.take()
    assert rows.shape == (7, 5)
    torch.testing.assert_close(rows, model.penultimate(x))


def test_a_layer_is_given_as_it_is_or_by_its_name(model):
    x = pictures()
    with capture_embeddings(model, model.hidden) as one, capture_embeddings(model, "hidden") as other:
        model(x)
        rows = one.take()
        assert rows.shape == (7, 6)
        assert torch.equal(rows, other.take())
    with capture_embeddings(model, "features.0") as seen:
        model(x)
        assert torch.equal(seen.take(), x.flatten(1)), "several positions end to end"


def test_an_unknown_name_is_refused_with_those_there_are(model):
    with pytest.raises(ConfigError, match=r"no layer 'fc'; it has features, features.0, .*head"):
        capture_embeddings(model, "fc")
    assert hooks(model) == 0


def test_a_model_without_a_linear_layer_needs_a_name():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(ConfigError, match="no fully connected layer"):
        capture_embeddings(model)
    with capture_embeddings(model, "1") as seen:
        model(pictures())
        assert seen.take().shape == (7, 8)


def test_each_minibatch_can_be_taken_once_and_the_last_one_counts(model):
    seen = capture_embeddings(model)
    with pytest.raises(ConfigError, match="no embeddings to take"):
        seen.take()
    model(pictures(1))
    model(pictures(2, count=3))
    torch.testing.assert_close(seen.take(), model.penultimate(pictures(2, count=3)))
    with pytest.raises(ConfigError, match=r"before each take\(\)"):
        seen.take()
    model(pictures(1))
    assert len(seen.take()) == 7


def test_a_validation_in_between_is_not_seen(model):
    seen = capture_embeddings(model)
    model(pictures(1))
    model.eval()
    with torch.no_grad():
        model(pictures(2, count=3))
    model.train()
    assert len(seen.take()) == 7
    model.eval()
    model(pictures(2))
    with pytest.raises(ConfigError, match="in training mode"):
        seen.take()


def test_no_gradients_hang_on_it(model):
    seen = capture_embeddings(model)
    loss = model(pictures()).sum()
    rows = seen.take()
    assert not rows.requires_grad
    assert rows.grad_fn is None
    loss.backward()
    assert model.features[0].weight.grad.abs().sum() > 0


def test_outputs_gradients_and_the_saved_model_are_as_without_it():
    plain, watched = Net(), Net()
    capture_embeddings(watched)
    x = pictures()
    outputs = [model(x) for model in (plain, watched)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert list(plain.state_dict()) == list(watched.state_dict())


def test_closed_it_leaves_nothing_behind(model):
    with capture_embeddings(model) as seen:
        assert hooks(model) == 1
        model(pictures())
    assert hooks(model) == 0
    with pytest.raises(ConfigError):
        seen.take()
    model(pictures())
    with pytest.raises(ConfigError):
        seen.take()
    seen.close()
    with pytest.raises(ZeroDivisionError), capture_embeddings(model):
        raise ZeroDivisionError
    assert hooks(model) == 0


def test_rows_in_half_precision_reach_a_report(model):
    from augury.reports import read_report

    with capture_embeddings(model.bfloat16()) as seen:
        model(pictures().bfloat16())
        rows = seen.take()
        assert rows.dtype == torch.bfloat16
        report = read_report(range(7), None, None, [0] * 7, rows, 10, "embeddings")
    assert report.embeddings()[0].tolist() == rows.float().tolist()
