"""Runs of a definition on a GPU: for each size of inputs one CUDA graph, captured once and replayed.

A graph holds addresses. Constants stay where they are, so what is written into them is seen by the next replay, and no
graph is made anew for new weights; binding other memory forgets the graphs. Inputs are copied to where the graph reads
them, results from where it writes them. All graphs of a runner share one pool of memory for what lies in between: one
runs at a time, in the order of calls, on whichever stream the caller is.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from compiler.definition import Definition
from compiler.interpreter import Interpreter

MOST_GRAPHS: Final = 64  # sizes of inputs whose graphs are kept; then all are forgotten
_WARM_UP: Final = 2  # runs before a capture: kernels are compiled and libraries make their handles

Sizes = tuple[tuple[int, ...], ...]  # of the inputs


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CapturedRuns:
    """Runs as :class:`Interpreter` does, on the GPU that the constants are on."""

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self._interpreter = Interpreter(definition, device=device)
        self.device = device
        self._constants: Sequence[Tensor] = ()
        self._graphs: dict[Sizes, _Captured] = {}
        self._turn = threading.Lock()
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def graphs(self) -> int:
        """How many are kept."""
        return len(self._graphs)

    def bind(self, constants: Sequence[Tensor]) -> None:
        """Read constants from this memory; the graphs stay when it is the same."""
        with self._turn:
            if [each.data_ptr() for each in constants] != [each.data_ptr() for each in self._constants]:
                self._graphs.clear()
            self._constants = constants

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the outputs, which are the caller's; ordered by the current stream of the device."""
        with self._turn, torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)
            captured = self._find(inputs)
            for place, given in zip(captured.inputs, inputs, strict=True):
                place.copy_(given)
            captured.graph.replay()
            outputs = tuple(output.clone() for output in captured.outputs)
            self._done.record(stream)
            return outputs

    def _find(self, inputs: Sequence[Tensor]) -> _Captured:
        sizes = tuple(tuple(tensor.shape) for tensor in inputs)
        if sizes not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                self._graphs.clear()
            self._graphs[sizes] = self._capture(inputs)
        return self._graphs[sizes]

    def _capture(self, inputs: Sequence[Tensor]) -> _Captured:
        places = tuple(given.clone() for given in inputs)
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._interpreter.run(places, self._constants)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = self._interpreter.run(places, self._constants)
        return _Captured(graph, places, outputs)
