// cuBLASLt on the host: the calls that Sinew makes of the library, as its documentation describes them, worked off by a
// stream of the driver of this crate.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };
enum Reduction { COMPUTE_TYPE = 2 };

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
    int32_t batch = 1;
    int64_t stride = 0;
};

struct Description {
    int32_t transposed[2] = {0, 0};
    uint32_t epilogue = 1;
    uint64_t bias = 0;
    uint32_t bias_type = ~0u;
};

struct Preference {
    uint64_t workspace = 0;
    uint32_t reductions = ~0u;
    // The library takes for granted what it is not told.
    uint32_t alignments[4] = {256, 256, 256, 256};
};

struct Algorithm {
    uint64_t data[8];
};

struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    uint32_t state;
    float waves;
    int32_t reserved[4];
};

struct Product {
    Layout x, y, c, d;
    Description description;
    float alpha, beta;
    const char *from[3];
    char *to;
};

template <typename T>
int take(T &place, const void *value, size_t bytes) {
    if (value == nullptr || bytes != sizeof(T)) return INVALID_VALUE;
    memcpy(&place, value, bytes);
    return SUCCESS;
}

size_t bytes_of(int type) { return type == F32 ? 4 : 2; }

float load(const char *base, int type, int64_t at) {
    uint32_t word = 0;
    memcpy(&word, base + at * int64_t(bytes_of(type)), bytes_of(type));
    if (type == BF16) word <<= 16;
    float value;
    if (type == F16) {
        _Float16 half;
        memcpy(&half, &word, sizeof half);
        return float(half);
    }
    memcpy(&value, &word, sizeof value);
    return value;
}

void store(char *base, int type, int64_t at, float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (type == BF16) {
        bool nan = value != value;
        word = nan ? 0x7fc0 : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    } else if (type == F16) {
        _Float16 half = _Float16(value);
        word = 0;
        memcpy(&word, &half, sizeof half);
    }
    memcpy(base + at * int64_t(bytes_of(type)), &word, bytes_of(type));
}

float element(const char *base, const Layout &layout, int32_t matrix, uint64_t row, uint64_t column) {
    return load(base, layout.type, matrix * layout.stride + int64_t(row) + int64_t(column) * layout.leading);
}

void multiply(void *argument) {
    Product &p = *static_cast<Product *>(argument);
    const auto *transposed = p.description.transposed;
    uint64_t depth = transposed[0] ? p.x.rows : p.x.columns;
    for (int32_t b = 0; b < p.d.batch; b++) {
        for (uint64_t column = 0; column < p.d.columns; column++) {
            for (uint64_t row = 0; row < p.d.rows; row++) {
                float sum = 0;
                for (uint64_t k = 0; k < depth; k++) {
                    float x = transposed[0] ? element(p.from[0], p.x, b, k, row) : element(p.from[0], p.x, b, row, k);
                    float y =
                        transposed[1] ? element(p.from[1], p.y, b, column, k) : element(p.from[1], p.y, b, k, column);
                    sum += x * y;
                }
                float value = p.alpha * sum;
                if (p.beta != 0) value += p.beta * element(p.from[2], p.c, b, row, column);
                if (p.description.epilogue == 4)
                    value += load(reinterpret_cast<const char *>(p.description.bias), p.description.bias_type, row);
                store(p.to, p.d.type, b * p.d.stride + int64_t(row) + int64_t(column) * p.d.leading, value);
            }
        }
    }
    delete &p;
}

bool is_aligned(const void *address, uint64_t to) { return reinterpret_cast<uint64_t>(address) % to == 0; }

typedef int (*Enqueue)(uint64_t stream, void (*work)(void *), void *argument);
Enqueue enqueue = nullptr;

}  // namespace

extern "C" {

void cuda_on_host_enqueue(Enqueue with) { enqueue = with; }

int cublasLtCreate(void **handle) {
    *handle = malloc(1);
    return SUCCESS;
}

int cublasLtDestroy(void *handle) {
    free(handle);
    return SUCCESS;
}

int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    if (rows == 0 || columns == 0 || leading < int64_t(rows)) return INVALID_VALUE;
    if (type != F32 && type != F16 && type != BF16) return NOT_SUPPORTED;
    *layout = new Layout{type, rows, columns, leading};
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) {
    delete layout;
    return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
        case 5: return take(layout->batch, value, bytes);
        case 6: return take(layout->stride, value, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatmulDescCreate(Description **description, int compute, int scale) {
    if (compute != 68 || scale != F32) return NOT_SUPPORTED;
    *description = new Description;
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(Description *description) {
    delete description;
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(Description *description, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
        case 3: return take(description->transposed[0], value, bytes);
        case 4: return take(description->transposed[1], value, bytes);
        case 7: return take(description->epilogue, value, bytes);
        case 8: return take(description->bias, value, bytes);
        case 26: return take(description->bias_type, value, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatmulPreferenceCreate(Preference **preference) {
    *preference = new Preference;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(Preference *preference) {
    delete preference;
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
        case 1: return take(preference->workspace, value, bytes);
        case 3: return take(preference->reductions, value, bytes);
        case 5:
        case 6:
        case 7:
        case 8: return take(preference->alignments[attribute - 5], value, bytes);
        default: return INVALID_VALUE;
    }
}

// The algorithm says what it was chosen for, so that another call's operands are noticed. Some shapes have none.
int cublasLtMatmulAlgoGetHeuristic(void *, Description *description, Layout *x, Layout *y, Layout *c, Layout *d,
                                   Preference *preference, int, Heuristic *found, int *count) {
    const int32_t *transposed = description->transposed;
    uint64_t depth = transposed[0] ? x->rows : x->columns;
    bool fits = (transposed[0] ? x->columns : x->rows) == d->rows && (transposed[1] ? y->columns : y->rows) == depth &&
                (transposed[1] ? y->rows : y->columns) == d->columns && c->rows == d->rows && c->columns == d->columns;
    bool same = x->type == y->type && c->type == d->type && (d->type == x->type || d->type == F32);
    bool biased = description->epilogue == 4 && int(description->bias_type) == d->type;
    if (!fits || !same || !(biased || description->epilogue == 1)) return INVALID_VALUE;
    if (x->batch != d->batch || y->batch != d->batch || c->batch != d->batch) return INVALID_VALUE;
    // Parts of sums are not to be rounded to the result's type.
    if (preference->reductions != COMPUTE_TYPE) return INVALID_VALUE;
    *count = 0;
    if (d->rows % 13 == 0) return NOT_SUPPORTED;
    *count = 1;
    *found = Heuristic{};
    uint64_t shape[] = {d->rows, d->columns, depth, preference->workspace};
    memcpy(found->algorithm.data, shape, sizeof shape);
    memcpy(found->algorithm.data + 4, preference->alignments, sizeof preference->alignments);
    return SUCCESS;
}

int cublasLtMatmul(void *, Description *description, const float *alpha, const void *x, Layout *x_layout, const void *y,
                   Layout *y_layout, const float *beta, const void *c, Layout *c_layout, void *d, Layout *d_layout,
                   const Algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
    const uint64_t depth = description->transposed[0] ? x_layout->rows : x_layout->columns;
    const uint64_t shape[] = {d_layout->rows, d_layout->columns, depth, workspace_bytes};
    if (memcmp(algorithm->data, shape, sizeof shape) != 0) return INVALID_VALUE;
    uint32_t alignments[4];
    memcpy(alignments, algorithm->data + 4, sizeof alignments);
    const void *addresses[] = {x, y, c, d};
    for (int i = 0; i < 4; i++)
        if (!is_aligned(addresses[i], alignments[i])) return INVALID_VALUE;
    if (!is_aligned(workspace, 256)) return INVALID_VALUE;
    // Algorithms use their workspace.
    struct Use {
        void *workspace;
        size_t bytes;
    };
    auto spoil = [](void *argument) {
        Use *use = static_cast<Use *>(argument);
        memset(use->workspace, 0xff, use->bytes);
        delete use;
    };
    const uint64_t on = reinterpret_cast<uint64_t>(stream);
    if (enqueue(on, spoil, new Use{workspace, workspace_bytes}) != 0) return INVALID_VALUE;
    Product *product = new Product{*x_layout, *y_layout, *c_layout, *d_layout, *description, *alpha, *beta};
    product->from[0] = static_cast<const char *>(x);
    product->from[1] = static_cast<const char *>(y);
    product->from[2] = static_cast<const char *>(c);
    product->to = static_cast<char *>(d);
    return enqueue(on, multiply, product) == 0 ? SUCCESS : INVALID_VALUE;
}

}  // extern "C"
