// Rotary embedding: a thread for each pair, and for each value that passes through.

struct RotaryParams {
    Ptr out, x, positions, cos, sin, status;
    // Of token, head, element.
    i64 out_strides[3], x_strides[3];
    // Of position, pair.
    i64 cos_strides[2], sin_strides[2];
    i64 position_stride;
    u64 items;
    u64 length;
    u32 heads;
    // Of a head: pairs, and pairs together with passing values.
    u32 pairs, items_per_head;
    // Pair i lies at i·step and i·step + partner.
    u32 step, partner;
    u32 out_type, x_type;
    u32 padding;
};

SINEW_KERNEL(rotary, RotaryParams) {
    for (u64 i = global_thread(); i < p.items; i += global_threads()) {
        u64 token = i;
        const u32 item = divide(token, p.items_per_head);
        const i64 head = divide(token, p.heads);
        const i64 x = i64(token) * p.x_strides[0] + head * p.x_strides[1];
        const i64 out = i64(token) * p.out_strides[0] + head * p.out_strides[1];
        if (item >= p.pairs) {
            const i64 d = item + p.pairs;
            store(p.out, p.out_type, out + d * p.out_strides[2], load(p.x, p.x_type, x + d * p.x_strides[2]));
            continue;
        }
        const i64 position = *at<i32>(p.positions, i64(token) * p.position_stride);
        if (position < 0 || u64(position) >= p.length) {
            report(p.status, position);
            continue;
        }
        const float cos = *at<float>(p.cos, position * p.cos_strides[0] + i64(item) * p.cos_strides[1]);
        const float sin = *at<float>(p.sin, position * p.sin_strides[0] + i64(item) * p.sin_strides[1]);
        const i64 first = i64(item) * p.step, second = first + p.partner;
        const float a = load(p.x, p.x_type, x + first * p.x_strides[2]);
        const float b = load(p.x, p.x_type, x + second * p.x_strides[2]);
        store(p.out, p.out_type, out + first * p.out_strides[2], fmaf(-b, sin, a * cos));
        store(p.out, p.out_type, out + second * p.out_strides[2], fmaf(a, sin, b * cos));
    }
}
