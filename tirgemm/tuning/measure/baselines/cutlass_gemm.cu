// One GEMM of CUTLASS's device templates behind a C function. Everything that is a template argument is a macro:
//   ELEMENT, OUTPUT, SUMS   dtypes            LAYOUT_A, LAYOUT_B   RowMajor or ColumnMajor
//   ALIGN_A, ALIGN_B, ALIGN_D   elements of one access
//   TILE_M, TILE_N, TILE_K, WARP_M, WARP_N, STAGES, SWIZZLE
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_universal.h>

using Element = ELEMENT;
using Output = OUTPUT;
using Sums = SUMS;
using Tile = cutlass::gemm::GemmShape<TILE_M, TILE_N, TILE_K>;
using Warp = cutlass::gemm::GemmShape<WARP_M, WARP_N, TILE_K>;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Output, ALIGN_D, Sums, Sums>;
using Gemm = cutlass::gemm::device::GemmUniversal<
    Element, cutlass::layout::LAYOUT_A, Element, cutlass::layout::LAYOUT_B, Output, cutlass::layout::RowMajor, Sums,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, Warp, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<SWIZZLE>, STAGES, ALIGN_A, ALIGN_B>;

// D = A B + beta C for a batch of matrices; leading dimensions and strides in elements. 0, or a cutlass::Status.
extern "C" int cutlass_gemm(int m, int n, int k, int batch, const void* a, const void* b, const void* c, void* d,
                            long long stride_a, long long stride_b, long long stride_c, long long stride_d,
                            long long lda, long long ldb, long long ldc, long long ldd, float beta, void* stream) {
  const auto mode = batch > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm;
  typename Gemm::Arguments arguments(mode, {m, n, k}, batch > 1 ? batch : 1, {Sums(1), Sums(beta)}, a, b, c, d,
                                     stride_a, stride_b, stride_c, stride_d, lda, ldb, ldc, ldd);
  cutlass::Status status = Gemm::can_implement(arguments);
  if (status != cutlass::Status::kSuccess) return int(status);
  Gemm gemm;
  status = gemm.initialize(arguments, nullptr, static_cast<cudaStream_t>(stream));
  if (status == cutlass::Status::kSuccess) status = gemm.run(static_cast<cudaStream_t>(stream));
  return int(status);
}

extern "C" const char* cutlass_words(int status) { return cutlass::cutlassGetStatusString(cutlass::Status(status)); }
