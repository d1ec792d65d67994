"""Qwen3 and Qwen3-MoE as plain PyTorch functions in FP64, differentiated by autograd, with this
project's rounding points and quantisers passed straight through. Written from docs/numerics and the
formulas of transformers; independent of src/."""

import torch


class _StraightThrough(torch.autograd.Function):
    """Forward `rounded` (exactly, unlike x + (rounded - x)), backward the gradient of x."""

    @staticmethod
    def forward(ctx, x, rounded):
        return rounded.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def straight_through(x, rounded):
    return _StraightThrough.apply(x, rounded.detach().to(x.dtype))


def power_of_two_scale(amax, largest):
    """The smallest power of two s with largest * s >= amax; 1 where amax is 0."""
    exponent = torch.ceil(torch.log2(amax.double() / largest))
    scale = torch.exp2(exponent)
    scale = torch.where(scale / 2 * largest >= amax, scale / 2, scale)
    scale = torch.where(scale * largest < amax, scale * 2, scale)
    return torch.where(amax == 0, torch.ones_like(scale), scale)


def round_e2m1(x):
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.sign(x) * torch.clamp(torch.round(a / step) * step, max=6)


def nvfp4_blocks(x, g):
    """x [..., k] under the global scale g (broadcast): blocks of 16 along k."""
    blocks = x.detach().double().unflatten(-1, (-1, 16))
    g = g.unsqueeze(-1)
    scale = (blocks.abs().amax(-1, keepdim=True) / (6 * g)).clamp(max=448).float()
    scale = scale.to(torch.float8_e4m3fn).double() * g
    codes = round_e2m1(blocks / torch.where(scale == 0, torch.ones_like(scale), scale))
    return torch.where(scale == 0, torch.zeros_like(blocks), codes * scale).flatten(-2)


def nvfp4_activation(x, mask=None):
    """Per-row global scale; with a mask [k], the residual of the selected channels is added."""
    x = x.detach().double()
    g = power_of_two_scale(x.abs().amax(-1, keepdim=True), 2688.0)
    q1 = nvfp4_blocks(x, g)
    if mask is None:
        return q1
    return q1 + nvfp4_blocks((x - q1) * mask, g)


def nvfp4_weight(w):
    return nvfp4_blocks(w, power_of_two_scale(w.detach().abs().amax(), 2688.0).reshape(1, 1))


def fp8(x, block_rows):
    """E4M3 in blocks of block_rows x 128 of x [rows, k], power-of-two scales."""
    out = torch.empty_like(x.detach(), dtype=torch.float64)
    for r in range(0, x.shape[0], block_rows):
        for k in range(0, x.shape[1], 128):
            block = x.detach()[r : r + block_rows, k : k + 128].double()
            scale = power_of_two_scale(block.abs().amax(), 448.0)
            out[r : r + block_rows, k : k + 128] = (
                (block / scale).float().to(torch.float8_e4m3fn).double() * scale
            )
    return out


class Precision:
    """Formats of weights and activations ("bf16", "fp8", "nvfp4"), the layers and linears they hold
    for, and masks[layer * 4 + site], empty where nothing is compensated. `exact`: no rounding."""

    def __init__(self, weights="bf16", activations="bf16", linears=False, masks=None, exact=False):
        self.weights, self.activations = weights, activations
        self.linears, self.masks, self.exact = linears, masks, exact

    def bf16(self, x):
        return x if self.exact else straight_through(x, x.detach().float().bfloat16())

    def linear(self, x, w, layer, site, sparse):
        """x W^T; sites 0 qkv, 1 attention output, 2 gate and up, 3 down."""
        if self.linears or (sparse and site >= 2):
            if self.weights == "nvfp4":
                w = straight_through(w, nvfp4_weight(w))
            elif self.weights == "fp8":
                w = straight_through(w, fp8(w, 128))
            if self.activations == "nvfp4":
                mask = self.masks[layer * 4 + site] if self.masks else None
                mask = None if mask is None else torch.tensor(mask, dtype=torch.float64)
                x = straight_through(x, nvfp4_activation(x, mask))
            elif self.activations == "fp8":
                x = straight_through(x, fp8(x, 1))
        return x @ w.T


class Model:
    """`weights`: the Hugging Face tensors, FP64 leaves that require gradients."""

    def __init__(self, config, weights, precision):
        self.c, self.w, self.p = config, weights, precision
        self.routing = []  # [sequences][layers] of [tokens, top_k]

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c.rms_norm_eps)
        return x * scale * self.w[name]

    def sparse(self, layer):
        moe = hasattr(self.c, "num_experts")
        return (
            moe
            and layer not in (self.c.mlp_only_layers or [])
            and (layer + 1) % self.c.decoder_sparse_step == 0
        )

    def attention(self, layer, x):
        c, at = self.c, f"model.layers.{layer}.self_attn."
        n, dim = x.shape[0], c.head_dim
        h = self.p.bf16(self.norm(x, f"model.layers.{layer}.input_layernorm.weight"))
        fused = torch.cat([self.w[f"{at}{p}_proj.weight"] for p in "qkv"])
        qkv = self.p.linear(h, fused, layer, 0, self.sparse(layer))
        heads, kv = c.num_attention_heads, c.num_key_value_heads
        widths = [heads * dim, kv * dim, kv * dim]
        q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split(widths, -1))
        inverse = 1.0 / c.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2).double() / dim)
        angle = torch.arange(n).double()[:, None] * inverse
        cos, sin = angle.cos().repeat(1, 2)[:, None], angle.sin().repeat(1, 2)[:, None]

        def rotate(t):
            a, b = t.chunk(2, -1)
            return self.p.bf16(t * cos + torch.cat([-b, a], -1) * sin)

        q = rotate(self.norm(q, at + "q_norm.weight"))
        k = rotate(self.norm(k, at + "k_norm.weight"))
        k, v = (t.repeat_interleave(heads // kv, dim=1) for t in (k, self.p.bf16(v)))
        score = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        score = score.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        p = self.p.bf16(torch.exp(score - score.detach().amax(-1, keepdim=True)))
        out = torch.einsum("hqk,khd->qhd", p / p.sum(-1, keepdim=True), v).flatten(1)
        return x + self.p.linear(
            self.p.bf16(out), self.w[at + "o_proj.weight"], layer, 1, self.sparse(layer)
        )

    def expert(self, layer, h, at):
        sparse = self.sparse(layer)
        fused = torch.cat([self.w[at + "gate_proj.weight"], self.w[at + "up_proj.weight"]])
        gate, up = self.p.linear(h, fused, layer, 2, sparse).chunk(2, -1)
        h = self.p.bf16(torch.nn.functional.silu(gate) * up)
        return self.p.linear(h, self.w[at + "down_proj.weight"], layer, 3, sparse)

    def feed_forward(self, layer, x):
        at = f"model.layers.{layer}.mlp."
        h = self.p.bf16(self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight"))
        if not self.sparse(layer):
            return x + self.expert(layer, h, at), None
        probability = torch.softmax(h @ self.w[at + "gate.weight"].T, -1)
        weight, ids = probability.topk(self.c.num_experts_per_tok, -1)
        if self.c.norm_topk_prob:
            weight = weight / weight.sum(-1, keepdim=True)
        y = x
        for e in range(self.c.num_experts):
            row, slot = (ids == e).nonzero(as_tuple=True)
            out = self.expert(layer, h[row], f"{at}experts.{e}.")
            y = y.index_add(0, row, out * weight[row, slot][:, None])
        return y, ids

    def logits(self, tokens):
        """[tokens, vocab] of one sequence."""
        x = self.w["model.embed_tokens.weight"][torch.tensor(tokens)]
        routing = []
        for layer in range(self.c.num_hidden_layers):
            x, ids = self.feed_forward(layer, self.attention(layer, x))
            routing.append(ids)
        self.routing.append(routing)
        head = "model.embed_tokens.weight" if self.c.tie_word_embeddings else "lm_head.weight"
        return self.p.bf16(self.norm(x, "model.norm.weight")) @ self.w[head].T
