"""Problems of the tensor-core families' contracts: sizes of every order of magnitude, and small ones to run."""

from __future__ import annotations

GEMMS = (
    "4096x4096x4096:f16:nt",
    "1023x1021x1027:f16:nt",
    "1x4099x4097:f16:nt",
    "4097x3x4099:bf16:tn",
    "16384x16384x512:f16:nn",
    "7x512x8192:f16:nn:acc=f16",
    "1..8192x1025x1027:bf16:tt",
    "1x1x1:f16:nn",
    "33x8x4096:f16:nn",
    "70000x70000x70000:f16:nt",
    "256x257x16384:f16:nt",
)
SMALL_GEMMS: tuple[str, ...] = (
    "127x65x33:f16:nt",
    "61x132x68:f16:nn:alpha:beta:bias:act=relu:align=8",
    "35x97x48:bf16:tn:batch=3:alpha:act=gelu:out=f32:align=4",
    "29x33x17:f16:tt:lda=40:ldb=24:ldd=37:beta:ldc=35:act=silu:align=4",
    "1..53x47x19:f16:tn:bias:act=gelu_tanh",
    "3..45x96x264:bf16:nn:batch=2:beta:lda=268:stride_a=13000",
    "1x1x1:f16:nt:align=2",
    "13x11x131:f16:tt:beta:acc=f16",
    "36x44x200:f16:nt:ldb=208:alpha:acc=f16:out=f32",
)
