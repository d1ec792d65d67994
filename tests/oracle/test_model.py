"""The models against transformers: files both ways, FP32 logits, greedy tokens, BF16 bounds."""

import copy
import json
import subprocess

import numpy
import pytest
import torch
import transformers
from transformers import MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig

SHARED = dict(
    vocab_size=43,
    hidden_size=64,
    intermediate_size=96,
    max_position_embeddings=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    rope_theta=10000.0,
    initializer_range=0.15,
)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2)
MOE = EXPERTS | dict(moe_intermediate_size=32)
TOKEN_IDS = dict(eos_token_id=None, pad_token_id=None)  # OLMoE's defaults are beyond this vocabulary
CONFIGS = {
    "moe": Qwen3MoeConfig(
        **SHARED | MOE,
        num_hidden_layers=2,
        head_dim=32,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    ),
    "moe-mixed-tied": Qwen3MoeConfig(
        **SHARED | MOE | dict(num_experts_per_tok=3, rope_theta=1e6, num_key_value_heads=1),
        num_hidden_layers=4,
        head_dim=16,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=False,
        tie_word_embeddings=True,
    ),
    "moe-wide-heads": Qwen3MoeConfig(
        **SHARED | MOE | dict(hidden_size=32, num_attention_heads=3, num_key_value_heads=3),
        num_hidden_layers=3,
        head_dim=64,
        mlp_only_layers=[0],
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
    "dense": Qwen3Config(**SHARED, num_hidden_layers=2, head_dim=32, tie_word_embeddings=False),
    "dense-tied": Qwen3Config(**SHARED, num_hidden_layers=3, head_dim=16, tie_word_embeddings=True),
    "dense-yarn": Qwen3Config(
        **SHARED | dict(num_key_value_heads=4),
        num_hidden_layers=2,
        head_dim=32,
        rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "qwen2-moe": Qwen2MoeConfig(
        **SHARED | MOE,
        num_hidden_layers=3,
        head_dim=32,
        shared_expert_intermediate_size=64,
        mlp_only_layers=[1],
    ),
    "qwen2-moe-tied": Qwen2MoeConfig(
        **SHARED | MOE | dict(num_attention_heads=2, num_key_value_heads=1),
        num_hidden_layers=2,
        shared_expert_intermediate_size=32,
        norm_topk_prob=True,
        qkv_bias=False,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="linear", factor=3.0),
    ),
    "olmoe": OlmoeConfig(
        **SHARED | EXPERTS | dict(num_key_value_heads=4), **TOKEN_IDS, num_hidden_layers=2
    ),
    "olmoe-tied": OlmoeConfig(
        **SHARED | EXPERTS | dict(num_attention_heads=4, num_key_value_heads=1),
        **TOKEN_IDS,
        num_hidden_layers=3,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
    "mixtral": MixtralConfig(
        **SHARED | EXPERTS, num_hidden_layers=2, head_dim=32, rms_norm_eps=1e-6
    ),
    "mixtral-tied": MixtralConfig(
        **SHARED | EXPERTS | dict(num_key_value_heads=1),
        num_hidden_layers=2,
        tie_word_embeddings=True,
        rope_parameters=dict(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
}
TOKENS = [int(t) for t in numpy.random.default_rng(3).integers(0, 43, size=37)]


@pytest.fixture(scope="session")
def model_tool(build_dir):
    program = build_dir / "tests" / "model" / "model_tool"
    if not program.exists():
        pytest.skip(f"{program} is not built (set QUADS_BUILD_DIR)")

    def run(**request):
        process = subprocess.run(
            [program], input=json.dumps(request, default=str), capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr

    return run


@pytest.fixture
def logits_of(model_tool, tmp_path):
    def run(model, precision, tokens, **options):
        out = tmp_path / "logits.f32"
        model_tool(
            function="logits", model=model, precision=precision, tokens=tokens, out=out, **options
        )
        values = torch.from_numpy(numpy.fromfile(out, dtype=numpy.float32))
        return values.reshape(len(tokens), -1)

    return run


def random_model(config, seed=0):
    """BF16 values held in FP32; norms and biases too are drawn, or a swapped one would not be
    seen."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "bias" in name:
                parameter.uniform_(-0.5, 0.5)
            parameter.copy_(parameter.bfloat16())
    return model.float().eval()


@torch.no_grad()
def their_logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0]


def max_logprob_difference(a, b):
    return (a.log_softmax(-1) - b.log_softmax(-1)).abs().max().item()


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_transformers_loads_what_we_write_and_gives_our_logits(
    config, model_tool, logits_of, tmp_path
):
    config.save_pretrained(tmp_path / "config")
    (tmp_path / "model").mkdir()
    model_tool(function="init", model=tmp_path / "config", seed=5, out=tmp_path / "model")
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    ours = logits_of(tmp_path / "model", "reference", TOKENS)
    expected = their_logits(theirs, TOKENS)
    assert expected.std() > 0.1  # flat logits would agree whatever the model
    assert max_logprob_difference(ours, expected) < 1e-4


def test_we_load_what_transformers_writes_and_give_its_logits(config, logits_of, tmp_path):
    model = random_model(config)
    model.save_pretrained(tmp_path / "model")  # FP32 files with BF16 values
    ours = logits_of(tmp_path / "model", "reference", TOKENS)
    assert max_logprob_difference(ours, their_logits(model, TOKENS)) < 1e-4


def test_bf16_files_and_shards_read_as_the_same_model(config, logits_of, tmp_path):
    model = random_model(config)
    copy.deepcopy(model).bfloat16().save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    ours = logits_of(tmp_path / "sharded", "reference", TOKENS)
    assert max_logprob_difference(ours, their_logits(model, TOKENS)) < 1e-4


def test_fused_experts_read_as_the_same_model(config, logits_of, tmp_path):
    """What save_pretrained writes when it keeps its own names."""
    model = random_model(config)
    model.save_pretrained(tmp_path / "model", save_original_format=False)
    ours = logits_of(tmp_path / "model", "reference", TOKENS)
    assert max_logprob_difference(ours, their_logits(model, TOKENS)) < 1e-4


def test_a_directory_read_and_written_again_holds_the_same_tensors(config, model_tool, tmp_path):
    model = random_model(config)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    model_tool(function="copy", model=tmp_path / "theirs", out=tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32
    )
    expected = model.state_dict()
    actual = again.state_dict()
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, actual[name]), name


def test_greedy_continuation_equals_generates(config, logits_of, tmp_path):
    model = random_model(config, seed=1)
    model.save_pretrained(tmp_path / "model")
    prompt = TOKENS[:5]
    expected = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=16,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )[0].tolist()
    ours = list(prompt)
    while len(ours) < len(expected):
        ours.append(int(logits_of(tmp_path / "model", "reference", ours)[-1].argmax()))
    assert ours == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_bf16_blocks_stay_within_their_rounding_of_the_reference(
    config, logits_of, tmp_path, threads
):
    """The blocks round operands to BF16; transformers in BF16 rounds those and every intermediate
    besides, so ours must be nearer to FP32 than its. The typical row counts: a rounding that turns
    a router's choice makes a row jump in both."""
    model = random_model(config)
    model.save_pretrained(tmp_path / "model")
    exact = logits_of(tmp_path / "model", "reference", TOKENS)
    ours = logits_of(tmp_path / "model", "bf16", TOKENS, threads=threads)
    in_bf16 = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.bfloat16
    )
    theirs = their_logits(in_bf16, TOKENS).float()

    def typical_error(logits):
        return (logits - exact).square().mean(dim=-1).sqrt().median().item()

    assert 0 < typical_error(ours) < 0.75 * typical_error(theirs)
    # Rounding an operand to BF16 errs by up to 2^-9 of it. Each block has four products in a row,
    # and errors of independent roundings add up like a random walk.
    products = 4 * 2 * config.num_hidden_layers
    # A score errs by 2^-9 of itself, and moves a probability by that. A norm of each head bounds the
    # scores; with another norm or none they are larger.
    attention = model.model.layers[0].self_attn
    norm_of_heads = hasattr(attention, "q_norm") and len(attention.q_norm.weight) == attention.head_dim
    steepness = 1 if norm_of_heads else 2
    assert typical_error(ours) < steepness * 2**-9 * products**0.5 * exact.std().item()
