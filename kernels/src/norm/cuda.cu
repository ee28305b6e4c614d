// Norms of rows. A warp takes a short row, a block a long one; each thread takes every GROUP-th element, sums them in
// f32, and the sums are added in f64. The row is read again for each pass: the caches hold it.

enum Kind : u32 { RMS, LAYER };

struct NormParams {
    Ptr y, x, residual, weight, bias;
    // Of the leading dimensions; the strides of the last one stand below.
    Layout y_rows, x_rows, residual_rows;
    i64 y_stride, x_stride, residual_stride, weight_stride, bias_stride;
    u64 rows;
    u32 y_type, x_type, residual_type, weight_type, bias_type;
    u32 width, kind;
    float eps, weight_offset;
    u32 padding;
};

// Sums over the threads of a row, for each of them.
template <bool BLOCK> DEVICE double row_sum(double value, double* room) {
    if constexpr (BLOCK) {
        return block_reduce<Add>(value, room);
    } else {
        return warp_reduce<Add>(value);
    }
}

template <bool BLOCK> DEVICE void norm(const NormParams& p, u64 row, u32 thread, u32 threads, double* room) {
    const i64 y = element(p.y_rows, row);
    i64 x = element(p.x_rows, row), stride = p.x_stride;
    Ptr from = p.x;
    u32 type = p.x_type;
    if (p.residual != 0) {
        const i64 at = element(p.residual_rows, row);
        for (u32 i = thread; i < p.width; i += threads) {
            const i64 j = at + i64(i) * p.residual_stride;
            const float sum = load(p.residual, p.residual_type, j) + load(p.x, p.x_type, x + i64(i) * p.x_stride);
            store(p.residual, p.residual_type, j, sum);
        }
        // Each thread reads again what it wrote itself.
        from = p.residual, x = at, stride = p.residual_stride, type = p.residual_type;
    }
    // The mean in two parts, so that a row far from 0 loses nothing when it is subtracted.
    float mean = 0.0f, mean_rest = 0.0f;
    if (p.kind == LAYER) {
        // Differences from the thread's own first element are exact to their own size however far the row is from 0.
        double sum = 0.0;
        if (thread < p.width) {
            const float first = load(from, type, x + i64(thread) * stride);
            float differences = 0.0f;
            u32 count = 0;
            for (u32 i = thread; i < p.width; i += threads, ++count)
                differences += load(from, type, x + i64(i) * stride) - first;
            sum = double(first) * count + differences;
        }
        const double exact = row_sum<BLOCK>(sum, room) / p.width;
        mean = float(exact);
        mean_rest = float(exact - double(mean));
    }
    float squares = 0.0f;
    for (u32 i = thread; i < p.width; i += threads) {
        const float value = load(from, type, x + i64(i) * stride) - mean - mean_rest;
        squares = fmaf(value, value, squares);
    }
    const float inverse = float(1.0 / sqrt(row_sum<BLOCK>(squares, room) / p.width + double(p.eps)));
    for (u32 i = thread; i < p.width; i += threads) {
        const float value = (load(from, type, x + i64(i) * stride) - mean - mean_rest) * inverse;
        const float weight = p.weight != 0 ? load(p.weight, p.weight_type, i64(i) * p.weight_stride) : 1.0f;
        const float bias = p.bias != 0 ? load(p.bias, p.bias_type, i64(i) * p.bias_stride) : 0.0f;
        store(p.y, p.y_type, y + i64(i) * p.y_stride, fmaf(value, weight + p.weight_offset, bias));
    }
}

SINEW_KERNEL(norm_short_rows, NormParams) {
    const u64 row = u64(blockIdx.x) * warps() + warp();
    if (row < p.rows) norm<false>(p, row, lane(), WARP, nullptr);
}

SINEW_KERNEL(norm_long_rows, NormParams) {
    __shared__ double room[SINEW_THREADS / WARP];
    norm<true>(p, blockIdx.x, threadIdx.x, blockDim.x, room);
}
