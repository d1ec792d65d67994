"""The families of models as plain PyTorch functions in FP64, differentiated by autograd, with this
project's rounding points and quantisers passed straight through. Written from docs/numerics and the
formulas of transformers; independent of src/."""

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


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
    for, and masks[layer * 5 + site], empty where nothing is compensated. `exact`: no rounding."""

    def __init__(self, weights="bf16", activations="bf16", linears=False, masks=None, exact=False):
        self.weights, self.activations = weights, activations
        self.linears, self.masks, self.exact = linears, masks, exact

    def bf16(self, x):
        return x if self.exact else straight_through(x, x.detach().float().bfloat16())

    def linear(self, x, w, layer, site, sparse):
        """x W^T; sites 0 qkv, 1 attention output, 2 gate and up, 3 down, 4 the shared expert's down;
        `sparse`: of an expert that a router chooses."""
        if self.linears or (sparse and site in (2, 3)):
            if self.weights == "nvfp4":
                w = straight_through(w, nvfp4_weight(w))
            elif self.weights == "fp8":
                w = straight_through(w, fp8(w, 128))
            if self.activations == "nvfp4":
                mask = self.masks[layer * 5 + site] if self.masks else None
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

    @property
    def head_dim(self):
        return getattr(self.c, "head_dim", None) or self.c.hidden_size // self.c.num_attention_heads

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c.rms_norm_eps)
        return x * scale * self.w[name]

    def sparse(self, layer):
        moe = hasattr(self.c, "num_experts")
        return (
            moe
            and layer not in (getattr(self.c, "mlp_only_layers", None) or [])
            and (layer + 1) % getattr(self.c, "decoder_sparse_step", 1) == 0
        )

    def shared(self, layer):
        return self.sparse(layer) and hasattr(self.c, "shared_expert_intermediate_size")

    def frequencies(self):
        """Of dimensions 0, 1, .. head_dim / 2, and the factor on cos and sin."""
        rope, dim = self.c.rope_parameters, self.head_dim
        if rope["rope_type"] != "default":
            inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](self.c, "cpu")
            return inverse.double(), factor
        return 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).double() / dim), 1.0

    def attention(self, layer, x):
        c, at = self.c, f"model.layers.{layer}.self_attn."
        n, dim = x.shape[0], self.head_dim
        h = self.p.bf16(self.norm(x, f"model.layers.{layer}.input_layernorm.weight"))
        fused = torch.cat([self.w[f"{at}{p}_proj.weight"] for p in "qkv"])
        qkv = self.p.linear(h, fused, layer, 0, self.sparse(layer))
        if f"{at}q_proj.bias" in self.w:
            qkv = qkv + torch.cat([self.w[f"{at}{p}_proj.bias"] for p in "qkv"])
        heads, kv = c.num_attention_heads, c.num_key_value_heads
        widths = [heads * dim, kv * dim, kv * dim]
        q, k, v = qkv.split(widths, -1)
        inverse, factor = self.frequencies()
        angle = torch.arange(n).double()[:, None] * inverse
        cos, sin = (factor * t.repeat(1, 2)[:, None] for t in (angle.cos(), angle.sin()))

        def rotate(t):
            a, b = t.chunk(2, -1)
            return self.p.bf16(t * cos + torch.cat([-b, a], -1) * sin)

        def normalise(t, name):
            """Over each head, or over all where the weight is as wide as they are."""
            heads = t.unflatten(-1, (-1, dim))
            if name not in self.w:
                return heads
            if len(self.w[name]) == dim:
                return self.norm(heads, name)
            return self.norm(t, name).unflatten(-1, (-1, dim))

        q = rotate(normalise(q, at + "q_norm.weight"))
        k = rotate(normalise(k, at + "k_norm.weight"))
        v = v.unflatten(-1, (-1, dim))
        k, v = (t.repeat_interleave(heads // kv, dim=1) for t in (k, self.p.bf16(v)))
        score = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        score = score.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        p = self.p.bf16(torch.exp(score - score.detach().amax(-1, keepdim=True)))
        out = torch.einsum("hqk,khd->qhd", p / p.sum(-1, keepdim=True), v).flatten(1)
        return x + self.p.linear(
            self.p.bf16(out), self.w[at + "o_proj.weight"], layer, 1, self.sparse(layer)
        )

    def expert(self, layer, h, at, sparse, down_site=3):
        names = ["gate_proj", "up_proj", "down_proj"]
        if self.c.model_type == "mixtral":
            names = ["w1", "w3", "w2"]
        gate, up, down = (self.w[f"{at}{name}.weight"] for name in names)
        gate, up = self.p.linear(h, torch.cat([gate, up]), layer, 2, sparse).chunk(2, -1)
        h = self.p.bf16(torch.nn.functional.silu(gate) * up)
        return self.p.linear(h, down, layer, down_site, sparse)

    def feed_forward(self, layer, x):
        mlp = "block_sparse_moe" if self.c.model_type == "mixtral" else "mlp"
        at = f"model.layers.{layer}.{mlp}."
        h = self.p.bf16(self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight"))
        if not self.sparse(layer):
            return x + self.expert(layer, h, at, sparse=False), None
        probability = torch.softmax(h @ self.w[at + "gate.weight"].T, -1)
        weight, ids = probability.topk(self.c.num_experts_per_tok, -1)
        if getattr(self.c, "norm_topk_prob", True):  # Mixtral always does
            weight = weight / weight.sum(-1, keepdim=True)
        y = x
        for e in range(self.c.num_experts):
            row, slot = (ids == e).nonzero(as_tuple=True)
            out = self.expert(layer, h[row], f"{at}experts.{e}.", sparse=True)
            y = y.index_add(0, row, out * weight[row, slot][:, None])
        if self.shared(layer):
            gate = torch.sigmoid(h @ self.w[at + "shared_expert_gate.weight"].T)
            y = y + gate * self.expert(layer, h, at + "shared_expert.", sparse=False, down_site=4)
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
