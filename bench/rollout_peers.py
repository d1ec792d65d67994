"""Rollout speed beside other engines, in one run: this engine, transformers' generate and llama.cpp.

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python bench/rollout_peers.py [--model-shape demo|1b] [--batch 1 8 64] [--json F]

All run the same shape (random weights: routing is as good as uniform) on the same number of threads,
sample every token and stop at the length only. Each engine is measured alone, one after the other, in
a process of its own, whose end ends nothing else; the best of --repeats is taken, for every engine
alike. Prints tokens a second and this engine's ratio to each peer.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import tempfile
import time

# As src/bench/shapes.cpp has them.
SHAPES = {
    "demo": dict(vocab_size=16, hidden_size=128, intermediate_size=128, num_hidden_layers=4,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                 moe_intermediate_size=64, num_experts=8),
    "1b": dict(vocab_size=32768, hidden_size=2048, intermediate_size=6144, num_hidden_layers=12,
               num_attention_heads=16, num_key_value_heads=4, head_dim=128,
               moe_intermediate_size=768, num_experts=16),
}
PROMPT_LEN = 8


def best_rate(work, tokens, repeats):
    work()  # the first run allocates and compiles
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return tokens / min(seconds)


def make_model(shape):
    import torch
    import transformers

    config = transformers.Qwen3MoeConfig(
        **SHAPES[shape], num_experts_per_tok=2, norm_topk_prob=True, max_position_embeddings=4096,
        tie_word_embeddings=False, decoder_sparse_step=1)
    torch.manual_seed(1)
    return transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()


def measure_transformers(shape, batches, response_len, threads, repeats):
    import torch

    torch.set_num_threads(threads)
    model = make_model(shape)
    for batch in batches:
        ids = torch.randint(0, model.config.vocab_size, (batch, PROMPT_LEN))

        def work():
            with torch.no_grad():
                model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                               min_new_tokens=response_len, max_new_tokens=response_len,
                               pad_token_id=0, eos_token_id=None)

        yield batch, best_rate(work, batch * response_len, repeats)


def write_gguf(shape, path):
    import gguf
    import torch

    model = make_model(shape)
    c = model.config
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("none")

    def add(name, tensor):
        if tensor.ndim == 1 or "gate_inp" in name:
            writer.add_tensor(name, tensor.float().numpy())
        else:
            raw = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    state = model.state_dict()
    add("token_embd.weight", state["model.embed_tokens.weight"])
    add("output_norm.weight", state["model.norm.weight"])
    add("output.weight", state["lm_head.weight"])
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate": "ffn_gate_inp"}
    for layer in range(c.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for theirs, ours in names.items():
            add(f"blk.{layer}.{ours}.weight", state[f"{prefix}{theirs}.weight"])
        gate_up = state[prefix + "mlp.experts.gate_up_proj"]  # [E, 2 I, H]
        add(f"blk.{layer}.ffn_gate_exps.weight", gate_up[:, : c.moe_intermediate_size])
        add(f"blk.{layer}.ffn_up_exps.weight", gate_up[:, c.moe_intermediate_size :])
        add(f"blk.{layer}.ffn_down_exps.weight", state[prefix + "mlp.experts.down_proj"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure_llama(path, vocab, batches, response_len, threads, repeats):
    import ctypes

    import llama_cpp
    import numpy as np

    # Linux lends AMX's tiles on request only; llama.cpp's Q4_0 uses them without asking in time.
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    rng = np.random.default_rng(1)
    for batch in batches:
        if batch > llama_cpp.llama_max_parallel_sequences():
            print(f"llama.cpp takes no more than {llama_cpp.llama_max_parallel_sequences()} sequences, "
                  f"not {batch}", flush=True)
            continue
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = batch * (PROMPT_LEN + response_len)
        options.n_batch = options.n_ubatch = max(512, batch * PROMPT_LEN)
        options.n_seq_max = batch
        options.n_threads = options.n_threads_batch = threads
        options.no_perf = True
        context = llama_cpp.llama_init_from_model(model, options)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context for {batch} sequences")
        memory = llama_cpp.llama_get_memory(context)
        tokens = llama_cpp.llama_batch_init(batch * PROMPT_LEN, 0, 1)

        def fill(entries):  # (token, position, sequence, wants logits)
            tokens.n_tokens = len(entries)
            for i, (token, position, sequence, logits) in enumerate(entries):
                tokens.token[i] = token
                tokens.pos[i] = position
                tokens.n_seq_id[i] = 1
                tokens.seq_id[i][0] = sequence
                tokens.logits[i] = logits

        def decode():
            status = llama_cpp.llama_decode(context, tokens)
            if status != 0:
                raise RuntimeError(f"llama_decode: {status}")
            rows = llama_cpp.llama_get_logits(context)
            logits = np.ctypeslib.as_array(ctypes.cast(rows, ctypes.POINTER(ctypes.c_float)),
                                           (batch, vocab))
            # Sampling by the Gumbel trick, vectorised: cheaper than llama.cpp's own sampler chain.
            return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)

        prompts = rng.integers(0, vocab, (batch, PROMPT_LEN))

        def work():
            llama_cpp.llama_memory_clear(memory, True)
            fill([(int(prompts[s, p]), p, s, p == PROMPT_LEN - 1)
                  for s in range(batch) for p in range(PROMPT_LEN)])
            chosen = decode()
            for step in range(response_len - 1):
                fill([(int(chosen[s]), PROMPT_LEN + step, s, True) for s in range(batch)])
                chosen = decode()

        yield batch, best_rate(work, batch * response_len, repeats)
        llama_cpp.llama_batch_free(tokens)
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def quantise_q4_0(source, target):
    import ctypes

    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(),
                                            ctypes.byref(params))
    if status != 0:
        raise RuntimeError(f"llama_model_quantize: {status}")


def measure_quads(program, shape, precisions, scopes, batches, response_len, threads, repeats, isa):
    """{"PRECISION" or "PRECISION, linears": {batch: tokens a second}}."""
    rates = {}
    for scope in scopes:
        # Nothing of BF16 is quantised: one scope of it is enough.
        some = [p for p in precisions if scope == "experts" or p != "bf16"]
        if not some:
            continue
        suffix = "" if scope == "experts" else f", {scope}"
        found = run_quads(program, shape, some, scope, batches, response_len, threads, repeats, isa)
        for row in found:
            label = row["precision"] + suffix
            rates.setdefault(label, {})[row["batch"]] = row["tokens_per_s"]
            print(f"quads {label} batch {row['batch']}: {row['tokens_per_s']:,.0f} tokens/s", flush=True)
    return rates


def run_quads(program, shape, precisions, scope, batches, response_len, threads, repeats, isa):
    command = [program, "bench", "rollout", "--model-shape", shape, "--threads", str(threads),
               "--isa", isa, "--response-len", str(response_len), "--repeats", str(repeats),
               "--quantize", scope, "--json"]
    for precision in precisions:
        command += ["--precision", precision]
    for batch in batches:
        command += ["--batch", str(batch)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)["rows"]


def send_rates(pipe, measure, arguments):
    for batch, rate in measure(*arguments):
        pipe.send((batch, rate))


def rates_of(label, measure, *arguments):
    """{batch: tokens a second}, as far as the engine came."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_rates, args=(sender, measure, arguments))
    process.start()
    sender.close()
    rates = {}
    try:
        while True:
            batch, rate = receiver.recv()
            rates[batch] = rate
            print(f"{label} batch {batch}: {rate:,.0f} tokens/s", flush=True)
    except EOFError:
        process.join()
    if process.exitcode != 0:
        print(f"{label}: ended with {process.exitcode}", flush=True)
    return rates


PEERS = {"transformers": "transformers BF16", "llama-bf16": "llama.cpp BF16",
         "llama-q4_0": "llama.cpp Q4_0"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quads", default="build/src/cli/quads")
    parser.add_argument("--model-shape", default="demo", choices=SHAPES)
    parser.add_argument("--batch", type=int, nargs="*", help="default 256, 512 (demo) or 1, 8, 64")
    parser.add_argument("--response-len", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--precision", nargs="*", default=["bf16", "nvfp4", "nvfp4-rac50"])
    parser.add_argument("--quantize", nargs="*", default=["experts"], choices=["experts", "linears"],
                        help="llama.cpp's Q4_0 quantises all linears, and the head")
    parser.add_argument("--peer", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    shape = options.model_shape
    batches = options.batch or ([256, 512] if shape == "demo" else [1, 8, 64])
    how = (batches, options.response_len, options.threads, options.repeats)

    ours = measure_quads(options.quads, shape, options.precision, options.quantize, *how,
                         options.isa)
    peers = {}
    with tempfile.TemporaryDirectory() as folder:
        bf16, q4_0 = pathlib.Path(folder) / "bf16.gguf", pathlib.Path(folder) / "q4_0.gguf"
        if any(peer.startswith("llama") for peer in options.peer):
            write_gguf(shape, bf16)
        if "llama-q4_0" in options.peer:
            quantise_q4_0(bf16, q4_0)
        for peer in options.peer:
            if peer == "transformers":
                peers[PEERS[peer]] = rates_of(PEERS[peer], measure_transformers, shape, *how)
            else:
                path = bf16 if peer == "llama-bf16" else q4_0
                peers[PEERS[peer]] = rates_of(PEERS[peer], measure_llama, path,
                                              SHAPES[shape]["vocab_size"], *how)

    print("\n| engine | batch | tokens/s |" + "".join(f" x {peer} |" for peer in peers))
    print("|---|---|---|" + "---|" * len(peers))
    for precision, rates in ours.items():
        for batch in batches:
            ratios = "".join(f" {rates[batch] / peers[p][batch]:.1f} |" if batch in peers[p]
                             else " - |" for p in peers)
            print(f"| quads {precision} | {batch} | {rates[batch]:,.0f} |{ratios}")
    for peer, rates in peers.items():
        for batch, rate in rates.items():
            print(f"| {peer} | {batch} | {rate:,.0f} |" + " |" * len(peers))
    if options.json:
        options.json.write_text(json.dumps({"quads": ours, "peers": peers}, indent=1))


if __name__ == "__main__":
    main()
