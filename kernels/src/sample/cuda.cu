// A token for each row, a block for each. What is kept is told by one key and a number of ties at it, which are found bit
// by bit with sums over the row: no sort, and no order that changes from run to run.

struct SampleParams {
    Ptr logits, options, top_k, tokens, status;
    // In elements: from row to row, and along a row.
    i64 logits_row, logits_step, options_row, options_step, top_k_step, tokens_step;
    u64 rows, vocab;
};

#define SAMPLE_THREADS 512u

// Orders as logits do, -0 equal to 0.
DEVICE u32 order_of(float x) { return x == 0.0f ? 0x80000000u : ordered_key(x); }
DEVICE float value_of(u32 order) { return float_of(order & 0x80000000u ? order ^ 0x80000000u : ~order); }

struct Most { static __device__ __forceinline__ u64 of(u64 a, u64 b) { return a > b ? a : b; } };

// What of a row is kept: logits above the cut, and so many of those at it, in the order of their ids.
struct Cut {
    u32 order;
    u32 ties;
};

// The largest order at which f(order), which falls as the order rises, is still at least `wanted`.
template <typename F> DEVICE u32 highest(float wanted, F f) {
    u32 order = 0;
    for (u32 bit = 1u << 31; bit > 0; bit >>= 1)
        if (f(order | bit) >= wanted) order |= bit;
    return order;
}

SINEW_KERNEL_BOUNDS(sample, SampleParams, SAMPLE_THREADS, 1) {
    __shared__ u64 most_room[WARP];
    __shared__ float room[WARP];
    __shared__ u32 ties_before[SAMPLE_THREADS];
    __shared__ float weights[SAMPLE_THREADS];
    __shared__ u32 chosen;
    __shared__ float before;
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const auto logit = [&](u64 id) {
            return *at<float>(p.logits, i64(row) * p.logits_row + i64(id) * p.logits_step);
        };
        const auto option = [&](i64 i) {
            return *at<float>(p.options, i64(row) * p.options_row + i * p.options_step);
        };
        const float temperature = option(0), top_p = option(1), min_p = option(2), draw = option(3);
        const u32 top_k = *at<u32>(p.top_k, i64(row) * p.top_k_step);
        u32* const token = at_mut<u32>(p.tokens, i64(row) * p.tokens_step);

        // The largest logit of the lowest id; what cannot be drawn from is above all.
        u64 best = 0;
        for (u64 id = threadIdx.x; id < p.vocab; id += blockDim.x) {
            const float x = logit(id);
            const bool bad = x != x || x == INFINITY;
            if (bad || x > -INFINITY) best = Most::of(best, u64(bad ? ~0u : order_of(x)) << 32 | u64(~u32(id)));
        }
        best = block_reduce<Most>(best, most_room);
        if (best == 0 || best >> 32 == ~0u) {
            if (threadIdx.x == 0) report(p.status, i64(row));
            continue;
        }
        if (temperature == 0.0f) {
            if (threadIdx.x == 0) *token = ~u32(best);
            continue;
        }
        const float max = value_of(u32(best >> 32));
        const auto weight = [&](float x) { return expf((x - max) / temperature); };
        // Sums over the logits above an order; a logit of minus infinity weighs nothing.
        const auto sum_above = [&](u32 order, auto f) {
            float sum = 0.0f;
            for (u64 id = threadIdx.x; id < p.vocab; id += blockDim.x) {
                const float x = logit(id);
                if (x > -INFINITY && order_of(x) > order) sum += f(x);
            }
            return block_sum(sum, room);
        };

        // f32 counts exactly to 2^24, beyond every vocabulary.
        Cut cut = {0, ~0u};
        const auto count = [](float) { return 1.0f; };
        if (top_k > 0 && float(top_k) < sum_above(0, count)) {
            cut.order = highest(float(top_k), [&](u32 order) { return sum_above(order - 1, count); });
            cut.ties = top_k - u32(sum_above(cut.order, count));
        }
        if (top_p < 1.0f) {
            const Cut all = cut;
            const float at_cut = all.order > 0 ? float(all.ties) * weight(value_of(all.order)) : 0.0f;
            const auto from = [&](u32 order) {
                return sum_above(order > all.order ? order - 1 : all.order, weight) +
                       (order <= all.order ? at_cut : 0.0f);
            };
            const float limit = top_p * from(0);
            cut.order = highest(limit, from);
            const float missing = limit - from(cut.order + 1), each = weight(value_of(cut.order));
            const float ties = ceilf(missing / each);
            cut.ties = ties >= 1.0f ? (ties < 4e9f ? u32(ties) : ~0u) : 1;
            if (cut.order == all.order) cut.ties = min(cut.ties, all.ties);
        }
        const float lowest = min_p > 0.0f ? logf(min_p) * temperature : -INFINITY;

        // Each thread has ids in a row, so that a draw by ids is a draw of a thread and then of its ids.
        const u64 share = (p.vocab + blockDim.x - 1) / blockDim.x;
        const u64 first = min(p.vocab, u64(threadIdx.x) * share), end = min(p.vocab, first + share);
        u32 ties = 0;
        for (u64 id = first; id < end; ++id) ties += order_of(logit(id)) == cut.order;
        ties_before[threadIdx.x] = ties;
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 sum = 0;
            for (u32 i = 0; i < blockDim.x; ++i) {
                const u32 mine = ties_before[i];
                ties_before[i] = sum;
                sum += mine;
            }
        }
        __syncthreads();
        // f(id, weight) for the kept ids of this thread, until it returns false.
        const auto each_kept = [&](auto f) {
            u32 seen = ties_before[threadIdx.x];
            for (u64 id = first; id < end; ++id) {
                const float x = logit(id);
                const u32 order = order_of(x);
                const bool kept = order > cut.order || (order == cut.order && seen++ < cut.ties);
                if (kept && x > -INFINITY && x - max >= lowest && !f(id, weight(x))) return;
            }
        };
        float mine = 0.0f;
        each_kept([&](u64, float w) { return mine += w, true; });
        weights[threadIdx.x] = mine;
        __syncthreads();
        if (threadIdx.x == 0) {
            float total = 0.0f;
            for (u32 i = 0; i < blockDim.x; ++i) total += weights[i];
            const float target = draw * total;
            float sum = 0.0f;
            // The last that weighs anything, where rounding leaves the target behind all.
            for (u32 i = 0; i < blockDim.x; ++i) {
                if (weights[i] == 0.0f) continue;
                chosen = i, before = target - sum;
                sum += weights[i];
                if (sum > target) break;
            }
        }
        __syncthreads();
        if (threadIdx.x == chosen) {
            float sum = 0.0f;
            each_kept([&](u64 id, float w) {
                if (w > 0.0f) *token = u32(id);
                sum += w;
                return sum <= before;
            });
        }
        __syncthreads();
    }
}
