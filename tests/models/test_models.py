"""Networks: the tables' layers and sizes, clear errors, reproducible weights, global randomness untouched."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fdaudit.data.texts.wordpieces import PieceNumbering, Pieces
from fdaudit.errors import SpecError, UsageError
from fdaudit.models import MODELS, Architecture, Network, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import TEXT

pytestmark = pytest.mark.usefixtures("trusting")  # networks named by `import:`

APART = ("pretrained", "transformer", "unet")  # for texts and for pixels: each has a file of tests of its own
ZOO = [name for name in MODELS[:-1] if name not in APART]
PRETRAINED = ModelSpec(name="pretrained", params={"path": "x"})
LIGHT = [name for name in ZOO if name not in ("resnet18", "resnet34", "resnet50")]


def arch(name, shape=(1, 16, 16), classes=10, **params):
    return architecture(ModelSpec(name=name, params=params), shape, classes)


def built(name, shape=(1, 16, 16), classes=10, seed=0, **params):
    return arch(name, shape, classes, **params).build(child(seed, "model"))


def size(model):
    return sum(p.numel() for p in model.parameters())


def refusal(*args, **kwargs):
    with pytest.raises(SpecError) as caught:
        arch(*args, **kwargs)
    assert caught.value.remedy
    return caught.value


# Parameter counts, layer by layer: a convolution has (in * k² + 1) * out, a linear layer (in + 1) * out.
COUNTS = [
    # 28 -conv 5-> 24 -pool-> 12 -conv 5-> 8 -pool-> 4: 20 * 16 = 320 features
    ("cnn-5-5", (1, 28, 28), 10, 26 * 10 + 251 * 20 + 321 * 50 + 51 * 10),
    ("cnn-5-5", (1, 28, 28), 3, 26 * 10 + 251 * 20 + 321 * 50 + 51 * 3),
    # 28 -conv 3 padded-> 28 -pool-> 14 -> 14 -pool-> 7: 20 * 49 = 980 features
    ("cnn-3-3", (1, 28, 28), 10, 10 * 10 + 91 * 20 + 981 * 128 + 129 * 10),
    # 28 -conv 5-> 24 -pool-> 12 -conv 3 padded-> 12 -pool-> 6: 20 * 36 = 720 features
    ("cnn-5-3", (1, 28, 28), 10, 26 * 10 + 91 * 20 + 721 * 64 + 65 * 10),
    ("mlp-1024-512-256", (1, 28, 28), 10, 785 * 1024 + 1025 * 512 + 513 * 256 + 257 * 10),
    ("mlp-1024-1024", (1, 28, 28), 3, 785 * 1024 + 1025 * 1024 + 1025 * 3),
    # DLG on CIFAR-100: 32 -> 16 -> 8 -> 8, 12 * 64 = 768 features, as in the authors' Linear(768, 100)
    ("lenet-dlg", (3, 32, 32), 100, 76 * 12 + 2 * 301 * 12 + 769 * 100),
    ("cnn-strided", (1, 28, 28), 10, 26 * 16 + 401 * 32 + (32 * 196 + 1) * 10),
    # Stem 27 * 16; blocks of 3x3 and, from the second on, 1x1 kernels; two numbers a channel for each norm.
    (
        "resnet8",
        (3, 32, 32),
        10,
        (27 * 16 + 32)
        + (2 * 144 * 16 + 64)
        + (144 * 32 + 288 * 32 + 16 * 32 + 3 * 64)
        + (288 * 64 + 576 * 64 + 32 * 64 + 3 * 128)
        + 65 * 10,
    ),
    # torchvision's published 11,689,512, 21,797,672 and 25,557,032, less 7x7 stem and 1000-class layer
    ("resnet18", (3, 32, 32), 10, 11_689_512 - 147 * 64 - 513 * 1000 + 27 * 64 + 513 * 10),
    ("resnet34", (1, 32, 32), 10, 21_797_672 - 147 * 64 - 513 * 1000 + 9 * 64 + 513 * 10),
    ("resnet50", (3, 32, 32), 10, 25_557_032 - 147 * 64 - 2049 * 1000 + 27 * 64 + 2049 * 10),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_counts_are_those_worked_out_by_hand(name, shape, classes, count):
    assert size(built(name, shape, classes)) == count


CONV5, CONV3 = "Conv(10, 5, 0) Pool(2) ReLU", "Conv(10, 3, 1) Pool(2) ReLU"


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("cnn-5-5", f"{CONV5} Conv(20, 5, 0) Pool(2) ReLU Flatten Linear(50) ReLU Linear(10)"),
        ("cnn-3-3", f"{CONV3} Conv(20, 3, 1) Pool(2) ReLU Flatten Linear(128) ReLU Linear(10)"),
        ("cnn-5-3", f"{CONV5} Conv(20, 3, 1) Pool(2) ReLU Flatten Linear(64) ReLU Linear(10)"),
        ("mlp-1024-512-256", "Flatten Linear(1024) ReLU Linear(512) ReLU Linear(256) ReLU Linear(10)"),
        ("mlp-1024-1024", "Flatten Linear(1024) ReLU Linear(1024) ReLU Linear(10)"),
    ],
)
def test_layers_are_the_tables(name, layers):
    """But for ReLU, which the tables name before the pooling."""

    def shown(module):
        if isinstance(module, nn.Conv2d):
            return f"Conv({module.out_channels}, {module.kernel_size[0]}, {module.padding[0]})"
        if isinstance(module, nn.MaxPool2d):
            return f"Pool({module.kernel_size})"
        if isinstance(module, nn.Linear):
            return f"Linear({module.out_features})"
        return type(module).__name__

    model = built(name, (1, 28, 28))
    assert " ".join(shown(m) for m in model.modules() if not list(m.children())) == layers


def test_a_cnn_computes_what_its_formula_says():
    model, x = built("cnn-5-5", (1, 28, 28)), torch.rand(3, 1, 28, 28, generator=child(0, "x"))
    w1, b1, w2, b2, w3, b3, w4, b4 = model.parameters()
    h = F.max_pool2d(F.conv2d(x, w1, b1).clamp(min=0), 2)
    h = F.max_pool2d(F.conv2d(h, w2, b2).clamp(min=0), 2).flatten(1)
    expected = (h @ w3.T + b3).clamp(min=0) @ w4.T + b4
    torch.testing.assert_close(model(x), expected)
    assert model.features(x).shape == (3, 320)


@given(x=arrays(np.float32, (2, 3, 4, 6), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])))
def test_pooling_before_relu_is_pooling_after_it_bit_for_bit(x):
    """Ties and zeros included; so are the gradients, whatever comes back from above."""
    above = torch.randn(2, 3, 2, 3, generator=child(0, "above"))
    outputs, gradients = [], []
    for layers in ([nn.ReLU(), nn.MaxPool2d(2)], [nn.MaxPool2d(2), nn.ReLU()]):
        images = torch.from_numpy(x).requires_grad_()
        outputs.append(nn.Sequential(*layers)(images))
        gradients += torch.autograd.grad(outputs[-1], images, above)
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)


def test_dlgs_lenet_has_its_authors_layers_and_initial_weights():
    model = built("lenet-dlg", (3, 32, 32), 100)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size[0], m.stride[0], m.padding[0]) for m in convolutions] == [
        (12, 5, 2, 2), (12, 5, 2, 2), (12, 5, 1, 2)
    ]  # fmt: skip
    assert sum(isinstance(m, nn.Sigmoid) for m in model.modules()) == 3
    for parameter in model.parameters():
        assert parameter.abs().max() <= 0.5
    values = torch.cat([p.flatten() for p in model.parameters()])
    # Uniform on [-0.5, 0.5]: mean 0, variance 1/12.
    assert abs(values.mean().item()) < 5 / (12 * len(values)) ** 0.5
    assert values.var().item() == pytest.approx(1 / 12, rel=0.02)


def test_the_strided_cnn_has_no_pooling_and_the_5_5_cnn_says_how_to_pad() -> None:
    kinds = {type(m).__name__ for m in built("cnn-strided").modules()}
    assert kinds == {"Network", "Sequential", "Conv2d", "ReLU", "Flatten", "Linear"}
    assert built("cnn-strided", (1, 16, 16), channels=[4, 8], kernel=3).features(
        torch.zeros(2, 1, 16, 16)
    ).shape == (2, 8 * 64)
    error = refusal("cnn-5-5", (1, 8, 8))
    assert error.field == "model.name"
    assert "1x8x8" in error.problem
    assert "dataset.image_size: 16" in error.remedy
    arch("cnn-5-5", (1, 16, 16))


def test_a_resnets_head_follows_table_4():
    model = built("resnet18", (3, 32, 32), 10, head=[128, 64])
    assert [type(m).__name__ for m in model.head] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert [m.out_features for m in model.head if isinstance(m, nn.Linear)] == [128, 64, 10]
    assert model.features(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    stem = model.extractor.conv1
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(model.extractor.maxpool, nn.Identity)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape"), [*((name, (3, 16, 16)) for name in ZOO), *((name, (1, 20, 28)) for name in LIGHT)]
)
def test_every_model_maps_images_to_logits(name, shape):
    made = arch(name, shape, 7)
    model = made.build(child(0, "model"))
    assert isinstance(model, Network)
    assert model.training
    logits = model(torch.rand(3, *shape, generator=child(0, "x")))
    assert logits.shape == (3, 7)
    assert torch.isfinite(logits).all()
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


@pytest.mark.parametrize("name", ZOO)
def test_nothing_works_in_place(name):
    assert not any(getattr(m, "inplace", False) for m in built(name).modules())


@pytest.mark.parametrize("name", [*LIGHT, "resnet18"])
def test_per_sample_gradients_by_vmap_add_up_to_the_batchs(name):
    model = built(name, (1, 16, 16), 5)
    x, y = torch.rand(3, 1, 16, 16, generator=child(0, "x")), torch.tensor([0, 3, 4])
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def loss(params, image, label):
        return F.cross_entropy(functional_call(model, params, image[None]), label[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    whole = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), list(model.parameters()))
    for (key, single), batch in zip(per_sample.items(), whole, strict=True):
        assert single.shape == (3, *batch.shape)
        scale = batch.abs().max().clamp(min=1e-6)
        assert (single.sum(0) - batch).abs().max() < 1e-3 * scale, key


@pytest.mark.parametrize("name", LIGHT)
def test_several_models_run_as_one_by_vmap(name):
    models = [built(name, (1, 16, 16), 5, seed=s) for s in range(3)]
    x = torch.rand(2, 1, 16, 16, generator=child(0, "x"))
    parameters, buffers = torch.func.stack_module_state(models)
    together = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    apart = torch.stack([model(x) for model in models])
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ZOO)
def test_equal_generators_give_equal_weights_whatever_the_global_state(name):
    made = arch(name)
    one = made.build(child(3, "model")).state_dict()
    torch.rand(5)
    same = made.build(child(3, "model")).state_dict()
    other = made.build(child(4, "model")).state_dict()
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize(
    "name", ["cnn-5-5", "lenet-dlg", "resnet8", "resnet18", "import:torch.nn:LazyLinear"]
)
def test_the_global_random_state_stays_as_it_was(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("reseeds the accelerators"))
    before = torch.get_rng_state()
    if name.startswith("import:"):
        refusal(name)
    else:
        made = arch(name)
        made.build(child(0, "model"))
        assert made.has_convolutions
    assert torch.equal(torch.get_rng_state(), before)


def test_one_generator_gives_one_model_after_another():
    made, generator = arch("mlp"), child(0, "models")
    first, second = made.build(generator), made.build(generator)
    assert not torch.equal(first.head[0].weight, second.head[0].weight)


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_batchnorm_is_detected_and_is_not_the_default(name):
    assert not arch(name).has_batchnorm
    assert arch(name, norm="batch").has_batchnorm
    assert any(isinstance(m, nn.GroupNorm) for m in built(name).modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in built(name, norm="batch").modules())


def test_architectures_compare_by_what_they_are_and_tell_their_convolutions() -> None:
    assert arch("cnn-5-5").has_convolutions
    assert not arch("mlp").has_convolutions
    assert arch("mlp") == Architecture("mlp", {"widths": [128]}, (1, 16, 16), 10)
    assert arch("mlp") != arch("mlp", widths=[64])


@pytest.mark.parametrize(
    ("name", "params", "field", "words"),
    [
        ("cnn-55", {}, "model.name", "'cnn-5-5'"),
        ("mlp", {"width": [3]}, "model.params.width", "'widths'"),
        ("mlp", {"widths": [0]}, "model.params.widths.0", "at least 1"),
        ("mlp", {"widths": "many"}, "model.params.widths", ""),
        ("resnet8", {"norm": "layer"}, "model.params.norm", "group"),
        ("cnn-5-5", {"kernel": 3}, "model.params.kernel", "Remove it"),
        ("import:torch.nn", {}, "model.name", "import:package.module:Class"),
        ("import:no.such.package:Net", {}, "model.name", "ModuleNotFoundError"),
        ("import:torch.nn:Nothing", {}, "model.name", "AttributeError"),
        ("import:torch.nn:Linear", {}, "model.name", "TypeError"),
        ("import:collections:Counter", {}, "model.name", "makes no networks"),
        ("import:torch.nn.functional:relu", {}, "model.name", "a function that takes `classes`"),
        ("import:torch.nn:Flatten", {}, "model.name", "(2, 256), not to logits (2, 10)"),
        ("import:torch.nn:Linear", {"in_features": 3, "out_features": 4}, "model.name", "does not accept"),
    ],
)
def test_wrong_specs_are_one_clear_error(name, params, field, words):
    error = refusal(name, **params)
    assert error.field == field
    assert words in str(error)


def test_an_imported_class_is_given_what_it_accepts(tmp_path, monkeypatch):
    (tmp_path / "fdaudit_test_networks.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, input_shape, width=3):\n"
        "        c, h, w = input_shape\n"
        "        super().__init__(nn.BatchNorm2d(c), nn.Flatten(), nn.Linear(c * h * w, width),\n"
        "                         nn.Linear(width, classes))\n"
        "class Fixed(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Dropout(), nn.Linear(64, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = arch("import:fdaudit_test_networks:Net", (1, 8, 8), 4, width=5)
    assert made.has_batchnorm
    assert not made.has_convolutions
    one, same = (made.build(child(0, "model")) for _ in range(2))
    assert torch.equal(one[2].weight, same[2].weight)
    assert one[2].out_features == 5
    assert one(torch.zeros(3, 1, 8, 8)).shape == (3, 4)
    assert arch("import:fdaudit_test_networks:Fixed", (1, 8, 8), 2).build(child(0, "m")).training
    assert "not to logits" in str(refusal("import:fdaudit_test_networks:Fixed", (1, 8, 8), 3))


@pytest.mark.thorough
def test_torchvision_is_imported_only_for_its_resnets():
    code = (
        "import sys; from fdaudit.models import *; from fdaudit.rng import child; "
        "from fdaudit.spec.schema import ModelSpec\n"
        "architecture(ModelSpec(name='resnet8'), (1, 8, 8), 10).build(child(0, 'm'))\n"
        "sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_residual_blocks_compute_what_torchvisions_compute_bit_for_bit(name):
    """Only their sums lie elsewhere in memory."""
    from torchvision.models import resnet

    made = built(name, (1, 8, 8), 4).eval()
    x = torch.rand(2, 1, 8, 8, generator=child(1, "x"))
    with torch.no_grad():
        ours = made(x)
        for block in made.modules():
            if isinstance(block, resnet.BasicBlock | resnet.Bottleneck):
                block.__class__ = (
                    resnet.BasicBlock if isinstance(block, resnet.BasicBlock) else resnet.Bottleneck
                )
        assert torch.equal(made(x), ours)


def test_a_standardized_mlp_sees_neither_brightness_nor_contrast() -> None:
    x = torch.rand(5, 1, 4, 4, generator=child(0, "x"))

    def logits(standardize: bool, images: torch.Tensor) -> torch.Tensor:
        params = {"widths": [7], "standardize": standardize}
        made = architecture(ModelSpec(name="mlp", params=params), (1, 4, 4), 3).build(child(0, "w"))
        assert len(list(made.parameters())) == 4, "nothing of the scaling is trained"
        answers: torch.Tensor = made(images)
        return answers

    changed = 0.5 * x + 0.2
    torch.testing.assert_close(logits(True, x), logits(True, changed), atol=1e-3, rtol=0)
    assert not torch.allclose(logits(False, x), logits(False, changed), atol=1e-3)


def test_the_work_of_a_network_is_counted_by_hand():
    """Two operations a weight of a matrix, and a weight of a convolution at each place."""
    dense = architecture(ModelSpec(name="mlp", params={"widths": [7]}), (1, 4, 4), 3)
    assert dense.work == 2 * (16 * 7 + 7 * 3)
    strided = architecture(ModelSpec(name="cnn-strided", params={"channels": [5], "kernel": 3}), (2, 8, 8), 3)
    layers = [m for m in strided.build(child(0, "w")).modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    (conv, head) = layers
    places = head.in_features // conv.out_channels
    assert strided.work == 2 * (conv.weight.numel() * places + head.weight.numel())


@pytest.mark.parametrize("name", ZOO)
def test_the_work_of_a_network_is_what_pytorch_counts(name: str) -> None:
    network = architecture(ModelSpec(name=name), (1, 28, 28), 3)
    with torch.device("meta"):
        module = network.build(child(0, "w")).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(network.blank_inputs(1, "meta"))
    assert network.work == counter.get_total_flops()


def test_a_small_network_is_tried_without_the_compiler() -> None:
    program = """
import sys
from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
for name in ("mlp", "cnn-5-5", "cnn-strided", "lenet-dlg", "resnet8", "resnet18"):
    architecture(ModelSpec(name=name), (1, 28, 28), 3).work
    print("torch._dynamo" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *small, large = run.stdout.split()
    assert set(small) == {"False"}
    assert large == "True"


@pytest.mark.parametrize(
    ("library", "make"),
    [
        ("transformers", lambda: architecture(PRETRAINED, (8,), 2, TEXT, 9)),
        ("tokenizers", lambda: PieceNumbering(8, Pieces(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "ship")))),
    ],
)
def test_what_needs_the_extra_for_texts_says_so(library, make, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=rf" {library}, .*'fdaudit\[text\]'"):
        make()


def test_an_mlp_takes_vectors_and_other_networks_say_so() -> None:
    made = architecture(ModelSpec(name="mlp", params={"widths": [4]}), (5,), 2)
    assert made.tried(3).shape == (3, 2)
    with pytest.raises(SpecError, match="does not accept") as caught:
        architecture(ModelSpec(name="cnn-strided"), (5,), 2)
    assert "'mlp'" in caught.value.remedy
