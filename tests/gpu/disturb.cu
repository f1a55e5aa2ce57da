// What disturbs a kernel under test: other work on the GPU, at random places for random times.
// No header is included, so that NVRTC compiles this in a fraction of a second.

typedef unsigned long long u64;

__device__ inline u64 mixed(u64 x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ inline u64 now() {
  u64 time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// Each block keeps its SM and, where memory is given, the memory busy for up to longest_ns.
extern "C" __global__ void hog(u64* memory, u64 words, u64 longest_ns, u64 seed) {
  u64 state = mixed(seed ^ mixed(blockIdx.x));
  u64 start = now(), length = longest_ns ? state % longest_ns : 0;
  state = mixed(state + threadIdx.x);
  while (now() - start < length) {
    if (words) {
      for (int i = 0; i < 16; ++i) {
        state = mixed(state);
        memory[state % words] += 1;
      }
    }
  }
}
