// Few rows: a warp reads the weights of a pair of columns once, 16 bytes per lane at a time, and multiplies them with
// every row. A lane's values lie 32 times its width apart whatever the alignment, so that the bits do not depend on it.

constexpr u32 GEMV_WARPS = 4;
constexpr u32 GEMV_DEPTH = 1024;

// As many values as 16 bytes of the weights' type hold.
template <u32 WIDTH>
DEVICE void gemv_weights(const GemmParams& p, i64 column, u32 k, float out[WIDTH]) {
    if (p.flags & WHOLE_B) {
        const uint4 raw = *(const uint4*)(p.b + (column + k) * (16 / WIDTH));
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (u32 i = 0; i < WIDTH; i++) {
            if constexpr (WIDTH == 4) {
                out[i] = float_of(words[i]);
            } else {
                u16 bits = u16(words[i / 2] >> (i % 2 * 16));
                out[i] = p.b_type == F16 ? widen_f16(bits) : widen_bf16(bits);
            }
        }
    } else {
        for (u32 i = 0; i < WIDTH; i++) {
            out[i] = k + i < p.k ? load(p.b, p.b_type, column + i64(k + i) * p.b_k) : 0;
        }
    }
#pragma unroll
    for (u32 i = 0; i < WIDTH; i++) out[i] = rounded(out[i], p.flags & ROUND_B);
}

template <u32 WIDTH, u32 ROWS>
DEVICE void gemv(const GemmParams& p) {
    __shared__ float left[ROWS][GEMV_DEPTH];
    const u32 lane = threadIdx.x % 32, row_tiles = (p.rows + ROWS - 1) / ROWS;
    const u32 n = (blockIdx.x / row_tiles * GEMV_WARPS + threadIdx.x / 32) * 2, row0 = blockIdx.x % row_tiles * ROWS;
    for (u32 group = blockIdx.z; group < p.groups; group += gridDim.z) {
        i64 columns[2] = {column_offset(p, group, n), column_offset(p, group, n + 1)};
        float sums[ROWS][2] = {};
        for (u32 k0 = 0; k0 < p.k; k0 += GEMV_DEPTH) {
            for (u32 r = 0; r < ROWS; r++) {
                i64 at = row0 + r < p.rows ? row_offset(p, group, row0 + r, p.a_batch, p.a_row) : -1;
                for (u32 k = threadIdx.x; k < GEMV_DEPTH; k += GEMV_WARPS * 32) {
                    bool there = at >= 0 && k0 + k < p.k;
                    left[r][k] = there ? rounded(load(p.a, p.a_type, at + i64(k0 + k) * p.a_k), p.flags & ROUND_A) : 0;
                }
            }
            __syncthreads();
            for (u32 k = lane * WIDTH; k < GEMV_DEPTH && k0 + k < p.k; k += 32 * WIDTH) {
#pragma unroll
                for (u32 c = 0; c < 2; c++) {
                    if (n + c >= p.n) break;
                    float weights[WIDTH];
                    gemv_weights<WIDTH>(p, columns[c], k0 + k, weights);
#pragma unroll
                    for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
                        for (u32 i = 0; i < WIDTH; i++) sums[r][c] = fmaf(left[r][k + i], weights[i], sums[r][c]);
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                for (u32 step = 16; step > 0; step /= 2) {
                    sums[r][c] += __shfl_xor_sync(FULL_WARP, sums[r][c], step);
                }
            }
            if (lane == r) finish_pair(p, group, row0 + r, n, sums[r][0], sums[r][1]);
        }
    }
}

SINEW_KERNEL_BOUNDS(gemv_32_1, GemmParams, 128, 1) { gemv<4, 1>(p); }
SINEW_KERNEL_BOUNDS(gemv_32_4, GemmParams, 128, 1) { gemv<4, 4>(p); }
SINEW_KERNEL_BOUNDS(gemv_32_8, GemmParams, 128, 1) { gemv<4, 8>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_1, GemmParams, 128, 1) { gemv<8, 1>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_4, GemmParams, 128, 1) { gemv<8, 4>(p); }
SINEW_KERNEL_BOUNDS(gemv_16_8, GemmParams, 128, 1) { gemv<8, 8>(p); }
