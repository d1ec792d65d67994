#include "bench/graph_time.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "bench/device_event.h"
#include "cuda/device_memory.h"

namespace quads::bench {

using cuda::check_cuda;
using kernels::cuda::CudaContext;

namespace {

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyGraph>;

}  // namespace

double time_graph(bool overlap, int calls, int replays,
                  const std::function<void(const CudaContext&, int)>& launch) {
  constexpr int kUncounted = 2;
  check_cuda(cudaDeviceSynchronize(), "waiting for the device");
  const cuda::Stream stream;
  CudaContext context = kernels::cuda::make_context(stream.get());
  context.overlap = overlap;
  launch(context, 0);
  stream.wait("a first call");

  cudaGraph_t captured = nullptr;
  check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capturing");
  for (int i = 0; i < calls; ++i) launch(context, i);
  check_cuda(cudaStreamEndCapture(stream.get(), &captured), "capturing");
  const Owned<cudaGraph_t> graph(captured);
  cudaGraphExec_t instance = nullptr;
  check_cuda(cudaGraphInstantiate(&instance, captured, 0), "making a graph");
  const Owned<cudaGraphExec_t> executable(instance);

  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const DeviceEvent begin, end;
  std::vector<double> times;
  for (int i = 0; i < kUncounted + replays; ++i) {
    begin.record(stream.get());
    check_cuda(cudaGraphLaunch(executable.get(), stream.get()), "replaying a graph");
    end.record(stream.get());
    stream.wait("replaying a graph");
    if (i >= kUncounted) times.push_back(end.seconds_since(begin) * 1e6);
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2] / calls;
}

}  // namespace quads::bench
