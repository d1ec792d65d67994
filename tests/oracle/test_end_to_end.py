"""A real model's way through the program: a random Qwen3-MoE of transformers with a byte-level
tokenizer learns from chat problems in JSON Lines under the recipe `quads`, is evaluated, and is
loaded by transformers again."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def problem(a, b):
    return f"What is {a} + {b}?"


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([problem(a, b) for a in range(30) for b in range(30)], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    ).save_pretrained(directory)
    torch.manual_seed(1)
    end = tokenizer.token_to_id("<|im_end|>")
    config = Qwen3MoeConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, moe_intermediate_size=32,
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, max_position_embeddings=256,
        eos_token_id=end, bos_token_id=None, pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = end
    model.save_pretrained(directory)
    return directory


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def quads(build_dir):
    def run(*arguments):
        command = [build_dir / "src/cli/quads", *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_trains_evaluates_saves_and_transformers_loads_it(quads, model_directory, tmp_path):
    train = write_lines(
        tmp_path / "train.jsonl",
        [
            {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": problem(a, 2 * a)}],
                "reward_model": {"style": "rule", "ground_truth": str(3 * a)},
            }
            for a in range(8)
        ],
    )
    held_out = write_lines(
        tmp_path / "test.jsonl",
        [{"problem": problem(a, 1), "answer": a + 1} for a in range(10, 14)],
    )
    chat = ["--apply-chat-template", "--no-enable-thinking", "--rm-type", "math", "--rm-python", sys.executable]
    out = tmp_path / "run"
    quads(
        "train", "--load", model_directory, "--recipe", "quads", "--prompt-data", train,
        "--eval-data", held_out, *chat, "--num-rollout", 2, "--rollout-batch-size", 2,
        "--n-samples-per-prompt", 4, "--rollout-max-response-len", 12, "--rollout-max-context-len", 128,
        "--n-samples-per-eval-prompt", 2, "--threads", 2, "--out", out,
    )  # fmt: skip
    rows = read_lines(out / "metrics.jsonl")
    assert len(rows) == 2 and all("reward/failed" not in row for row in rows)
    assert rows[-1]["eval/problems"] == 4 and 0 <= rows[-1]["eval/pass@2"] <= 1
    sample = read_lines(out / "samples.jsonl")[0]
    assert sample["prompt"].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")

    checkpoint = out / "checkpoints" / "step_000002"
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    original = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    changed = [
        not torch.equal(a, b) for a, b in zip(model.parameters(), original.parameters(), strict=True)
    ]
    rewards = [row["reward/std"] for row in rows]
    assert any(changed) == any(value > 0 for value in rewards)
    assert AutoTokenizer.from_pretrained(model_directory).encode("Ünicode 42!") == tokenizer.encode(
        "Ünicode 42!"
    )

    # What transformers says greedily is what the program says in FP32.
    report = quads(
        "eval", "--model", checkpoint, "--benchmark", held_out, *chat, "--temperature", 0,
        "--max-response-len", 8, "--precision", "fp32,nvfp4-rac50", "--json",
        "--out", tmp_path / "by_problem.jsonl",
    )  # fmt: skip
    evaluations = json.loads(report)["evaluations"]
    assert [e["precision"] for e in evaluations] == ["fp32", "nvfp4-rac50"]
    lines = [x for x in read_lines(tmp_path / "by_problem.jsonl") if x["precision"] == "fp32"]
    assert "put your final answer within \\boxed{}." in lines[0]["prompt"]
    for line in lines:
        ids = tokenizer(line["prompt"], return_tensors="pt", add_special_tokens=False).input_ids
        tokens = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == line["responses"][0]


def bubblewrap_runs():
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command).returncode == 0


def test_each_problem_is_scored_by_the_reward_that_its_data_name(quads, model_directory, tmp_path):
    """Given responses, some right and some wrong, to problems of every kind in one file."""
    echo = tmp_path / "length.py"
    echo.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'reward': len(json.loads(line)['response'])}), flush=True)\n"
    )
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    cases = [  # reward, label, response, value
        ("math", "1/2", "so \\boxed{0.5}", 1),
        ("math", "x+1", "so \\boxed{1+x}", 1),
        ("math", "x+1", "so \\boxed{1-x}", 0),
        ("command", "", "four", 4),
        (None, "7", " 7 ", 1),
        (None, "7", "8", 0),
    ]
    tests = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    if bubblewrap_runs():
        right = "```python\nprint(sum(map(int, input().split())))\n```"
        cases += [("code", json.dumps(tests), right, 1)]
        cases += [("code", json.dumps(tests), right.replace("sum", "max"), 0)]
    lines = [
        {
            "prompt": f"problem {i}",
            "label": label,
            "metadata": {"rm_type": name} if name else {"level": i},
            "response_tokens": [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id],
        }
        for i, (name, label, response, _) in enumerate(cases)
    ]
    out = tmp_path / "scored.jsonl"
    quads(
        "rollout", "--model", model_directory, "--prompts", write_lines(tmp_path / "p.jsonl", lines),
        "--out", out, "--rm-python", sys.executable, "--rm-command", f"{sys.executable} {echo}",
    )  # fmt: skip
    scored = read_lines(out)
    assert [line.get("reward_failure") for line in scored] == [None] * len(cases)
    assert [line["reward"] for line in scored] == [value for *_, value in cases]
    if len(cases) == 6:
        pytest.skip("NOT TESTED: code, since bubblewrap cannot run here")
