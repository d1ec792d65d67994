"""Files written here are read by safetensors and transformers, and theirs are read here."""

import json
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)


@pytest.fixture
def io_tool(build_dir):
    def run(*args, stdin=""):
        command = [build_dir / "tests/io/io_tool", *map(str, args)]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def raw_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def all_dtypes():
    generator = torch.Generator().manual_seed(1)
    dtypes = {
        "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
        "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
        "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
    }  # fmt: skip
    tensors = {}
    for name, dtype in dtypes.items():
        values = torch.randint(0, 2, (3, 5), generator=generator)
        tensors[name] = values.float().to(dtype) if dtype.is_floating_point else values.to(dtype)
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.zeros(0, 4, dtype=torch.bfloat16)
    return tensors


def test_safetensors_by_the_reference_writer_are_read_to_the_bit(io_tool, tmp_path):
    tensors = all_dtypes()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    seen = json.loads(io_tool("dump", tmp_path))
    assert seen.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert seen[name]["shape"] == list(tensor.shape)
        assert bytes.fromhex(seen[name]["hex"]) == raw_bytes(tensor)
        if name not in ("scalar", "empty"):
            assert seen[name]["dtype"] == name


@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 40])
def test_our_safetensors_are_read_by_the_reference_reader_to_the_bit(io_tool, tmp_path, max_shard_bytes):
    tensors = all_dtypes()
    save_file(tensors, tmp_path / "in.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    io_tool("rewrite", tmp_path / "in.safetensors", out, max_shard_bytes)
    files = sorted(out.glob("*.safetensors"))
    assert len(files) == 1 if max_shard_bytes > 1000 else len(files) > 3
    loaded = {}
    for file in files:
        loaded |= load_file(file)
        with safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert raw_bytes(loaded[name]) == raw_bytes(tensor)


def moe_config(**changes):
    values = dict(
        architectures=["Qwen3MoeForCausalLM"], vocab_size=40, hidden_size=64, intermediate_size=96,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        max_position_embeddings=128, rope_theta=5e5, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return Qwen3MoeConfig(**(values | changes))


def dense_config(**changes):
    values = dict(
        architectures=["Qwen3ForCausalLM"], vocab_size=40, hidden_size=64, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=128, rope_theta=1e4, eos_token_id=[1, 2], tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3Config(**(values | changes))


YARN = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32,
            beta_fast=16.0, attention_factor=1.25)  # fmt: skip
SHARED = dict(
    vocab_size=40, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, num_experts_per_tok=2, eos_token_id=1,
    pad_token_id=0,
)  # fmt: skip


CONFIGS = [
    moe_config(),
    moe_config(tie_word_embeddings=True, norm_topk_prob=False, bos_token_id=3, eos_token_id=None),
    moe_config(decoder_sparse_step=2, mlp_only_layers=[3], rms_norm_eps=1e-5),
    dense_config(),
    dense_config(num_key_value_heads=4, tie_word_embeddings=False),
    dense_config(rope_parameters=YARN),
    Qwen2MoeConfig(
        architectures=["Qwen2MoeForCausalLM"], moe_intermediate_size=32, num_experts=8, **SHARED,
        shared_expert_intermediate_size=64, mlp_only_layers=[1], rope_parameters=YARN,
    ),  # fmt: skip
    OlmoeConfig(architectures=["OlmoeForCausalLM"], num_experts=8, norm_topk_prob=True, **SHARED),
    MixtralConfig(
        architectures=["MixtralForCausalLM"], num_local_experts=8, **SHARED,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0),
    ),  # fmt: skip
]


@pytest.mark.parametrize("config", CONFIGS)
def test_config_survives_the_way_from_transformers_to_us_and_back(io_tool, tmp_path, config):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    config.save_pretrained(tmp_path / "theirs")
    io_tool("config", tmp_path / "theirs", tmp_path / "ours")
    back = AutoConfig.from_pretrained(tmp_path / "ours")
    expected, actual = config.to_dict(), back.to_dict()
    assert back.dtype is torch.bfloat16
    # What has no influence on the model, and head_dim, which transformers may leave to its default.
    for key in ("dtype", "transformers_version", "torch_dtype", "rope_scaling", "rope_theta",
                "rope_parameters", "_name_or_path", "head_dim"):  # fmt: skip
        expected.pop(key, None)
        actual.pop(key, None)
    assert actual == expected
    # Defaults are written out.
    assert config.rope_parameters.items() <= back.rope_parameters.items()
    assert back.head_dim == (getattr(config, "head_dim", None) or 64 // 4)


@pytest.mark.parametrize("index", [2, 3])
def test_model_directory_rewritten_by_us_gives_the_same_logits(io_tool, tmp_path, index):
    config = CONFIGS[index]
    torch.manual_seed(index)
    kind = Qwen3MoeForCausalLM if isinstance(config, Qwen3MoeConfig) else Qwen3ForCausalLM
    model = kind(config).to(torch.bfloat16)
    (tmp_path / "ours").mkdir()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="50KB")
    io_tool("config", tmp_path / "theirs", tmp_path / "ours")
    io_tool("rewrite", tmp_path / "theirs", tmp_path / "ours", 40_000)
    assert len(list((tmp_path / "ours").glob("model-*.safetensors"))) > 1
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(ours) is kind and ours.dtype is torch.bfloat16
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_sparse_layers_are_those_of_transformers():
    model = Qwen3MoeForCausalLM(CONFIGS[2])
    # The rule of ModelConfig::is_sparse, which tests/io checks against written-out layers.
    expected = [layer not in [3] and (layer + 1) % 2 == 0 for layer in range(4)]
    assert [hasattr(layer.mlp, "experts") for layer in model.model.layers] == expected


def test_generation_config_survives_both_ways(io_tool, tmp_path):
    (tmp_path / "ours").mkdir()
    config = GenerationConfig(
        eos_token_id=[1, 2], pad_token_id=0, do_sample=True, temperature=0.6, top_p=0.95, top_k=20
    )
    config.save_pretrained(tmp_path / "theirs")
    io_tool("generation-config", tmp_path / "theirs", tmp_path / "ours")
    back = GenerationConfig.from_pretrained(tmp_path / "ours")
    for key in ("eos_token_id", "pad_token_id", "do_sample", "temperature", "top_p", "top_k"):
        assert getattr(back, key) == getattr(config, key), key
