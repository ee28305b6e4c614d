// Reductions of rows, a block for each; threads by halves, always in the same order.

// In the order of `ReduceFunction`.
enum class Function : u32 { Sum, Mean, Max, Min, ArgMax, ArgMin };

struct ReduceParams {
    Strided<2> rows;    // y, x
    Strided<1> within;  // x, in row-major order
    Function function;
    u32 padding;
};

// Items that are summed in f32 before f64 takes over.
#define SUMMED 32

template <typename T> DEVICE T read(Ptr base, u32 type, i64 index);
template <> __device__ __forceinline__ float read(Ptr base, u32 type, i64 index) { return load(base, type, index); }
template <> __device__ __forceinline__ double read(Ptr base, u32, i64 index) { return *at<double>(base, index); }
template <> __device__ __forceinline__ i64 read(Ptr base, u32 type, i64 index) {
    const i64 value = load_index(base, type, index);
    return type == BOOL ? value != 0 : value;
}
// Sums of integers wrap.
template <> __device__ __forceinline__ u64 read(Ptr base, u32 type, i64 index) {
    return u64(read<i64>(base, type, index));
}

// The i-th element of the row whose first is at `row`.
template <typename T> DEVICE T item(const ReduceParams& p, i64 row, u64 i) {
    i64 at[1];
    locate(p.within, i, at);
    return read<T>(p.rows.pointers[1], p.rows.types[1], row + at[0]);
}

// Over the block, whose threads are a power of two.
template <typename T, typename F> DEVICE T by_halves(T value, void* room, F of) {
    T* const values = static_cast<T*>(room);
    values[threadIdx.x] = value;
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) values[threadIdx.x] = of(values[threadIdx.x], values[threadIdx.x + half]);
    }
    __syncthreads();
    value = values[0];
    // The room may be used again at once.
    __syncthreads();
    return value;
}

template <typename T, typename Wide> DEVICE Wide sum(const ReduceParams& p, i64 row, void* room) {
    const u64 width = p.within.elements;
    Wide total = 0;
    for (u64 first = threadIdx.x; first < width; first += SUMMED * blockDim.x) {
        T part = 0;
        for (u32 k = 0; k < SUMMED; ++k) {
            const u64 i = first + k * blockDim.x;
            if (i < width) part += item<T>(p, row, i);
        }
        total += Wide(part);
    }
    return by_halves(total, room, [](Wide a, Wide b) { return a + b; });
}

#define NOWHERE ~0ull

template <typename T> struct Extreme {
    T value;
    u64 index;
};

// Whether `a` comes first: NaN before all numbers, and of equals the lower index.
template <typename T> DEVICE bool wins(bool smallest, const Extreme<T>& a, const Extreme<T>& b) {
    if (a.index == NOWHERE || b.index == NOWHERE) return b.index == NOWHERE;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan;
    if (a_nan || a.value == b.value) return a.index < b.index;
    return smallest ? a.value < b.value : a.value > b.value;
}

template <typename T> DEVICE Extreme<T> extreme(const ReduceParams& p, i64 row, bool smallest, void* room) {
    Extreme<T> best{T(0), NOWHERE};
    for (u64 i = threadIdx.x; i < p.within.elements; i += blockDim.x) {
        const Extreme<T> next{item<T>(p, row, i), i};
        if (wins(smallest, next, best)) best = next;
    }
    return by_halves(best, room, [=](const Extreme<T>& a, const Extreme<T>& b) { return wins(smallest, a, b) ? a : b; });
}

DEVICE void put(Ptr y, u32 type, i64 at, float value) { store(y, type, at, value); }
DEVICE void put(Ptr y, u32, i64 at, double value) { *at_mut<double>(y, at) = value; }
DEVICE void put(Ptr y, u32 type, i64 at, i64 value) { store_index(y, type, at, value); }

template <typename T> DEVICE void find(const ReduceParams& p, const i64 at[2], void* room) {
    const bool smallest = p.function == Function::Min || p.function == Function::ArgMin;
    const Extreme<T> best = extreme<T>(p, at[1], smallest, room);
    if (threadIdx.x != 0) return;
    if (p.function >= Function::ArgMax) store_index(p.rows.pointers[0], p.rows.types[0], at[0], i64(best.index));
    else put(p.rows.pointers[0], p.rows.types[0], at[0], best.value);
}

SINEW_KERNEL(reduce, ReduceParams) {
    __shared__ Extreme<i64> room[SINEW_THREADS];
    const Ptr y = p.rows.pointers[0];
    const u32 to = p.rows.types[0], from = p.rows.types[1];
    const double divisor = p.function == Function::Mean ? double(p.within.elements) : 1.0;
    for (u64 row = blockIdx.x; row < p.rows.elements; row += gridDim.x) {
        i64 at[2];
        locate(p.rows, row, at);
        if (p.function > Function::Mean) {
            if (from <= BF16) find<float>(p, at, room);
            else if (from == F64) find<double>(p, at, room);
            else find<i64>(p, at, room);
        } else if (from <= BF16) {
            const double total = sum<float, double>(p, at[1], room);
            if (threadIdx.x == 0) put(y, to, at[0], float(total / divisor));
        } else if (from == F64) {
            const double total = sum<double, double>(p, at[1], room);
            if (threadIdx.x == 0) put(y, to, at[0], total / divisor);
        } else {
            const u64 total = sum<u64, u64>(p, at[1], room);
            if (threadIdx.x == 0) put(y, to, at[0], i64(total));
        }
    }
}
