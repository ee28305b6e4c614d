//! Copies that wgpu cannot do itself: within one buffer, or of bytes that are no whole words.

use super::ShaderText;

/// Bytes that one dispatch copies at most: less than any adapter binds, with room for alignment.
pub(super) const PIECE: usize = 64 << 20;
/// Threads of a workgroup.
const THREADS: usize = 64;
/// Workgroups of a row of the grid.
const ROW: usize = 1 << 14;

pub(super) fn text() -> ShaderText {
    ShaderText { wgsl: include_str!("copy.wgsl").into(), bindings: 2, reports: None }
}

/// Parameters and workgroups of a copy of `len` bytes from byte `src` of the first binding to byte `dst` of the second.
pub(super) fn call(src: usize, dst: usize, len: usize) -> ([u32; 4], [u32; 3]) {
    let words = (dst % 4 + len).div_ceil(4);
    let groups = words.div_ceil(THREADS);
    let row = groups.clamp(1, ROW);
    let params = [row * THREADS, src, dst, len].map(|word| word as u32);
    (params, [row as u32, groups.div_ceil(row) as u32, 1])
}
