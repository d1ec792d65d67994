// Timing of kernels.
#include "kernels/cuda/bench_timing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "kernels/cuda/device_array.h"

namespace quads::kernels::cuda {

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

double copy_bandwidth() {
  // Not as a graph, whose copies the slower copy engines make.
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

}  // namespace quads::kernels::cuda
