"""Quantised checkpoints against compressed-tensors, transformers and ModelOpt: what we write they
dequantise to our values, and what they write we do, bit for bit."""

import copy
import json
import subprocess

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

SIZES = dict(
    vocab_size=48,
    hidden_size=128,
    intermediate_size=192,
    max_position_embeddings=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_hidden_layers=2,
    initializer_range=0.15,
    tie_word_embeddings=False,
)
FORMATS = ("nvfp4-modelopt", "nvfp4-compressed-tensors", "fp8")
NVFP4 = FORMATS[:2]


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        **SIZES, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=64
    )
    path = tmp_path_factory.mktemp("moe") / "model"
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def dense():
    torch.manual_seed(4)
    return AutoModelForCausalLM.from_config(Qwen3Config(**SIZES), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def quantize(build_dir, tmp_path_factory):
    """quantize(model, format, *options) -> the directory that quads quantize wrote."""

    def run(model, format, *options):
        out = tmp_path_factory.mktemp("quantised") / "model"
        subprocess.run(
            [build_dir / "src/cli/quads", "quantize", "--model", model, "--format", format,
             "--out", out, "--quantize", "linears", *options],
            check=True, capture_output=True,
        )  # fmt: skip
        return out

    return run


@pytest.fixture(scope="module")
def dequantize(build_dir, tmp_path_factory):
    """dequantize(directory) -> {name: BF16 tensor}, as we read the checkpoint."""

    def run(model):
        out = tmp_path_factory.mktemp("dequantised")
        tool = build_dir / "tests/checkpoints/checkpoints_tool"
        result = subprocess.run([tool, model, out], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return load_file(out / "model.safetensors")

    return run


def options(format, global_scale):
    return [] if format == "fp8" else ["--weights-only", "--global-scale", global_scale]


def modules(tensors, suffix):
    return sorted(name.removesuffix(suffix) for name in tensors if name.endswith(suffix))


def module_tensors(tensors, module):
    """Those directly in the module, by local name."""
    prefix = module + "."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def assert_same_bits(ours, theirs, what):
    assert ours.dtype == theirs.dtype == torch.bfloat16, what
    assert torch.equal(ours.view(torch.int16), theirs.contiguous().view(torch.int16)), what


def config_of(directory):
    return json.loads((directory / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("global_scale", ["pow2", "amax"])
def test_compressed_tensors_dequantises_what_we_write_to_our_values(
    moe, quantize, dequantize, global_scale
):
    directory = quantize(
        moe, "nvfp4-compressed-tensors", *options("nvfp4-compressed-tensors", global_scale)
    )
    config = QuantizationConfig.model_validate(config_of(directory))
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(config.format)
    tensors, ours = load_file(directory / "model.safetensors"), dequantize(directory)
    names = modules(tensors, ".weight_packed")
    assert len(names) == 2 * (4 + 3 * 3)
    for name in names:
        theirs = compressor.decompress(module_tensors(tensors, name), scheme)["weight"]
        assert_same_bits(ours[name + ".weight"], theirs, name)


def test_power_of_two_scales_lose_nothing_between_the_nvfp4_formats(moe, quantize, dequantize):
    one, two = (dequantize(quantize(moe, f, *options(f, "pow2"))) for f in NVFP4)
    assert one.keys() == two.keys()
    for name in one:
        assert_same_bits(one[name], two[name], name)


def test_transformers_loads_our_compressed_tensors_checkpoint(dense, quantize, dequantize, tmp_path):
    """Linear layers; transformers 5.24 reads no NVFP4 experts: it drops their global scales."""
    dense.save_pretrained(tmp_path / "dense")
    directory = quantize(
        tmp_path / "dense", "nvfp4-compressed-tensors", "--weights-only", "--global-scale", "amax"
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    model(torch.tensor([[1, 2, 3]]))  # decompresses
    theirs, ours = model.state_dict(), dequantize(directory)
    assert len(ours) == 2 * 11 + 3
    for name, tensor in ours.items():
        assert_same_bits(tensor, theirs[name], name)


@pytest.mark.parametrize("preset", ["NVFP4A16", "NVFP4"])
def test_we_read_what_compressed_tensors_writes(moe, dequantize, tmp_path, preset):
    scheme = preset_name_to_scheme(preset, ["Linear"])
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    tensors, expected = {}, {}
    for name, weight in load_file(moe / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            tensors[name] = expected[name] = weight
            continue
        # gate and up have global scales of their own here, as when nobody fuses them.
        global_scale = (2688.0 / weight.abs().max().float()).reshape(1)
        blocks = weight.float().unflatten(-1, (-1, 16)).abs().amax(-1)
        scale = (global_scale * blocks / 6.0).to(torch.float8_e4m3fn)
        state = dict(weight=weight, weight_scale=scale.float(), weight_global_scale=global_scale)
        state = compressor.compress(state, scheme)
        if preset == "NVFP4":
            state["input_global_scale"] = torch.tensor([3.7])
        tensors |= {f"{module}.{key}": value for key, value in state.items()}
        expected[name] = compressor.decompress(state, scheme)["weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    quantization = QuantizationConfig(
        config_groups={"group_0": scheme},
        format="nvfp4-pack-quantized",
        quantization_status="compressed",
        ignore=["re:.*lm_head", "re:.*mlp.gate$"],
    )
    config = json.loads((moe / "config.json").read_text())
    config["quantization_config"] = json.loads(quantization.model_dump_json())
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = dequantize(tmp_path)
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same_bits(ours[name], tensor, name)


@pytest.mark.parametrize("scales", ["ours", "f32", "bf16"])
def test_fp8_is_dequantised_as_transformers_does(moe, quantize, dequantize, scales):
    directory = quantize(moe, "fp8")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    names = modules(tensors, ".weight_scale_inv")
    assert len(names) == 2 * (4 + 3 * 3)
    if scales != "ours":  # any number, as other tools' files have
        generator = torch.Generator().manual_seed(1)
        for name in names:
            scale = tensors[name + ".weight_scale_inv"]
            scale = scale * (0.5 + torch.rand(scale.shape, generator=generator))
            tensors[name + ".weight_scale_inv"] = scale.to(
                torch.float32 if scales == "f32" else torch.bfloat16
            )
        save_file(tensors, path, {"format": "pt"})
    ours = dequantize(directory)
    for name in names:
        # transformers finds the block's size from the number of scales: right up to 128 rows, and
        # for multiples of 128.
        weight, scale = tensors[name + ".weight"], tensors[name + ".weight_scale_inv"]
        assert all(n <= 128 for n in weight.shape)
        theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.bfloat16)
        assert_same_bits(ours[name + ".weight"], theirs, name)


@pytest.fixture(scope="module")
def modelopt():
    """nvidia-modelopt is not among the pinned packages: it lags behind torch and transformers."""
    names = ("torch.quantization", "torch.quantization.qtensor.nvfp4_tensor", "torch.export",
             "torch.export.convert_hf_config")  # fmt: skip
    reason = "NOT TESTED: nvidia-modelopt is not installed"
    return [pytest.importorskip(f"modelopt.{name}", reason=reason) for name in names]


def assert_modelopt_dequantises_to(ours, tensors, qtensor):
    """Equal as numbers: ModelOpt reads code 8, -0, as 0."""
    for name in modules(tensors, ".weight_scale_2"):
        codes = tensors[name + ".weight"]
        shape = (codes.shape[0], codes.shape[1] * 2)
        theirs = qtensor.NVFP4QTensor(torch.Size(shape), torch.bfloat16, codes).dequantize(
            scale=tensors[name + ".weight_scale"],
            double_scale=tensors[name + ".weight_scale_2"],
            block_sizes={-1: 16},
        )
        assert torch.equal(ours[name + ".weight"], theirs), name


@pytest.mark.parametrize("global_scale", ["pow2", "amax"])
def test_modelopt_dequantises_what_we_write_to_our_values(
    modelopt, moe, quantize, dequantize, global_scale
):
    _, qtensor, _, convert = modelopt
    directory = quantize(moe, "nvfp4-modelopt", *options("nvfp4-modelopt", global_scale))
    tensors, ours = load_file(directory / "model.safetensors"), dequantize(directory)
    assert len(modules(tensors, ".weight_scale_2")) == 2 * (4 + 3 * 3)
    assert_modelopt_dequantises_to(ours, tensors, qtensor)
    hf_quant_config = json.loads((directory / "hf_quant_config.json").read_text())
    assert convert.convert_hf_quant_config_format(hf_quant_config) == config_of(directory)


def test_what_modelopt_exports_we_read_to_its_values(modelopt, dense, dequantize, tmp_path):
    quantization, qtensor, export, _ = modelopt
    model = copy.deepcopy(dense)
    model.config.architectures = ["Qwen3ForCausalLM"]  # as a model that was loaded has it
    prompt = torch.arange(40)[None]
    with torch.no_grad():
        quantization.quantize(
            model, quantization.NVFP4_DEFAULT_CFG, forward_loop=lambda model: model(prompt)
        )
        export.export_hf_checkpoint(model, export_dir=tmp_path)
    tensors, ours = load_file(tmp_path / "model.safetensors"), dequantize(tmp_path)
    names = modules(tensors, ".weight_scale_2")
    assert len(names) == 2 * (4 + 3) and all(name + ".input_scale" in tensors for name in names)
    assert_modelopt_dequantises_to(ours, tensors, qtensor)
    assert_same_bits(ours["lm_head.weight"], dense.lm_head.weight, "lm_head")
