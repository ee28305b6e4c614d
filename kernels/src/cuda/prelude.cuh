// What every kernel of Sinew stands on: number types, storage conversions, strided layouts, reductions in a fixed
// order, and the few instructions of tensor cores, each also written out for CUDA on the host (SINEW_HOST).
//
// There is no #include: NVRTC compiles this text alone.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
// The address of an operand's first element.
typedef u64 Ptr;

#define DEVICE static __device__ __forceinline__
// For what is long and seldom: compiled once, not wherever it is used.
#define OUTLINED static __device__ __attribute__((noinline))
#define FULL_WARP 0xffffffffu
#define WARP 32u

// A kernel takes one struct by value. `threads` is the most that a block of it is launched with.
#ifndef SINEW_HOST
#define SINEW_KERNEL_BOUNDS(name, Params, threads, min_blocks)                                                         \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks) name(const __grid_constant__ Params p)
#define SINEW_SHARED(type, name)                                                                                       \
    extern __shared__ __align__(128) unsigned char sinew_shared[];                                                     \
    type* const name = reinterpret_cast<type*>(sinew_shared)
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#endif
#ifndef SINEW_THREADS
#define SINEW_THREADS 256
#endif
#define SINEW_KERNEL(name, Params) SINEW_KERNEL_BOUNDS(name, Params, SINEW_THREADS, 1)

// ---- storage ----

// Codes of dtypes, as `code` in mod.rs gives them.
enum DType : u32 { F32, F16, BF16, F64, I64, I32, I16, I8, U32, U8, BOOL, F8E4M3, F8E5M2 };

DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 x) { return __uint_as_float(x); }

DEVICE float widen_bf16(u16 x) { return float_of(u32(x) << 16); }

// To nearest, ties to even; a NaN stays one.
DEVICE u16 narrow_bf16(float x) {
    const u32 bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return u16(bits >> 16 | 0x40u);
    return u16((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#ifndef SINEW_HOST
DEVICE float widen_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEVICE u16 narrow_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#endif

// The storage types of templates, besides float.
struct Bf16 { u16 bits; };
struct Half { u16 bits; };
template <typename T> struct Stored;
template <> struct Stored<float> {
    static __device__ __forceinline__ float widen(float x) { return x; }
    static __device__ __forceinline__ float narrow(float x) { return x; }
};
template <> struct Stored<Half> {
    static __device__ __forceinline__ float widen(Half x) { return widen_f16(x.bits); }
    static __device__ __forceinline__ Half narrow(float x) { return Half{narrow_f16(x)}; }
};
template <> struct Stored<Bf16> {
    static __device__ __forceinline__ float widen(Bf16 x) { return widen_bf16(x.bits); }
    static __device__ __forceinline__ Bf16 narrow(float x) { return Bf16{narrow_bf16(x)}; }
};
template <typename T> DEVICE float widen(T x) { return Stored<T>::widen(x); }
template <typename T> DEVICE T narrow(float x) { return Stored<T>::narrow(x); }

// Two values side by side, the first in the low half.
DEVICE u32 pack_bf16(float low, float high) { return u32(narrow_bf16(low)) | u32(narrow_bf16(high)) << 16; }
DEVICE u32 pack_f16(float low, float high) { return u32(narrow_f16(low)) | u32(narrow_f16(high)) << 16; }

template <typename T> DEVICE const T* at(Ptr base, i64 index) { return reinterpret_cast<const T*>(base) + index; }
template <typename T> DEVICE T* at_mut(Ptr base, i64 index) { return reinterpret_cast<T*>(base) + index; }

// One element of f32, f16 or bf16.
DEVICE float load(Ptr base, u32 dtype, i64 index) {
    switch (dtype) {
        case F16: return widen_f16(*at<u16>(base, index));
        case BF16: return widen_bf16(*at<u16>(base, index));
        default: return *at<float>(base, index);
    }
}
DEVICE void store(Ptr base, u32 dtype, i64 index, float value) {
    switch (dtype) {
        case F16: *at_mut<u16>(base, index) = narrow_f16(value); break;
        case BF16: *at_mut<u16>(base, index) = narrow_bf16(value); break;
        default: *at_mut<float>(base, index) = value;
    }
}

// One element of an integer type.
DEVICE i64 load_index(Ptr base, u32 dtype, i64 index) {
    switch (dtype) {
        case I64: return *at<i64>(base, index);
        case I16: return *at<i16>(base, index);
        case I8: return *at<i8>(base, index);
        case U32: return *at<u32>(base, index);
        case U8:
        case BOOL: return *at<u8>(base, index);
        default: return *at<i32>(base, index);
    }
}

DEVICE void store_index(Ptr base, u32 dtype, i64 index, i64 value) {
    switch (dtype) {
        case I64: *at_mut<i64>(base, index) = value; break;
        case I16: *at_mut<i16>(base, index) = i16(value); break;
        case I8: *at_mut<i8>(base, index) = i8(value); break;
        case U8: *at_mut<u8>(base, index) = u8(value); break;
        case BOOL: *at_mut<u8>(base, index) = value != 0; break;
        default: *at_mut<u32>(base, index) = u32(value);
    }
}

// One element of `size` bytes as it is.
DEVICE void copy_element(Ptr to, i64 to_index, Ptr from, i64 from_index, u32 size) {
    switch (size) {
        case 1: *at_mut<u8>(to, to_index) = *at<u8>(from, from_index); break;
        case 2: *at_mut<u16>(to, to_index) = *at<u16>(from, from_index); break;
        case 4: *at_mut<u32>(to, to_index) = *at<u32>(from, from_index); break;
        case 8: *at_mut<u64>(to, to_index) = *at<u64>(from, from_index); break;
        default: *at_mut<uint4>(to, to_index) = *at<uint4>(from, from_index);
    }
}

// What a kernel found wrong in the contents of its operands: a value, which the words of its row tell. The first report
// stands; the stream makes an error of it when it is synchronised.
struct Report {
    u32 found;
    u32 padding;
    i64 value;
};
DEVICE void report(Ptr status, i64 value) {
    Report* const place = at_mut<Report>(status, 0);
    if (atomicCAS(&place->found, 0u, 1u) == 0) place->value = value;
}

// ---- layouts ----

#define MAX_RANK 8
struct Layout {
    u32 rank;
    u32 sizes[MAX_RANK];
    // Elements; 0 behind `rank`.
    i64 strides[MAX_RANK];
    // 0 where the operand's pointer is that of its first element already.
    i64 offset;
};

// Divides by `size` and returns what is left over.
DEVICE u32 divide(u64& linear, u32 size) {
    // Dividing in 32 bits is several times faster, and nearly all problems are that small.
    const u64 quotient = linear >> 32 ? linear / size : u32(linear) / size;
    const u32 rest = u32(linear) - u32(quotient) * size;
    linear = quotient;
    return rest;
}

// Where the element lies that is `linear`-th in row-major order.
DEVICE i64 element(const Layout& layout, u64 linear) {
    i64 at = layout.offset;
    for (u32 d = layout.rank; d-- > 0;) at += i64(divide(linear, layout.sizes[d])) * layout.strides[d];
    return at;
}

// This thread's number in a one-dimensional grid, and how many there are.
DEVICE u64 global_thread() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE u64 global_threads() { return u64(gridDim.x) * blockDim.x; }

// ---- operands walked in step ----

// N operands of one shape. Dimensions that all of them step through as through one are one.
template <u32 N> struct Strided {
    u64 elements;
    // Of the first elements.
    Ptr pointers[N];
    // Outermost dimension first; there is at least one.
    i64 strides[N][MAX_RANK];
    u32 sizes[MAX_RANK];
    u32 types[N + N % 2];
    u32 rank;
    // All are contiguous floats of at most 32 bits, and begin and end at a multiple of four elements.
    u32 quads;
};

// Where the `linear`-th element lies in each operand.
template <u32 N> DEVICE void locate(const Strided<N>& operands, u64 linear, i64 at[N]) {
    for (u32 n = 0; n < N; ++n) at[n] = 0;
    for (u32 d = operands.rank - 1; d > 0; --d) {
        const i64 index = divide(linear, operands.sizes[d]);
        for (u32 n = 0; n < N; ++n) at[n] += index * operands.strides[n][d];
    }
    for (u32 n = 0; n < N; ++n) at[n] += i64(linear) * operands.strides[n][0];
}

// f(at) for every element, one to a thread.
template <u32 N, typename F> DEVICE void each(const Strided<N>& operands, F f) {
    for (u64 i = global_thread(); i < operands.elements; i += global_threads()) {
        i64 at[N];
        locate(operands, i, at);
        f(at);
    }
}

// Four neighbours of f32, f16 or bf16 at once.
DEVICE void load_quad(Ptr base, u32 dtype, u64 quad, float values[4]) {
    if (dtype == F32) {
        const float4 four = *at<float4>(base, quad);
        values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
        return;
    }
    const uint2 four = *at<uint2>(base, quad);
    const u16 bits[4] = {u16(four.x), u16(four.x >> 16), u16(four.y), u16(four.y >> 16)};
    for (u32 k = 0; k < 4; ++k) values[k] = dtype == F16 ? widen_f16(bits[k]) : widen_bf16(bits[k]);
}
DEVICE void store_quad(Ptr base, u32 dtype, u64 quad, const float values[4]) {
    if (dtype == F32) {
        *at_mut<float4>(base, quad) = make_float4(values[0], values[1], values[2], values[3]);
    } else if (dtype == F16) {
        *at_mut<uint2>(base, quad) = make_uint2(pack_f16(values[0], values[1]), pack_f16(values[2], values[3]));
    } else {
        *at_mut<uint2>(base, quad) = make_uint2(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]));
    }
}

// y = f(x) for every element, of f32, f16 or bf16 and computed in f32: operand 0 is y, the others are x[0], x[1], ….
// Each thread takes four elements, so that enough loads are on their way to keep memory busy.
template <u32 N, typename F> DEVICE void map(const Strided<N>& operands, F f) {
    const u64 threads = global_threads();
    for (u64 i = global_thread(); i < (operands.elements + 3) / 4; i += threads) {
        float x[4][N - 1], y[4];
        i64 at[4][N];
        if (operands.quads) {
            for (u32 n = 1; n < N; ++n) {
                float quad[4];
                load_quad(operands.pointers[n], operands.types[n], i, quad);
                for (u32 k = 0; k < 4; ++k) x[k][n - 1] = quad[k];
            }
        } else {
            // A quarter of the elements apart, so that neighbouring threads take neighbouring elements.
            for (u32 k = 0; k < 4; ++k) {
                const u64 linear = i + k * ((operands.elements + 3) / 4);
                locate(operands, linear < operands.elements ? linear : i, at[k]);
                for (u32 n = 1; n < N; ++n) x[k][n - 1] = load(operands.pointers[n], operands.types[n], at[k][n]);
            }
        }
#pragma unroll
        for (u32 k = 0; k < 4; ++k) y[k] = f(x[k]);
        if (operands.quads) {
            store_quad(operands.pointers[0], operands.types[0], i, y);
        } else {
            for (u32 k = 0; k < 4; ++k) {
                if (i + k * ((operands.elements + 3) / 4) < operands.elements)
                    store(operands.pointers[0], operands.types[0], at[k][0], y[k]);
            }
        }
    }
}

// ---- reductions: always in this order, so that the bits are the same at each run ----

DEVICE u32 lane() { return threadIdx.x % WARP; }
DEVICE u32 warp() { return threadIdx.x / WARP; }
DEVICE u32 warps() { return (blockDim.x + WARP - 1) / WARP; }

// Largest of two; NaN where either is.
DEVICE float max_nan(float a, float b) { return a > b || a != a ? a : b; }

struct Add { template <typename T> static __device__ __forceinline__ T of(T a, T b) { return a + b; } };
struct Max { static __device__ __forceinline__ float of(float a, float b) { return max_nan(a, b); } };

// Over the warp, for every lane. All lanes take part.
template <typename Op, typename T> DEVICE T warp_reduce(T value) {
    for (u32 step = WARP / 2; step > 0; step /= 2) value = Op::of(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}
DEVICE float warp_sum(float value) { return warp_reduce<Add>(value); }
DEVICE float warp_max(float value) { return warp_reduce<Max>(value); }

// Over the block, for every thread. All threads take part, the block is whole warps, and `room` (shared) holds a value
// for each warp; it may be used again at once.
template <typename Op, typename T> DEVICE T block_reduce(T value, T* room) {
    value = warp_reduce<Op>(value);
    if (lane() == 0) room[warp()] = value;
    __syncthreads();
    value = room[0];
    for (u32 w = 1; w < warps(); ++w) value = Op::of(value, room[w]);
    __syncthreads();
    return value;
}
DEVICE float block_sum(float value, float* room) { return block_reduce<Add>(value, room); }
DEVICE float block_max(float value, float* room) { return block_reduce<Max>(value, room); }

// A key that orders as the floats do, -0 below 0, positive NaNs above everything and negative ones below.
DEVICE u32 ordered_key(float x) {
    const u32 bits = bits_of(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// ---- tensor cores and asynchronous copies (sm_80 and later) ----

#ifndef SINEW_HOST

DEVICE u32 shared_address(const void* shared) { return u32(__cvta_generic_to_shared(shared)); }

// d += a · b for a tile of 16 x 8 over 16 of K. Lane l holds of `a` rows l/4 and l/4 + 8, of `b` column l/4, of `d`
// rows l/4 and l/4 + 8 and columns 2·(l%4) and the next (PTX ISA, "Matrix fragments for mma.m16n8k16").
DEVICE void mma_m16n8k16_bf16(float d[4], const u32 a[4], const u32 b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_m16n8k16_f16(float d[4], const u32 a[4], const u32 b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements: lanes 8i to 8i+7 name the rows of matrix i, 16-byte aligned.
DEVICE void ldmatrix_x4(u32 r[4], const void* shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}
DEVICE void ldmatrix_x4_trans(u32 r[4], const void* shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

// Sixteen bytes from global to shared memory, zeros where not `valid`; both 16-byte aligned. Done when a wait says so,
// and seen by other threads behind the next barrier.
DEVICE void cp_async_16(void* shared, const void* global, bool valid) {
    const u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups are on their way.
template <int N> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#endif
