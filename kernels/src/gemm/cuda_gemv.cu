// Few rows of every product.

template <u32 WIDTH, u32 ROWS>
DEVICE void gemv(const GemmParams& p) {
    const u32 row_tiles = (p.rows + ROWS - 1) / ROWS;
    const u32 row0 = blockIdx.x % row_tiles * ROWS, n0 = blockIdx.x / row_tiles * GEMV_COLUMNS;
    for (u32 group = blockIdx.z; group < p.groups; group += gridDim.z) gemv_tile<WIDTH, ROWS>(p, group, p.rows, row0, n0);
}

SINEW_KERNEL_BOUNDS(gemv_32_1, GemmParams, 128, 1) { gemv<4, 1>(p); }
SINEW_KERNEL_BOUNDS(gemv_32_4, GemmParams, 128, 1) { gemv<4, 4>(p); }
SINEW_KERNEL_BOUNDS(gemv_32_8, GemmParams, 128, 1) { gemv<4, 8>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_1, GemmParams, 128, 1) { gemv<8, 1>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_4, GemmParams, 128, 1) { gemv<8, 4>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_8, GemmParams, 128, 1) { gemv<8, 8>(p); }
