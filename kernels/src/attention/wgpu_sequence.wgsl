// The sequences of a call, as the check leaves them in the first words of the scratch: first query, queries, first key
// where keys are dense, keys.

// The keys that a query sees, masks aside: from, to. Neither falls as the query rises.
fn visible(query: u32, query_len: u32, kv_len: u32) -> vec2<u32> {
    let len = i32(kv_len);
    let behind = i32(query_len - query);
    let position = len - behind;
    let window = i32(p.window);
    var end = len;
    if (CAUSAL == 1u) {
        end = position + 1;
    } else if (WINDOW == 1u && window < behind) {
        end = position + window;
    }
    end = clamp(end, 0, len);
    let start = select(0, clamp(position + 1 - window, 0, end), WINDOW == 1u);
    return vec2(u32(start), u32(end));
}
