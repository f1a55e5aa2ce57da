"""Kernel plan of a config: tiles, warpgroups, shared memory, split and grid. Integers only, no TVM."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tirgemm import expr
from tirgemm.config import Config
from tirgemm.errors import InvalidConfig
from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import copy_bytes, loaded_by_tma, pairs
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, SLAB_BYTES, SWIZZLES, Tile
from tirgemm.gemm import Gemm, Operand

WARPGROUP = 128
MMA_M = 64

# Consumer warpgroups of a cooperative tile. 192 rows are three: two would have one and a half wgmmas each.
CONSUMERS = {64: 1, 128: 2, 192: 3, 256: 2}
# Widths of staged outputs.
_CHUNKS = (64, 32, 16, 8)
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_STAGING_BUFFERS = 2
_BARRIER_BYTES = 8
_WORD = 4
_FLOAT_BYTES = 4
# Columns of a tile that one wgmma fragment of four accumulators a thread spans.
FRAGMENT_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """One config of one problem on ``units`` SMs. Defined for every point of the space, valid or not."""

    gemm: Gemm
    units: int
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    schedule: str
    resident: int
    cluster_m: int
    cluster_n: int
    swap: int
    split: int
    reduction: str
    load: str
    epilogue: str
    order: str
    group: int
    l2_promotion: int
    eviction: str

    @property
    def config(self) -> Config:
        """The config that this is the plan of."""
        return Config("wgmma", tuple((name, getattr(self, name)) for name in KNOBS))

    def __post_init__(self) -> None:
        for knob in names.WORDS:
            reason = names.unknown_word(knob, getattr(self, knob))
            if reason:
                raise InvalidConfig(f"wgmma: {reason}")

    # -- problem -------------------------------------------------------------------------------

    @property
    def swapped(self) -> bool:
        """Whether the tile's rows run along n and its columns along m: the kernel computes D transposed."""
        return bool(self.swap)

    @property
    def rows(self) -> Dim:
        """Outputs along the tile's rows."""
        return self.gemm.n if self.swapped else self.gemm.m_dim

    @property
    def columns(self) -> Dim:
        """Outputs along the tile's columns."""
        return self.gemm.m_dim if self.swapped else self.gemm.n

    @property
    def most_rows(self) -> int:
        return self.gemm.n if self.swapped else self.gemm.m_max

    @property
    def most_columns(self) -> int:
        return self.gemm.m_max if self.swapped else self.gemm.n

    @property
    def left_operand(self) -> Operand:
        """The operand whose m or n is the tile's rows: wgmma's A."""
        return "b" if self.swapped else "a"

    @property
    def right_operand(self) -> Operand:
        return "a" if self.swapped else "b"

    # -- warpgroups ----------------------------------------------------------------------------

    @property
    def pingpong(self) -> bool:
        return self.schedule == names.PINGPONG

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else CONSUMERS[self.tile_m]

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.consumers + 1)

    @property
    def consumer_rows(self) -> int:
        """Rows of the tile that one consumer computes: in ping-pong each has tiles of its own."""
        return self.tile_m if self.pingpong else self.tile_m // self.consumers

    @property
    def blocks(self) -> int:
        """wgmmas of 64 rows that cover a consumer's rows."""
        return self.consumer_rows // MMA_M

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.blocks * self.tile_n // 2

    @property
    def half(self) -> bool:
        """Whether sums are fp16, two of them in a register."""
        return self.gemm.acc == "f16"

    @property
    def accumulator_registers(self) -> int:
        return self.accumulators // 2 if self.half else self.accumulators

    # -- shared memory -------------------------------------------------------------------------

    @property
    def in_cluster(self) -> bool:
        """Whether the blocks of a cluster compute parts of one tile."""
        return self.split > 1 and self.reduction == names.CLUSTER

    @property
    def cluster(self) -> int:
        return self.split if self.in_cluster else self.cluster_m * self.cluster_n

    @property
    def shared_by(self) -> int:
        """Blocks of a cluster that a stage's data may go to."""
        return self.cluster_m * self.cluster_n

    @property
    def left(self) -> Tile:
        """The left operand's tile. With few rows of it in all, only those are loaded: the rest of a wgmma reads what
        lies behind them."""
        k_major = self._k_major(self.left_operand)
        rows = self.tile_m
        if k_major and rows == MMA_M and self.cluster_n == 1:
            rows = min(rows, -(-self.most_rows // CORE_ROWS) * CORE_ROWS)
        return Tile(k_major, rows, self.tile_k, self.cluster_n)

    @property
    def right(self) -> Tile:
        return Tile(self._k_major(self.right_operand), self.tile_n, self.tile_k, self.cluster_m)

    def _k_major(self, operand: Operand) -> bool:
        return self.gemm.trans_b if operand == "b" else not self.gemm.trans_a

    @property
    def stage_bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def reducers(self) -> int:
        """Blocks of a cluster that add the parts of a tile, each of an equal share of its columns."""
        return next(r for r in range(self.cluster, 0, -1) if self.tile_n % (r * FRAGMENT_COLUMNS) == 0)

    @property
    def stored_columns(self) -> int:
        """Columns of a tile that one block stores."""
        return self.tile_n // self.reducers if self.in_cluster else self.tile_n

    @property
    def chunk(self) -> int:
        """Columns of the tile that are staged in shared memory at a time."""
        columns = self.stored_columns
        if columns > _CHUNKS[0] and columns % _CHUNKS[2] == 0 and not self.gemm.beta:
            return _CHUNKS[0]
        return next(c for c in _CHUNKS if columns % c == 0)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The first column of every chunk. The last may begin inside the one before: the same outputs are stored
        twice."""
        return tuple(min(c, self.stored_columns - self.chunk) for c in range(0, self.stored_columns, self.chunk))

    @property
    def staged_shape(self) -> tuple[int, int]:
        """Rows of D and columns of D in one buffer of staged outputs."""
        return (self.chunk, MMA_M) if self.swapped else (MMA_M, self.chunk)

    @property
    def staged_swizzle(self) -> int:
        return SWIZZLES[self.staged_shape[1] * ELEMENT_BYTES]

    @property
    def staged(self) -> bool:
        """Whether D passes through shared memory."""
        return not self.partials and self.epilogue != names.DIRECT

    @property
    def staging_buffers(self) -> int:
        return _STAGING_BUFFERS

    @property
    def staging_bytes(self) -> int:
        return self.consumers * _STAGING_BUFFERS * MMA_M * self.chunk * ELEMENT_BYTES if self.staged else 0

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of sums that a block of a cluster shows its peers, in the memory of its stages."""
        return self.tile_m * self.tile_n * _FLOAT_BYTES if self.in_cluster else 0

    @property
    def slack_bytes(self) -> int:
        """Shared memory behind the last stage that a wgmma on fewer than 64 rows may read beyond the rest."""
        read = (MMA_M - self.left.extent) * SLAB_BYTES if self.left.extent < MMA_M else 0
        return max(0, read - self.stages * self.right.nbytes - self.staging_bytes)

    @property
    def barriers(self) -> int:
        return 2 * self.stages + (2 if self.pingpong else 0)

    @property
    def shared_bytes(self) -> int:
        tiles = self.stages * self.stage_bytes + self.staging_bytes + self.slack_bytes
        return tiles + self.barriers * _BARRIER_BYTES

    # -- work ----------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps of k in all."""
        return -(-self.gemm.k // self.tile_k)

    @property
    def split_steps(self) -> int:
        """Steps of k in one part of a split; the last part may have fewer."""
        return -(-self.steps // self.split)

    @property
    def tiles_m(self) -> Dim:
        """Rows of clusters of tiles."""
        return expr.ceildiv(self.rows, self.tile_m * self.cluster_m)

    @property
    def tiles_n(self) -> Dim:
        """Columns of clusters of tiles."""
        return expr.ceildiv(self.columns, self.tile_n * self.cluster_n)

    @property
    def slices(self) -> int:
        """Times that the tiles of a matrix follow each other: for each of the batch, and of the parts of k."""
        return self.gemm.batch * (self.split if self.partials else 1)

    @property
    def work(self) -> Dim:
        """Clusters' tiles in all."""
        return expr.make("mul", expr.make("mul", self.tiles_m, self.tiles_n), self.slices)

    @property
    def slots(self) -> int:
        """Blocks that run at once."""
        return self.units * self.resident

    @property
    def waves(self) -> Dim:
        """Tiles that the busiest cluster computes."""
        return expr.ceildiv(self.work, max(1, self.slots // self.cluster))

    @property
    def clusters(self) -> Dim:
        """Clusters launched: as few as give the same waves, which leaves power to those that compute."""
        return self.work if self.in_cluster else expr.ceildiv(self.work, self.waves)

    @property
    def grid(self) -> Dim:
        return expr.make("mul", self.clusters, self.cluster)

    @property
    def streamed(self) -> Dim:
        """Tiles beyond whole waves, and one wave more: declared by the kernel and not used."""
        whole = expr.make("max", expr.make("sub", expr.make("floordiv", self.work, self.slots), 1), 0)
        return expr.make("sub", self.work, expr.make("mul", whole, self.slots))

    def policy(self, operand: Operand) -> str:
        """What L2 is told of an operand's lines: the larger operand is read through, the smaller one again and
        again."""
        m, n = self.gemm.m_max, self.gemm.n
        larger: Operand = "b" if n >= m else "a"
        told = {names.NORMAL: (), names.EVICT_BOTH: (names.EVICT_FIRST, names.EVICT_LAST)}.get(
            self.eviction, (self.eviction,)
        )
        wanted = names.EVICT_FIRST if operand == larger else names.EVICT_LAST
        return wanted if wanted in told else ""

    # -- operands that TMA does not load -------------------------------------------------------

    @property
    def copied(self) -> dict[Operand, int]:
        """A and B -> bytes of one cp.async where the producer copies it so, else 0."""
        wanted = self.load == names.COPY
        return {
            op: copy_bytes(self.gemm, op) if wanted and not loaded_by_tma(self.gemm, op) else 0 for op in ("a", "b")
        }

    @property
    def copies(self) -> bool:
        return any(self.copied.values())

    @property
    def loaded_bytes(self) -> int:
        """Bytes of a stage that come by TMA."""
        left, right = (self.copied[operand] for operand in (self.left_operand, self.right_operand))
        return (0 if left else self.left.nbytes) + (0 if right else self.right.nbytes)

    # -- outputs -------------------------------------------------------------------------------

    @property
    def partials(self) -> bool:
        """Whether partial sums leave for a second kernel."""
        return self.split > 1 and self.reduction == names.KERNEL

    @property
    def pairs(self) -> bool:
        """Whether two neighbouring columns of D and C are one aligned word everywhere."""
        return pairs(self.gemm)

    @property
    def pitch(self) -> int:
        """Columns of a row of the partial sums."""
        return -(-self.gemm.n // _WORD) * _WORD

    @property
    def partial_elements(self) -> Dim:
        """fp32 numbers of the partial sums of every part: (split, batch, m, pitch)."""
        return expr.make("mul", self.gemm.m_dim, self.slices * self.pitch)


KNOBS = tuple(field.name for field in fields(Plan))[2:]
_last: tuple[Gemm, Config, Plan] | None = None


def plan(gemm: Gemm, config: Config, units: int) -> Plan:
    """The cut that ``config`` means for ``gemm`` on ``units`` SMs. Rules ask for the same one time after time."""
    global _last
    last = _last
    if last is not None and last[0] is gemm and last[1] is config and last[2].units == units:
        return last[2]
    cut = Plan(gemm, units, **dict(config.knobs))  # type: ignore[arg-type]
    _last = (gemm, config, cut)
    return cut
