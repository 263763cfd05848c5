"""A network as an ordered sequence of operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fdaudit.errors import UsageError

from .convolutions import Convolution
from .layers import RELU, SIGMOID, TANH, Activation, Pass, activated, linear, operated, reshaped
from .normalisation import NORMALISATIONS, normalised

__all__ = ["ACTIVATIONS", "Node", "Trace", "named", "traced", "unfoldable"]

Values = Mapping[fx.Node, Any]
"""Results by operation."""

ACTIVATIONS: Mapping[object, Activation] = {
    **dict.fromkeys((nn.ReLU, F.relu, torch.relu, "relu"), RELU),
    **dict.fromkeys((nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid"), SIGMOID),
    **dict.fromkeys((nn.Tanh, F.tanh, torch.tanh, "tanh"), TANH),
}
"""Computed anew from their input even if the layer would work in place."""
_IN_PLACE: Mapping[object, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
"""Operators that overwrite their first operand, such as that of `out += identity`, and those that do not."""
_RESHAPES = (nn.Flatten, torch.flatten, "flatten", "view", "reshape")
_ROOT = "0."


class Node(NamedTuple):
    """An operation.

    Attributes:
        key: identifies its result for other operations.
        inputs: the results that it reads.
        call: computes its result from others'.
        passed: its pass, from others' results, the inputs that depend on the images' values, and the number of batches;
            or its result, if that does not depend on the images.
        layer: the name of a layer with weights, "" for a module that is one; None for other operations.
    """

    key: fx.Node
    inputs: tuple[fx.Node, ...]
    call: Callable[[Values], Any]
    passed: Callable[[Values, Sequence[fx.Node], int], Any]
    layer: str | None = None


class Trace(NamedTuple):
    """A network's forward pass, which does not depend on the values of its parameters.

    Attributes:
        root: holds the module.
        operations: those that the logits depend on: the images first, the logits last.
    """

    root: nn.Module
    operations: tuple[fx.Node, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Trace:
        """Return the trace of a module whose parameters all belong to plain convolutions and linear layers.

        Raises:
            UsageError: the forward pass depends on values.
        """
        root = nn.Sequential(module)  # so that a module which is a layer is called as one
        try:
            graph = fx.Tracer().trace(root)
        except Exception as error:  # foreign code may raise any error when it gets no values
            problem = f"cannot be traced ({error})"
            raise unfoldable("forward", problem, "Let no step depend on values.") from error
        ancestors = set[fx.Node]()
        waiting: list[fx.Node] = []
        for node in graph.nodes:
            if node.op == "output":
                waiting += node.all_input_nodes
        while waiting:
            node = waiting.pop()
            if node not in ancestors:
                ancestors.add(node)
                waiting += node.all_input_nodes
        operations = []
        for node in graph.nodes:
            if node in ancestors:
                operations.append(node)
        return cls(root, tuple(operations))


def traced(trace: Trace, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> tuple[Node, ...]:
    """Return the operations of a trace with parameters and buffers, by name.

    Raises:
        UsageError: the forward pass overwrites a tensor, calls a layer twice or leaves one out.
    """
    nodes, layers = [], []
    for operation in trace.operations:
        node = _node(operation, trace.root, parameters, buffers)
        nodes.append(node)
        if node.layer is not None:
            layers.append(node.layer)
    for name in layers:
        if layers.count(name) > 1:
            raise unfoldable(name, "is called twice in one pass", "Give each call its own layer.")
    for name in parameters:
        if name.rpartition(".")[0] not in layers:
            raise unfoldable(name, "is left out of the pass", "Use every layer once.")
    return tuple(nodes)


def named(layer: str, parameter: str) -> str:
    """Return the full name of a layer's parameter; the layer's is "" for a module that is one."""
    return f"{layer}.{parameter}" if layer else parameter


def unfoldable(name: str, problem: str, remedy: str) -> UsageError:
    """Return the error for a part of a module, by name, that cannot be recorded."""
    return UsageError("module", name, problem, remedy)


def _node(
    node: fx.Node, root: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> Node:
    target = str(node.target)
    name = target.removeprefix(_ROOT)
    if node.op == "placeholder":
        return _operation(node, lambda values: values[node])
    if node.op == "get_attr":
        if name in parameters:
            raise unfoldable(name, "is used outside its layer", "Call the layer.")
        value = buffers[name] if name in buffers else operator.attrgetter(target)(root)
        return _operation(node, lambda _: value)
    if _overwrites(node, root):
        raise unfoldable(node.name, "overwrites a tensor in place", "Use no in-place operations.")
    if node.op == "call_method":
        return _operation(node, partial(_called, _method(target), node), target)
    if callable(node.target):
        function = _IN_PLACE.get(node.target, node.target)
        return _operation(node, partial(_called, function, node), function)
    module = root.get_submodule(target)
    if module._forward_pre_hooks or module._forward_hooks:
        if list(module.parameters(recurse=False)):
            raise unfoldable(name, "has a hook", "Do in `forward` what the hook does.")
        return _operation(node, partial(_called, module, node))
    if target == _ROOT[:-1]:
        name = ""  # the whole module is this layer
    if type(module) in NORMALISATIONS:
        return _normalisation(node, module, name, {**buffers, **parameters})
    call = partial(_called, module, node)
    if not isinstance(module, (nn.Conv2d, nn.Linear)):
        return _operation(node, call, type(module))
    weight, bias = parameters[named(name, "weight")], parameters.get(named(name, "bias"))
    layer: Callable[[Tensor, int], Pass]
    if isinstance(module, nn.Conv2d):
        layer = Convolution(module, weight, bias)
    else:
        layer = partial(linear, weight=weight, bias=bias)

    def passed(values: Values, inputs: Sequence[fx.Node], R: int) -> Pass:
        return layer(values[inputs[0]], R)

    return Node(node, tuple(node.all_input_nodes), call, passed, name)


def _normalisation(node: fx.Node, module: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> Node:
    """Return the node of a normalisation layer."""
    inputs = tuple(node.all_input_nodes)

    def own(tensor: str) -> Tensor | None:
        return tensors.get(named(name, tensor))

    def call(values: Values) -> Tensor:
        return normalised(module, values[inputs[0]], 1, own).forward()

    def passed(values: Values, live: Sequence[fx.Node], R: int) -> Pass:
        return normalised(module, values[live[0]], R, own)

    if own("weight") is None:
        return Node(node, inputs, call, passed)
    return Node(node, inputs, call, passed, name)


def _operation(node: fx.Node, call: Callable[[Values], Any], of: object = None) -> Node:
    """Return the node of an operation without weights: `of` is a function, a method's name, or a module class."""
    alone = len(node.args) == 1 and not node.kwargs

    def passed(values: Values, inputs: Sequence[fx.Node], _: int) -> Any:
        if alone and of in ACTIVATIONS:
            return activated(ACTIVATIONS[of], values[inputs[0]])
        if of in _RESHAPES:
            return reshaped(values[inputs[0]], call(values))
        leaves = {n: values[n].detach().requires_grad_() for n in inputs}
        with torch.enable_grad():
            out = call({**values, **leaves})
        if isinstance(out, (tuple, list)) and any(isinstance(o, Tensor) and o.requires_grad for o in out):
            raise unfoldable(node.name, "gives several tensors", "Let every operation give one.")
        if isinstance(out, Tensor) and out.requires_grad:
            return operated(list(leaves.values()), out)
        return out

    return Node(node, tuple(node.all_input_nodes), call, passed)


def _overwrites(node: fx.Node, root: nn.Module) -> bool:
    """Return whether an operation overwrites a tensor that another operation may read."""
    if node.op == "call_module":
        in_place = bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    elif node.target in _IN_PLACE:
        in_place = True
    else:
        name = str(getattr(node.target, "__name__", node.target))
        method_in_place = name.endswith("_") and not name.endswith("__")
        return method_in_place or bool(node.kwargs.get("inplace"))
    return in_place and len(node.all_input_nodes[0].users) > 1


def _called(function: Callable[..., Any], node: fx.Node, values: Values) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return function(*args, **kwargs)


def _method(name: str) -> Callable[..., Any]:
    return lambda of, *args, **kwargs: getattr(of, name)(*args, **kwargs)
