// Rows that fall into groups: which of them a block has.

struct GroupedParams {
    // One product of all rows, whose right operands are `b_batch` apart, and their biases `bias_batch`.
    GemmParams product;
    Ptr offsets, status;
    i64 offsets_step;
    u32 num_groups, padding;
};

struct GroupedPlace {
    u32 group, row, end, n;
};

// Tiles of rows are counted through group after group, each of which ends with one that may not be full. Whatever offsets
// hold, rows are those of the product; past the last tile the group is none.
DEVICE GroupedPlace grouped_place(const GroupedParams& p, u32 tile_rows, u32 tile_columns) {
    const u32 rows = p.product.rows, row_tiles = min(rows, rows / tile_rows + p.num_groups);
    const auto offset = [&](u32 i) { return *at<i32>(p.offsets, i64(i) * p.offsets_step); };
    const u32 n = blockIdx.x / row_tiles * tile_columns;
    u32 tile = blockIdx.x % row_tiles;
    i32 first = offset(0);
    if (threadIdx.x == 0 && first != 0) report(p.status, first);
    if (threadIdx.x == 0 && offset(p.num_groups) != i32(rows)) report(p.status, offset(p.num_groups));
    for (u32 group = 0; group < p.num_groups; ++group) {
        const i32 last = offset(group + 1);
        if (threadIdx.x == 0 && (first > last || last > i32(rows))) report(p.status, first);
        const u32 begin = u32(max(0, min(first, i32(rows)))), end = u32(max(0, min(last, i32(rows))));
        const u32 tiles = begin < end ? (end - begin + tile_rows - 1) / tile_rows : 0;
        if (tile < tiles) return GroupedPlace{group, begin + tile * tile_rows, end, n};
        tile -= tiles;
        first = last;
    }
    return GroupedPlace{p.num_groups, 0, 0, n};
}
