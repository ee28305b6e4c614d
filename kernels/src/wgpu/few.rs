//! Lists of what a call has.

use crate::Result;
use crate::operator::refuse;

/// A list without an allocation: calls are made at each step of a model.
#[derive(Clone, Copy)]
pub(super) struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    pub(super) fn new(filler: T) -> Self {
        Self { items: [filler; N], len: 0 }
    }

    pub(super) fn push(&mut self, kernel: &'static str, item: T) -> Result<()> {
        let room =
            self.items.get_mut(self.len).ok_or_else(|| refuse(kernel, format!("more than {N} of a call's parts")))?;
        *room = item;
        self.len += 1;
        Ok(())
    }
}

impl<T, const N: usize> std::ops::Deref for Few<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T, const N: usize> std::ops::DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
