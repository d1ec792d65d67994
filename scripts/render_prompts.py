#!/usr/bin/env python3
"""Renders prompts with a model's own chat template, for models that are not spoken to in ChatML:
render_prompts.py --model DIR IN.jsonl OUT.jsonl (or --template FILE.jinja).

Needs transformers. Every line of OUT is that of IN with the prompt, a list of messages or a text
(the user's message), replaced by the rendered text, up to the start of the answer. `quads` reads OUT
without --apply-chat-template. OUT is written whole or not at all."""

import argparse
import json
import pathlib

from whole_file import write_whole


def options_of(pairs):
    """KEY=VALUE pairs; VALUE is JSON where it parses as such, else a text."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--template-option '{pair}': KEY=VALUE is expected")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def renderer(arguments):
    options = options_of(arguments.template_option)
    if arguments.model:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.model, local_files_only=True)
        return lambda messages: tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
    from transformers.utils.chat_template_utils import render_jinja_template

    template = arguments.template.read_text(encoding="utf-8")
    return lambda messages: render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, **options
    )[0][0]


def convert(arguments, out):
    render = renderer(arguments)
    with open(arguments.source, encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                prompt = line[arguments.input_key]
                if isinstance(prompt, str):
                    prompt = [{"role": "user", "content": prompt}]
                line[arguments.input_key] = render(prompt)
            except Exception as error:
                raise ValueError(f"{arguments.source}:{number}: {type(error).__name__}: {error}") from None
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=pathlib.Path, help="directory with a tokenizer and its template")
    which.add_argument("--template", type=pathlib.Path, help="a template alone")
    parser.add_argument("--template-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--input-key", default="prompt")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    write_whole(arguments.out, lambda out: convert(arguments, out))


if __name__ == "__main__":
    main()
