"""torch.compile, torch.export and torch.library see well-behaved operators."""

from collections.abc import Iterator

import pytest
import torch
from other_processes import printed
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from momentgen.generated import leaky_relu, square

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def operator(op: object, which: str) -> object:
    return getattr(op._kernels["exact"], which)


SAMPLES = {
    "scalar": (torch.randn(()), torch.rand(())),
    "empty": (torch.randn(0, 3), torch.rand(0, 3)),
    "channels last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.rand(2, 3, 4, 5)),
    "expanded": (torch.randn(1).expand(6), torch.rand(6)),
    "strided": (torch.randn(12)[::2], torch.rand(12)[::2]),
    "double": (torch.randn(7).double(), torch.rand(7).double()),
    "bfloat16": (torch.randn(7).bfloat16(), torch.rand(7).bfloat16()),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample: str) -> None:
    mean, var = SAMPLES[sample]
    torch.library.opcheck(operator(square, "forward"), (mean, var, []))
    torch.library.opcheck(operator(square, "backward"), (mean, var, var.clone(), mean.clone(), []))


def network(mean: Tensor, var: Tensor, slope: float) -> Tensor:
    out = leaky_relu(*square(mean * 2, var), negative_slope=slope)
    return out.mean.sum() + out.var.sum()


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)], ids=["aot_eager", "inductor"]
)
def test_fullgraph_compilation_with_gradients(backend: str) -> None:
    compiled = torch.compile(network, fullgraph=True, backend=backend)
    for size, slope in ((4, 0.5), (4, 0.2), (9, 0.25), (17, 0.75)):  # shapes and parameters turn dynamic
        base = torch.randn(size), torch.rand(size)
        results = []
        for function in (network, compiled):
            mean, var = (t.clone().requires_grad_() for t in base)
            value = function(mean, var, slope)
            value.backward()
            results.append((value.detach(), mean.grad, var.grad))
        torch.testing.assert_close(*results)


def test_compiled_without_gradients_is_one_operator() -> None:
    mean, var = torch.randn(5), torch.rand(5)
    assert torch.equal(torch.compile(square, fullgraph=True, backend="aot_eager")(mean, var).var, square(mean, var).var)
    code = make_fx(lambda m, v: tuple(square(m, v)))(mean, var).code
    assert code.count("torch.ops.") == 1


@pytest.mark.parametrize("transform", ["grad", "jacrev", "jacfwd", "vmap", "jvp"])
def test_compilation_of_a_transformed_op(transform: str) -> None:
    mean, var = torch.randn(3), torch.rand(3)
    function = {
        "grad": torch.func.grad(lambda m, v: square(m, v).var.sum(), argnums=(0, 1)),
        "jacrev": torch.func.jacrev(square, argnums=1),
        "jacfwd": torch.func.jacfwd(square, argnums=0),
        "vmap": torch.func.vmap(square, in_dims=(0, None)),
        "jvp": lambda m, v: torch.func.jvp(square, (m, v), (m, v))[1],
    }[transform]
    if transform == "vmap":
        mean, var = torch.randn(4, 3), torch.rand(3)
    torch.testing.assert_close(
        torch.compile(function, fullgraph=True, backend="aot_eager")(mean, var), function(mean, var)
    )


def test_compilation_is_the_first_thing_a_process_does() -> None:
    """Nothing is compiled, imported or loaded by an earlier call."""
    code = (
        "import torch\n"
        "from momentgen.generated import square\n"
        "x = torch.ones(3)\n"
        "for function in (square, torch.func.grad(lambda m, v: square(m, v).var.sum())):\n"
        "    compiled = torch.compile(function, fullgraph=True, backend='aot_eager')\n"
        "    found = compiled(x, x)\n"
        "    print((found if isinstance(found, torch.Tensor) else found.mean).tolist())\n"
    )
    assert printed(code) == "[2.0, 2.0, 2.0]\n[8.0, 8.0, 8.0]\n"


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.op = torch.nn.Parameter(torch.randn(5)), square

    def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(self.op(mean * self.weight, var))


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    layer, pair = Layer(), (torch.randn(5), torch.rand(5))
    program = torch.export.export(layer, pair, strict=strict).run_decompositions()
    targets = [str(node.target) for node in program.graph.nodes]
    assert sum("square" in target and "forward" in target for target in targets) == 1
    torch.testing.assert_close(program.module()(*pair), layer(*pair))


def test_errors_come_through_compilation() -> None:
    compiled = torch.compile(lambda m, v: square(m, v), backend="aot_eager")
    with pytest.raises(Exception, match="expected tensors of one shape"):
        compiled(torch.ones(3), torch.ones(4))
