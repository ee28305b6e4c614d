//! Short blocks, in which kernels take a strided operand as contiguous f32.

/// Elements of a block. As f32 it is 2 KiB, so that a kernel's few blocks stay in the first-level cache and the
/// conversion costs no traffic to memory.
pub(crate) const BLOCK: usize = 512;

/// Room for a block on the stack.
#[repr(align(64))]
pub(crate) struct Scratch(std::mem::MaybeUninit<[f32; BLOCK]>);

impl Scratch {
    /// Room whose contents are unspecified.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(std::mem::MaybeUninit::uninit())
    }

    /// The first value.
    #[inline(always)]
    pub(crate) fn ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// The blocks of a row: where each begins, and its length, which is at most [`BLOCK`].
#[inline(always)]
pub(crate) fn blocks(width: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..width).step_by(BLOCK).map(move |start| (start, (width - start).min(BLOCK)))
}
