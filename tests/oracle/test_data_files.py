"""ChatML prompts against transformers' rendering of Qwen3's chat template, and data files that
scripts/ makes from Parquet, other chat templates and LiveCodeBench."""

import base64
import json
import pathlib
import pickle
import random
import subprocess
import sys
import zlib

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

# The template of Qwen3's tokenizer_config.json, without its branches for tools.
QWEN3 = r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


TOOL = "<tool_response>\n3\n</tool_response>"


def conversations():
    pieces = ["", "\n", "x", "\n\ny\n", "<think>", "</think>", "<think>\na\n</think>\n\nb", "ü\u3042😀", "{{x}}"]
    result = [
        [user("")],
        [system(""), user("x")],
        [user("x"), system("in the middle"), user("y")],
        [user("x"), assistant(None), user("y")],
        [user("x"), assistant("<think>\nb\n</think>\n\nc"), user(TOOL)],
        [user("x"), assistant("c", reasoning_content="\nwhy\n"), user(TOOL)],
        [user("x"), assistant("\n\nc", reasoning_content=""), user(TOOL)],
        [user(TOOL)],
    ]
    draw = random.Random(1)
    for _ in range(300):
        messages = [system("".join(draw.choices(pieces, k=2)))] if draw.random() < 0.5 else []
        for _ in range(draw.randrange(3)):
            text = "".join(draw.choices(pieces, k=draw.randrange(4)))
            more = {"reasoning_content": draw.choice(pieces)} if draw.random() < 0.3 else {}
            question = TOOL if draw.random() < 0.3 else draw.choice(pieces)
            messages += [user(question), assistant(text, **more)]
        result.append([*messages, user(TOOL if draw.random() < 0.3 else draw.choice(pieces))])
    return result


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*command):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("thinking", [True, False])
def test_chatml_is_qwen3s_template(build_dir, tmp_path, thinking):
    all_messages = conversations()
    lines = [{"prompt": messages, "label": "1"} for messages in all_messages]
    problems = run(
        build_dir / "tests/tasks/data_tool", write_lines(tmp_path / "p.jsonl", lines), int(thinking)
    )
    assert len(problems) == len(all_messages)
    for messages, problem in zip(all_messages, problems):
        expected, _ = render_jinja_template(
            [messages], chat_template=QWEN3, add_generation_prompt=True, enable_thinking=thinking
        )
        assert problem["prompt"] == expected[0], messages


def test_parquet_becomes_the_lines_that_are_read(build_dir, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="NOT TESTED: pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [user(f"{i} + 1?")],
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"index": i, "split": "train"},
        }
        for i in range(5)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet", row_group_size=2)
    out = tmp_path / "train.jsonl"
    run(sys.executable, SCRIPTS / "parquet_to_jsonl.py", tmp_path / "train.parquet", out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    problems = run(build_dir / "tests/tasks/data_tool", out, 1)
    assert [p["label"] for p in problems] == ["1", "2", "3", "4", "5"]
    assert problems[3]["metadata"] == {"data_source": "openai/gsm8k", "index": 3, "split": "train"}
    assert "3 + 1?" in problems[3]["prompt"]


def test_parquet_values_that_json_has_not_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="NOT TESTED: pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"prompt": ["x"], "image": [b"\xff"]}), tmp_path / "b.parquet")
    out = tmp_path / "b.jsonl"
    result = subprocess.run(
        [sys.executable, SCRIPTS / "parquet_to_jsonl.py", tmp_path / "b.parquet", out],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1 and "row 0" in result.stderr and "image" in result.stderr
    assert not out.exists()


def test_prompts_in_another_template_are_written_as_texts(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ tail }}")
    lines = [
        {"prompt": [system("s"), user("q")], "label": "1", "metadata": {"k": 2}},
        {"prompt": "plain", "label": "2"},
    ]
    out = tmp_path / "out.jsonl"
    run(
        sys.executable, SCRIPTS / "render_prompts.py", "--template", template,
        "--template-option", "tail=end", write_lines(tmp_path / "in.jsonl", lines), out,
    )  # fmt: skip
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert written == [
        {"prompt": "[system] s\n[user] q\nend", "label": "1", "metadata": {"k": 2}},
        {"prompt": "[user] plain\nend", "label": "2"},
    ]


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_live_code_benchs_private_tests_are_unpacked(tmp_path):
    tests = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    lines = [
        {"question_content": "q", "private_test_cases": packed(tests)},
        {"question_content": "q", "private_test_cases": tests},
        {"question_content": "q"},
    ]
    out = tmp_path / "out.jsonl"
    run(sys.executable, SCRIPTS / "unpack_livecodebench.py", write_lines(tmp_path / "in.jsonl", lines), out)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line.get("private_test_cases") for line in written] == [tests, tests, None]


class Evil:
    def __reduce__(self):
        return (print, ("evil",))


@pytest.mark.parametrize("private", [packed(Evil()), packed(["x"]), packed("{}"), "AAAA", "?"])
def test_private_tests_that_are_anything_but_a_text_are_refused(tmp_path, private):
    source = write_lines(tmp_path / "in.jsonl", [{"private_test_cases": private}])
    out = tmp_path / "out.jsonl"
    result = subprocess.run(
        [sys.executable, SCRIPTS / "unpack_livecodebench.py", source, out], capture_output=True, text=True
    )
    assert result.returncode == 1 and f"{source}:1: " in result.stderr
    assert "evil" not in result.stdout and not out.exists()
