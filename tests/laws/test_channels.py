"""Statistics of a data set: what the rules of Channels do beside the layers that tests/nn looks at."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import momentgen.generated
from momentgen.laws.channels import channels

MEAN, VAR = torch.tensor([0.2, -1.0, 0.5]), torch.tensor([0.5, 2.0, 0.1])


def test_an_activation_written_by_hand_is_its_op():
    x = channels(MEAN, VAR)
    found, wanted = (x * torch.sigmoid(x)).moments(), momentgen.generated.silu(MEAN, VAR)
    torch.testing.assert_close(found, wanted)


def test_the_nominal_shape_is_a_batch_of_one_with_one_place():
    x = F.conv2d(channels(MEAN, VAR, torch.nn.Conv2d(3, 4, 3)), torch.randn(4, 3, 3, 3))
    assert x.shape == (1, 4, 1, 1)
    assert x.flatten(1).shape == (1, 4)
    assert x.view(x.size(0), -1).moments().mean.shape == (4,)


def test_batch_norm_has_its_arguments_in_the_order_of_torch_or_of_functional():
    mean, var, weight, bias = torch.rand(4, 3) + 0.1
    x = channels(MEAN, VAR)
    found = torch.batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5, False).moments()
    torch.testing.assert_close(found, F.batch_norm(x, mean, var, weight, bias).moments())
