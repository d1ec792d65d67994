"""The model against transformers: files both ways, FP32 logits, greedy tokens, BF16 bounds."""

import copy
import json
import subprocess

import numpy
import pytest
import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

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
MOE = dict(moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2)
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
    """BF16 values held in FP32; norms too are drawn, or a swapped one would not be seen."""
    torch.manual_seed(seed)
    kind = Qwen3ForCausalLM if isinstance(config, Qwen3Config) else Qwen3MoeForCausalLM
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
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
    assert typical_error(ours) < 2**-9 * products**0.5 * exact.std().item()
