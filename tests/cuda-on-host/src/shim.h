// CUDA on the host: what stands before the prelude when a module is compiled by g++.
//
// A block runs on one thread of the system. Each of its CUDA threads is a fiber that runs until it waits for others, at
// a barrier or in an operation of its warp; when all whom an operation names have come, it is carried out for all of
// them at once, and they run on. One warp after another runs until all of it is at the barrier, so that nothing else
// keeps warps in step. Shared memory is thread-local, so that blocks may run side by side, and holds NaN at first.
// Asynchronous copies are made as late as they may be, or as soon, warps take their turns from either end, and a
// kernel that strides over its grid is told of a smaller one: what it must not rely on differs from launch to launch.
#ifndef __x86_64__
#error "the switch between fibers is written for x86-64"
#endif

#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static thread_local

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(16) double2 { double x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim;

// Saves the registers that a call keeps and the stack pointer, and takes up another stack where it was left.
extern "C" __attribute__((visibility("hidden"))) void sinew_switch(void** save, void* resume);
asm(".text\n"
    ".local sinew_switch\n"
    ".type sinew_switch, @function\n"
    "sinew_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n");

namespace host {

// What the driver hands a kernel; `Launch` in driver.rs is laid out the same.
struct Launch {
    unsigned grid[3], block, shared_bytes, parameter_bytes;
    // The blocks of this call: every `step`-th from `first` on.
    unsigned long long first, step;
    // Which of the orders that CUDA leaves open is taken.
    unsigned order;
    unsigned message_bytes;
    const void* parameters;
    // Stays empty if all is well.
    char* message;
};

enum Wait { READY, DONE, BARRIER, WARP_SYNC, SHUFFLE, BALLOT, LDMATRIX, LDMATRIX_TRANS, MMA_BF16, MMA_F16 };
static const char* const WAIT_NAMES[] = {"running",  "returned", "__syncthreads", "__syncwarp",
                                         "a shuffle", "a ballot", "ldmatrix",      "ldmatrix.trans",
                                         "mma (bf16)", "mma (f16)"};

// The order's bits.
static const unsigned BACKWARD = 1, COPY_AT_ONCE = 2, STRIDE = 4;

// How many blocks there are in one dimension. A kernel asks in order to stride over what is more than they are, which it
// must do with any number of them; with as many as there is work for, as it is launched, it never comes round.
struct Blocks {
    unsigned dimension;
    operator unsigned() const;
};
// As many as the driver has workers: the first block of each is among them.
static const unsigned FEW_BLOCKS = 2;

struct Copy {
    void* to;
    const void* from;
};

struct Fiber {
    void* stack;
    Wait wait;
    unsigned mask;
    // What a lane brings to an operation of its warp, and what it gets.
    unsigned in[10], out[4];
    const void* address;
    // Copies of the group that is open, and of those that are on their way.
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};

static const unsigned WARP_THREADS = 32;
static const size_t STACK_BYTES = 64 << 10;

struct Block {
    const Launch* launch;
    void (*body)(const void*);
    std::vector<Fiber> fibers;
    char* stacks;
    unsigned char* shared;
    void* scheduler;
    unsigned running;
    bool failed;
    // Dimensions in which the kernel strides over the few blocks that it was told of.
    bool strides[3];

    void fail(const char* format, ...) {
        if (failed) return;
        failed = true;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(launch->message, launch->message_bytes, format, arguments);
        va_end(arguments);
    }

    // The running fiber waits; others run until what it waits for has come about.
    void yield(Wait wait) {
        Fiber& fiber = fibers[running];
        fiber.wait = wait;
        sinew_switch(&fiber.stack, scheduler);
    }

    void resume(unsigned thread) {
        running = thread;
        threadIdx = {thread, 0, 0};
        sinew_switch(&scheduler, fibers[thread].stack);
    }

    bool backward() const { return launch->order & BACKWARD; }

    void run(unsigned x, unsigned y, unsigned z);
    void run_warp(unsigned first);
    bool release();
    bool release_warp(unsigned first, unsigned end);
    void operate(unsigned first, unsigned end, unsigned mask, Wait wait);
    void shuffle(Fiber* lanes, unsigned count, unsigned mask);
    void ldmatrix(Fiber* lanes, bool transposed);
    template <float (*WIDEN)(unsigned short)> void mma(Fiber* lanes);
};

static thread_local Block* block;

inline Blocks::operator unsigned() const {
    const unsigned all = block->launch->grid[dimension];
    if (!(block->launch->order & STRIDE) || all <= FEW_BLOCKS) return all;
    block->strides[dimension] = true;
    return FEW_BLOCKS;
}

inline float widen_bf16_bits(unsigned short x) {
    const unsigned bits = unsigned(x) << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
inline float widen_f16_bits(unsigned short x) {
    _Float16 half;
    memcpy(&half, &x, 2);
    return half;
}

static void copy_all(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
        if (copy.from)
            memcpy(copy.to, copy.from, 16);
        else
            memset(copy.to, 0, 16);
    }
}

static void enter() {
    Block* mine = block;
    mine->body(mine->launch->parameters);
    block->yield(DONE);
}

// Every byte of thread-local memory becomes 0xff, NaN in each float format: all of it is shared memory of kernels but
// for what is set again right after.
static int poison_module(dl_phdr_info* info, size_t, void* here) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        char* start = static_cast<char*>(info->dlpi_tls_data);
        if (header.p_type == PT_TLS && start && here >= start && here < start + header.p_memsz) {
            memset(start, 0xff, header.p_memsz);
            return 1;
        }
    }
    return 0;
}

inline void Block::run(unsigned x, unsigned y, unsigned z) {
    block = nullptr;
    dl_iterate_phdr(poison_module, &block);
    memset(shared, 0xff, launch->shared_bytes);
    block = this;
    blockIdx = {x, y, z};
    blockDim = {launch->block, 1, 1};
    const unsigned threads = launch->block;
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        // As if `enter` had been called, which aligns the stack to 16 before its return address; six registers follow.
        void** top = reinterpret_cast<void**>(stacks + (i + 1) * STACK_BYTES) - 2;
        top[0] = reinterpret_cast<void*>(&enter);
        top[1] = nullptr;
        fiber.stack = top - 6;
        fiber.wait = READY;
        fiber.open.clear();
        fiber.groups.clear();
    }
    const unsigned warps = (threads + WARP_THREADS - 1) / WARP_THREADS;
    do {
        for (unsigned i = 0; i < warps && !failed; i++) run_warp((backward() ? warps - 1 - i : i) * WARP_THREADS);
    } while (!failed && release());
}

// Until no thread of the warp can go on without another warp. Of two accesses between which a barrier is missing, each
// comes first in one of the two orders.
inline void Block::run_warp(unsigned first) {
    const unsigned end = first + WARP_THREADS < launch->block ? first + WARP_THREADS : launch->block;
    do {
        for (unsigned i = first; i < end && !failed; i++) {
            const unsigned thread = backward() ? first + end - 1 - i : i;
            if (fibers[thread].wait == READY) resume(thread);
        }
    } while (!failed && release_warp(first, end));
}

// Lets the threads go on if all wait for the block. False when all have returned.
inline bool Block::release() {
    const unsigned threads = launch->block;
    unsigned waiting = 0, done = 0, first_waiting = threads;
    for (unsigned i = 0; i < threads; i++) {
        waiting += fibers[i].wait == BARRIER;
        done += fibers[i].wait == DONE;
        if (fibers[i].wait != DONE && fibers[i].wait != READY && first_waiting == threads) first_waiting = i;
    }
    if (done == threads) return false;
    if (waiting == threads) {
        for (Fiber& fiber : fibers) fiber.wait = READY;
        return true;
    }
    const char* at = WAIT_NAMES[fibers[first_waiting].wait];
    fail("thread %u of block (%u, %u, %u) waits at %s (mask %#x) for ever: %u threads have returned, %u wait at "
         "__syncthreads, the other %u elsewhere",
         first_waiting, blockIdx.x, blockIdx.y, blockIdx.z, at, fibers[first_waiting].mask, done, waiting,
         threads - done - waiting);
    return false;
}

inline bool Block::release_warp(unsigned first, unsigned end) {
    bool released = false;
    const unsigned exist = end - first == 32 ? ~0u : (1u << (end - first)) - 1;
    for (unsigned i = first; i < end; i++) {
        const Wait wait = fibers[i].wait;
        if (wait <= BARRIER) continue;
        const unsigned named = fibers[i].mask & exist;
        if (!(named >> (i - first) & 1)) {
            fail("lane %u calls %s with a mask (%#x) that does not name it", i - first, WAIT_NAMES[wait], named);
            return false;
        }
        bool complete = true;
        for (unsigned j = first; j < end && complete; j++)
            if (named >> (j - first) & 1)
                complete = fibers[j].wait == wait && (fibers[j].mask & exist) == named;
        if (!complete) continue;
        operate(first, end, named, wait);
        for (unsigned j = first; j < end; j++)
            if (named >> (j - first) & 1) fibers[j].wait = READY;
        released = true;
    }
    return released;
}

inline void Block::operate(unsigned first, unsigned end, unsigned mask, Wait wait) {
    Fiber* lanes = &fibers[first];
    const unsigned count = end - first;
    if (wait >= LDMATRIX && mask != ~0u) return fail("%s needs all lanes of a warp", WAIT_NAMES[wait]);
    switch (wait) {
        case SHUFFLE: return shuffle(lanes, count, mask);
        case LDMATRIX: return ldmatrix(lanes, false);
        case LDMATRIX_TRANS: return ldmatrix(lanes, true);
        case BALLOT: {
            unsigned votes = 0;
            for (unsigned i = 0; i < count; i++)
                if (mask >> i & 1) votes |= unsigned(lanes[i].in[0] != 0) << i;
            for (unsigned i = 0; i < count; i++) lanes[i].out[0] = votes;
            return;
        }
        case MMA_BF16: return mma<widen_bf16_bits>(lanes);
        case MMA_F16: return mma<widen_f16_bits>(lanes);
        default: return;
    }
}

inline void Block::shuffle(Fiber* lanes, unsigned count, unsigned mask) {
    for (unsigned i = 0; i < count; i++) {
        if (!(mask >> i & 1)) continue;
        const unsigned source = lanes[i].in[2];
        if (source >= count || !(mask >> source & 1))
            return fail("lane %u shuffles from lane %u, which takes no part", i, source);
        lanes[i].out[0] = lanes[source].in[0];
        lanes[i].out[1] = lanes[source].in[1];
    }
}

// Lanes 8m to 8m+7 name the rows of matrix m. Lane l gets of each matrix the elements 2(l%4) and the next of row l/4, or
// of column l/4 where transposed.
inline void Block::ldmatrix(Fiber* lanes, bool transposed) {
    for (unsigned i = 0; i < WARP_THREADS; i++)
        if (reinterpret_cast<uintptr_t>(lanes[i].address) % 16) return fail("ldmatrix: lane %u is not aligned to 16", i);
    for (unsigned l = 0; l < WARP_THREADS; l++) {
        for (unsigned m = 0; m < 4; m++) {
            unsigned pair[2];
            for (unsigned k = 0; k < 2; k++) {
                const unsigned along = 2 * (l % 4) + k, across = l / 4;
                const unsigned row = transposed ? along : across, column = transposed ? across : along;
                pair[k] = static_cast<const unsigned short*>(lanes[8 * m + row].address)[column];
            }
            lanes[l].out[m] = pair[0] | pair[1] << 16;
        }
    }
}

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": with g = lane / 4 and t = lane % 4, a holds
// rows g, g+8, g, g+8 of columns 2t and 2t+8; b rows 2t and 2t+8 of column g; d rows g and g+8 of columns 2t, 2t+1.
template <float (*WIDEN)(unsigned short)> void Block::mma(Fiber* lanes) {
    float a[16][16], b[16][8];
    for (unsigned l = 0; l < WARP_THREADS; l++) {
        const unsigned g = l / 4, t = l % 4;
        for (unsigned i = 0; i < 4; i++)
            for (unsigned k = 0; k < 2; k++)
                a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + k] = WIDEN(lanes[l].in[i] >> 16 * k);
        for (unsigned i = 0; i < 2; i++)
            for (unsigned k = 0; k < 2; k++) b[2 * t + 8 * i + k][g] = WIDEN(lanes[l].in[4 + i] >> 16 * k);
    }
    for (unsigned l = 0; l < WARP_THREADS; l++) {
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
            float sum;
            memcpy(&sum, &lanes[l].in[6 + i], 4);
            for (unsigned k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            memcpy(&lanes[l].out[i], &sum, 4);
        }
    }
}

inline void run(Launch* launch, size_t parameter_bytes, unsigned most_threads, void (*body)(const void*)) {
    Block mine{launch, body, std::vector<Fiber>(launch->block), nullptr, nullptr, nullptr, 0, false, {}};
    if (launch->parameter_bytes != parameter_bytes)
        return mine.fail("the kernel's parameter has %zu bytes, the launch brings %u", parameter_bytes,
                         launch->parameter_bytes);
    if (launch->block == 0 || launch->block > most_threads)
        return mine.fail("%u threads, the kernel is compiled for %u", launch->block, most_threads);
    const size_t stack_bytes = launch->block * STACK_BYTES;
    const size_t bytes = stack_bytes + launch->shared_bytes;
    void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return mine.fail("no memory for the threads' stacks");
    mine.stacks = static_cast<char*>(room);
    mine.shared = static_cast<unsigned char*>(room) + stack_bytes;
    const unsigned long long plane = 1ull * launch->grid[0] * launch->grid[1], blocks = plane * launch->grid[2];
    for (unsigned long long i = launch->first; i < blocks && !mine.failed; i += launch->step) {
        const unsigned at[3] = {unsigned(i % launch->grid[0]), unsigned(i / launch->grid[0] % launch->grid[1]),
                                unsigned(i / plane)};
        bool taken = false;
        for (unsigned d = 0; d < 3; d++) taken |= mine.strides[d] && at[d] >= FEW_BLOCKS;
        if (!taken) mine.run(at[0], at[1], at[2]);
    }
    munmap(room, bytes);
}

static unsigned* collective(Wait wait, unsigned mask) {
    Block* mine = block;
    mine->fibers[mine->running].mask = mask;
    mine->yield(wait);
    return mine->fibers[mine->running].out;
}

static Fiber& self() { return block->fibers[block->running]; }

template <typename T> static T shuffle(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles words and double words");
    memcpy(self().in, &value, sizeof(T));
    self().in[2] = source;
    memcpy(&value, collective(SHUFFLE, mask), sizeof(T));
    return value;
}

static inline unsigned lane() { return block->running % WARP_THREADS; }

}  // namespace host

static const struct { host::Blocks x, y, z; } gridDim = {{0}, {1}, {2}};

#define SINEW_KERNEL_BOUNDS(name, Params, threads, min_blocks)                                                         \
    static void name##_body(const Params& p);                                                                          \
    extern "C" __attribute__((visibility("default"))) void name(host::Launch* launch) {                                \
        host::run(launch, sizeof(Params), threads,                                                                     \
                  [](const void* p) { name##_body(*static_cast<const Params*>(p)); });                                 \
    }                                                                                                                  \
    static void name##_body(const Params& p)
#define SINEW_SHARED(type, name) type* const name = reinterpret_cast<type*>(host::block->shared)

static inline void __syncthreads() { host::block->yield(host::BARRIER); }
static inline void __syncwarp(unsigned mask = ~0u) { host::collective(host::WARP_SYNC, mask); }
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    host::self().in[0] = vote != 0;
    return host::collective(host::BALLOT, mask)[0];
}
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }
// The first lane of the group of `width` lanes that a lane is in.
static inline unsigned sinew_group(int width) { return host::lane() & ~(unsigned(width) - 1); }
template <typename T> static T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return host::shuffle(mask, value, sinew_group(width) + (unsigned(source) & (width - 1)));
}
template <typename T> static T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    const unsigned source = host::lane() ^ unsigned(with);
    return host::shuffle(mask, value, source < sinew_group(width) + width ? source : host::lane());
}
template <typename T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned source = host::lane() + by;
    return host::shuffle(mask, value, source < sinew_group(width) + width ? source : host::lane());
}
template <typename T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = host::lane();
    return host::shuffle(mask, value, lane >= sinew_group(width) + by ? lane - by : lane);
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() {}

template <typename T, typename F> static T sinew_atomic(T* place, F update) {
    T old, next;
    __atomic_load(place, &old, __ATOMIC_SEQ_CST);
    do next = update(old);
    while (!__atomic_compare_exchange(place, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <typename T, typename V> static T atomicAdd(T* place, V by) {
    const T value = T(by);
    return sinew_atomic(place, [=](T old) { return T(old + value); });
}
template <typename T, typename V> static T atomicMax(T* place, V by) {
    const T value = T(by);
    return sinew_atomic(place, [=](T old) { return old < value ? value : old; });
}
template <typename T, typename V> static T atomicMin(T* place, V by) {
    const T value = T(by);
    return sinew_atomic(place, [=](T old) { return value < old ? value : old; });
}
template <typename T, typename V> static T atomicExch(T* place, V by) {
    const T value = T(by);
    return sinew_atomic(place, [=](T) { return value; });
}
template <typename T, typename V> static T atomicOr(T* place, V by) {
    const T value = T(by);
    return sinew_atomic(place, [=](T old) { return old | value; });
}
template <typename T> static T atomicCAS(T* place, T expected, T value) {
    return sinew_atomic(place, [=](T old) { return old == expected ? value : old; });
}

template <typename To, typename From> static inline To sinew_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
static inline unsigned __float_as_uint(float x) { return sinew_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return sinew_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return sinew_bits<float>(x); }
static inline float __int_as_float(int x) { return sinew_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return sinew_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return sinew_bits<double>(x); }

// glibc declares functions of some of these names and exports none.
#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
#define __fdividef(a, b) ((a) / (b))
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __fadd_rn(a, b) ((a) + (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __fdiv_rn(a, b) ((a) / (b))
#define __fmaf_rn fmaf
#define __fsqrt_rn sqrtf
#define __frcp_rn(x) (1.0f / (x))
#define __popc(x) __builtin_popcount(x)
#define __clz(x) ((x) ? __builtin_clz(x) : 32)
#define __ffs(x) __builtin_ffs(x)
template <typename T> static inline T __ldg(const T* place) { return *place; }
template <typename A, typename B> static inline auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <typename A, typename B> static inline auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

static inline float widen_f16(unsigned short x) { return host::widen_f16_bits(x); }
static inline unsigned short narrow_f16(float x) { return sinew_bits<unsigned short>(_Float16(x)); }

static inline void sinew_mma(host::Wait wait, float d[4], const unsigned a[4], const unsigned b[2]) {
    unsigned* in = host::self().in;
    memcpy(in, a, 16);
    memcpy(in + 4, b, 8);
    memcpy(in + 6, d, 16);
    memcpy(d, host::collective(wait, ~0u), 16);
}
static inline void mma_m16n8k16_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
    sinew_mma(host::MMA_BF16, d, a, b);
}
static inline void mma_m16n8k16_f16(float d[4], const unsigned a[4], const unsigned b[2]) {
    sinew_mma(host::MMA_F16, d, a, b);
}
static inline void ldmatrix_x4(unsigned r[4], const void* shared) {
    host::self().address = shared;
    memcpy(r, host::collective(host::LDMATRIX, ~0u), 16);
}
static inline void ldmatrix_x4_trans(unsigned r[4], const void* shared) {
    host::self().address = shared;
    memcpy(r, host::collective(host::LDMATRIX_TRANS, ~0u), 16);
}
static inline void cp_async_16(void* shared, const void* global, bool valid) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16)
        host::block->fail("cp_async_16: %p from %p is not aligned to 16", shared, global);
    host::Copy copy{shared, valid ? global : nullptr};
    if (host::block->launch->order & host::COPY_AT_ONCE)
        host::copy_all({copy});
    else
        host::self().open.push_back(copy);
}
static inline void cp_async_commit() {
    host::Fiber& self = host::self();
    self.groups.push_back(self.open);
    self.open.clear();
}
template <int N> static void cp_async_wait() {
    auto& groups = host::self().groups;
    while (groups.size() > N) {
        host::copy_all(groups.front());
        groups.erase(groups.begin());
    }
}
