"""Run by cibuildwheel on each wheel: its kernels serve, without a compiler, and give the right moments."""

import os
from pathlib import Path

import torch

import momentgen
from momentgen.generated import gelu
from momentgen.runtime.shipped import shipped_folder

if __name__ == "__main__":
    os.environ["CC"] = "no-compiler"
    folder = shipped_folder()
    assert folder is not None, "the wheel has no kernels for this processor"
    assert folder.is_relative_to(Path(momentgen.__file__).parent)
    assert not list(folder.parents[2].glob("momentgen.libs")), "the wheel carries a runtime beside torch's"
    mean, var = gelu.kernel()(torch.zeros(100_000), torch.ones(100_000))  # no fallback
    assert torch.allclose(mean, torch.tensor(0.28209479)), mean[0]
    assert torch.allclose(var, torch.tensor(0.34564401)), var[0]  # both by quadrature
    print(f"kernels of {folder.name}")
