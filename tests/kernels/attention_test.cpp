// Attention against its contract in scalar code (to the bit) and against plain softmax attention in
// double (gradients).
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/testing.h"
#include "numerics/math.h"

namespace quads::kernels {
namespace {

using testing::bits_hash;
using testing::EachIsa;
using testing::Fill;
using testing::normal_bf16;
using testing::normal_f32;
using testing::Poisoned;

constexpr Bf16 kNan = {0x7FC0};

AttentionShape make_shape(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {heads, kv_heads, head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim))};
}

/// One layer's keys and values of n positions, dense and in pages. The pages lie in memory in the
/// order drawn from `placement`; their unused slots hold `unused`.
class Sequence {
 public:
  Sequence(const AttentionShape& shape, int64_t n, uint64_t seed, uint64_t placement = 0,
           Bf16 unused = kNan)
      : shape_(shape),
        n_(n),
        keys_(normal_bf16(n * width(), seed)),
        values_(normal_bf16(n * width(), seed + 1)) {
    const int64_t num_pages = (n + kPageSize - 1) / kPageSize;
    // A page is an allocation of its own, so that a sanitizer sees reads beyond it.
    memory_.resize(static_cast<size_t>(num_pages));
    std::vector<size_t> order(memory_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    Fill fill(placement);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[fill.below(static_cast<uint32_t>(i))]);
    }
    for (size_t p = 0; p < memory_.size(); ++p) {
      std::vector<Bf16>& page = memory_[order[p]];
      page.assign(static_cast<size_t>(shape.page_elements()), unused);
      pages_.push_back(page.data());
    }
    for (int64_t j = 0; j < n; ++j) {
      store_kv(shape, &keys_[static_cast<size_t>(j * width())],
               &values_[static_cast<size_t>(j * width())], j % kPageSize,
               const_cast<Bf16*>(pages_[static_cast<size_t>(j / kPageSize)]));
    }
  }

  int64_t width() const { return shape_.kv_heads * shape_.head_dim; }
  int64_t size() const { return n_; }
  const Bf16* const* pages() const { return pages_.data(); }
  float key(int64_t j, int64_t kv, int64_t d) const { return at(keys_, j, kv, d); }
  float value(int64_t j, int64_t kv, int64_t d) const { return at(values_, j, kv, d); }

 private:
  float at(const std::vector<Bf16>& x, int64_t j, int64_t kv, int64_t d) const {
    return to_float(x[static_cast<size_t>(j * width() + kv * shape_.head_dim + d)]);
  }

  AttentionShape shape_;
  int64_t n_;
  std::vector<Bf16> keys_, values_;
  std::vector<std::vector<Bf16>> memory_;
  std::vector<const Bf16*> pages_;
};

/// The contract of attend() word by word.
std::vector<float> reference_attend(const AttentionShape& shape, const Bf16* q,
                                    const Sequence& sequence, int64_t context) {
  const int64_t group = shape.heads / shape.kv_heads;
  std::vector<float> out;
  for (int64_t h = 0; h < shape.heads; ++h) {
    const int64_t kv = h / group;
    std::vector<float> p;
    for (int64_t j = 0; j < context; ++j) {
      float dot = 0.0F;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        dot = std::fma(to_float(q[h * shape.head_dim + d]), sequence.key(j, kv, d), dot);
      }
      p.push_back(shape.scale * dot);
    }
    const float m = *std::max_element(p.begin(), p.end());
    float lanes[16] = {};
    for (int64_t j = 0; j < context; ++j) {
      float& pj = p[static_cast<size_t>(j)];
      pj = to_float(to_bf16(exp_f32(pj - m)));
      lanes[j % 16] += pj;
    }
    const float sum = reduce_sum_16(lanes);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      float o = 0.0F;
      for (int64_t j = 0; j < context; ++j) {
        o = std::fma(p[static_cast<size_t>(j)], sequence.value(j, kv, d), o);
      }
      out.push_back(o / sum);
    }
  }
  return out;
}

/// Index of the first element whose bits differ, -1 if none.
int64_t first_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

class Attention : public EachIsa {
 protected:
  std::vector<float> attend(const AttentionShape& shape, const Bf16* q, const Bf16* const* pages,
                            int64_t context) {
    Poisoned<float> out(shape.heads * shape.head_dim);
    kernels().attention.attend(shape, q, pages, context, arena_, out.data());
    EXPECT_EQ(out.unwritten(), 0);
    EXPECT_TRUE(out.guards_intact());
    return out.values();
  }

  struct Gradients {
    std::vector<float> q, k, v;
  };
  Gradients backward(const AttentionShape& shape, const Bf16* q, const Sequence& sequence,
                     const float* dout) {
    const int64_t n = sequence.size();
    Poisoned<float> dq(n * shape.heads * shape.head_dim), dk(n * sequence.width()),
        dv(n * sequence.width());
    kernels().attention.attend_backward(shape, q, sequence.pages(), n, dout, arena_, dq.data(),
                                        dk.data(), dv.data());
    for (const auto* x : {&dq, &dk, &dv}) {
      EXPECT_EQ(x->unwritten(), 0);
      EXPECT_TRUE(x->guards_intact());
    }
    return {dq.values(), dk.values(), dv.values()};
  }

  Arena arena_;
};
QUADS_INSTANTIATE_EACH_ISA(Attention);

TEST(StoreKv, WritesOneSlotOfEveryHeadKeysTransposed) {
  const AttentionShape shape = make_shape(4, 2, 32);
  std::vector<Bf16> key, value;
  for (uint16_t i = 0; i < 64; ++i) {
    key.push_back({static_cast<uint16_t>(1000 + i)});
    value.push_back({static_cast<uint16_t>(2000 + i)});
  }
  std::vector<Bf16> page(static_cast<size_t>(shape.page_elements()), kNan);
  store_kv(shape, key.data(), value.data(), 5, page.data());
  for (int h = 0; h < 2; ++h) {
    for (int d = 0; d < 32; ++d) {
      for (int slot = 0; slot < 16; ++slot) {
        const auto head = static_cast<size_t>(h * 1024);
        const Bf16 k = page[head + static_cast<size_t>(d * 16 + slot)];
        const Bf16 v = page[head + static_cast<size_t>(512 + slot * 32 + d)];
        EXPECT_EQ(k.bits, slot == 5 ? 1000 + h * 32 + d : kNan.bits);
        EXPECT_EQ(v.bits, slot == 5 ? 2000 + h * 32 + d : kNan.bits);
      }
    }
  }
}

TEST_P(Attention, EqualsTheScalarReferenceBitForBitWithNanInUnusedSlots) {
  for (int64_t group : {1, 2, 3, 4, 7, 8}) {
    for (int64_t head_dim : {16, 32, 80, 128}) {
      const AttentionShape shape = make_shape(2 * group, 2, head_dim);
      for (int64_t context : {1, 15, 16, 17, 33, 70}) {
        const Sequence sequence(shape, context, 7);
        const auto q = normal_bf16(shape.heads * head_dim, 9, 2.0F);
        const auto expected = reference_attend(shape, q.data(), sequence, context);
        const auto actual = attend(shape, q.data(), sequence.pages(), context);
        EXPECT_EQ(first_difference(actual, expected), -1)
            << "group " << group << " head_dim " << head_dim << " context " << context;
      }
    }
  }
}

TEST_P(Attention, EqualsTheScalarReferenceForTheWidestHeadAndALongContext) {
  const AttentionShape shape = make_shape(2, 1, 256);
  const Sequence sequence(shape, 300, 11);
  const auto q = normal_bf16(512, 12);
  EXPECT_EQ(first_difference(attend(shape, q.data(), sequence.pages(), 300),
                             reference_attend(shape, q.data(), sequence, 300)),
            -1);
}

TEST_P(Attention, PagePlacementAndContentsOfUnusedSlotsDoNotMatter) {
  const AttentionShape shape = make_shape(4, 2, 32);
  const auto q = normal_bf16(128, 3);
  const Bf16 infinity = {0x7F80}, denormal = {0x0001}, zero = {0};
  const Sequence sequence(shape, 70, 5);
  const auto expected = attend(shape, q.data(), sequence.pages(), 70);
  for (Bf16 unused : {infinity, denormal, zero}) {
    for (uint64_t placement : {1, 2}) {
      const Sequence other(shape, 70, 5, placement, unused);
      EXPECT_EQ(first_difference(attend(shape, q.data(), other.pages(), 70), expected), -1);
    }
  }
}

TEST_P(Attention, LaterPositionsInTheSamePagesDoNotMatter) {
  const AttentionShape shape = make_shape(4, 2, 32);
  const auto q = normal_bf16(128, 3);
  const Sequence whole(shape, 48, 5);
  for (int64_t context : {1, 16, 21}) {
    EXPECT_EQ(first_difference(attend(shape, q.data(), whole.pages(), context),
                               reference_attend(shape, q.data(), whole, context)),
              -1);
  }
}

TEST_P(Attention, HugeScoresPickTheLargestValue) {
  const AttentionShape shape = make_shape(1, 1, 16);
  std::vector<Bf16> page(static_cast<size_t>(shape.page_elements()), kNan);
  const auto values = normal_bf16(3 * 16, 4);
  const float keys[3] = {-1e18F, 1e18F, 5e17F};
  for (int64_t j = 0; j < 3; ++j) {
    const std::vector<Bf16> key(16, to_bf16(keys[j]));
    store_kv(shape, key.data(), &values[static_cast<size_t>(16 * j)], j, page.data());
  }
  const Bf16* pages[] = {page.data()};
  const std::vector<Bf16> q(16, to_bf16(1e18F));
  const auto out = attend(shape, q.data(), pages, 3);
  for (size_t d = 0; d < 16; ++d) EXPECT_EQ(out[d], to_float(values[16 + d]));
}

TEST_P(Attention, GivesTheBitsOfTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  struct Case {
    int64_t heads, kv_heads, head_dim, context;
  };
  for (const Case& c : {Case{4, 2, 32, 1}, Case{4, 2, 32, 40}, Case{8, 1, 128, 100},
                        Case{6, 2, 48, 17}, Case{2, 2, 64, 129}}) {
    const AttentionShape shape = make_shape(c.heads, c.kv_heads, c.head_dim);
    const Sequence sequence(shape, c.context, 21);
    const auto q = normal_bf16(c.heads * c.head_dim, 22, 1.5F);
    const auto out = attend(shape, q.data(), sequence.pages(), c.context);
    hashes[fmt::format("heads{}-kv{}-dim{}-context{}", c.heads, c.kv_heads, c.head_dim,
                       c.context)] = bits_hash(out.data(), static_cast<int64_t>(out.size()));
  }
  testing::expect_golden("attend", hashes);
}

/// Plain causal softmax attention in double, its loss sum(dout . out), its gradients by the chain
/// rule, and how far the rounding of p to BF16 may move each.
class PlainAttention {
 public:
  PlainAttention(const AttentionShape& shape, const std::vector<Bf16>& q, const Sequence& sequence,
                 const std::vector<float>& dout)
      : shape_(shape), n_(sequence.size()), group_(shape.heads / shape.kv_heads) {
    for (Bf16 x : q) q_.push_back(to_float(x));
    for (float x : dout) dout_.push_back(x);
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          k_.push_back(sequence.key(j, kv, d));
          v_.push_back(sequence.value(j, kv, d));
        }
      }
    }
  }

  double loss() const {
    double total = 0.0;
    for (int64_t h = 0; h < shape_.heads; ++h) {
      for (int64_t i = 0; i < n_; ++i) {
        const std::vector<double> p = probabilities(h, i);
        for (size_t j = 0; j < p.size(); ++j) total += p[j] * dot(dout_, v_, h, i, j);
      }
    }
    return total;
  }

  struct Gradient {
    std::vector<double> value, bound;
  };
  /// p~ = p (1 + e), |e| <= 2^-9 in the numerator (half a unit of BF16's 8 bits) and in the sum, so
  /// |e| <= 2^-8 (1 + 2^-8). dv = sum p dout moves by e; ds = p (dp - D), D = sum p dp, moves by
  /// e p |dp - D| + p e sum p |dp|. FP32 sums add rounding far below: 2^-16 of the same terms.
  void gradients(Gradient* dq, Gradient* dk, Gradient* dv) const {
    const double e = 0x1.02p-8 + 0x1p-16;
    for (Gradient* g : {dq, dk, dv}) {
      const size_t size = g == dq ? q_.size() : k_.size();
      *g = {std::vector<double>(size), std::vector<double>(size)};
    }
    const auto add = [](Gradient* g, size_t at, double value, double bound) {
      g->value[at] += value;
      g->bound[at] += bound;
    };
    for (int64_t h = 0; h < shape_.heads; ++h) {
      for (int64_t i = 0; i < n_; ++i) {
        const std::vector<double> p = probabilities(h, i);
        double mean = 0.0, mean_abs = 0.0;
        for (size_t j = 0; j < p.size(); ++j) {
          const double dp = dot(dout_, v_, h, i, j);
          mean += p[j] * dp;
          mean_abs += p[j] * std::abs(dp);
        }
        for (size_t j = 0; j < p.size(); ++j) {
          const double centred = dot(dout_, v_, h, i, j) - mean;
          const double ds = shape_.scale * p[j] * centred;
          const double ds_bound = shape_.scale * e * p[j] * (std::abs(centred) + mean_abs);
          for (int64_t d = 0; d < shape_.head_dim; ++d) {
            const size_t a = row(h, i) + static_cast<size_t>(d);
            const size_t b = column(h, j) + static_cast<size_t>(d);
            add(dq, a, ds * k_[b], ds_bound * std::abs(k_[b]));
            add(dk, b, ds * q_[a], ds_bound * std::abs(q_[a]));
            add(dv, b, p[j] * dout_[a], e * p[j] * std::abs(dout_[a]));
          }
        }
      }
    }
  }

  std::vector<double> q_, k_, v_;

 private:
  size_t row(int64_t h, int64_t i) const {
    return static_cast<size_t>((i * shape_.heads + h) * shape_.head_dim);
  }
  size_t column(int64_t h, size_t j) const {
    return (j * static_cast<size_t>(shape_.kv_heads) + static_cast<size_t>(h / group_)) *
           static_cast<size_t>(shape_.head_dim);
  }
  double dot(const std::vector<double>& a, const std::vector<double>& b, int64_t h, int64_t i,
             size_t j) const {
    double sum = 0.0;
    for (size_t d = 0; d < static_cast<size_t>(shape_.head_dim); ++d) {
      sum += a[row(h, i) + d] * b[column(h, j) + d];
    }
    return sum;
  }
  std::vector<double> probabilities(int64_t h, int64_t i) const {
    std::vector<double> p;
    double sum = 0.0;
    for (size_t j = 0; j <= static_cast<size_t>(i); ++j) {
      p.push_back(std::exp(shape_.scale * dot(q_, k_, h, i, j)));
      sum += p.back();
    }
    for (double& x : p) x /= sum;
    return p;
  }

  AttentionShape shape_;
  int64_t n_, group_;
  std::vector<double> dout_;
};

void expect_within(const std::vector<float>& actual, const PlainAttention::Gradient& expected,
                   const char* name) {
  ASSERT_EQ(actual.size(), expected.value.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected.value[i], expected.bound[i]) << name << " element " << i;
  }
}

TEST(PlainAttentionGradients, AgreeWithFiniteDifferences) {
  const AttentionShape shape = make_shape(2, 1, 16);
  const Sequence sequence(shape, 6, 31);
  const auto q = normal_bf16(6 * 32, 32);
  PlainAttention plain(shape, q, sequence, normal_f32(6 * 32, 33));
  PlainAttention::Gradient dq, dk, dv;
  plain.gradients(&dq, &dk, &dv);
  const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double saved = x[i], h = 1e-5;
      x[i] = saved + h;
      const double up = plain.loss();
      x[i] = saved - h;
      const double down = plain.loss();
      x[i] = saved;
      ASSERT_NEAR((up - down) / (2 * h), gradient[i], 1e-8) << i;
    }
  };
  check(plain.q_, dq.value);
  check(plain.k_, dk.value);
  check(plain.v_, dv.value);
}

TEST_P(Attention, BackwardIsWithinTheRoundingOfPOfPlainAttention) {
  struct Case {
    int64_t heads, kv_heads, head_dim, n;
  };
  for (const Case& c :
       {Case{4, 2, 32, 1}, Case{4, 2, 32, 17}, Case{4, 2, 32, 40}, Case{3, 1, 48, 33},
        Case{8, 1, 16, 16}, Case{2, 2, 80, 30}, Case{1, 1, 16, 300}}) {
    SCOPED_TRACE(fmt::format("heads {} kv {} dim {} n {}", c.heads, c.kv_heads, c.head_dim, c.n));
    const AttentionShape shape = make_shape(c.heads, c.kv_heads, c.head_dim);
    const Sequence sequence(shape, c.n, 41);
    const auto q = normal_bf16(c.n * c.heads * c.head_dim, 42, 1.5F);
    const auto dout = normal_f32(c.n * c.heads * c.head_dim, 43);
    const Gradients actual = backward(shape, q.data(), sequence, dout.data());
    PlainAttention::Gradient dq, dk, dv;
    PlainAttention(shape, q, sequence, dout).gradients(&dq, &dk, &dv);
    expect_within(actual.q, dq, "dq");
    expect_within(actual.k, dk, "dk");
    expect_within(actual.v, dv, "dv");
  }
}

TEST_P(Attention, BackwardGivesTheSameBitsEverywhereWhateverUnusedSlotsHold) {
  const AttentionShape shape = make_shape(4, 2, 32);
  const auto q = normal_bf16(21 * 128, 52);
  const auto dout = normal_f32(21 * 128, 53);
  std::map<std::string, uint64_t> hashes;
  for (Bf16 unused : {kNan, Bf16{0}}) {
    const Sequence sequence(shape, 21, 51, unused.bits, unused);
    const Gradients g = backward(shape, q.data(), sequence, dout.data());
    const auto hash = [](const std::vector<float>& x) {
      return bits_hash(x.data(), static_cast<int64_t>(x.size()));
    };
    hashes["dq"] = hash(g.q);
    hashes["dk"] = hash(g.k);
    hashes["dv"] = hash(g.v);
    testing::expect_golden("attend_backward", hashes);
  }
}

TEST_P(Attention, ScratchIsGivenBack) {
  const AttentionShape shape = make_shape(4, 2, 32);
  const Sequence sequence(shape, 40, 61);
  const auto q = normal_bf16(40 * 128, 62);
  const auto dout = normal_f32(40 * 128, 63);
  void* before = nullptr;
  {
    const ArenaScope scope(arena_);
    before = arena_.alloc_bytes(64);
  }
  attend(shape, q.data(), sequence.pages(), 40);
  backward(shape, q.data(), sequence, dout.data());
  EXPECT_EQ(arena_.alloc_bytes(64), before);
}

}  // namespace
}  // namespace quads::kernels
