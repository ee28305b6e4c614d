// Rows of a table by number: a thread for each value.

struct EmbeddingParams {
    Ptr ids, table, out, status;
    i64 id_stride;
    // Of row, column.
    i64 table_strides[2], out_strides[2];
    u64 values, vocab;
    u32 width;
    u32 ids_type, table_type, out_type;
};

SINEW_KERNEL(embedding, EmbeddingParams) {
    for (u64 i = global_thread(); i < p.values; i += global_threads()) {
        u64 token = i;
        const i64 column = divide(token, p.width);
        const i64 id = load_index(p.ids, p.ids_type, i64(token) * p.id_stride);
        if (id < 0 || u64(id) >= p.vocab) {
            report(p.status, id);
            continue;
        }
        const float value = load(p.table, p.table_type, id * p.table_strides[0] + column * p.table_strides[1]);
        store(p.out, p.out_type, i64(token) * p.out_strides[0] + column * p.out_strides[1], value);
    }
}
