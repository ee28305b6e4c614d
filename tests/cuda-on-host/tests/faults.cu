// Kernels that are right, and the same with something forgotten.

struct Params {
    Ptr data, status;
    u64 n;
};

SINEW_KERNEL(block_sums, Params) {
    __shared__ float room[SINEW_THREADS / WARP];
    const i64 i = i64(global_thread());
    const float sum = block_sum(*at<float>(p.data, i), room);
    *at_mut<float>(p.data, i) = sum;
}

SINEW_KERNEL_BOUNDS(reverse_in_shared, Params, 1024, 1) {
    SINEW_SHARED(float, room);
    room[threadIdx.x] = *at<float>(p.data, threadIdx.x);
    __syncthreads();
    *at_mut<float>(p.data, threadIdx.x) = room[blockDim.x - 1 - threadIdx.x];
}

SINEW_KERNEL(reverse_without_barrier, Params) {
    SINEW_SHARED(float, room);
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) room[i] = *at<float>(p.data, i);
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) *at_mut<float>(p.data, i) = room[p.n - 1 - i];
}

// Sums of rows as wide as a block, all in one room.
template <bool BEFORE, bool AFTER> DEVICE void sum_rows(const Params& p) {
    __shared__ float room[SINEW_THREADS / WARP];
    for (u64 row = blockIdx.x; row < p.n / blockDim.x; row += gridDim.x) {
        const i64 i = i64(row * blockDim.x + threadIdx.x);
        float value = warp_sum(*at<float>(p.data, i));
        if (lane() == 0) room[warp()] = value;
        if (BEFORE) __syncthreads();
        value = 0.0f;
        for (u32 w = 0; w < warps(); ++w) value += room[w];
        *at_mut<float>(p.data, i) = value;
        if (AFTER) __syncthreads();
    }
}
SINEW_KERNEL(row_sums, Params) { sum_rows<true, true>(p); }
SINEW_KERNEL(row_sums_read_at_once, Params) { sum_rows<false, true>(p); }
SINEW_KERNEL(row_sums_written_over, Params) { sum_rows<true, false>(p); }

template <bool WAITS> DEVICE void copy_and_add(const Params& p) {
    SINEW_SHARED(float, room);
    const u32 i = 4 * threadIdx.x;
    cp_async_16(room + i, at<float>(p.data, i), true);
    cp_async_commit();
    if (WAITS) cp_async_wait<0>();
    __syncthreads();
    for (u32 k = 0; k < 4; ++k) *at_mut<float>(p.data, i + k) = room[i + k] + 1.0f;
}
SINEW_KERNEL(copy_async, Params) { copy_and_add<true>(p); }
SINEW_KERNEL(copy_async_without_wait, Params) { copy_and_add<false>(p); }

SINEW_KERNEL(reads_shared_unwritten, Params) {
    __shared__ float room[32];
    *at_mut<float>(p.data, threadIdx.x) += 0.0f * room[threadIdx.x % 32];
    __syncthreads();
    room[threadIdx.x % 32] = 0.0f;
}

SINEW_KERNEL(divergent_barrier, Params) {
    if (threadIdx.x == 33) return;
    __syncthreads();
}

SINEW_KERNEL(shuffle_with_the_absent, Params) {
    if (threadIdx.x < 31) *at_mut<float>(p.data, threadIdx.x) = warp_sum(1.0f);
}

SINEW_KERNEL(writes_behind_the_end, Params) { *at_mut<float>(p.data, i64(p.n) + threadIdx.x) = 1.0f; }
SINEW_KERNEL(writes_before_the_start, Params) { *at_mut<float>(p.data, -1 - i64(threadIdx.x)) = 1.0f; }

SINEW_KERNEL(copies_misaligned, Params) {
    SINEW_SHARED(float, room);
    cp_async_16(room, at<float>(p.data, 1), true);
}

struct OtherParams {
    Params p;
    u64 more;
};
SINEW_KERNEL(other_parameters, OtherParams) {}

SINEW_KERNEL_BOUNDS(few_threads, Params, 32, 1) {}

SINEW_KERNEL(reports, Params) {
    if (threadIdx.x == 7) report(p.status, i64(blockIdx.x) - 5);
}
