// Routing: a warp for each token, and then a block for each expert.

struct RouteParams {
    Ptr logits, experts, weights, offsets, place, source;
    // Strides in elements.
    i64 logits_row, logits_step, experts_row, experts_step, weights_row, weights_step;
    i64 offsets_step, place_step, source_step;
    u64 tokens;
    u32 num_experts, top_k, renormalize, padding;
};

struct MaxKey { static __device__ __forceinline__ u64 of(u64 a, u64 b) { return a > b ? a : b; } };

// Orders as the values do, with -0 equal to 0 and every NaN above all; of equals the lower expert comes first. Above 0.
DEVICE u64 route_key(float x, u32 expert) {
    const u32 order = x != x ? ~0u : x == 0.0f ? 0x80000000u : ordered_key(x);
    return u64(order) << 32 | u64(~expert);
}

SINEW_KERNEL(route_choose, RouteParams) {
    for (u64 token = global_thread() / WARP; token < p.tokens; token += global_threads() / WARP) {
        const auto logit = [&](u32 expert) {
            return *at<float>(p.logits, i64(token) * p.logits_row + i64(expert) * p.logits_step);
        };
        float largest = -INFINITY;
        for (u32 e = lane(); e < p.num_experts; e += WARP) largest = max_nan(largest, logit(e));
        largest = warp_max(largest);
        // NaN where the largest is not finite: as infinity minus infinity.
        float sum = 0.0f;
        for (u32 e = lane(); e < p.num_experts; e += WARP) sum += expf(logit(e) - largest);
        sum = warp_sum(sum);
        float chosen = 0.0f;
        u64 last = 0;
        for (u32 rank = 0; rank < p.top_k; ++rank) {
            u64 best = 0;
            for (u32 e = lane(); e < p.num_experts; e += WARP) {
                const u64 mine = route_key(logit(e), e);
                if (rank == 0 || mine < last) best = MaxKey::of(best, mine);
            }
            last = warp_reduce<MaxKey>(best);
            const u32 expert = ~u32(last);
            const float weight = expf(logit(expert) - largest);
            chosen += weight;
            if (lane() == 0) {
                *at_mut<u32>(p.experts, i64(token) * p.experts_row + i64(rank) * p.experts_step) = expert;
                *at_mut<float>(p.weights, i64(token) * p.weights_row + i64(rank) * p.weights_step) = weight;
            }
        }
        if (lane() != 0) continue;
        // A sum that is NaN must show in weights that are finite, too.
        if (p.renormalize && sum == sum) sum = chosen;
        for (u32 rank = 0; rank < p.top_k; ++rank) {
            *at_mut<float>(p.weights, i64(token) * p.weights_row + i64(rank) * p.weights_step) /= sum;
        }
    }
}

// Each thread has a run of slots, and those of the threads before it come first.
SINEW_KERNEL(route_sort, RouteParams) {
    __shared__ u32 lower[SINEW_THREADS], own[SINEW_THREADS];
    const u64 slots = p.tokens * p.top_k, share = (slots + blockDim.x - 1) / blockDim.x;
    const u64 begin = min(threadIdx.x * share, slots), end = min(begin + share, slots);
    const auto expert_of = [&](u64 slot) {
        return *at<u32>(p.experts, i64(slot / p.top_k) * p.experts_row + i64(slot % p.top_k) * p.experts_step);
    };
    for (u32 expert = blockIdx.x; expert <= p.num_experts; expert += gridDim.x) {
        u32 before = 0, mine = 0;
        for (u64 slot = begin; slot < end; ++slot) {
            const u32 found = expert_of(slot);
            before += found < expert;
            mine += found == expert;
        }
        lower[threadIdx.x] = before;
        own[threadIdx.x] = mine;
        __syncthreads();
        u32 start = 0;
        for (u32 i = 0; i < blockDim.x; ++i) start += lower[i];
        if (threadIdx.x == 0) *at_mut<u32>(p.offsets, i64(expert) * p.offsets_step) = start;
        for (u32 i = 0; i < threadIdx.x; ++i) start += own[i];
        for (u64 slot = begin; slot < end; ++slot) {
            if (expert_of(slot) != expert) continue;
            *at_mut<u32>(p.place, i64(slot) * p.place_step) = start;
            *at_mut<u32>(p.source, i64(start) * p.source_step) = u32(slot / p.top_k);
            ++start;
        }
        __syncthreads();
    }
}
