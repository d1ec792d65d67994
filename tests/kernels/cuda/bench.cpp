// Speed of the CUDA kernels: medians of replays of a captured graph, weights rotated over more sets
// than the L2 cache holds.
#include "kernels/cuda/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include "kernels/cuda/device_array.h"
#include "kernels/cuda/fragment_weights.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/moe_problem.h"
#include "kernels/cuda/quantize_rows.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kExperts = 128;
constexpr int kTopK = 8;
constexpr int kMaxTokens = 4096;
constexpr int kSets = 3;
constexpr double kTensorFlops = 790e12;  // BF16, measured

struct ExpertShape {
  const char* name;
  int64_t n, k;
  bool rows_are_tokens;  // of which each goes to kTopK experts
};
constexpr ExpertShape kShapes[] = {{"gate_up", 1536, 2048, true}, {"down", 2048, 768, false}};

// Microseconds a launch.
double time_graph(bool overlap, int launches, int replays,
                  const std::function<void(const CudaContext&, int)>& launch) {
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream");
  CudaContext context = make_context(stream);
  context.overlap = overlap;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < launches; ++i) launch(context, i);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the clock recovers
  std::vector<float> times;
  for (int i = 0; i < replays + 2; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    check_cuda(cudaGraphLaunch(executable, stream), "replay");
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaStreamSynchronize(stream), "replay");
    float ms = 0.0F;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 2) times.push_back(ms);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3 / launches;
}

// Bytes read and written a second. Not as a graph, whose copies the slower copy engines make.
double copy_bandwidth() {
  constexpr size_t kBytes = size_t{2} << 30;
  constexpr int kCopies = 4;
  DeviceArray<uint8_t> from(kBytes), to(kBytes);
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  float best_ms = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 5; ++round) {
    check_cuda(cudaEventRecord(begin), "event");
    for (int i = 0; i < kCopies; ++i) {
      check_cuda(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice), "copy");
    }
    check_cuda(cudaEventRecord(end), "event");
    check_cuda(cudaEventSynchronize(end), "copy");
    float ms = 0.0F;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "time");
    best_ms = std::min(best_ms, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 2.0 * kBytes * kCopies / (best_ms * 1e-3);
}

// A shape's weights and activations. Two experts are packed; the others are their copies, which
// moves the same bytes.
class Bench {
 public:
  explicit Bench(const ExpertShape& shape)
      : shape_(shape),
        positions_(shuffled_positions(shape.k / 16, 1)),
        device_positions_(positions_),
        scales_(std::vector<float>(kExperts, 0x1p-9F)),
        offsets_(kExperts + 1),
        places_(kMaxTokens * kTopK),
        sorted_(kMaxTokens * kTopK),
        x_((shape.rows_are_tokens ? 1 : kTopK) * kMaxTokens * shape.k),
        q1_(image_elements(kMaxTokens * kTopK, kExperts, stages_of(shape.k))),
        q2_(q1_.size()),
        y_(kMaxTokens * kTopK * shape.n),
        bad_(std::vector<int32_t>{INT_MAX}) {
    const int64_t bytes = fragment_bytes(shape.n, shape.k);
    std::vector<uint8_t> two(2 * bytes);
    for (int e = 0; e < 2; ++e) {
      pack_fragments(random_weight(shape.n, shape.k, e), positions_,
                     std::span(two).subspan(e * bytes, bytes));
    }
    for (auto& set : sets_) {
      set = std::make_unique<DeviceArray<uint8_t>>(kExperts * bytes);
      for (int e = 0; e < kExperts; e += 2) {
        check_cuda(
            cudaMemcpy(set->data() + e * bytes, two.data(), two.size(), cudaMemcpyHostToDevice),
            "weights");
      }
    }
    std::vector<Bf16> x;
    for (int64_t row = 0; static_cast<size_t>(row * shape.k) < x_.size(); ++row) {
      const std::vector<Bf16> values = token_row(row % 512, shape.k);
      x.insert(x.end(), values.begin(), values.end());
    }
    x_.upload(x);
  }

  void route(int tokens) {
    std::vector<int64_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0);
    tokens_ = tokens;
    const Routing routing = route_tokens(ids, kTopK, kExperts, [](int64_t token, int j) {
      return hashed_expert(token, j, kExperts);
    });
    used_experts_ = 0;
    for (int e = 0; e < kExperts; ++e) {
      used_experts_ += routing.offsets[e + 1] > routing.offsets[e];
    }
    offsets_.upload(routing.offsets);
    if (shape_.rows_are_tokens) sorted_.upload(routing.sorted_rows);
    PlaceRows place;
    place.experts = kExperts;
    place.expert_offsets = offsets_.data();
    place.rows = tokens * kTopK;
    place.sorted_rows = shape_.rows_are_tokens ? sorted_.data() : nullptr;
    place.image_rows = places_.data();
    place_rows(make_context(nullptr), place);
    finish("placing rows");
  }

  void quantize(const CudaContext& context, int residual_blocks) {
    QuantizeRows args;
    args.x = x_.data();
    args.ldx = args.k = shape_.k;
    args.rows = shape_.rows_are_tokens ? tokens_ : tokens_ * kTopK;
    args.copies = shape_.rows_are_tokens ? kTopK : 1;
    args.image_rows = places_.data();
    args.block_position = device_positions_.data();
    args.residual_blocks = residual_blocks;
    args.q1 = reinterpret_cast<Bf16*>(q1_.data());
    args.q2 = reinterpret_cast<Bf16*>(q2_.data());
    args.first_bad_row = bad_.data();
    quantize_rows(context, args);
  }

  GroupedGemm gemm(int set, int residual_blocks) {
    GroupedGemm gemm;
    gemm.experts = kExperts;
    gemm.n = shape_.n;
    gemm.k = shape_.k;
    gemm.weights = sets_[set % kSets]->data();
    gemm.global_scales = scales_.data();
    gemm.expert_offsets = offsets_.data();
    gemm.q1 = reinterpret_cast<const Bf16*>(q1_.data());
    gemm.q2 = reinterpret_cast<const Bf16*>(q2_.data());
    gemm.residual_stages = stages_of(residual_blocks * 16);
    gemm.y = y_.data();
    gemm.y_is_bf16 = true;
    gemm.rows_bound = tokens_ * kTopK;
    return gemm;
  }

  void print_cell(int percent, double bandwidth, bool last);

 private:
  ExpertShape shape_;
  std::vector<int32_t> positions_;
  DeviceArray<int32_t> device_positions_;
  DeviceArray<float> scales_;
  DeviceArray<int32_t> offsets_;
  DeviceArray<ImageRow> places_;
  DeviceArray<int32_t> sorted_;
  DeviceArray<Bf16> x_;
  DeviceArray<uint16_t> q1_, q2_, y_;
  DeviceArray<int32_t> bad_;
  std::unique_ptr<DeviceArray<uint8_t>> sets_[kSets];
  int tokens_ = 0;
  int used_experts_ = 0;
};

void Bench::print_cell(int percent, double bandwidth, bool last) {
  const int blocks = static_cast<int>(shape_.k / 16 * percent / 100);
  const int launches = tokens_ >= 1024 ? 6 : 12;
  quantize(make_context(nullptr), blocks);
  const double weight_bytes =
      static_cast<double>(used_experts_) * fragment_bytes(shape_.n, shape_.k);
  const double flops =
      2.0 * tokens_ * kTopK * shape_.n * (shape_.k + stages_of(blocks * 16) * kStageK);
  fmt::print(
      R"({{"shape":"{}","tokens":{},"rac":{},"experts":{},"floor_bytes_us":{:.1f},"floor_flops_us":{:.1f})",
      shape_.name, tokens_, percent, used_experts_, weight_bytes / bandwidth * 1e6,
      flops / kTensorFlops * 1e6);
  const double quantiser =
      time_graph(false, 20, 7, [&](const CudaContext& context, int) { quantize(context, blocks); });
  fmt::print(R"(,"quantize_us":{:.2f},"tiles":{{)", quantiser);
  const CudaContext here = make_context(nullptr);
  bool first = true;
  for (const GemmTile tile : kGemmTiles) {
    if (!tile_fits(here, gemm(0, blocks), tile)) continue;
    const auto product = [&](const CudaContext& context, int i) {
      grouped_gemm(context, gemm(i, blocks), tile);
    };
    const double apart = time_graph(false, launches, 5, product);
    const double overlapped = time_graph(true, launches, 5, product);
    fmt::print(R"({}"{}":[{:.1f},{:.1f}])", first ? "" : ",", tile_name(tile), apart, overlapped);
    first = false;
  }
  const GemmTile chosen = choose_tile(here, gemm(0, blocks));
  const double both = time_graph(true, launches, 5, [&](const CudaContext& context, int i) {
    quantize(context, blocks);
    grouped_gemm(context, gemm(i, blocks), chosen);
  });
  fmt::print(R"(}},"chosen":"{}","quantize_and_chosen_us":{:.1f}}}{})", tile_name(chosen), both,
             last ? "\n" : ",\n");
  std::fflush(stdout);
}

}  // namespace

void run_bench() {
  const CudaContext context = make_context(nullptr);
  const double bandwidth = copy_bandwidth();
  fmt::print(
      R"({{"benchmark":"cuda_grouped_gemm","notes":"us; tiles: [apart, launches overlapped]",)"
      R"("multiprocessors":{},"capability":{},"copy_bytes_per_s":{:.4g},"rows":[)"
      "\n",
      context.multiprocessors, context.capability, bandwidth);
  for (const ExpertShape& shape : kShapes) {
    Bench bench(shape);
    for (const int tokens : {8, 64, 256, 1024, 4096}) {
      bench.route(tokens);
      for (const int percent : {0, 50, 100}) {
        const bool last = &shape == std::end(kShapes) - 1 && tokens == 4096 && percent == 100;
        bench.print_cell(percent, bandwidth, last);
      }
    }
  }
  fmt::print("]}}\n");
}

}  // namespace quads::kernels::cuda
