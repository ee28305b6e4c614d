// Any operands in f32: one chain of multiply-adds over K for each output.

constexpr u32 SIMT_TILE = 64;
constexpr u32 SIMT_DEPTH = 16;
constexpr u32 SIMT_THREADS = 256;
constexpr u32 SIMT_LOADS = SIMT_TILE * SIMT_DEPTH / SIMT_THREADS;

// Which value of a tile a thread brings: neighbouring threads follow the dimension that is contiguous.
DEVICE void simt_place(bool along_k, u32 load, u32& line, u32& k) {
    u32 i = threadIdx.x + load * SIMT_THREADS;
    line = along_k ? i / SIMT_DEPTH : i % SIMT_TILE;
    k = along_k ? i % SIMT_DEPTH : i / SIMT_TILE;
}

// Rows from `row0` on that are below `rows`, and outputs from `n0` on.
DEVICE void simt_tile(const GemmParams& p, u32 group, u32 rows, u32 row0, u32 n0) {
    // Rows of 68 keep the four values that a thread reads aligned, and spread those it writes over the banks.
    __shared__ float left[SIMT_DEPTH][SIMT_TILE + 4];
    __shared__ float right[SIMT_DEPTH][SIMT_TILE + 4];
    u32 x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
    bool a_along_k = p.a_k == 1, b_along_k = p.b_k == 1;
    i64 a_at[SIMT_LOADS], b_at[SIMT_LOADS];
    for (u32 i = 0; i < SIMT_LOADS; i++) {
        u32 line, k;
        simt_place(a_along_k, i, line, k);
        a_at[i] = row0 + line < rows ? row_offset(p, group, row0 + line, p.a_batch, p.a_row) : -1;
        simt_place(b_along_k, i, line, k);
        b_at[i] = n0 + line < p.n ? column_offset(p, group, n0 + line) : -1;
    }
    float sum[4][4] = {};
    for (u32 k0 = 0; k0 < p.k; k0 += SIMT_DEPTH) {
        for (u32 i = 0; i < SIMT_LOADS; i++) {
            u32 line, k;
            simt_place(a_along_k, i, line, k);
            bool there = a_at[i] >= 0 && k0 + k < p.k;
            float value = there ? load(p.a, p.a_type, a_at[i] + i64(k0 + k) * p.a_k) : 0.0f;
            left[k][line] = rounded(value, p.flags & ROUND_A);
            simt_place(b_along_k, i, line, k);
            there = b_at[i] >= 0 && k0 + k < p.k;
            value = there ? load(p.b, p.b_type, b_at[i] + i64(k0 + k) * p.b_k) : 0.0f;
            right[k][line] = rounded(value, p.flags & ROUND_B);
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < SIMT_DEPTH; k++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) sum[i][j] = fmaf(left[k][y + i], right[k][x + j], sum[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j += 2) finish_pair(p, group, rows, row0 + y + i, n0 + x + j, sum[i][j], sum[i][j + 1]);
    }
}
