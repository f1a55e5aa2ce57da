// Verification on the GPU: operands made and checked in place, and the product in fp64, plainly.
// No header is included, so that NVRTC compiles this in a fraction of a second.
// The structures must agree with those of the same names in cuda.py.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;

enum Dtype { F16 = 0, BF16 = 1, F32 = 2 };
enum Kind { POISON = 0, NORMAL = 1, INTEGERS = 2, SPARSE_INTEGERS = 3 };
enum Mode { WRITE = 0, CHECK = 1, CHECK_OUTSIDE = 2 };
enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

// Matrices in memory between two guard bands; base is the first byte of the first band.
struct Operand {
  unsigned char* base;
  u64 elements, guard, span;
  i64 batch, rows, cols, ld, stride;
  int dtype, transposed;
};

// largest: of integers their absolute value, of normal numbers what divides them.
struct Fill {
  u64 seed;
  i64 period, tail;
  int kind, largest;
};

struct Epilogue {
  double alpha, beta, per_t, per_x, per_y, floor;
  int activation, has_c, has_bias;
};

// failures, the largest error over its bound as the bits of a double, the first wrong element's number in D.
struct Result {
  u64 failures, worst, first;
};

__device__ inline u64 mixed(u64 x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ inline u32 poison(int dtype) { return dtype == F16 ? 0x7EA5u : dtype == BF16 ? 0x7FE5u : 0x7FE5A5A5u; }

__device__ inline u32 encoded(float value, int dtype) {
  u32 bits = __float_as_uint(value);
  if (dtype == F32) return bits;
  if (dtype == BF16) return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

__device__ inline double decoded(const Operand& op, u64 element) {
  if (op.dtype == F32) return __uint_as_float(((const u32*)op.base)[element]);
  u16 bits = ((const u16*)op.base)[element];
  if (op.dtype == BF16) return __uint_as_float((u32)bits << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// The element in row i and column j of a matrix as the product means it.
__device__ inline double at(const Operand& op, i64 matrix, i64 i, i64 j) {
  i64 row = op.transposed ? j : i, col = op.transposed ? i : j;
  return decoded(op, op.guard + matrix * op.stride + row * op.ld + col);
}

__device__ inline u32 wanted(const Operand& op, const Fill& fill, u64 element, bool* inside) {
  *inside = false;
  if (element < op.guard || element >= op.guard + op.span) return poison(op.dtype);
  i64 offset = (i64)(element - op.guard);
  i64 matrix = op.stride ? offset / op.stride : 0, rest = op.stride ? offset % op.stride : offset;
  i64 row = rest / op.ld, col = rest % op.ld;
  if (row >= op.rows || col >= op.cols) return poison(op.dtype);
  *inside = true;
  if (fill.kind == POISON) return poison(op.dtype);
  i64 i = op.transposed ? col : row, j = op.transposed ? row : col;
  i64 lines = op.transposed ? op.cols : op.rows, length = op.transposed ? op.rows : op.cols;
  u64 line = (u64)(matrix * lines + i);
  u64 hash = mixed(fill.seed ^ mixed(line * (u64)length + (u64)j));
  if (fill.kind == NORMAL) {
    float u = (float)((u32)(hash >> 40) + 1u) * 0x1p-24f, v = (float)((u32)hash & 0xFFFFFFu) * 0x1p-24f;
    return encoded(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v) / (float)fill.largest, op.dtype);
  }
  if (fill.kind == SPARSE_INTEGERS && j < length - fill.tail) {
    u64 place = mixed(~fill.seed ^ mixed(line * (u64)length + (u64)(j / fill.period))) % (u64)fill.period;
    if ((u64)(j % fill.period) != place) return 0;
  }
  float value = (float)(1 + (int)((hash >> 8) % (u64)fill.largest));
  return encoded(hash & 1 ? -value : value, op.dtype);
}

// WRITE every element, bands and gaps included, or count those that are no longer what was written.
extern "C" __global__ void fill(Operand op, Fill how, int mode, u64* disturbed) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x; e < op.elements; e += step) {
    bool inside;
    u32 bits = wanted(op, how, e, &inside);
    if (mode == WRITE) {
      if (op.dtype == F32) ((u32*)op.base)[e] = bits;
      else ((u16*)op.base)[e] = (u16)bits;
    } else if (mode == CHECK || !inside) {
      u32 found = op.dtype == F32 ? ((const u32*)op.base)[e] : ((const u16*)op.base)[e];
      if (found != bits) atomicAdd(disturbed, 1ull);
    }
  }
}

__device__ inline double block_sum(double value) {
  __shared__ double part[32];
  for (int lanes = 16; lanes; lanes >>= 1) value += __shfl_down_sync(0xFFFFFFFFu, value, lanes);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  if (threadIdx.x == 0)
    for (int w = 0; w < (int)blockDim.x / 32; ++w) value += part[w];
  __syncthreads();
  return value;  // in thread 0
}

// One block a line (a row, or a column where by_columns): its product with vector, or its norm where there is none.
extern "C" __global__ void lines(Operand op, int by_columns, const double* vector, double* out) {
  i64 rows = op.transposed ? op.cols : op.rows, cols = op.transposed ? op.rows : op.cols;
  i64 count = by_columns ? cols : rows, length = by_columns ? rows : cols;
  i64 matrix = blockIdx.x / count, line = blockIdx.x % count;
  double sum = 0;
  for (i64 e = threadIdx.x; e < length; e += blockDim.x) {
    double value = by_columns ? at(op, matrix, e, line) : at(op, matrix, line, e);
    sum += value * (vector ? vector[matrix * length + e] : value);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = vector ? sum : sqrt(sum);
}

__device__ inline double activated(double x, int activation) {
  if (activation == RELU) return x > 0 ? x : 0;
  if (activation == GELU) return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
  if (activation == GELU_TANH) return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  if (activation == SILU) return x / (1 + exp(-x));
  return x;
}

// D and its bound (bound.py) from the product and the norms of its row and column.
__device__ inline double expected(
    const Epilogue& ep, const Operand& c, const Operand& bias, double product, double norms, i64 matrix, i64 i, i64 j,
    double* bound) {
  double x = ep.alpha * product, t = fabs(ep.alpha) * norms;
  if (ep.has_c) {
    double addend = ep.beta * at(c, matrix, i, j);
    x += addend;
    t += fabs(addend);
  }
  if (ep.has_bias) {
    double addend = at(bias, 0, 0, j);
    x += addend;
    t += fabs(addend);
  }
  double y = activated(x, ep.activation);
  double error = ep.per_t * t + ep.per_x * fabs(x);
  *bound = error * (1 + ep.per_y) + ep.per_y * fabs(y) + ep.floor;
  return y;
}

__device__ inline void judge(Result* result, double got, double want, double bound, u64 element) {
  double error = fabs(got - want);
  double ratio = !(error <= 1e300) ? 1e30 : bound > 0 ? fmin(error / bound, 1e30) : error > 0 ? 1e30 : 0.0;
  u64 bits = (u64)__double_as_longlong(ratio);  // of positive numbers in the order of the numbers
  if (bits > *(volatile u64*)&result->worst) atomicMax(&result->worst, bits);
  if (!(error <= bound)) {
    atomicAdd(&result->failures, 1ull);
    atomicMin(&result->first, element);
  }
}

// Rows [row0, row0 + rows) and columns [col0, col0 + cols) of every matrix against D; 64 x 64 a block of 256 threads.
// y and bounds, where given, keep the reference for compare.
extern "C" __global__ void reference(
    Operand a, Operand b, Operand c, Operand bias, Operand d, Epilogue ep, const double* a_norms, const double* b_norms,
    i64 k, i64 row0, i64 rows, i64 col0, i64 cols, double* y, float* bounds, Result* result) {
  __shared__ double a_tile[16][65], b_tile[16][65];
  i64 across = (cols + 63) / 64, down = (rows + 63) / 64, block = blockIdx.x;
  i64 left = block % across * 64, top = block / across % down * 64, matrix = block / (across * down);
  int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;
  double sum[4][4] = {};
  for (i64 k0 = 0; k0 < k; k0 += 16) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      int index = thread + 256 * s;
      // Neighbouring threads read neighbouring addresses, whichever way the operand lies.
      int ka = a.transposed ? index / 64 : index % 16, i = a.transposed ? index % 64 : index / 16;
      int kb = b.transposed ? index % 16 : index / 64, j = b.transposed ? index / 16 : index % 64;
      a_tile[ka][i] = top + i < rows && k0 + ka < k ? at(a, matrix, row0 + top + i, k0 + ka) : 0;
      b_tile[kb][j] = left + j < cols && k0 + kb < k ? at(b, matrix, k0 + kb, col0 + left + j) : 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int kk = 0; kk < 16; ++kk)
#pragma unroll
      for (int p = 0; p < 4; ++p)
#pragma unroll
        for (int q = 0; q < 4; ++q) sum[p][q] += a_tile[kk][ty + 16 * p] * b_tile[kk][tx + 16 * q];
    __syncthreads();
  }
#pragma unroll
  for (int p = 0; p < 4; ++p)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      i64 i = top + ty + 16 * p, j = left + tx + 16 * q;
      if (i >= rows || j >= cols) continue;
      i64 row = row0 + i, col = col0 + j;
      i64 m = d.rows, n = d.cols;
      double bound, norms = a_norms[matrix * m + row] * b_norms[matrix * n + col];
      double want = expected(ep, c, bias, sum[p][q], norms, matrix, row, col, &bound);
      if (y) {
        y[(matrix * rows + i) * cols + j] = want;
        bounds[(matrix * rows + i) * cols + j] = (float)bound;
      }
      judge(result, at(d, matrix, row, col), want, bound, (u64)((matrix * m + row) * n + col));
    }
}

// All of D against a reference that was kept.
extern "C" __global__ void compare(Operand d, const double* y, const float* bounds, Result* result) {
  i64 total = d.batch * d.rows * d.cols, step = (i64)gridDim.x * blockDim.x;
  for (i64 e = (i64)blockIdx.x * blockDim.x + threadIdx.x; e < total; e += step) {
    i64 col = e % d.cols, row = e / d.cols % d.rows, matrix = e / (d.cols * d.rows);
    judge(result, at(d, matrix, row, col), y[e], bounds[e], (u64)e);
  }
}

// How many 16-bit words of two memories are not the same.
extern "C" __global__ void differing(const u16* one, const u16* other, u64 words, u64* count) {
  u64 step = (u64)gridDim.x * blockDim.x, mine = 0;
  for (u64 w = (u64)blockIdx.x * blockDim.x + threadIdx.x; w < words; w += step) mine += one[w] != other[w];
  if (mine) atomicAdd(count, mine);
}

// One block an element of D; values, where given, gets what it is, what it should be, and the bound.
extern "C" __global__ void single(
    Operand a, Operand b, Operand c, Operand bias, Operand d, Epilogue ep, const double* a_norms, const double* b_norms,
    i64 k, const u64* elements, double* values, Result* result) {
  i64 e = (i64)elements[blockIdx.x], col = e % d.cols, row = e / d.cols % d.rows, matrix = e / (d.cols * d.rows);
  double sum = 0;
  for (i64 kk = threadIdx.x; kk < k; kk += blockDim.x) sum += at(a, matrix, row, kk) * at(b, matrix, kk, col);
  sum = block_sum(sum);
  if (threadIdx.x) return;
  double bound, norms = a_norms[matrix * d.rows + row] * b_norms[matrix * d.cols + col];
  double want = expected(ep, c, bias, sum, norms, matrix, row, col, &bound), got = at(d, matrix, row, col);
  if (values) {
    values[3 * blockIdx.x] = got;
    values[3 * blockIdx.x + 1] = want;
    values[3 * blockIdx.x + 2] = bound;
  }
  judge(result, got, want, bound, (u64)e);
}
