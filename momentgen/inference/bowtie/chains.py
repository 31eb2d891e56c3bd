"""Markov chains of a bow tie network: they run, store draws, continue from disk, and go to ArviZ.

The fourth stage of :mod:`momentgen.inference.bowtie`.  All chains of a process advance together, as the first dimension
of every tensor.  A chain loaded from disk continues bit for bit, as if it had not been interrupted.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.extras import require
from momentgen.inference.bowtie.gibbs import check_blocks, random_start, relu_start, start_at, sweep
from momentgen.inference.bowtie.model import BowTieModel, State, log_joint
from momentgen.inference.bowtie.prediction import Draws, Predictive, predict
from momentgen.progress import progress_bar

__all__ = ["STARTS", "Chains"]

#: name -> where chains start
STARTS = {"relu": relu_start, "random": random_start}
#: of the file; another number is refused
_FORMAT = 1


class Chains:
    """Chains of the posterior of a bow tie network's parameters and latent values.

    Args:
        model: sizes, temperature and priors.
        x: features ``(n, model.widths[0])``, best in standard units; computed with in float64, on their device.
        y: targets ``(n, model.widths[-1])``, likewise.
        chains: how many, side by side.
        burn_in: sweeps of which nothing is kept.
        draws: states of each chain to keep.
        thin: sweeps a kept state.
        seed: of all random numbers.
        start: a key of :data:`STARTS`, or a :class:`State`.
        fixed, collapsed: see :func:`~momentgen.inference.bowtie.gibbs.sweep`.
        anneal_from: temperature of the first sweep; it falls geometrically to the model's in the first half of
            ``burn_in``.  None: the model's throughout.

    Raises:
        InputError: for data, counts, names or a start that do not fit.

    >>> import torch
    >>> from momentgen.inference.bowtie import BowTieModel
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> chains = Chains(BowTieModel((1, 5, 1)), x, x.abs(), chains=2, burn_in=10, draws=5).run()
    >>> chains.draws.precisions[-1].shape
    torch.Size([2, 5, 1])
    """

    def __init__(
        self,
        model: BowTieModel,
        x: Tensor,
        y: Tensor,
        *,
        chains: int = 4,
        burn_in: int = 3000,
        draws: int = 1000,
        thin: int = 1,
        seed: int = 0,
        start: str | State = "relu",
        fixed: Collection[str] = (),
        collapsed: Collection[str] = ("gates",),
        anneal_from: float | None = None,
    ) -> None:
        for name, value, least in (
            ("chains", chains, 1),
            ("burn_in", burn_in, 0),
            ("draws", draws, 1),
            ("thin", thin, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise InputError(f"Chains: expected {name} of at least {least}, got {value!r}")
        check_blocks(fixed, collapsed)
        if anneal_from is not None:
            model.at(anneal_from)
        if isinstance(start, str) and start not in STARTS:
            raise InputError(f"Chains: expected start among {', '.join(STARTS)} or a State, got {start!r}")
        self.model, self.data = model, model.data(x, y)
        self.burn_in, self.planned, self.thin = burn_in, draws, thin
        self.fixed, self.collapsed, self.anneal_from = tuple(sorted(fixed)), tuple(sorted(collapsed)), anneal_from
        #: sweeps made so far
        self.done = 0
        self._kept: list[tuple[Tensor, ...]] = []
        self._generator = torch.Generator(x.device).manual_seed(seed)
        if isinstance(start, str):
            self.state = STARTS[start](model, self.data, chains, self._generator)
        else:
            model.check(start, len(x))
            self.state = start

    # ------------------------------------------------------------------ running

    def run(self, *, progress: bool = False, checkpoint: str | Path | None = None, every: int = 1000) -> Chains:
        """Make the sweeps that are left of ``burn_in + draws·thin``.

        Args:
            progress: show a bar with the mean log joint of the chains.
            checkpoint: file to :meth:`save` to after every ``every`` sweeps and at the end.
            every: sweeps.

        Raises:
            InputError: where float64 cannot go on (see :func:`~momentgen.inference.bowtie.gibbs.sweep`).
        """
        total = self.burn_in + self.planned * self.thin
        with progress_bar("sweeps", total, progress) as advance:
            while self.done < total:
                self._sweep()
                if progress and (self.done % 20 == 0 or self.done == total):
                    advance(self.done, f"sweeps, log joint {self.log_joint().mean().item():.1f}")
                if checkpoint is not None and (self.done % every == 0 or self.done == total):
                    self.save(checkpoint)
        return self

    def go_on(self, draws: int) -> Chains:
        """Plan that many more kept states, and run."""
        self.planned += draws
        return self.run()

    def _temperature(self) -> float:
        last = self.burn_in // 2
        if self.anneal_from is None or self.done >= last:
            return self.model.tau
        return float(self.anneal_from * (self.model.tau / self.anneal_from) ** (self.done / last))

    def _sweep(self) -> None:
        model = self.model.at(self._temperature())
        self.state = sweep(model, self.state, self.data, self._generator, self.fixed, self.collapsed)
        self.done += 1
        after = self.done - self.burn_in
        if after > 0 and after % self.thin == 0:
            self._kept.append((*self.state.weights, *self.state.precisions, self.log_joint()))

    def log_joint(self) -> Tensor:
        """Of the present state, a chain each (:func:`~momentgen.inference.bowtie.model.log_joint`)."""
        return log_joint(self.model, self.state, self.data)

    # --------------------------------------------------------------------- draws

    @property
    def draws(self) -> Draws:
        """What has been kept so far.

        Raises:
            InputError: where nothing has.
        """
        if not self._kept:
            raise InputError(
                f"Chains: expected kept draws, got none: {self.done} sweeps of burn-in {self.burn_in} made"
            )
        parts = [torch.stack(field, 1) for field in zip(*self._kept, strict=True)]
        layers = self.model.depth + 1
        return Draws(tuple(parts[:layers]), tuple(parts[layers:-1]), parts[-1])

    def predict(self, x: Tensor, seed: int = 0) -> Predictive:
        """The predictive distribution at features ``(n, widths[0])``."""
        return predict(self.model, self.draws, x, seed)

    def to_arviz(self, x: Tensor | None = None) -> Any:
        """An ``arviz.InferenceData``: ``weights_k`` and ``sigma_k`` (noise standard deviations), ``lp`` (log joint).

        Hidden units may change places, so R̂ and ESS say little about single weights.  ``x`` adds ``prediction``, the
        mean of the targets at these features for each draw.

        Raises:
            MissingExtraError: if ArviZ is not installed.
        """
        require("chains", "Chains.to_arviz")
        import arviz

        draws = self.draws
        posterior = {f"weights_{k}": part for k, part in enumerate(draws.weights, 1)}
        posterior |= {f"sigma_{k}": part.rsqrt() for k, part in enumerate(draws.precisions, 1)}
        if x is not None:
            posterior["prediction"] = self.predict(x).expected.unflatten(0, draws.log_joint.shape)
        return arviz.from_dict(
            posterior={name: part.cpu().numpy() for name, part in posterior.items()},
            sample_stats={"lp": draws.log_joint.cpu().numpy()},
        )

    # ---------------------------------------------------------------------- disk

    def _identity(self) -> dict[str, str]:
        """What a file must agree with to be gone on with."""
        digest = hashlib.sha256()
        for part in (self.data.x, self.data.y):
            digest.update(f"{tuple(part.shape)}".encode())
            digest.update(part.cpu().numpy().tobytes())
        return {"model": repr(self.model), "data": digest.hexdigest()}

    def save(self, path: str | Path) -> None:
        """Write all that is needed to go on, in one step: an interruption leaves the former file."""
        content = {
            "format": _FORMAT,
            "identity": self._identity(),
            "settings": {
                "burn_in": self.burn_in,
                "draws": self.planned,
                "thin": self.thin,
                "fixed": list(self.fixed),
                "collapsed": list(self.collapsed),
                "anneal_from": self.anneal_from,
            },
            "done": self.done,
            "generator": self._generator.get_state(),
            "state": {name: list(part) for name, part in self.state._asdict().items()},
            "kept": [torch.stack(field) for field in zip(*self._kept, strict=True)],
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            torch.save(content, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, model: BowTieModel, x: Tensor, y: Tensor) -> Chains:
        """Chains as :meth:`save` left them; :meth:`run` goes on.

        Raises:
            InputError: for a file of another model, of other data, or not written by :meth:`save`.
        """
        try:
            content = torch.load(path, map_location=x.device, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as reason:
            raise InputError(
                f"{path}: expected a file by Chains.save, got one that cannot be read: {reason}"
            ) from reason
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise InputError(f"{path}: expected a file by Chains.save of format {_FORMAT}, got another")
        state = State(**{name: tuple(part) for name, part in content["state"].items()})
        settings = content["settings"]
        # Identity first: its error says more than one on shapes.
        found = cls.__new__(cls)
        found.model, found.data = model, model.data(x, y)
        for name, expected in found._identity().items():
            if content["identity"][name] != expected:
                raise InputError(
                    f"{path}: expected chains of the {name} {expected}, got those of {content['identity'][name]}"
                )
        planned = settings.pop("draws")  # 0 of chains with other data, before they go on
        found = cls(model, x, y, chains=len(state.precisions[0]), start=state, **settings)
        found.done, found.planned = content["done"], planned
        found._kept = list(zip(*(part.unbind() for part in content["kept"]), strict=True))
        found._generator.set_state(content["generator"].cpu())
        return found

    def of_data(self, x: Tensor, y: Tensor) -> bool:
        """Whether these are the chains' data."""
        other = self.model.data(x, y)
        return torch.equal(other.x, self.data.x) and torch.equal(other.y, self.data.y)

    def with_data(self, x: Tensor, y: Tensor) -> Chains:
        """Chains of the same plan for other data, which begin at the present weights; nothing is kept or burnt in."""
        other = self.model.data(x, y)
        found = copy.copy(self)
        found.data, found.done, found.burn_in, found.planned, found._kept = other, 0, 0, 0, []
        found.state = start_at(self.model, other, self.state.weights, self._generator)
        return found
