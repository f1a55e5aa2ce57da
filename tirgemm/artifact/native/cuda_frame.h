// What stays of a kernel's launch between calls.
#pragma once

#include <memory>

#include "arguments.h"
#include "cuda_driver.h"
#include "plan.h"

namespace tirgemm {

// The encoded tensor maps of one parameter, by the address and by m where its sizes depend on m.
class MapCache {
 public:
  // Encodes where there is none; valid until the next call. `api`'s current context must be that of the cache.
  const cu::TensorMap* Get(const cu::Driver& api, const MapSpec& map, uint64_t address, int64_t m);

 private:
  // The weights of a model's layers of one shape, of which each has one kernel and an address of its own.
  static constexpr int kBits = 6;
  struct Key {
    uint64_t address;  // 0: nothing is encoded here
    int64_t m;
  };
  Key keys_[1 << kBits] = {};
  cu::TensorMap maps_[1 << kBits];
};

// The driver's arguments of one kernel in one context: those that depend on nothing are written once, those that depend
// on m when it changes. For one thread at a time.
class LaunchFrame {
 public:
  // `kernel` must outlive it.
  explicit LaunchFrame(const KernelSpec& kernel);
  LaunchFrame(const LaunchFrame&) = delete;
  LaunchFrame& operator=(const LaunchFrame&) = delete;

  // From now on encoded tensor maps are kept.
  void KeepMaps();

  // Throws kCorrupt and kLaunch.
  void Launch(const cu::Driver& api, cu::Function function, const Call& call, cu::Stream stream);

 private:
  union Slot {
    uint64_t address;
    int64_t i64;
    int32_t i32;
    float f32;
  };
  // Which parameter takes which address, scalar or map of a call.
  struct Source {
    uint8_t param, index;
  };

  void Resize(int64_t m);

  const KernelSpec& kernel_;
  int64_t m_ = 0;  // what the sizes are of; 0 for none
  int pointer_count_ = 0, scalar_count_ = 0, map_count_ = 0;
  Source pointers_[kMaxParams], scalars_[kMaxParams], maps_[kMaxMaps];
  void* params_[kMaxParams];
  Slot slots_[kMaxParams];
  cu::LaunchAttribute attributes_[2];
  cu::LaunchConfig config_;
  std::unique_ptr<MapCache[]> caches_;
  cu::TensorMap encoded_[kMaxMaps];  // without caches
};

}  // namespace tirgemm
