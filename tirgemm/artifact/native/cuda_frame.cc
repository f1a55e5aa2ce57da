#include "cuda_frame.h"

#include "errors.h"

namespace tirgemm {
namespace {

void Encode(const cu::Driver& api, const MapSpec& map, uint64_t address, int64_t m, cu::TensorMap* out) {
  uint64_t dims[kMaxMapRank], strides[kMaxMapRank];
  uint32_t box[kMaxMapRank];
  for (uint32_t i = 0; i < map.rank; ++i) dims[i] = static_cast<uint64_t>(map.dims[i].At(m));
  for (uint32_t i = 0; i < map.rank; ++i) box[i] = static_cast<uint32_t>(map.box[i].At(m));
  for (uint32_t i = 0; i + 1 < map.rank; ++i) strides[i] = static_cast<uint64_t>(map.strides[i].At(m));
  cu::Check(api.TensorMapEncodeTiled(out, map.dtype, map.rank, reinterpret_cast<void*>(address), dims, strides, box,
                                     map.element_strides, map.interleave, map.swizzle, map.l2_promotion, map.oob_fill),
            "cuTensorMapEncodeTiled");
}

}  // namespace

const cu::TensorMap* MapCache::Get(const cu::Driver& api, const MapSpec& map, uint64_t address, int64_t m) {
  const int64_t sized_by = map.sized_by_m ? m : 0;
  // Fibonacci hashing: addresses are multiples of large powers of two.
  const uint64_t mixed = (address ^ (static_cast<uint64_t>(sized_by) << 32)) * 0x9E3779B97F4A7C15u;
  const size_t place = mixed >> (64 - kBits);
  Key& key = keys_[place];
  if (key.address == address && key.m == sized_by) return &maps_[place];
  key.address = 0;
  Encode(api, map, address, m, &maps_[place]);
  key = {address, sized_by};
  return &maps_[place];
}

LaunchFrame::LaunchFrame(const KernelSpec& kernel) : kernel_(kernel) {
  const int count = static_cast<int>(kernel.params.size());
  for (int i = 0; i < count; ++i) {
    const ParamSpec& param = kernel.params[i];
    const Source source{static_cast<uint8_t>(i), static_cast<uint8_t>(param.index)};
    params_[i] = &slots_[i];
    if (param.kind == ParamSpec::kPointer) pointers_[pointer_count_++] = source;
    if (param.kind == ParamSpec::kScalar) scalars_[scalar_count_++] = source;
    if (param.kind == ParamSpec::kTensorMap) maps_[map_count_++] = source;
  }
  config_ = {{0, 0, 0}, {kernel.block[0], kernel.block[1], kernel.block[2]}, kernel.shared_bytes, nullptr,
             attributes_, 0};
  if (kernel.cluster_size() > 1) {
    cu::LaunchAttribute& attribute = attributes_[config_.attribute_count++];
    attribute.id = cu::kLaunchClusterDimension;
    attribute.cluster = {kernel.cluster[0], kernel.cluster[1], kernel.cluster[2]};
  }
  if (kernel.programmatic_dependent_launch) {
    cu::LaunchAttribute& attribute = attributes_[config_.attribute_count++];
    attribute.id = cu::kLaunchProgrammaticStreamSerialization;
    attribute.flag = 1;
  }
}

void LaunchFrame::KeepMaps() {
  if (map_count_ > 0) caches_ = std::make_unique<MapCache[]>(static_cast<size_t>(map_count_));
}

void LaunchFrame::Resize(int64_t m) {
  m_ = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t extent = kernel_.grid[axis].At(m);
    if (extent < 1 || extent > INT32_MAX)
      TIRGEMM_FAIL(kCorrupt) << kernel_.symbol << ": grid extent " << axis << " is " << extent;
    config_.grid[axis] = static_cast<unsigned>(extent);
  }
  const int count = static_cast<int>(kernel_.params.size());
  for (int i = 0; i < count; ++i) {
    const ParamSpec& param = kernel_.params[i];
    if (param.kind == ParamSpec::kSize32) slots_[i].i32 = static_cast<int32_t>(param.size.At(m));
    if (param.kind == ParamSpec::kSize64) slots_[i].i64 = param.size.At(m);
  }
  m_ = m;
}

void LaunchFrame::Launch(const cu::Driver& api, cu::Function function, const Call& call, cu::Stream stream) {
  if (m_ != call.m) Resize(call.m);
  for (int i = 0; i < pointer_count_; ++i) slots_[pointers_[i].param].address = call.address[pointers_[i].index];
  for (int i = 0; i < scalar_count_; ++i) slots_[scalars_[i].param].f32 = call.scalar[scalars_[i].index];
  for (int i = 0; i < map_count_; ++i) {
    const MapSpec& map = kernel_.params[maps_[i].param].map;
    const uint64_t address = call.address[maps_[i].index];
    if (caches_) {
      params_[maps_[i].param] = const_cast<cu::TensorMap*>(caches_[i].Get(api, map, address, call.m));
    } else {
      Encode(api, map, address, call.m, &encoded_[i]);
      params_[maps_[i].param] = &encoded_[i];
    }
  }
  config_.stream = stream;
  const cu::Result result = api.LaunchKernelEx(&config_, function, params_, nullptr);
  if (__builtin_expect(result != 0, 0))
    TIRGEMM_FAIL(kLaunch) << "kernel " << kernel_.symbol << " could not be launched: " << cu::Describe(result);
}

}  // namespace tirgemm
