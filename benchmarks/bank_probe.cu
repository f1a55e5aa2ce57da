// One warp and one kind of shared-memory access, its addresses from an array, REPEATS times: the profiler then counts that
// access alone. Lanes of `mask` take part; ldmatrix and stmatrix need all. `zero` is 0: what is loaded moves the next address by
// nothing, which the compiler cannot know, so that no load is left out or taken out of the loop.
#define REPEATS 64
#define PROBE(NAME, CONDITION, BODY) PROBE_THEN(NAME, CONDITION, BODY, )
#define PROBE_THEN(NAME, CONDITION, BODY, AFTER)                                                                       \
  extern "C" __global__ void NAME(const int* places, const int* sources, unsigned mask, char* memory, unsigned zero) { \
    __shared__ __align__(128) char tile[32768];                                                                        \
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + places[threadIdx.x];                         \
    const char* from = memory + sources[threadIdx.x];                                                                  \
    bool on = mask >> threadIdx.x & 1;                                                                                 \
    unsigned a = threadIdx.x, b = a, c = a, d = a;                                                                     \
    (void)from, (void)on;                                                                                              \
    _Pragma("unroll 1") for (int i = 0; i < REPEATS; ++i) {                                                            \
      if (CONDITION) {                                                                                                 \
        BODY                                                                                                           \
      }                                                                                                                \
      at += (a ^ b ^ c ^ d) & zero;                                                                                    \
    }                                                                                                                  \
    AFTER                                                                                                              \
    if (at == 1) *memory = 0;                                                                                          \
  }
#define LOAD(BITS, TYPE)                                                                                               \
  PROBE(load_##BITS, on, asm volatile("ld.shared." TYPE " %0, [%1];" : "=r"(a) : "r"(at) : "memory");)
#define STORE(BITS, TYPE)                                                                                              \
  PROBE(store_##BITS, on, asm volatile("st.shared." TYPE " [%0], %1;" ::"r"(at), "r"(a) : "memory");)

LOAD(8, "u8")
LOAD(16, "u16")
LOAD(32, "u32")
PROBE(load_64, on, asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at) : "memory");)
PROBE(load_128, on,
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");)
STORE(8, "u8")
STORE(16, "u16")
STORE(32, "u32")
PROBE(store_64, on, asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");)
PROBE(store_128, on,
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");)

#define LDMATRIX(NAME, TRANS)                                                                                          \
  PROBE(ldmatrix_x1##NAME, true,                                                                                       \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS ".shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at) : "memory");) \
  PROBE(ldmatrix_x2##NAME, true,                                                                                       \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS ".shared.b16 {%0, %1}, [%2];"                               \
                     : "=r"(a), "=r"(b) : "r"(at) : "memory");)                                                        \
  PROBE(ldmatrix_x4##NAME, true,                                                                                       \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];"                       \
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");)
LDMATRIX(, "")
LDMATRIX(_trans, ".trans")

#if __CUDA_ARCH__ >= 900
#define STMATRIX(NAME, TRANS)                                                                                          \
  PROBE(stmatrix_x4##NAME, true,                                                                                       \
        asm volatile("stmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a),    \
                     "r"(b), "r"(c), "r"(d) : "memory");)
STMATRIX(, "")
STMATRIX(_trans, ".trans")
#endif

#define COPY(NAME, HOW, BYTES)                                                                                         \
  PROBE_THEN(NAME, on,                                                                                                 \
             asm volatile("cp.async." HOW ".shared.global [%0], [%1], " #BYTES ";" ::"r"(at), "l"(from) : "memory");,   \
             asm volatile("cp.async.wait_all;" ::: "memory");)
COPY(copy_16, "cg", 16)
COPY(copy_l1_16, "ca", 16)
COPY(copy_8, "ca", 8)
COPY(copy_4, "ca", 4)
