//! A `Vec` as storage: what the host has already is not copied.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;

use crate::{Buffer, Device, Error, Location, Result, Storage};

/// A `Vec<T>` taken apart, so that the pointers that [`Storage::host_ptr`] hands out are the only ones there are.
struct HostVec<T> {
    ptr: NonNull<T>,
    len: usize,
    capacity: usize,
    owns: PhantomData<T>,
}

impl<T: Pod> HostVec<T> {
    fn new(values: Vec<T>) -> Self {
        let mut values = ManuallyDrop::new(values);
        let (len, capacity) = (values.len(), values.capacity());
        // A `Vec`'s pointer is never null.
        let ptr = NonNull::new(values.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { ptr, len, capacity, owns: PhantomData }
    }
}

impl<T> Drop for HostVec<T> {
    fn drop(&mut self) {
        // SAFETY: pointer, length and capacity are those of the vector that was forgotten in `new`, and only here is
        // it made whole again. Whatever bytes were written, they are a `T`: `T` is `Pod`.
        drop(unsafe { Vec::from_raw_parts(self.ptr.as_ptr(), self.len, self.capacity) });
    }
}

impl<T> fmt::Debug for HostVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostVec({} of {})", self.len, std::any::type_name::<T>())
    }
}

// SAFETY: the elements are owned by this value, as in a `Vec<T>`; what is read and written through the pointer is
// ruled by `Buffer`'s handles.
unsafe impl<T: Send> Send for HostVec<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for HostVec<T> {}

// SAFETY: `ptr` points to `len` values of `T`, which live as long as `self` and are its own. `Pod` types have no
// padding, so that all bytes are initialised, and any bytes written are valid.
unsafe impl<T: Pod + Send + Sync> Storage for HostVec<T> {
    fn len(&self) -> usize {
        self.len * size_of::<T>()
    }
    fn location(&self) -> Location {
        Location::Host
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        Some(self.ptr.cast())
    }
}

impl Buffer {
    /// A buffer that is a vector's memory, without a copy: aligned as `T` is, not as the device's own allocations are.
    ///
    /// ```
    /// use sinew_memory::{Buffer, Cpu};
    /// let values = vec![1.0f32, 2.0];
    /// let address = values.as_ptr();
    /// let buffer = Buffer::from_vec(&Cpu::get(), values)?;
    /// assert_eq!(buffer.as_slice::<f32>()?.as_ptr(), address);
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that keeps its tensors elsewhere than in host memory.
    pub fn from_vec<T: Pod + Send + Sync>(device: &Arc<dyn Device>, values: Vec<T>) -> Result<Self> {
        check_host(device, "a vector")?;
        Ok(Self::from_storage(device, HostVec::new(values)))
    }
}

/// Whether kernels of the device work on ordinary host memory.
pub(crate) fn check_host(device: &Arc<dyn Device>, what: &str) -> Result<()> {
    match device.location() {
        Location::Host => Ok(()),
        location => {
            let id = device.id();
            Err(Error::Invalid(format!("{what} cannot be a buffer of {id}, which uses {location} memory; upload it")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    #[test]
    fn a_vector_becomes_a_buffer_and_is_freed_once() {
        let mut values = Vec::with_capacity(10);
        values.extend([1u16, 2, 3]);
        let address = values.as_ptr();
        let mut buffer = Buffer::from_vec(&Cpu::get(), values).unwrap();
        assert_eq!((buffer.len(), buffer.span().storage.location()), (6, Location::Host));
        buffer.as_mut_slice::<u16>().unwrap()[1] = 7;
        assert_eq!(buffer.as_slice::<u16>().unwrap(), [1, 7, 3]);
        assert_eq!(buffer.as_slice::<u16>().unwrap().as_ptr(), address);
        let other = buffer.clone();
        assert!(buffer.as_mut_slice::<u16>().is_err());
        drop(buffer);
        assert_eq!(other.as_slice::<u8>().unwrap().len(), 6);
    }

    #[test]
    fn an_empty_vector_is_an_empty_buffer() {
        let buffer = Buffer::from_vec(&Cpu::get(), Vec::<f64>::new()).unwrap();
        assert!(buffer.is_empty());
        assert!(buffer.as_slice::<f64>().unwrap().is_empty());
    }
}
