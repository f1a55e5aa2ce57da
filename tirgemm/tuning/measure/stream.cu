// Read memory once, or write it once, and do nothing else: the bandwidths that a kernel bound by memory is held
// against.

constexpr int LOADS = 8;

// Reads count 16-byte words, LOADS of them in flight a thread. sink is never written, but the compiler cannot know.
extern "C" __global__ void __launch_bounds__(512) read_stream(const uint4* words, unsigned long long count,
                                                              unsigned* sink) {
  unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; at + (LOADS - 1) * threads < count; at += LOADS * threads) {
    uint4 word[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) word[i] = __ldcs(words + at + i * threads);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) sum ^= word[i].x ^ word[i].y ^ word[i].z ^ word[i].w;
  }
  for (; at < count; at += threads) sum ^= words[at].x;
  if (sum == 0x9e3779b9u) *sink = sum;
}

// Writes count 16-byte words.
extern "C" __global__ void __launch_bounds__(512) write_stream(uint4* words, unsigned long long count, unsigned value) {
  unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; at < count; at += threads) words[at] = make_uint4(value, value ^ (unsigned)at, ~value, (unsigned)at);
}
