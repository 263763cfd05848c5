"""Networks by name: the models that a spec can request, and architectures checked against their input."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from fdaudit.config import Config, validate
from fdaudit.errors import SpecError, nearest, plugin_line
from fdaudit.limits import MOST_PARAMETERS
from fdaudit.models.network import for_trial, matches, seed_from, seeded, trainable_parameters
from fdaudit.models.normalization import Normalization, normalized
from fdaudit.models.pretrained.encoder import PretrainedParams, located, pretrained
from fdaudit.models.pretrained.files import FILES
from fdaudit.models.resnets import Resnet8Params, ResnetParams, resnet8, resnet_small
from fdaudit.models.small import (
    CNNS,
    MLPS,
    MlpParams,
    NoParams,
    StridedParams,
    lenet_dlg,
    mlp,
    pooled_cnn,
    strided_cnn,
)
from fdaudit.models.transformer import TransformerParams, transformer
from fdaudit.models.unet import UnetParams, unet
from fdaudit.parallel.randomness import forked_randomness
from fdaudit.spec.code import imported_digest
from fdaudit.spec.schema import ModelSpec
from fdaudit.spec.trust import IMPORT, refuse_untrusted
from fdaudit.tasks import SINGLE_LABEL, Task

__all__ = [
    "DENSE",
    "FROM_FILES",
    "MODELS",
    "OF_TEXTS",
    "Architecture",
    "architecture",
]

_Shape = tuple[int, ...]
_Builder = Callable[[Any, Any, int], nn.Module]


def _without_params(make: Callable[[Any, int], nn.Module]) -> tuple[type[Config], _Builder]:
    return NoParams, lambda _, input_shape, classes: make(input_shape, classes)


_ZOO: Mapping[str, tuple[type[Config], _Builder]] = {
    **{name: _without_params(partial(pooled_cnn, name)) for name in CNNS},
    **{name: _without_params(partial(mlp, MlpParams(widths=widths))) for name, widths in MLPS.items()},
    "cnn-strided": (StridedParams, strided_cnn),
    "lenet-dlg": _without_params(lenet_dlg),
    "mlp": (MlpParams, mlp),
    "resnet8": (Resnet8Params, resnet8),
    **{name: (ResnetParams, partial(resnet_small, name)) for name in ("resnet18", "resnet34", "resnet50")},
    "unet": (UnetParams, unet),
}

_ZOO_OF_TEXTS: Mapping[str, tuple[type[Config], Callable[[Any, int, int, int], nn.Module]]] = {
    "pretrained": (PretrainedParams, pretrained),
    "transformer": (TransformerParams, transformer),
}

OF_TEXTS = tuple(sorted(_ZOO_OF_TEXTS))
"""Networks of the zoo for texts."""

FROM_FILES = ("pretrained",)
"""Networks of the zoo whose weights come from the user's files."""

DENSE = ("unet",)
"""Networks of the zoo with an answer for each pixel."""

MODELS: tuple[str, ...] = (*sorted((*_ZOO, *_ZOO_OF_TEXTS)), "import:package.module:Class")
"""Every name `model.name` may have; the last is a pattern."""


class _OperationCounter(TorchDispatchMode):
    """Counts floating-point operations as PyTorch's `FlopCounterMode` does, without loading its compiler."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # true would load the compiler, to leave this method out of it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry

        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        output = func(*args, **kwargs)
        if formula is not None:
            self.operations += int(formula(*args, **kwargs, out_val=output))
        return output


@dataclass(frozen=True)
class Architecture:
    """A network that is known to fit its input. Any party with this description can build it.

    Guarantees:
      * `build` gives equal weights for generators in equal states, independent of the global random state;
      * `build` leaves the global random state as it was, on every device.

    For an imported class this holds only if the class draws from PyTorch's CPU generator.

    Attributes:
        name: as in the spec.
        params: the parameters, all named, as plain JSON values.
        input_shape: (channels, height, width) of an image, (L,) of a text, or (d,) of a row.
        classes: number of classes C.
        words: number of words of the vocabulary; 0 for images and rows.
        normalization: of images before the first layer; None if the network takes them as they are.
        frozen: parameters that training does not move: names, names of layers, or patterns such as `features.*`.
    """

    name: str
    params: Mapping[str, Any]
    input_shape: _Shape
    classes: int
    words: int = 0
    normalization: Normalization | None = None
    frozen: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.input_shape, self.classes, self.words, self.frozen))

    def build(self, generator: torch.Generator) -> nn.Module:
        """Return a new float32 module on the CPU, in training mode, mapping (n, c, h, w) to logits (n, C).

        For segmentation it maps them to (n, C, h, w). For texts it maps token numbers (n, L) to logits.

        Args:
            generator: one draw from it seeds the initial weights.
        """
        return self._seeded(seed_from(generator))

    @property
    def reads(self) -> str:
        """Return what it reads: `texts`, `rows` or `images`."""
        if self.words:
            return "texts"
        return "rows" if len(self.input_shape) == 1 else "images"

    @property
    def described(self) -> dict[str, Any]:
        """Return everything that determines the network, as JSON values."""
        description = {
            "name": self.name,
            "params": dict(self.params),
            "input_shape": list(self.input_shape),
            "classes": self.classes,
        }
        if self.words:
            description["words"] = self.words
        if self.normalization is not None:
            description["normalization"] = asdict(self.normalization)
        if self.frozen:
            description["frozen"] = list(self.frozen)
        return description

    def random_inputs(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n random images in [0, 1], n rows of normal numbers, or n texts of random words."""
        if self.words:
            return torch.randint(self.words, (n, *self.input_shape), generator=generator)
        if self.reads == "rows":
            return torch.randn(n, *self.input_shape, generator=generator)
        return torch.rand(n, *self.input_shape, generator=generator)

    def blank_inputs(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """Return n blank images, or n texts of nothing but padding."""
        dtype = torch.int64 if self.words else torch.float32
        return torch.zeros(n, *self.input_shape, device=device, dtype=dtype)

    @property
    def imported(self) -> bool:
        """Return whether the class is imported from outside fdaudit."""
        return self.name.startswith(IMPORT)

    @property
    def pretrained(self) -> tuple[str, ...]:
        """Return the absolute paths of the files that the weights come from; none if all weights are drawn."""
        if self.name not in FROM_FILES:
            return ()
        files = []
        for name in FILES:
            file = Path(self.params["path"]) / name
            files.append(str(file))
        return tuple(files)

    @property
    def source(self) -> str:
        """Return the SHA-256 of an imported class's code or of pretrained files; "" for other models of the zoo.

        The code is the class's file and all that it imports (`fdaudit.spec.code`). It is "" for a class without a file.
        """
        if self.pretrained:
            return str(self.params["sha256"])
        if not self.imported:
            return ""
        refuse_untrusted(self.name, "model.name")
        return imported_digest(self.name.removeprefix(IMPORT).partition(":")[0])

    @property
    def has_batchnorm(self) -> bool:
        """Return whether some layer is a BatchNorm. Its statistics are private data that are sent unprotected."""
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        return any(isinstance(module, kinds) for module in self._skeleton.modules())

    @property
    def has_convolutions(self) -> bool:
        """Return whether some layer is a convolution."""
        kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        return any(isinstance(module, kinds) for module in self._skeleton.modules())

    @property
    def parameters(self) -> int:
        """Return the number of trained parameters."""
        return sum(parameter.numel() for parameter in self._skeleton.parameters())

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters, by name."""
        return {name: tuple(p.shape) for name, p in self._skeleton.named_parameters()}

    @property
    def trained_parameters(self) -> frozenset[str]:
        """Return the names of the parameters that training moves."""
        return frozenset(trainable_parameters(self._skeleton))

    @property
    def frozen_parameters(self) -> frozenset[str]:
        """Return the names of the parameters that `frozen` matches."""
        names = list[str]()
        for name in self.parameter_shapes:
            if any(matches(name, pattern) for pattern in self.frozen):
                names.append(name)
        return frozenset(names)

    @cached_property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters and buffers, by name."""
        return {name: tuple(t.shape) for name, t in self._skeleton.state_dict().items()}

    @cached_property
    def work(self) -> int:
        """Return the floating-point operations of convolutions and matrix products in one image's forward pass."""
        counter = _OperationCounter()  # type: ignore[no-untyped-call]
        self.tried(1, counter)
        return counter.operations

    def tried(self, records: int, watched: AbstractContextManager[Any] | None = None) -> Any:
        """Run the network on `records` blank records, in the context `watched` if there is one.

        The output has the right shape, but its values count for nothing.
        """
        # The trial run of an imported module may draw at random: inside the fork, like the building.
        with forked_randomness(), torch.no_grad():
            module = for_trial(self._skeleton, self.input_shape)
            device = next((p.device for p in module.parameters()), torch.device("cpu"))
            training = module.training
            with watched or nullcontext():
                output = module.eval()(self.blank_inputs(records, device))
            module.train(training)
        return output

    def _seeded(self, seed: int) -> nn.Module:
        module = seeded(seed, lambda: _module(self))
        for name, parameter in module.named_parameters():
            if any(matches(name, pattern) for pattern in self.frozen):
                parameter.requires_grad_(False)
        return module if self.normalization is None else normalized(module, self.normalization)

    @cached_property
    def _skeleton(self) -> nn.Module:
        """Return the module on the meta device, which equal architectures share.

        An imported class may not support that device. It is built in full, once for each architecture.
        """
        return self._seeded(0) if self.imported else _skeleton_of(self)


@lru_cache(maxsize=64)  # every trial of an attack brings a copy of the same architecture
def _skeleton_of(shared: Architecture) -> nn.Module:
    with torch.device("meta"):
        return shared._seeded(0)


def architecture(
    spec: ModelSpec,
    input_shape: _Shape,
    classes: int,
    task: Task = SINGLE_LABEL,
    words: int | tuple[str, ...] = 0,
    root: Path | None = None,
) -> Architecture:
    """Return the architecture that `spec` names, after checking that it maps records of this shape to logits.

    Args:
        spec: a network and its settings.
        input_shape: (c, h, w) of an image, (L,) of a text, or (d,) of a row.
        classes: number of classes C.
        task: the task of the records.
        words: the words of texts, or their number, which suffices for networks without files; 0 for images.
        root: the folder below which files of networks are; default: FDAUDIT_DATA.

    Raises:
        SpecError: the name or a parameter is unknown, an import fails, the images are too small for the
            network, or its output is not (n, classes), for segmentation (n, classes, h, w); or the name is
            untrusted code, or makes no network.
    """
    params: Mapping[str, Any] = spec.params
    if not spec.name.startswith(IMPORT):
        if spec.name not in MODELS:
            raise SpecError("model.name", spec.name, "is not a known model", nearest(spec.name, MODELS))
        if words and spec.name not in OF_TEXTS:
            raise SpecError("model.name", spec.name, "is a network for images", f"Use {OF_TEXTS[-1]!r}.")
        if not words and spec.name in OF_TEXTS:
            raise SpecError("model.name", spec.name, "is a network for texts", "Choose another network.")
        config, _ = _ZOO_OF_TEXTS[spec.name] if words else _ZOO[spec.name]
        values = validate(config, spec.params, "model.params")
        if isinstance(values, PretrainedParams):
            values = located(values, input_shape[0], words, root)
        params = values.model_dump(mode="json")
    count = words if isinstance(words, int) else len(words)
    design = Architecture(spec.name, dict(params), input_shape, classes, count)
    answer = task.labels.answer_shape(classes, input_shape)
    problem = _misfit(design, answer)
    if problem:
        raise SpecError("model.name", spec.name, problem, _remedy(design, answer))
    if design.parameters > MOST_PARAMETERS:
        problem = f"has {design.parameters:,} parameters, more than {MOST_PARAMETERS:,}"
        raise SpecError("model.name", spec.name, problem, "Choose a smaller network.")
    return design


def _module(design: Architecture) -> nn.Module:
    """Return an architecture's module, built from the current random state."""
    if design.imported:
        return _imported(design)
    if design.words:
        config, for_texts = _ZOO_OF_TEXTS[design.name]
        params = validate(config, design.params, "model.params")
        (length,) = design.input_shape
        return for_texts(params, length, design.classes, design.words)
    config, builder = _ZOO[design.name]
    params = validate(config, design.params, "model.params")
    return builder(params, design.input_shape, design.classes)


def _imported(design: Architecture) -> nn.Module:
    """Return the module that `import:package.module:Class`, or a function named so, makes from the random state."""
    name = design.name
    refuse_untrusted(name, "model.name")
    path, colon, attribute = name.removeprefix(IMPORT).partition(":")
    if not (colon and path and attribute):
        raise SpecError("model.name", name, "is no import path", "Write import:package.module:Class.")
    try:
        target = getattr(importlib.import_module(path), attribute)
    except (Exception, SystemExit) as error:
        raise _unmade(name, error) from error
    # It is checked before it is called: `subprocess:Popen` would have run by the time its result is looked at.
    if not _makes_networks(target):
        remedy = "Name a class below torch.nn.Module, or a function that takes `classes` and returns such a module."
        raise SpecError("model.name", name, "makes no networks", remedy)
    offered = {
        "classes": design.classes,
        "num_classes": design.classes,
        "input_shape": design.input_shape,
        "words": design.words,
    }
    try:
        accepted = inspect.signature(target).parameters
        arguments = dict[str, Any]()
        for argument, value in offered.items():
            if argument in accepted:
                arguments[argument] = value
        if not arguments and any(p.kind == p.VAR_KEYWORD for p in accepted.values()):
            arguments["num_classes"] = design.classes
        module = target(**{**arguments, **design.params})
        if not isinstance(module, nn.Module):
            raise TypeError(f"it returns {type(module).__name__}, no torch.nn.Module")
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            # A pass over one blank record gives lazy layers their shapes and initial weights.
            with torch.no_grad():
                module.eval()(design.blank_inputs(1))
            module.train()
    except (Exception, SystemExit) as error:
        raise _unmade(name, error) from error
    return module


def _makes_networks(target: object) -> bool:
    """Return whether a target is a class of networks, or a function that says that it makes one.

    A function says so by a parameter `classes`, `num_classes` or `input_shape`, or by its annotated result.
    """
    if isinstance(target, type):
        return issubclass(target, nn.Module)
    if not inspect.isfunction(target):
        return False
    result = target.__annotations__.get("return")
    asks = {"classes", "num_classes", "input_shape"} & inspect.signature(target).parameters.keys()
    return bool(asks) or (isinstance(result, type) and issubclass(result, nn.Module))


def _unmade(name: str, error: BaseException) -> SpecError:
    """Return the refusal of a network whose own code raised; foreign code may raise anything, `SystemExit` included."""
    problem = f"cannot be made ({type(error).__name__}: {error}){plugin_line(error)}"
    return SpecError("model.name", name, problem, "Check the import path and `model.params`.")


def _misfit(design: Architecture, answer: _Shape) -> str | None:
    """Return why the network does not map each image to an answer of this shape, or None if it does."""
    n = 3 if design.classes == 2 else 2  # so that (n, classes) and (classes, n) differ
    try:
        output = design.tried(n)
    except SpecError:
        raise
    except Exception as error:
        size = "x".join(map(str, design.input_shape))
        reason = str(error).partition("\n")[0].rstrip(". ")
        unit = {"texts": " tokens", "rows": " numbers", "images": ""}[design.reads]
        return f"does not accept {design.reads} of {size}{unit} ({reason}){plugin_line(error)}"
    result: object = type(output).__name__
    if isinstance(output, Tensor):
        result = tuple(output.shape)
    if result != (n, *answer):
        return f"maps {n} {design.reads} to {result}, not to logits {(n, *answer)}"
    return None


def _remedy(design: Architecture, answer: _Shape) -> str:
    dense = len(answer) > 1
    if design.imported:
        if design.reads == "texts":
            return "Make it map token numbers (n, L) to (n, classes)."
        if design.reads == "rows":
            return f"Make it map (n, {design.input_shape[0]}) to (n, classes)."
        shape = "(n, classes, h, w)" if dense else "(n, classes)"
        return f"Make it map (n, c, h, w) to {shape}, or set `dataset.image_size`."
    if design.reads == "texts":
        return "Correct `model.params`."
    if design.reads == "rows":
        return "Use 'mlp', which takes records of any shape."
    if dense and design.name not in DENSE:
        return "Use 'unet', which answers for each pixel."
    if design.name in DENSE and not dense:
        return "It is for masks: use another network."
    if len(design.input_shape) != 3:
        return "Use 'mlp', which takes records of any shape."
    channels, height, width = design.input_shape
    for size in (16, 32, 64, 128):
        if size > max(height, width):
            larger = Architecture(design.name, design.params, (channels, size, size), design.classes)
            larger_answer = (design.classes, size, size) if dense else answer
            if _misfit(larger, larger_answer) is None:
                return f"Zero-pad the images with `dataset.image_size: {size}`, or choose a smaller network."
    return "Choose a smaller network."
