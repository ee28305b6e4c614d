// Softmax of rows, a block for each: the largest, the sum, the result. The row is read again for each pass, since the
// caches hold it. A thread reads what it wrote itself, so that the output may be the input.

struct SoftmaxParams {
    Strided<3> rows;  // y, x, mask
    i64 strides[3];
    u64 width;
    float scale;
    u32 masked;
    u32 log;
    u32 padding;
};

// Items that are summed in f32 before f64 takes over.
#define SUMMED 32

struct Largest { static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); } };

SINEW_KERNEL(softmax, SoftmaxParams) {
    __shared__ float largest_room[SINEW_THREADS / WARP];
    __shared__ double sum_room[SINEW_THREADS / WARP];
    const bool masked = p.masked != 0;
    // Without a mask the scale comes last, since the difference of two inputs is exact where it matters and a product is
    // not. With one it must come before the sum.
    const float factor_in = masked ? p.scale : copysignf(1.0f, p.scale);
    const float factor_out = masked ? 1.0f : fabsf(p.scale);
    for (u64 row = blockIdx.x; row < p.rows.elements; row += gridDim.x) {
        i64 at[3];
        locate(p.rows, row, at);
        const auto score = [&](u64 i) {
            const float x = load(p.rows.pointers[1], p.rows.types[1], at[1] + i64(i) * p.strides[1]);
            if (!masked) return factor_in * x;
            return fmaf(x, factor_in, load(p.rows.pointers[2], p.rows.types[2], at[2] + i64(i) * p.strides[2]));
        };
        // NaN is left out here, and shows in the sum.
        float largest = -INFINITY;
        for (u64 i = threadIdx.x; i < p.width; i += blockDim.x) largest = fmaxf(largest, score(i));
        largest = block_reduce<Largest>(largest, largest_room);
        // Every exponential of such a row is to be 0, not that of infinity minus infinity.
        if (largest == -INFINITY) largest = 0.0f;

        double sum = 0.0;
        for (u64 first = threadIdx.x; first < p.width; first += SUMMED * blockDim.x) {
            float part = 0.0f;
            for (u32 k = 0; k < SUMMED; ++k) {
                const u64 i = first + k * blockDim.x;
                if (i < p.width) part += expf((score(i) - largest) * factor_out);
            }
            sum += double(part);
        }
        sum = block_reduce<Add>(sum, sum_room);
        const float shift = sum == 0.0 ? -INFINITY : float(-log(sum));
        const float inverse = sum == 0.0 ? 0.0f : float(1.0 / sum);
        for (u64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            const float exponent = score(i) - largest;
            const float y = p.log ? fmaf(exponent, factor_out, shift) : expf(exponent * factor_out) * inverse;
            store(p.rows.pointers[0], p.rows.types[0], at[0] + i64(i) * p.strides[0], y);
        }
    }
}
