//! Elements of tensors on the host: without a copy where the host can reach them, and copies by name.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use sinew_memory::{Buffer, Device, Error as MemoryError, Location, MappedFile, Stream};

use crate::error::{Error, Result, shape_error};
use crate::{DType, Element, Layout, Tensor, View};

impl<'a> View<'a> {
    fn check_dtype<T: Element>(&self, operation: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype() {
            return Ok(());
        }
        Err(Error::DType { operation, found: self.dtype(), asked: T::DTYPE })
    }

    /// The elements of the buffer from the first that the layout names to the last, gaps included, where the host can
    /// reach them.
    pub(crate) fn span<T: Element>(&self, operation: &'static str) -> Result<&'a [T]> {
        self.check_dtype::<T>(operation)?;
        elements(self.host_bytes()?)
    }

    /// The bytes of [`View::span`], whatever the dtype.
    pub(crate) fn host_bytes(&self) -> Result<&'a [u8]> {
        let size = self.dtype().size();
        Ok(&self.buffer().as_slice::<u8>()?[self.layout().offset() * size..self.layout().end() * size])
    }

    /// The elements of a contiguous view, without a copy.
    ///
    /// # Errors
    /// Those of [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        self.check_dtype::<T>("as_slice")?;
        if !self.layout().is_contiguous() {
            return Err(shape_error("as_slice", format!("{:?} is not contiguous", self.layout())));
        }
        self.span("as_slice")
    }
}

/// Bytes as elements.
fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(|_| misaligned::<T>(bytes.as_ptr() as usize, bytes.len()))
}

fn misaligned<T: Element>(address: usize, len: usize) -> Error {
    let (element, size, align) = (T::DTYPE.name(), size_of::<T>(), align_of::<T>());
    MemoryError::Misaligned { address, len, element, size, align }.into()
}

impl Tensor {
    /// A contiguous, read-only tensor that is `range` of a mapped file, without a copy. Where the bytes are not aligned
    /// for the dtype, or the device does not work on host memory, it is a copy of them.
    ///
    /// # Errors
    /// A range outside the file or of another length than the shape's, or out of memory.
    pub fn from_mapped(
        device: &Arc<dyn Device>,
        file: &Arc<MappedFile>,
        range: Range<usize>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        let bytes = file.bytes().get(range.clone());
        let Some(bytes) = bytes.filter(|bytes| bytes.len() == layout.elements() * dtype.size()) else {
            let reason = format!("bytes {range:?} of a file of {} for {layout:?} of {dtype}", file.len());
            return Err(shape_error("mapped tensor", reason));
        };
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(dtype.size());
        if !aligned || device.location() != Location::Host {
            return Self::from_bytes(device, bytes, dtype, shape);
        }
        Self::new(file.buffer(device, range)?, dtype, layout)
    }

    /// The elements of a contiguous tensor that the host can reach, without a copy.
    ///
    /// ```
    /// use sinew_memory::Cpu;
    /// use sinew_tensor::Tensor;
    /// let tensor = Tensor::from_slice(&Cpu::get(), &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(tensor.select(0, 1)?.as_slice::<f32>()?, &[3.0, 4.0]);
    /// assert!(tensor.select(1, 1)?.as_slice::<f32>().is_err());
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another dtype, a layout that is not contiguous, device memory, or an address that is not aligned for the dtype.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.view().as_slice()
    }

    /// The elements of a contiguous tensor that the host can reach, to write.
    ///
    /// # Errors
    /// Those of [`Tensor::as_slice`], a shared buffer, or a read-only one.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.view().check_dtype::<T>("as_mut_slice")?;
        if !self.layout.is_contiguous() {
            return Err(shape_error("as_mut_slice", format!("{:?} is not contiguous", self.layout)));
        }
        self.mut_span("as_mut_slice")
    }

    /// [`View::span`], to write.
    pub(crate) fn mut_span<T: Element>(&mut self, operation: &'static str) -> Result<&mut [T]> {
        self.view().check_dtype::<T>(operation)?;
        let range = self.layout.offset() * size_of::<T>()..self.layout.end() * size_of::<T>();
        let bytes = &mut self.buffer.as_mut_slice::<u8>()?[range];
        let (address, len) = (bytes.as_ptr() as usize, bytes.len());
        bytemuck::try_cast_slice_mut(bytes).map_err(|_| misaligned::<T>(address, len))
    }

    /// Copies host values over the first elements of a contiguous tensor, as many as there are values; the others keep
    /// what they hold.
    ///
    /// # Errors
    /// Another dtype, more values than elements, a layout that is not contiguous, or a shared buffer.
    pub fn upload<T: Element>(&mut self, stream: &dyn Stream, values: &[T]) -> Result<()> {
        self.view().check_dtype::<T>("upload")?;
        if values.len() > self.layout.elements() || !self.layout.is_contiguous() {
            return Err(shape_error("upload", format!("{:?} from {} values", self.layout, values.len())));
        }
        let offset = self.layout.offset() * self.dtype.size();
        Ok(stream.upload(bytemuck::cast_slice(values), &mut self.buffer, offset)?)
    }

    /// Copies the first `values.len()` elements of a contiguous tensor to the host. `stream` is waited for.
    ///
    /// # Errors
    /// Another dtype, more values than there are, or a failed device.
    pub fn download<T: Element>(&self, stream: &dyn Stream, values: &mut [T]) -> Result<()> {
        self.view().check_dtype::<T>("download")?;
        if values.len() > self.layout.elements() || !self.layout.is_contiguous() {
            return Err(shape_error("download", format!("{} values of {:?}", values.len(), self.layout)));
        }
        let offset = self.layout.offset() * self.dtype.size();
        Ok(stream.download(&self.buffer, offset, bytemuck::cast_slice_mut(values))?)
    }

    /// The elements in row-major order, on the host. `stream` is waited for.
    ///
    /// # Errors
    /// Another element type than the tensor's, or a failed device.
    pub fn to_vec_on<T: Element>(&self, stream: &dyn Stream) -> Result<Vec<T>> {
        self.view().check_dtype::<T>("to_vec")?;
        let (start, end) = (self.layout.offset(), self.layout.end());
        let mut all = vec![T::zeroed(); end - start];
        stream.download(&self.buffer, start * self.dtype.size(), bytemuck::cast_slice_mut(&mut all))?;
        if self.layout.is_contiguous() {
            return Ok(all);
        }
        Ok(self.layout.indices().map(|at| all[at - start]).collect())
    }

    /// [`Tensor::to_vec_on`] with a stream of its own: for tensors on which no other stream is still working.
    ///
    /// # Errors
    /// Those of [`Tensor::to_vec_on`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.to_vec_on(&*self.device().clone().stream()?)
    }

    /// The truth values of a bool tensor in row-major order, on the host: whatever is not 0 is true. For tensors on
    /// which no stream is still working.
    ///
    /// # Errors
    /// Another dtype than bool, or a failed device.
    pub fn to_bools(&self) -> Result<Vec<bool>> {
        if self.dtype != DType::Bool {
            return Err(Error::DType { operation: "to_bools", found: self.dtype, asked: DType::Bool });
        }
        Ok(self.as_bytes_of_one().to_vec::<u8>()?.into_iter().map(|byte| byte != 0).collect())
    }

    /// A dtype of one byte taken as `u8`.
    fn as_bytes_of_one(&self) -> Self {
        debug_assert_eq!(self.dtype.size(), 1);
        Self { dtype: DType::U8, ..self.clone() }
    }

    /// The elements as f64 in row-major order, whatever the dtype. `stream` is waited for.
    ///
    /// # Errors
    /// A failed device.
    pub fn to_f64_vec(&self, stream: &dyn Stream) -> Result<Vec<f64>> {
        fn widen<T: Element>(t: &Tensor, stream: &dyn Stream) -> Result<Vec<f64>> {
            Ok(t.to_vec_on::<T>(stream)?.into_iter().map(T::to_f64).collect())
        }
        match self.dtype {
            DType::F64 => widen::<f64>(self, stream),
            DType::F32 => widen::<f32>(self, stream),
            DType::F16 => widen::<f16>(self, stream),
            DType::BF16 => widen::<bf16>(self, stream),
            DType::I64 => widen::<i64>(self, stream),
            DType::I32 => widen::<i32>(self, stream),
            DType::I16 => widen::<i16>(self, stream),
            DType::I8 => widen::<i8>(self, stream),
            DType::U32 => widen::<u32>(self, stream),
            DType::U8 => widen::<u8>(self, stream),
            DType::F8E4M3 => widen::<F8E4M3>(self, stream),
            DType::F8E5M2 => widen::<F8E5M2>(self, stream),
            DType::Bool => widen::<u8>(&self.as_bytes_of_one(), stream),
        }
    }

    /// The bytes of the elements in row-major order: borrowed where the host can reach them and they lie so already.
    /// For tensors on which no stream is still working.
    ///
    /// # Errors
    /// A failed device.
    pub fn to_bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(self.in_order(self.span_bytes()?))
    }

    /// A contiguous copy on the device of `to`, of a tensor of any strides and dtype.
    ///
    /// Between devices the bytes go through host memory: `from`, a stream of the tensor's own device, is waited for,
    /// and a tensor that is not contiguous brings the gaps between its elements along that far. On one device, a
    /// contiguous tensor is copied by `to` alone, behind what `from` has been given until now. Either way the copy is
    /// work of `to`: other streams use the result after an event of `to`, or after [`Stream::synchronize`].
    ///
    /// ```
    /// use sinew_memory::{Cpu, Device};
    /// use sinew_tensor::Tensor;
    /// let device = Cpu::get(); // or a GPU
    /// let (host, there) = (Cpu::get().stream()?, device.clone().stream()?);
    /// let tensor = Tensor::from_slice(&Cpu::get(), &[1i32, 2, 3, 4], &[2, 2])?;
    /// let copy = tensor.t()?.to_device(&*host, &*there)?;
    /// assert_eq!(copy.device().id(), device.id());
    /// assert_eq!(copy.to_vec_on::<i32>(&*there)?, [1, 3, 2, 4]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] where `from` is a stream of another device than the tensor's,
    /// [`MemoryError::OutOfMemory`] on the target, and [`MemoryError::Device`] where either device has failed.
    pub fn to_device(&self, from: &dyn Stream, to: &dyn Stream) -> Result<Self> {
        let (here, there) = (self.device().id(), to.device().id());
        if from.device().id() != here {
            let reason = format!("to_device: the tensor is on {here}, its stream on {}", from.device().id());
            return Err(MemoryError::Invalid(reason).into());
        }
        let layout = Layout::contiguous(self.shape())?;
        let bytes = layout.elements() * self.dtype.size();
        let mut buffer = Buffer::uninitialised(to.device(), bytes)?;
        if here == there && self.layout.is_contiguous() {
            to.wait(&from.record()?)?;
            to.copy(&self.buffer, self.layout.offset() * self.dtype.size(), &mut buffer, 0, bytes)?;
        } else {
            to.upload(&self.in_order(self.span_bytes_on(from)?), &mut buffer, 0)?;
        }
        Self::new(buffer, self.dtype, layout)
    }

    /// The elements of a span of bytes in row-major order: the span itself where they lie so already.
    fn in_order<'a>(&self, span: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        if self.layout.is_contiguous() {
            return span;
        }
        let size = self.dtype.size();
        let mut rows = Vec::with_capacity(self.layout.elements() * size);
        for at in self.layout.indices() {
            rows.extend_from_slice(&span[(at - self.layout.offset()) * size..][..size]);
        }
        rows.into()
    }

    /// The bytes from the first element to the last, gaps included.
    pub(crate) fn span_bytes(&self) -> Result<Cow<'_, [u8]>> {
        if self.buffer.host_ptr().is_some() {
            return Ok(self.view().host_bytes()?.into());
        }
        self.span_bytes_on(&*self.device().clone().stream()?)
    }

    /// [`Tensor::span_bytes`], after all work of `stream`.
    fn span_bytes_on(&self, stream: &dyn Stream) -> Result<Cow<'_, [u8]>> {
        if self.buffer.host_ptr().is_some() {
            stream.synchronize()?;
            return Ok(self.view().host_bytes()?.into());
        }
        let (start, end) = (self.layout.offset() * self.dtype.size(), self.layout.end() * self.dtype.size());
        let mut bytes = vec![0; end - start];
        stream.download(&self.buffer, start, &mut bytes)?;
        Ok(bytes.into())
    }
}
