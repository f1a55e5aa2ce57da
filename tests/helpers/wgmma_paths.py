"""Named paths through the wgmma family: problems with the knobs that make each, by name; other knobs are the
simplest."""

from __future__ import annotations

from collections.abc import Iterator

from tests.helpers.named_config import named_config
from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wgmma.planning.plan import Plan, plan
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification.cases import Case

# A plain config with TMA on both sides.
TMA_KNOBS: dict[str, Value] = {
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "stages": 4,
    "schedule": "cooperative",
    "resident": 1,
    "cluster_m": 1,
    "cluster_n": 1,
    "swap": 0,
    "split": 1,
    "reduction": "cluster",
    "load": "tma",
    "epilogue": "tma",
    "order": "m",
    "group": 8,
    "l2_promotion": 2,
    "eviction": "normal",
}
NAMED = (
    ("2000x1000x1000:f16:nt", "tile_m=128 tile_n=128 stages=4 epilogue=tma group=4"),
    ("2000x1000x1000:f16:nn", "tile_m=128 tile_n=128 stages=4 epilogue=tma group=4"),
    ("2000x1000x1000:f16:tn", "tile_m=128 tile_n=128 stages=4 epilogue=tma group=4"),
    ("1000x1000x1000:bf16:tt", "tile_m=128 tile_n=96 tile_k=128 stages=2 epilogue=tma group=4"),
    ("1000x1000x1000:bf16:nn", "tile_m=128 tile_n=96 stages=2 cluster_m=2 epilogue=tma group=4"),
    ("2000x1600x520:f16:nt", "tile_m=128 tile_n=160 stages=3 schedule=pingpong cluster_m=2 epilogue=tma group=8"),
    (
        "2000x4000x520:f16:nn",
        "tile_m=128 tile_n=192 stages=4 schedule=pingpong cluster_n=2 epilogue=tma order=n group=4",
    ),
    ("2000x1600x520:f16:tn", "tile_m=256 tile_n=192 stages=3 cluster_n=2 epilogue=tma group=4"),
    ("2000x2000x200:bf16:tt", "tile_m=192 tile_n=128 stages=3 cluster_m=2 epilogue=tma group=4"),
    (
        "3001x2001x72:f16:nt:beta:bias:act=silu",
        "tile_m=64 tile_n=32 stages=5 schedule=pingpong epilogue=staged group=16 l2_promotion=0",
    ),
    (
        "777x2003x136:f16:nt:alpha:act=gelu",
        "tile_m=128 tile_n=64 tile_k=128 stages=2 cluster_n=2 epilogue=staged group=4",
    ),
    (
        "777x1003x136:bf16:nt:beta:ldc=1005",
        "tile_m=64 tile_n=16 stages=3 schedule=pingpong cluster_m=2 epilogue=direct order=n group=4",
    ),
    ("2777x2004x136:f16:nt:out=f32:beta:bias", "tile_m=256 tile_n=128 stages=3 epilogue=direct group=4"),
    ("16x576x7168:f16:nt", "tile_m=64 tile_n=64 tile_k=128 stages=6 split=8 reduction=kernel epilogue=direct"),
    (
        "1..64x577x2000:f16:nt:alpha:beta:bias:act=gelu_tanh:batch=2",
        "tile_m=64 tile_n=64 stages=4 split=4 reduction=kernel epilogue=direct",
    ),
    (
        "1..2500x1032x264:bf16:nn:ldb=1040:batch=2:beta",
        "tile_m=128 tile_n=128 stages=4 schedule=pingpong cluster_m=2 epilogue=tma group=4",
    ),
    ("1..9x1000x1:f16:nt:lda=8:ldb=8:bias", "tile_m=64 tile_n=32 stages=2 epilogue=tma"),
    ("1x1x1:f16:nt:lda=8:ldb=8", "tile_m=64 tile_n=8 stages=2 epilogue=staged"),
    ("5x4104x1000:f16:nt:bias", "tile_m=64 tile_n=8 stages=6 swap=1 epilogue=staged"),
    ("24x8712x1000:bf16:nn:beta:act=silu", "tile_m=128 tile_n=24 stages=4 swap=1 epilogue=direct"),
    ("37x1003x7168:f16:nt:alpha", "tile_m=64 tile_n=40 stages=4 swap=1 split=6 reduction=cluster epilogue=staged"),
    ("128x576x7168:bf16:nn:out=f32:bias", "tile_m=64 tile_n=64 stages=4 split=4 reduction=cluster epilogue=direct"),
    ("1..100x520x4104:f16:tt:batch=2", "tile_m=64 tile_n=112 stages=3 split=5 reduction=cluster epilogue=tma"),
    ("1000x1544x1096:f16:nt:beta", "tile_m=128 tile_n=144 stages=3 epilogue=staged group=4"),
    ("1111x1000x2056:bf16:nn:lda=2056:out=f32", "tile_m=128 tile_n=112 stages=3 epilogue=direct group=4"),
    ("1..1100x1160x712:f16:tn:lda=1104", "tile_m=64 tile_n=240 stages=3 epilogue=tma group=4"),
    ("4000x2000x520:f16:nt:acc=f16", "tile_m=128 tile_n=256 stages=3 epilogue=tma group=4"),
    (
        "300x577x2056:f16:nn:acc=f16:out=f32:beta",
        "tile_m=64 tile_n=64 stages=4 split=3 reduction=cluster epilogue=direct group=4",
    ),
    ("4099x4104x72:bf16:nt", "tile_m=128 tile_n=256 stages=4 epilogue=tma group=8 eviction=first_last"),
    ("1100x1160x520:f16:nt", "tile_m=128 tile_n=104 stages=4 cluster_m=2 epilogue=tma group=4"),
    ("1100x1160x520:f16:nn", "tile_m=128 tile_n=136 stages=4 cluster_n=2 epilogue=tma group=4"),
    ("40x8712x1000:bf16:tn:bias", "tile_m=64 tile_n=40 stages=9 swap=1 epilogue=tma"),
    ("8x8712x1000:f16:tt", "tile_m=64 tile_n=8 stages=10 swap=1 epilogue=tma"),
    ("4096x4096x64:f16:nt", "tile_m=128 tile_n=128 stages=3 schedule=pingpong epilogue=tma group=8"),
    ("1000x1000x1000:f16:nt", "tile_m=64 tile_n=144 stages=7 cluster_m=4 epilogue=tma group=4"),
    ("2600x3000x1000:f16:nt", "tile_m=256 tile_n=152 stages=4 cluster_n=2 epilogue=tma group=4"),
    ("7000x5000x64:bf16:nt", "tile_m=128 tile_n=128 stages=3 schedule=pingpong epilogue=tma group=8"),
    (
        "1208x3000x1000:bf16:tn:bias",
        "tile_m=128 tile_n=128 stages=6 schedule=pingpong cluster_m=2 cluster_n=4 epilogue=tma group=4",
    ),
    (
        "1..900x1000x1096:f16:tt:lda=904:beta",
        "tile_m=128 tile_n=72 stages=7 cluster_m=4 cluster_n=2 epilogue=staged",
    ),
    ("2008x1000x520:bf16:nn", "tile_m=192 tile_n=64 stages=4 cluster_m=2 cluster_n=2 swap=1 epilogue=direct group=4"),
    ("4096x576x7168:f16:nt:invariant", "tile_m=128 tile_n=144 stages=5 split=4 reduction=block epilogue=tma group=8"),
    (
        "4000x577x7168:bf16:nn:ldb=584:bias:invariant",
        "tile_m=64 tile_n=192 stages=3 schedule=pingpong split=4 reduction=block epilogue=staged group=8",
    ),
    (
        "1..4096x576x4104:f16:tn:lda=4096:ldb=4104:invariant",
        "tile_m=128 tile_n=96 stages=4 cluster_n=2 split=4 reduction=block epilogue=tma group=4",
    ),
    (
        "2100x2112x2056:f16:nt:acc=f16:out=f32:invariant",
        "tile_m=128 tile_n=96 stages=4 split=2 reduction=block epilogue=direct group=4",
    ),
    ("4096x4096x512:f16:nt:out=f32", "tile_m=64 tile_n=256 stages=5 schedule=pingpong epilogue=tma group=8"),
    (
        "2000x1004x520:bf16:nn:out=f32:bias:act=gelu:ldb=1008:ldd=1016",
        "tile_m=128 tile_n=136 stages=4 cluster_m=2 epilogue=tma group=4",
    ),
    (
        "1..2500x1032x264:f16:nt:out=f32:batch=2:alpha",
        "tile_m=128 tile_n=72 stages=4 schedule=pingpong cluster_n=2 epilogue=tma group=4",
    ),
    ("2777x2004x136:f16:nt:out=f32:beta:bias", "tile_m=256 tile_n=128 stages=3 epilogue=tma group=4"),
    ("2600x3000x1000:f16:nt:out=f32", "tile_m=256 tile_n=152 stages=4 cluster_n=2 epilogue=tma group=4"),
    ("40x8712x1000:bf16:tn:out=f32:bias", "tile_m=64 tile_n=40 stages=9 swap=1 epilogue=tma"),
    ("1..8x8712x1000:f16:nt:out=f32:acc=f16:beta", "tile_m=64 tile_n=8 stages=9 swap=1 epilogue=tma"),
    ("128x576x7168:bf16:nn:out=f32:bias", "tile_m=64 tile_n=64 stages=4 split=4 reduction=cluster epilogue=tma"),
)
# Rows of A or of B that TMA does not take, for every way to load that the family offers for them.
UNALIGNED = (
    ("777x1003x523:f16:nt:lda=524:ldb=524", "tile_m=128 tile_n=96 stages=3 epilogue=staged group=4"),
    ("777x1002x522:f16:nt", "tile_m=128 tile_n=96 stages=3 epilogue=staged group=4"),
    ("778x1004x524:bf16:tn:align=8:batch=2", "tile_m=128 tile_n=64 stages=4 epilogue=staged group=4"),
    ("778x1002x522:f16:tt:align=4:bias", "tile_m=64 tile_n=128 stages=4 epilogue=direct group=4"),
    ("1..33x4307x1046:f16:nt:alpha", "tile_m=64 tile_n=40 stages=4 swap=1 epilogue=staged"),
    ("1000x1544x1096:f16:nn:lda=1100", "tile_m=128 tile_n=144 stages=3 epilogue=tma group=4"),
    ("128x576x4100:f16:nt", "tile_m=64 tile_n=64 stages=4 split=4 reduction=kernel epilogue=direct"),
    ("1..128x576x4100:bf16:nt", "tile_m=64 tile_n=64 stages=4 split=4 reduction=cluster epilogue=staged"),
    ("777x1003x523:bf16:nn:lda=525:ldb=1005:align=2", "tile_m=128 tile_n=96 stages=3 epilogue=staged group=4"),
    ("777x1002x523:f16:tt:lda=778:ldb=526:align=4:bias", "tile_m=64 tile_n=128 stages=4 epilogue=direct group=4"),
    ("777x1003x523:bf16:tn:lda=780:ldb=1004:align=8:batch=2", "tile_m=128 tile_n=64 stages=4 epilogue=staged group=4"),
    ("1..33x4307x1047:f16:nt:align=2:alpha", "tile_m=64 tile_n=40 stages=4 swap=1 epilogue=staged"),
    ("777x1003x123:f16:nt:beta", "tile_m=128 tile_n=96 stages=2 epilogue=staged group=4"),
    ("1..300x57x77:bf16:tn:lda=303", "tile_m=64 tile_n=32 tile_k=128 stages=2 swap=1 epilogue=direct"),
)


def plan_of(text: str, knobs: dict[str, Value]) -> Plan:
    """The plan of the problem on an H200; other knobs are those of TMA_KNOBS."""
    config = Config("wgmma", tuple((TMA_KNOBS | knobs).items()))
    return plan(Gemm.parse(text), config, named_device("sm_90a").units)


def named_cases(device: Device) -> Iterator[Case]:
    """Every named path; each unaligned one once for each way to load. Raises InvalidConfig for one that is none."""
    family = Wgmma()
    for text, knobs in NAMED:
        gemm = Gemm.parse(text)
        yield Case(gemm, named_config(family, gemm, device, knobs))
    for text, knobs in UNALIGNED:
        gemm = Gemm.parse(text)
        choices = next(knob.choices for knob in family.space(gemm, device).knobs if knob.name == "load")
        for load in choices:
            yield Case(gemm, named_config(family, gemm, device, f"{knobs} load={load}"))
