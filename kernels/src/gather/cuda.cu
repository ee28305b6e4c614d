// Elements by index along a dimension, moved as they are.

struct GatherParams {
    // y, index, x; along the dimension x does not step with the others.
    Strided<3> operands;
    Ptr status;
    // x's stride along the dimension, and how many elements it has there.
    i64 stride;
    u64 length;
    u32 size;
    u32 padding;
};

SINEW_KERNEL(gather, GatherParams) {
    each(p.operands, [&](const i64* at) {
        const i64 index = load_index(p.operands.pointers[1], p.operands.types[1], at[1]);
        if (index < 0 || u64(index) >= p.length) {
            report(p.status, index);
            return;
        }
        copy_element(p.operands.pointers[0], at[0], p.operands.pointers[2], at[2] + index * p.stride, p.size);
    });
}
