"""laplace-torch as an estimator, for :mod:`estimators`: a network trained by the library's own marginal likelihood.

The network has the form of ours, one hidden layer of 50 ReLU units.  All its weights get a Kronecker-factored Laplace
posterior.  Prior precisions, one a layer, and noise follow the marginal likelihood during training
(``marglik_training`` at its defaults, but for a learning rate of 0.01, since a table has few batches).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["LaplaceClassifier", "LaplaceRegressor", "installed"]


def installed(name: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


class _Laplace(BaseEstimator):  # type: ignore[misc]
    """A network of one hidden layer, and the Laplace posterior of all its weights."""

    def __init__(self, hidden: int = 50, epochs: int = 300, random_state: int = 0) -> None:
        self.hidden, self.epochs, self.random_state = hidden, epochs, random_state

    def _train(self, x: np.ndarray, y: torch.Tensor, outputs: int, kind: str) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from networks.third_party import allow_torchvision

        allow_torchvision()
        from laplace.marglik_training import marglik_training

        torch.manual_seed(self.random_state)
        self.x_scaler_ = StandardScaler().fit(x)
        loader = DataLoader(TensorDataset(self._inputs(x), y), batch_size=128, shuffle=True)
        net = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], self.hidden), torch.nn.ReLU(), torch.nn.Linear(self.hidden, outputs)
        )
        self.laplace_, *_ = marglik_training(
            net, loader, kind, optimizer_kwargs={"lr": 1e-2}, n_epochs=self.epochs, progress_bar=False
        )

    def _inputs(self, x: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(self.x_scaler_.transform(x), dtype=torch.float32)


class LaplaceRegressor(_Laplace):
    """Regression; the library's linearised prediction, noise included."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        self.y_scaler_ = StandardScaler().fit(y[:, None])
        self._train(x, torch.as_tensor(self.y_scaler_.transform(y[:, None]), dtype=torch.float32), 1, "regression")
        return self

    def predict(self, x: np.ndarray, return_std: bool = False) -> Any:
        mean, var = self.laplace_(self._inputs(x))
        unit = self.y_scaler_.scale_[0]
        centre = mean.detach().numpy()[:, 0] * unit + self.y_scaler_.mean_[0]
        std = (var.detach()[:, 0, 0] + self.laplace_.sigma_noise.detach() ** 2).sqrt().numpy().ravel() * unit
        return (centre, std) if return_std else centre


class LaplaceClassifier(_Laplace):
    """Classification; the library's probit approximation."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._train(x, torch.as_tensor(labels), len(self.classes_), "classification")
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.laplace_(self._inputs(x), link_approx="probit").detach().numpy())

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(x).argmax(1)])
