// A workgroup for each sequence: reads what addresses are made of, reports what is none, and writes the sequence down.

var<workgroup> sums: array<u32, 64>;

fn saturated(a: u32, b: u32) -> u32 {
    return min(a + b, p.there + 1u);
}

fn length(sequence: u32) -> i32 {
    return i32(bits_kv_len(sequence * p.length_step).x);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let sequence = linear(group);
    if (sequence >= p.sequences) {
        return;
    }
    let start = i32(bits_query_start(sequence * p.start_step).x);
    let end = i32(bits_query_start((sequence + 1u) * p.start_step).x);
    let len = length(sequence);
    let rises = start >= 0 && end >= start && end <= i32(p.tokens) && (sequence > 0u || start == 0);
    var is_good = rises && end - start <= i32(p.max_query);
    if (lane == 0u && (!is_good || (sequence + 1u == p.sequences && end != i32(p.tokens)))) {
        report(u32(select(end, start, start < 0 || (sequence == 0u && start != 0))));
    }
    let fits = len >= 0 && len <= i32(p.max_kv) && (CAUSAL == 0u || !rises || end - start <= len);
    if (lane == 0u && !fits) {
        report(u32(len));
    }
    is_good = is_good && fits;
    var before = 0u;
    if (PAGED == 0u) {
        var sum = 0u;
        for (var i = lane; i < sequence; i += 64u) {
            sum = saturated(sum, min(u32(max(length(i), 0)), p.there));
        }
        sums[lane] = sum;
    }
    workgroupBarrier();
    if (PAGED == 0u && is_good) {
        for (var i = 0u; i < 64u; i += 1u) {
            before = saturated(before, sums[i]);
        }
        is_good = before <= p.there && u32(len) <= p.there - before;
        if (lane == 0u && !is_good) {
            report(saturated(before, u32(len)));
        }
    }
    if (PAGED == 1u && is_good && end > start) {
        let queries = u32(end - start);
        let start_key = visible(0u, queries, u32(len)).x;
        let stop_key = visible(queries - 1u, queries, u32(len)).y;
        let blocks = select(0u, (stop_key + p.block_size - 1u) / p.block_size, stop_key > start_key);
        if (lane == 0u && blocks > p.table_columns) {
            report(blocks - 1u);
        }
        is_good = blocks <= p.table_columns;
        for (var b = start_key / p.block_size + lane; is_good && b < blocks; b += 64u) {
            let block = block_at(sequence, b);
            if (block >= p.there) {
                report(block);
            }
        }
    }
    if (lane == 0u) {
        let at = sequence * 4u;
        put_scratch(at, vec2(u32(start), 0u));
        // A sequence that is not as it should be has nothing to compute.
        put_scratch(at + 1u, vec2(select(0u, u32(end - start), is_good), 0u));
        put_scratch(at + 2u, vec2(before, 0u));
        put_scratch(at + 3u, vec2(select(0u, u32(len), is_good), 0u));
    }
}
