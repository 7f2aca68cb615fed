"""Maps int8 matrix products to a fabric: tiled, with one call of `fabric.gemm_i8` per tile.

The call is a tensor intrinsic, so schedules that use it (by hand here, or MetaSchedule's, see `cross.fabric.space`) are
checked by TVM: they compute the same as the program. The fabric's side is in device_agents.fabric.reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import BuildError

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV

GEMM_I8 = "fabric.gemm_i8"
GEMM_I8_DMA = "fabric.gemm_i8_dma"
"""Name of the variant in which the fabric fetches the operands itself."""

_BUFFER_BYTES = 4096
"""Size of each of the core's three buffers, which bounds the tiles."""

_EXTENTS = (4, 8, 16, 32, 64, 128, 256)
_MAX_EXTENT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTile:
    """Extents of one call: m x k by k x n."""

    m: int
    n: int
    k: int
    function: str = GEMM_I8

    @property
    def intrinsic(self) -> str:
        """Name of the tensor intrinsic."""
        return f"{self.function.replace('.', '_')}_{self.m}x{self.n}x{self.k}"

    def fits(self) -> bool:
        """Tell whether the tile fits the core."""
        return (
            min(self.m, self.n, self.k) > 0
            and max(self.n, self.k) <= _MAX_EXTENT
            and self.n % 4 == self.k % 4 == 0
            and max(self.m * self.k, self.k * self.n, 4 * self.m * self.n) <= _BUFFER_BYTES
        )


def matmul_i8(m: int, n: int, k: int) -> IRModule:
    """Return the module of one product, C[m, n] = A[m, k] B[k, n], with int8 operands and int32 sums."""
    import tvm
    from tvm import te

    left = te.placeholder((m, k), "int8", name="A")
    right = te.placeholder((k, n), "int8", name="B")
    axis = te.reduce_axis((0, k), name="p")
    product = te.compute(
        (m, n),
        lambda i, j: te.sum(left[i, axis].astype("int32") * right[axis, j].astype("int32"), axis=axis),
        name="C",
    )
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})


def register_tile(tile: FabricTile) -> str:
    """Register a tile's intrinsic with TVM and return its name. Repeated calls are free.

    Raises:
        BuildError: the core cannot hold such a tile.
    """
    from tvm.s_tir import TensorIntrin

    if not tile.fits():
        raise BuildError(
            f"a tile of {tile.m} x {tile.n} x {tile.k} does not fit the fabric: n and k are multiples of 4 up to "
            f"{_MAX_EXTENT}, and each operand has {_BUFFER_BYTES} bytes"
        )
    if TensorIntrin.get(tile.intrinsic, allow_missing=True) is None:
        from cross.fabric.script import call_for_tile, product_of_tile

        sizes = (tile.m, tile.n, tile.k)
        TensorIntrin.register(tile.intrinsic, product_of_tile(*sizes), call_for_tile(*sizes, tile.function))
    return tile.intrinsic


def schedule_matmul(mod: IRModule, tile: FabricTile) -> IRModule:
    """Return the module with its product tiled, one fabric call per tile.

    Raises:
        BuildError: the tile does not fit the core, or does not divide the product.
    """
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    tile_product(schedule, schedule.get_sblock("C"), tile)
    return schedule.mod


def tile_product(schedule: Schedule, product: SBlockRV, tile: FabricTile) -> None:
    """Tile a product block of a schedule.

    Raises:
        BuildError: the tile does not fit the core, or does not divide the product.
    """
    loops = schedule.get_loops(product)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    if any(extent % size for extent, size in zip(extents, (tile.m, tile.n, tile.k), strict=True)):
        raise BuildError(f"tiles of {tile.m} x {tile.n} x {tile.k} do not divide {' x '.join(map(str, extents))}")
    name = register_tile(tile)
    pairs = [schedule.split(loop, [None, size]) for loop, size in zip(loops, (tile.m, tile.n, tile.k), strict=True)]
    schedule.reorder(*(outer for outer, _ in pairs), *(inner for _, inner in pairs))
    schedule.decompose_reduction(product, pairs[2][0])
    schedule.tensorize(pairs[0][1], name)


def tiles_for(m: int, n: int, k: int, function: str = GEMM_I8) -> Iterator[FabricTile]:
    """Yield the tiles that divide a product and fit the core: the space that tuning searches."""
    for tile_m in _EXTENTS:
        for tile_n in _EXTENTS:
            for tile_k in _EXTENTS:
                tile = FabricTile(m=tile_m, n=tile_n, k=tile_k, function=function)
                if m % tile_m == n % tile_n == k % tile_k == 0 and tile.fits():
                    yield tile
