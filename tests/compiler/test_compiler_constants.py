"""Constants lie where the program says, are written only when everything fits, and come back bit for bit."""

from collections.abc import Callable, Iterator
from multiprocessing import shared_memory

import pytest
import torch
from torch import Tensor, nn

import compiler


@pytest.fixture
def shared(eager_program: compiler.Program) -> Iterator[shared_memory.SharedMemory]:
    block = shared_memory.SharedMemory(create=True, size=eager_program.arena_bytes)
    yield block
    block.close()
    block.unlink()


def bits(memory: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in memory.items()}


def test_a_then_b_then_a_is_bit_exact(eager_program: compiler.Program, residual_net: Callable[..., nn.Module]) -> None:
    first, second = residual_net(1).state_dict(), residual_net(2).state_dict()
    memory = eager_program.allocate()

    eager_program.evaluate(first, memory)
    before = bits(memory)
    eager_program.evaluate(second, memory)
    between = bits(memory)
    eager_program.evaluate(first, memory)

    assert bits(memory) == before
    differing = {name for name in before if before[name] != between[name]}
    assert differing == {name for name in before if not name.startswith("literal")}


def test_only_formulas_whose_inputs_changed_are_evaluated(
    eager_program: compiler.Program, residual_net: Callable[..., nn.Module]
) -> None:
    memory = eager_program.allocate()
    eager_program.evaluate(residual_net(1).state_dict(), memory)
    before = bits(memory)
    changed = {name: tensor for name, tensor in residual_net(2).state_dict().items() if name.startswith("block1.bn2")}
    needed = {"block1.conv2.weight", "block1.conv2.bias"}
    given = {name: residual_net(1).state_dict()[name] for name in needed} | changed

    written = eager_program.evaluate(given, memory, changed=set(changed))

    assert written == ("block1.conv2.weight.folded", "block1.conv2.weight.folded_bias")
    assert {name for name, value in bits(memory).items() if value != before[name]} == set(written)


def test_nothing_changed_writes_nothing(eager_program: compiler.Program) -> None:
    assert eager_program.evaluate({}, eager_program.allocate(), changed=["head.num_batches_tracked"]) == ()


def test_an_identity_copies_bits_and_not_values() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4))
            self.register_buffer("ids", torch.tensor([2**62 + 1, -1]))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + self.table, self.ids + 0

    program = compiler.compile(Looks().eval(), (torch.randn(2, 4),), backend="eager")
    odd = torch.tensor([0x7FA00001, -0x80000000, 0x00000001, 0x7F800000 - 2**32 + 2**32], dtype=torch.int64)
    state = {"table": odd.to(torch.int32).view(torch.float32), "ids": torch.tensor([2**62 + 1, -(2**62) - 1])}
    memory = program.allocate()

    program.evaluate(state, memory)

    assert torch.equal(memory["table"].view(torch.int32), state["table"].view(torch.int32))
    assert torch.equal(memory["ids"], state["ids"])


def test_an_arena_has_every_constant_on_a_64_byte_boundary(eager_program: compiler.Program) -> None:
    memory = eager_program.allocate()
    starts = sorted(tensor.data_ptr() for tensor in memory.values())

    assert all(start % 64 == 0 for start in starts)
    assert eager_program.arena_bytes % 64 == 0
    assert starts[-1] - starts[0] < eager_program.arena_bytes
    for constant in eager_program.constants:
        assert memory[constant.name].stride() == constant.strides
        assert tuple(memory[constant.name].shape) == constant.shape


def test_an_arena_in_shared_memory_is_written_in_place(
    eager_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    images: Tensor,
    shared: shared_memory.SharedMemory,
) -> None:
    model = residual_net(3)
    memory = eager_program.allocate(shared.buf)
    eager_program.evaluate(model.state_dict(), memory)
    runner = eager_program.load_runner(memory)

    found = runner(images)[0]

    assert torch.equal(found, eager_program.bind(model.state_dict())(images)[0])
    head = memory["head.bias"].numpy().tobytes()
    assert head in bytes(shared.buf)
    del memory, runner


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (bytes(100_000), "read-only"),
        (bytearray(64), "at least"),
    ],
)
def test_a_buffer_that_does_not_do_is_refused(eager_program: compiler.Program, buffer: bytes, message: str) -> None:
    with pytest.raises(compiler.BufferMismatchError, match=message):
        eager_program.allocate(buffer)


def test_a_buffer_off_the_boundary_is_refused(eager_program: compiler.Program) -> None:
    room = torch.zeros(eager_program.arena_bytes + 128, dtype=torch.uint8)
    start = -room.data_ptr() % 64 + 8

    with pytest.raises(compiler.BufferMismatchError, match="8 bytes past a boundary"):
        eager_program.allocate(memoryview(room.numpy())[start:])


@pytest.mark.parametrize(
    ("spoil", "quality"),
    [
        (lambda tensor: tensor.double(), "dtype is float64, expected float32"),
        (lambda tensor: tensor[:4], r"shape is \(4, 8, 3, 3\), expected \(8, 8, 3, 3\)"),
        (lambda tensor: tensor.to("meta"), "device is meta, expected cpu"),
    ],
)
def test_a_wrong_checkpoint_tensor_changes_nothing(
    eager_program: compiler.Program,
    residual_net: Callable[..., nn.Module],
    spoil: Callable[[Tensor], Tensor],
    quality: str,
) -> None:
    memory = eager_program.allocate()
    eager_program.evaluate(residual_net(1).state_dict(), memory)
    before = bits(memory)
    state = dict(residual_net(2).state_dict())
    state["block2.conv2.weight"] = spoil(state["block2.conv2.weight"])

    with pytest.raises(compiler.TensorMismatchError, match=f"'block2.conv2.weight': {quality}"):
        eager_program.evaluate(state, memory)

    assert bits(memory) == before


def test_missing_checkpoint_tensors_are_named(eager_program: compiler.Program) -> None:
    with pytest.raises(
        compiler.MissingTensorError, match=r"checkpoint: 30 .*'block1\.bn1\.bias'.*0 were given"
    ) as caught:
        eager_program.evaluate({}, eager_program.allocate())

    assert set(caught.value.missing) == {spec.name for spec in eager_program.requires}


@pytest.mark.parametrize(
    ("spoil", "quality"),
    [
        (lambda tensor: tensor.double(), "dtype"),
        (lambda tensor: tensor[:1], "shape"),
        (lambda tensor: tensor.t().contiguous().t(), "strides"),
        (lambda tensor: tensor.to("meta"), "device"),
    ],
)
def test_a_wrong_constant_is_refused_before_it_is_bound(
    eager_program: compiler.Program, spoil: Callable[[Tensor], Tensor], quality: str
) -> None:
    memory = eager_program.allocate()
    memory["head.weight"] = spoil(memory["head.weight"])

    with pytest.raises(compiler.TensorMismatchError, match=f"constant 'head.weight': {quality}"):
        eager_program.load_runner(memory)


def test_constants_are_refused_on_a_device_that_the_backend_does_not_serve(eager_program: compiler.Program) -> None:
    memory = {name: tensor.to("meta") for name, tensor in eager_program.allocate().items()}

    with pytest.raises(compiler.BackendRefusedError, match="constants are on meta, expected cpu or cuda"):
        eager_program.load_runner(memory)


def test_a_buffer_is_refused_beside_another_device(eager_program: compiler.Program) -> None:
    with pytest.raises(compiler.BufferMismatchError, match="expected none with device=cuda"):
        eager_program.allocate(bytearray(100_000), device=torch.device("cuda"))


def test_a_missing_constant_is_refused_before_it_is_bound(eager_program: compiler.Program) -> None:
    memory = eager_program.allocate()
    del memory["head.weight"]

    with pytest.raises(compiler.MissingTensorError, match=r"'head\.weight'"):
        eager_program.load_runner(memory)


def test_a_program_without_constants_needs_no_arena() -> None:
    program = compiler.compile(nn.ReLU().eval(), (torch.randn(2, 3),), backend="eager")

    assert program.arena_bytes == 0
    assert program.allocate() == {}
    assert torch.equal(
        program.bind({})(torch.tensor([[-1.0, 2.0, 0.0], [3.0, -4.0, 5.0]]))[0].sum(), torch.tensor(10.0)
    )
