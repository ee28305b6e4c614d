// What the three products share: operands, which column is which, and what follows the sum.
//
// Columns are counted as a gated weight in rows has them: each gate is followed by its up, so that a pair of columns
// is one result. Right operands that are not packed so are read in that order.

enum GemmFlags : u32 {
    GATED = 1,
    ROUND_A = 2,
    ROUND_B = 4,
    BIAS = 8,
    RESIDUAL = 16,
    // Gates and ups lie next to each other in the right operand.
    INTERLEAVED = 32,
    // Runs of K are contiguous, start at multiples of 16 bytes and are multiples of 16 bytes long.
    WHOLE_A = 64,
    WHOLE_B = 128,
};

static const u32 NO_ACTIVATION = 0xffffffff;

struct GemmParams {
    Ptr a, b, bias, residual, d;
    // Strides in elements.
    i64 a_batch, a_row, a_k;
    i64 b_batch, b_n, b_k;
    i64 bias_batch, bias_n;
    i64 residual_batch, residual_row, residual_n;
    i64 d_batch, d_row, d_n;
    // Products with a right operand of their own, rows of each, and rows that share a batch index.
    u32 groups, rows, m, n, k;
    u32 a_type, b_type, bias_type, residual_type, d_type;
    u32 activation, flags;
    float alpha, beta;
};

DEVICE i64 row_offset(const GemmParams& p, u32 group, u32 row, i64 batch_stride, i64 row_stride) {
    return i64(group + row / p.m) * batch_stride + i64(row % p.m) * row_stride;
}

// The column of bias and of an operand that is not interleaved.
DEVICE u32 source_column(const GemmParams& p, u32 n) {
    return p.flags & GATED ? (n >> 1) + (n & 1) * (p.n >> 1) : n;
}

DEVICE i64 column_offset(const GemmParams& p, u32 group, u32 n) {
    return i64(group) * p.b_batch + i64(p.flags & INTERLEAVED ? n : source_column(p, n)) * p.b_n;
}

DEVICE float rounded(float x, bool round) {
    return round ? widen_bf16(narrow_bf16(x)) : x;
}

DEVICE float activated(const GemmParams& p, float x) {
    return p.activation == NO_ACTIVATION ? x : activate(Activation(p.activation), x);
}

DEVICE float biased(const GemmParams& p, u32 group, float sum, u32 n) {
    if (!(p.flags & BIAS)) return sum * p.alpha;
    const i64 at = i64(group) * p.bias_batch + i64(source_column(p, n)) * p.bias_n;
    return fmaf(sum, p.alpha, load(p.bias, p.bias_type, at));
}

DEVICE void put(const GemmParams& p, u32 group, u32 row, u32 column, float x) {
    if (p.flags & RESIDUAL) {
        i64 at = row_offset(p, group, row, p.residual_batch, p.residual_row) + i64(column) * p.residual_n;
        x = fmaf(load(p.residual, p.residual_type, at), p.beta, x);
    }
    store(p.d, p.d_type, row_offset(p, group, row, p.d_batch, p.d_row) + i64(column) * p.d_n, x);
}

// Finishes the sums of an even column and the one behind it, of a row if it is below `rows`.
DEVICE void finish_pair(const GemmParams& p, u32 group, u32 rows, u32 row, u32 n, float first, float second) {
    if (row >= rows || n >= p.n) return;
    float x = activated(p, biased(p, group, first, n));
    if (p.flags & GATED) {
        put(p, group, row, n >> 1, x * factor(Activation(p.activation), biased(p, group, second, n + 1)));
        return;
    }
    put(p, group, row, n, x);
    if (n + 1 < p.n) put(p, group, row, n + 1, activated(p, biased(p, group, second, n + 1)));
}
