//! Streams: handles to the device's one recording, with a status of their own.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::device::WgpuDevice;
use super::recording::{MOST_STAGED, Status};
use super::storage::{Binding, WgpuStorage};
use super::submission::{Counters, Queue, READ_PIECE};
use super::{Pipeline, ShaderText};
use crate::{Buffer, Device, Error, Event, Result, Stream};

/// Bytes that one dispatch of the copy kernel copies at most: less than any adapter binds, with room for alignment.
const COPY_PIECE: usize = 64 << 20;
/// Threads of a workgroup of the copy kernel.
const COPY_THREADS: usize = 64;
/// Workgroups of a row of the copy kernel's grid.
const COPY_ROW: usize = 1 << 14;

/// A stream of a [`WgpuDevice`].
///
/// Work is recorded, and submitted when something waits for it. All streams of a device are in one order, that of their
/// calls; each has its own status, so that a kernel's bad index is reported to whoever ran it.
#[derive(Debug)]
pub struct WgpuStream {
    device: Arc<dyn Device>,
    wgpu: Arc<WgpuDevice>,
    queue: Arc<Queue>,
    status: Status,
    /// Whether a kernel was recorded that may have written the status.
    reports: AtomicBool,
}

impl WgpuStream {
    pub(super) fn new(wgpu: Arc<WgpuDevice>) -> Result<Self> {
        let queue = wgpu.queue().clone();
        let status = Status::new(&queue.gpu)?;
        Ok(Self { device: wgpu.clone(), wgpu, queue, status, reports: AtomicBool::new(false) })
    }

    /// The stream behind a handle, if it is a wgpu device's.
    pub fn of(stream: &Arc<dyn Stream>) -> Option<&Self> {
        let stream: &dyn Any = &**stream;
        stream.downcast_ref()
    }

    /// The device, to make pipelines.
    pub fn wgpu(&self) -> &Arc<WgpuDevice> {
        &self.wgpu
    }

    /// Enqueues a kernel: its buffers in the order of their bindings, its parameters (at most
    /// [`super::MAX_PARAMS`] words, which follow the pipeline's number in the uniform), and workgroups in three
    /// dimensions.
    ///
    /// # Errors
    /// Another number of buffers or of parameters than there can be, a buffer of another device, or more bytes or
    /// workgroups than the device takes at once. What goes wrong while it runs is reported when something waits.
    pub fn dispatch(
        &self,
        pipeline: &Arc<Pipeline>,
        bindings: &[Binding<'_>],
        params: &[u32],
        groups: [u32; 3],
    ) -> Result<()> {
        self.queue.dispatch(pipeline, bindings, params, groups, &self.status)?;
        // Not before: whoever waits in between would find nothing reported, and take the mark away.
        if pipeline.reports {
            self.reports.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the device did so far, by all of its streams.
    pub fn counters(&self) -> Counters {
        self.wgpu.count_pipelines(self.queue.counters())
    }

    /// Submits, waits, reads bytes back and turns a kernel's report into an error.
    fn finish(&self, from: Option<(&wgpu::Buffer, u64)>, into: &mut [u8]) -> Result<()> {
        let reports = self.reports.swap(false, Ordering::Relaxed);
        let told = self.queue.finish(from, into, reports.then_some(&self.status));
        if told.is_err() {
            // What nobody has read yet is still to be read.
            self.reports.fetch_or(reports, Ordering::Relaxed);
        }
        let [number, value] = told?;
        if number == 0 {
            return Ok(());
        }
        self.queue.zero(&self.status);
        let (name, says) = self.wgpu.kernel(number);
        Err(self.queue.gpu.failed(name, says.replace("{}", &(value as i32).to_string())))
    }

    /// Copies bytes by a kernel, where wgpu cannot: within one buffer, or bytes that are no whole words.
    fn copy_bytes(&self, src: &Buffer, src_offset: usize, dst: &Buffer, dst_offset: usize, len: usize) -> Result<()> {
        // SAFETY: the loop runs over the bytes of a word, and nothing is divided.
        let pipeline = unsafe { self.wgpu.pipeline("copy", &[], copy_text) }?;
        for start in (0..len).step_by(COPY_PIECE) {
            let len = (len - start).min(COPY_PIECE);
            let (from, to) = (Binding::new(src, src_offset + start, len)?, Binding::new(dst, dst_offset + start, len)?);
            let (params, groups) = copy_call(from.skip(), to.skip(), len);
            self.dispatch(&pipeline, &[from, to], &params, groups)?;
        }
        Ok(())
    }
}

fn copy_text() -> ShaderText {
    ShaderText { wgsl: include_str!("copy.wgsl").into(), bindings: 2, reports: None }
}

/// Parameters and workgroups of a copy of `len` bytes from byte `src` of the first binding to byte `dst` of the second.
fn copy_call(src: usize, dst: usize, len: usize) -> ([u32; 4], [u32; 3]) {
    let words = (dst % 4 + len).div_ceil(4);
    let groups = words.div_ceil(COPY_THREADS);
    let row = groups.clamp(1, COPY_ROW);
    let params = [row * COPY_THREADS, src, dst, len].map(|word| word as u32);
    (params, [row as u32, groups.div_ceil(row) as u32, 1])
}

/// Checks a range of a buffer; its first byte in the storage.
fn range(buffer: &Buffer, offset: usize, len: usize) -> Result<usize> {
    let end = offset.saturating_add(len);
    if end > buffer.len() {
        return Err(Error::OutOfRange { start: offset, end, len: buffer.len() });
    }
    Ok(buffer.span().offset + offset)
}

/// Whether bytes can be written as whole words. Behind the end of a buffer is nothing of another: every allocation
/// begins at a multiple of 256 bytes.
fn whole_words(buffer: &Buffer, offset: usize, len: usize) -> bool {
    (buffer.span().offset + offset).is_multiple_of(4) && (len.is_multiple_of(4) || offset + len == buffer.len())
}

impl Stream for WgpuStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn upload(&self, src: &[u8], dst: &mut Buffer, offset: usize) -> Result<()> {
        dst.check_writable()?;
        let start = range(dst, offset, src.len())?;
        let to = &WgpuStorage::of(dst, &self.queue.gpu)?.buffer;
        if whole_words(dst, offset, src.len()) {
            for (i, piece) in src.chunks(MOST_STAGED).enumerate() {
                self.queue.stage(piece, (to, (start + i * MOST_STAGED) as u64))?;
            }
            return Ok(());
        }
        // Through a buffer of its own, whose bytes are then copied to where words are shared.
        let mut staged = Buffer::uninitialised(&self.device, src.len())?;
        self.upload(src, &mut staged, 0)?;
        self.copy_bytes(&staged, 0, dst, offset, src.len())
    }

    fn download(&self, src: &Buffer, offset: usize, dst: &mut [u8]) -> Result<()> {
        let start = range(src, offset, dst.len())?;
        let from = &WgpuStorage::of(src, &self.queue.gpu)?.buffer;
        if dst.is_empty() {
            return self.synchronize();
        }
        for (i, piece) in dst.chunks_mut(READ_PIECE).enumerate() {
            self.finish(Some((from, (start + i * READ_PIECE) as u64)), piece)?;
        }
        Ok(())
    }

    fn copy(&self, src: &Buffer, src_offset: usize, dst: &mut Buffer, dst_offset: usize, len: usize) -> Result<()> {
        dst.check_writable()?;
        let (from_start, to_start) = (range(src, src_offset, len)?, range(dst, dst_offset, len)?);
        let (from, to) = (WgpuStorage::of(src, &self.queue.gpu)?, WgpuStorage::of(dst, &self.queue.gpu)?);
        if len == 0 {
            return Ok(());
        }
        if from.id == to.id || !from_start.is_multiple_of(4) || !whole_words(dst, dst_offset, len) {
            return self.copy_bytes(src, src_offset, dst, dst_offset, len);
        }
        let len = len.next_multiple_of(4) as u64;
        self.queue.copy((&from.buffer, from_start as u64), (&to.buffer, to_start as u64), len);
        Ok(())
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(WgpuEvent { ticket: self.queue.ticket(), queue: self.queue.clone() }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let any: &dyn Any = &**event;
        match any.downcast_ref::<WgpuEvent>().filter(|event| Arc::ptr_eq(&event.queue, &self.queue)) {
            // Streams of a device are in one order.
            Some(_) => Ok(()),
            None => event.synchronize(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.finish(None, &mut [])
    }

    fn is_in_device_order(&self) -> bool {
        true
    }
}

/// A place in the device's recording.
#[derive(Debug)]
struct WgpuEvent {
    queue: Arc<Queue>,
    /// The submission that it is in, which may lie ahead.
    ticket: u64,
}

impl Event for WgpuEvent {
    fn is_complete(&self) -> bool {
        self.queue.is_done(self.ticket)
    }
    fn synchronize(&self) -> Result<()> {
        self.queue.reach(self.ticket)
    }
}
