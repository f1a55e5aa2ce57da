// mma.sync.m16n8k16 out of registers alone: what a kernel on mma.sync could reach if nothing had to be loaded.
//
// A warp has the fragments and the sums of a 64 x 64 tile, 4 x 8 instructions, which depend on nothing but themselves a
// turn ago. Operands are random: how often bits flip decides the power, and so the clock.

#ifdef BF16
#define INPUT "bf16"
#else
#define INPUT "f16"
#endif

// Sixteen warps have the registers of half a tile each.
constexpr int ROWS = 4, COLUMNS = WARPS > 8 ? 4 : 8;

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) mma_ceiling(const unsigned* operands, unsigned long long turns,
                                                                        float* sink) {
  // A and its negative in turn: sums that only grow would soon flip few bits.
  unsigned a[2][ROWS][4], b[COLUMNS][2];
  const unsigned* mine = operands + threadIdx.x * (ROWS * 4 + 8 * 2);
#pragma unroll
  for (int i = 0; i < ROWS * 4; ++i) a[1][i / 4][i % 4] = (a[0][i / 4][i % 4] = mine[i]) ^ 0x80008000u;
#pragma unroll
  for (int i = 0; i < COLUMNS * 2; ++i) b[i / 2][i % 2] = mine[ROWS * 4 + i];
#ifdef HALF_SUMS
  unsigned d[ROWS][COLUMNS][2] = {};
#else
  float d[ROWS][COLUMNS][4] = {};
#endif
  for (unsigned long long turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int n = 0; n < 2 * ROWS * COLUMNS; ++n) {
      const int sign = n / (ROWS * COLUMNS), i = n / COLUMNS % ROWS, j = n % COLUMNS;
      const unsigned *x = a[sign][i], *y = b[j];
#ifdef HALF_SUMS
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                   : "+r"(d[i][j][0]), "+r"(d[i][j][1])
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
#else
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." INPUT "." INPUT ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                   "{%0, %1, %2, %3};"
                   : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
#endif
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) sum += (float)d[i][j][0] + (float)d[i][j][1];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
