"""laplace-torch as an estimator, for :mod:`estimators`: a network by Adam, then the library's recipe of its examples.

The network has the form of ours, one hidden layer of 50 ReLU units.  All its weights get a Kronecker-factored Laplace
posterior; prior precision and noise maximise the marginal likelihood.
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

    def __init__(self, hidden: int = 50, epochs: int = 500, random_state: int = 0) -> None:
        self.hidden, self.epochs, self.random_state = hidden, epochs, random_state

    def _train(self, x: np.ndarray, y: torch.Tensor, outputs: int, kind: str) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from networks.third_party import allow_torchvision

        allow_torchvision()
        from laplace import Laplace

        torch.manual_seed(self.random_state)
        self.x_scaler_ = StandardScaler().fit(x)
        inputs = self._inputs(x)
        loader = DataLoader(TensorDataset(inputs, y), batch_size=128, shuffle=True)
        net = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], self.hidden), torch.nn.ReLU(), torch.nn.Linear(self.hidden, outputs)
        )
        loss = torch.nn.MSELoss() if kind == "regression" else torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
        for _ in range(self.epochs):
            for rows, targets in loader:
                optimizer.zero_grad()
                loss(net(rows), targets).backward()
                optimizer.step()
        self.laplace_ = Laplace(net, kind, subset_of_weights="all", hessian_structure="kron")
        self.laplace_.fit(loader)
        if kind == "classification":
            self.laplace_.optimize_prior_precision(method="marglik")
            return
        precision, noise = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        tuner = torch.optim.Adam([precision, noise], lr=1e-1)
        for _ in range(100):
            tuner.zero_grad()
            (-self.laplace_.log_marginal_likelihood(precision.exp(), noise.exp())).backward()
            tuner.step()

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
