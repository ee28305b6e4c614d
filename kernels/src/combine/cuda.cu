// The weighted sum of each token's rows, a thread for each element of the output.

struct CombineParams {
    Ptr y, weights, place, out, status;
    // Strides in elements.
    i64 y_row, y_step, weights_row, weights_step, place_step, out_row, out_step;
    u64 tokens, width, slots;
    u32 top_k, y_type, out_type, accumulate;
};

SINEW_KERNEL(combine, CombineParams) {
    for (u64 i = global_thread(); i < p.tokens * p.width; i += global_threads()) {
        const i64 token = i / p.width, column = i % p.width;
        float sum = 0.0f;
        for (u32 j = 0; j < p.top_k; ++j) {
            const u32 row = *at<u32>(p.place, (token * p.top_k + j) * p.place_step);
            if (row >= p.slots) {
                report(p.status, row);
                continue;
            }
            const float weight = *at<float>(p.weights, token * p.weights_row + j * p.weights_step);
            sum = fmaf(weight, load(p.y, p.y_type, i64(row) * p.y_row + column * p.y_step), sum);
        }
        const i64 to = token * p.out_row + column * p.out_step;
        if (p.accumulate) sum = load(p.out, p.out_type, to) + sum;
        store(p.out, p.out_type, to, sum);
    }
}
