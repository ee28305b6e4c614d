// Bytes at any offsets: one thread for each word of the destination.

struct Params {
    number: u32,
    row: u32,
    src: u32,
    dst: u32,
    len: u32,
}

@group(0) @binding(0) var<storage, read_write> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> dst: array<atomic<u32>>;
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
    let at = (p.dst >> 2u) + thread.y * p.row + thread.x;
    let end = p.dst + p.len;
    if (at > (end - 1u) >> 2u) {
        return;
    }
    let start = at << 2u;
    let low = max(start, p.dst) - start;
    let high = min(start + 4u, end) - start;
    var value = 0u;
    var mask = 0u;
    for (var byte = low; byte < high; byte += 1u) {
        let source = p.src + (start + byte - p.dst);
        value |= ((src[source >> 2u] >> ((source & 3u) << 3u)) & 0xffu) << (byte << 3u);
        mask |= 0xffu << (byte << 3u);
    }
    if (high - low == 4u) {
        atomicStore(&dst[at], value);
    } else {
        atomicAnd(&dst[at], ~mask);
        atomicOr(&dst[at], value);
    }
}
