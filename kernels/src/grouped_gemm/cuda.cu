// Tiles and few rows of groups.

SINEW_KERNEL_BOUNDS(grouped_simt, GroupedParams, 256, 2) {
    const GroupedPlace at = grouped_place(p, SIMT_TILE, SIMT_TILE);
    if (at.group < p.num_groups) simt_tile(p.product, at.group, at.end, at.row, at.n);
}

template <u32 WIDTH, u32 ROWS>
DEVICE void grouped_gemv(const GroupedParams& p) {
    const GroupedPlace at = grouped_place(p, ROWS, GEMV_COLUMNS);
    if (at.group < p.num_groups) gemv_tile<WIDTH, ROWS>(p.product, at.group, at.end, at.row, at.n);
}

SINEW_KERNEL_BOUNDS(grouped_gemv_32_1, GroupedParams, 128, 1) { grouped_gemv<4, 1>(p); }
SINEW_KERNEL_BOUNDS(grouped_gemv_32_4, GroupedParams, 128, 1) { grouped_gemv<4, 4>(p); }
SINEW_KERNEL_BOUNDS(grouped_gemv_32_8, GroupedParams, 128, 1) { grouped_gemv<4, 8>(p); }
SINEW_KERNEL_BOUNDS(grouped_gemv_16_1, GroupedParams, 128, 1) { grouped_gemv<8, 1>(p); }
SINEW_KERNEL_BOUNDS(grouped_gemv_16_4, GroupedParams, 128, 1) { grouped_gemv<8, 4>(p); }
SINEW_KERNEL_BOUNDS(grouped_gemv_16_8, GroupedParams, 128, 1) { grouped_gemv<8, 8>(p); }
