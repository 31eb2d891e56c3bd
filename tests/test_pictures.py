"""Pictures have the numbers of what they show, names, and units."""

import pytest
import torch
from torch import nn

import momentgen
from momentgen import Moments, noisy

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def network() -> nn.Module:
    torch.manual_seed(0)
    return momentgen.convert(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5)).eval())


def test_one_value_has_a_histogram_with_its_interval_and_unit() -> None:
    out = momentgen.propagate(lambda v, i: v / i, noisy(5.0, std=0.05), noisy(0.02, std=1e-4))
    (axes,) = out.plot(labels="R / Ω")
    assert axes.get_xlabel() == "R / Ω"
    assert axes.get_title() == f"{out.mean:.5g} ± {out.std:.2g} (σ)"
    *bars, span = axes.patches
    assert [span.get_x(), span.get_x() + span.get_width()] == pytest.approx([*map(float, out.interval(0.95)[:2])])
    assert sum(bar.get_width() * bar.get_height() for bar in bars) == pytest.approx(1)


def test_few_values_have_a_panel_each_with_their_units() -> None:
    panels = momentgen.convert(nn.Linear(3, 2).eval())(noisy(torch.ones(1, 3), std=0.1)).plot(labels=["l/s", "m"])
    assert [axes.get_xlabel() for axes in panels] == ["l/s", "m"]


def test_several_values_have_error_bars_with_names() -> None:
    answer, pair = network()(noisy(torch.ones(2, 3), std=0.1))[1], Moments(torch.arange(5.0), 0.25)
    lower, upper, *_ = answer.interval(0.9)
    for out, wide in ((answer, upper - lower), (pair, 2 * pair.std)):
        (axes,) = out.plot(labels=list("abcde"), level=0.9)
        assert [text.get_text() for text in axes.get_xticklabels()] == list("abcde")
        segments = axes.containers[0].lines[2][0].get_segments()
        assert [end[1] - start[1] for start, end in segments] == pytest.approx(wide.tolist(), rel=1e-5)


def test_classes_have_the_probability_of_being_the_largest() -> None:
    (axes,) = network()(noisy(torch.ones(2, 3), std=0.5)).plot(example=0, classes=True)
    heights = [bar.get_height() for bar in axes.patches]
    assert len(heights) == 5
    assert sum(heights) == pytest.approx(1, abs=0.02)


def test_a_summary_has_a_panel_for_mean_std_and_ratio_with_layers_named() -> None:
    panels = momentgen.summary(network(), noisy(torch.ones(2, 3), std=0.1), seed=0).plot()
    assert len(panels) == 3
    assert [text.get_text() for text in panels[-1].get_xticklabels()] == ["0 (Linear)", "1 (Tanh)", "2 (Linear)"]
