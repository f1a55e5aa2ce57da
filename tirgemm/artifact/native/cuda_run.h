// Runs a plan on CUDA devices: one cubin, loaded at the first call on each device and kept.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arguments.h"
#include "cuda_driver.h"
#include "cuda_frame.h"
#include "plan.h"

namespace tirgemm {

// Whether a cubin built for `arch` ("sm_80", "sm_90a") runs on a device of architecture `device` (90).
// Throws kCorrupt for a text that names no architecture.
bool RunsOn(const std::string& arch, int device);

class CudaRunner {
 public:
  CudaRunner(const Plan& plan, std::string cubin) : plan_(plan), cubin_(std::move(cubin)) {}
  CudaRunner(const CudaRunner&) = delete;
  CudaRunner& operator=(const CudaRunner&) = delete;

  // Queues the kernels on the caller's stream; safe from several threads.
  void Run(Call* call);

  // Unloads the cubin; a later call loads it again. Nothing of this kernel may be running or captured in a graph, which
  // only the caller can know: that is why the destructor leaves it loaded.
  void Close();

 private:
  static constexpr int kMaxDevices = 64;
  struct PerDevice {
    std::atomic<bool> ready{false};
    cu::Context context = nullptr;
    std::vector<cu::Function> functions;
    // One for each kernel, of the thread that has set the flag.
    std::vector<std::unique_ptr<LaunchFrame>> frames;
    std::atomic_flag frames_are_used = ATOMIC_FLAG_INIT;
  };

  PerDevice& Prepare(int device);
  void Load(int device, PerDevice* state);

  const Plan& plan_;
  const std::string cubin_;
  std::mutex mutex_;
  cu::Library library_ = nullptr;
  std::vector<cu::Kernel> kernels_;
  PerDevice devices_[kMaxDevices];
};

}  // namespace tirgemm
