//! Streams of a GPU, and their events.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::device::CudaDevice;
use super::driver::{Address, CallError, Driver, Handle};
use super::module::CudaModule;
use super::storage::CudaStorage;
use crate::{Buffer, Device, Error, Event, Result, Stream};

/// Uploads are staged in a ring of so many pinned pieces: the host fills one while others are on their way.
const PIECES: usize = 16;
const PIECE_BYTES: usize = 256 << 10;

/// Kernels of a stream that may report what they find wrong. There are far fewer.
const MOST_REPORTS: usize = 256;

/// What a kernel found wrong, as it writes it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Report {
    /// 0 while there is nothing.
    found: u32,
    padding: u32,
    value: i64,
}

const REPORT_BYTES: usize = size_of::<Report>();

/// A pinned piece, and the event behind its last copy.
#[derive(Clone, Copy)]
struct Piece {
    pointer: *mut u8,
    sent: Handle,
}

/// The ring, made at the first upload.
#[derive(Default)]
struct Staging {
    pieces: Vec<Piece>,
    next: usize,
}

// SAFETY: the pointers are to memory of the ring's own, reached under the lock of the stream.
unsafe impl Send for Staging {}

/// The reports of kernels.
struct Status {
    /// On the device; 0 until a kernel asks for its own.
    reports: Address,
    /// Pinned, for reading them.
    read: *mut Report,
    /// Whose report it is, by position, and what an error says of the value.
    kernels: Vec<(&'static str, &'static str)>,
    /// The kernel that was launched last.
    last: Option<&'static str>,
}

// SAFETY: as for `Staging`.
unsafe impl Send for Status {}

/// A stream of a [`CudaDevice`].
pub struct CudaStream {
    device: Arc<dyn Device>,
    cuda: Arc<CudaDevice>,
    handle: Handle,
    staging: Mutex<Staging>,
    status: Mutex<Status>,
    me: Weak<Self>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl CudaStream {
    pub(super) fn new(cuda: Arc<CudaDevice>) -> Result<Arc<Self>> {
        let handle = cuda.driver().create_stream().map_err(|error| cuda.failed("stream", &error))?;
        let status = Status { reports: 0, read: std::ptr::null_mut(), kernels: Vec::new(), last: None };
        Ok(Arc::new_cyclic(|me| Self {
            device: cuda.clone(),
            cuda,
            handle,
            staging: Mutex::default(),
            status: Mutex::new(status),
            me: me.clone(),
        }))
    }

    /// The stream behind Sinew's own handle, if it is a GPU's.
    pub fn of(stream: &Arc<dyn Stream>) -> Option<&Self> {
        let stream: &dyn Any = &**stream;
        stream.downcast_ref()
    }

    /// The device that it is a stream of.
    pub fn cuda(&self) -> &Arc<CudaDevice> {
        &self.cuda
    }

    fn driver(&self) -> &dyn Driver {
        &**self.cuda.driver()
    }

    fn failed(&self, operation: &str) -> impl Fn(CallError) -> Error {
        move |error| self.cuda.failed(operation, &error)
    }

    /// The address of a range of a buffer, which must be this device's, for work that is about to be enqueued.
    fn range(&self, operation: &str, buffer: &Buffer, offset: usize, len: usize) -> Result<Address> {
        let out_of_range = || Error::OutOfRange { start: offset, end: offset.saturating_add(len), len: buffer.len() };
        offset.checked_add(len).filter(|&end| end <= buffer.len()).ok_or_else(out_of_range)?;
        let span = buffer.span();
        let storage = CudaStorage::of(&span.storage).filter(|storage| storage.device() == self.cuda.id());
        let foreign = || self.cuda.error(operation, format!("{buffer:?} is another device's"));
        let storage = storage.ok_or_else(foreign)?;
        if let Some(me) = self.me.upgrade() {
            let me: Arc<dyn Stream> = me;
            buffer.record_use(&me);
        }
        Ok(storage.address() + (span.offset + offset) as Address)
    }

    /// Enqueues a kernel with its one parameter. A grid without blocks is no work.
    ///
    /// # Errors
    /// A kernel that cannot be compiled, or a launch that the driver refuses.
    ///
    /// # Safety
    /// `parameters` are of the kernel's own type, and whatever they point at fits what the kernel does and is kept
    /// until the stream has passed it: buffers by [`Buffer::record_use`].
    pub unsafe fn launch(
        &self,
        module: &'static CudaModule,
        kernel: &'static str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        parameters: &[u8],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let function = self.cuda.function(module, kernel)?;
        function.allow_shared(self.driver(), shared_bytes).map_err(self.failed(kernel))?;
        lock(&self.status).last = Some(kernel);
        // SAFETY: passed on.
        unsafe { self.driver().launch(function.handle, grid, block, shared_bytes, self.handle, parameters) }
            .map_err(self.failed(kernel))
    }

    /// Lets a library of NVIDIA's enqueue work, which is given the stream as the driver knows it.
    ///
    /// # Errors
    /// What `enqueue` says.
    pub fn enqueue(
        &self,
        operation: &'static str,
        enqueue: impl FnOnce(Handle) -> Result<(), CallError>,
    ) -> Result<()> {
        self.driver().enter().map_err(self.failed(operation))?;
        lock(&self.status).last = Some(operation);
        enqueue(self.handle).map_err(self.failed(operation))
    }

    /// Where a kernel reports a value that it finds wrong in its operands: 16 bytes, zero so far, of which it sets the
    /// first four to 1 and the last eight to the value. The next synchronisation makes an error of it that names the
    /// kernel and has these words, in which the value stands for `{}`.
    ///
    /// # Errors
    /// No memory for it.
    pub fn status(&self, kernel: &'static str, words: &'static str) -> Result<Address> {
        let mut status = lock(&self.status);
        if status.reports == 0 {
            let bytes = MOST_REPORTS * REPORT_BYTES;
            if status.read.is_null() {
                status.read = self.driver().allocate_host(bytes).map_err(self.failed("status"))?.cast();
            }
            let reports = self.driver().allocate(bytes).map_err(self.failed("status"))?;
            // SAFETY: they were just allocated, and are freed when the stream has been waited for.
            unsafe { self.driver().clear(reports, bytes, self.handle) }.map_err(self.failed("status"))?;
            status.reports = reports;
        }
        let place = match status.kernels.iter().position(|&(other, _)| other == kernel) {
            Some(place) => place,
            None if status.kernels.len() == MOST_REPORTS => {
                return Err(self.cuda.error(kernel, format!("more than {MOST_REPORTS} kernels report")));
            }
            None => {
                status.kernels.push((kernel, words));
                status.kernels.len() - 1
            }
        };
        Ok(status.reports + (place * REPORT_BYTES) as Address)
    }

    /// Waits for all work, and makes errors of what went wrong since the last time.
    fn settle(&self, operation: &str) -> Result<()> {
        let mut status = lock(&self.status);
        let (count, read) = (status.kernels.len(), status.read);
        let copied = match count {
            0 => Ok(()),
            // SAFETY: both ranges are the stream's own, of at least so many bytes.
            _ => unsafe { self.driver().download(read.cast(), status.reports, count * REPORT_BYTES, self.handle) },
        };
        let last = status.last.take();
        // In any case: a caller's copy may be on its way.
        let waited = self.driver().synchronize_stream(self.handle);
        copied.and(waited).map_err(|error| match last {
            Some(kernel) => self.cuda.error(operation, format!("{error}; {kernel} was launched last")),
            None => self.cuda.failed(operation, &error),
        })?;
        // SAFETY: the copy is done, pinned memory is aligned to more, and every bit pattern is a number.
        let reports = (0..count).map(|place| unsafe { read.add(place).read() });
        let Some((report, (kernel, words))) = reports.zip(&status.kernels).find(|(report, _)| report.found != 0) else {
            return Ok(());
        };
        // SAFETY: the reports are the stream's own.
        unsafe { self.driver().clear(status.reports, count * REPORT_BYTES, self.handle) }
            .map_err(self.failed("status"))?;
        Err(self.cuda.error(kernel, words.replace("{}", &report.value.to_string())))
    }

    /// Copies host bytes through the ring.
    fn stage(&self, src: &[u8], to: Address) -> Result<(), CallError> {
        let (driver, mut staging) = (self.driver(), lock(&self.staging));
        for (i, bytes) in src.chunks(PIECE_BYTES).enumerate() {
            let next = staging.next;
            match staging.pieces.get(next) {
                // The host is a whole ring ahead.
                Some(piece) => driver.synchronize_event(piece.sent)?,
                None => {
                    let sent = self.cuda.take_event()?;
                    let pointer = driver.allocate_host(PIECE_BYTES).inspect_err(|_| self.cuda.keep_event(sent))?;
                    staging.pieces.push(Piece { pointer, sent });
                }
            }
            let Piece { pointer, sent } = staging.pieces[next];
            // SAFETY: the piece holds so many bytes, its last copy is done, and it is kept until the stream has been
            // waited for; the destination was checked by the caller.
            unsafe {
                pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                driver.upload(to + (i * PIECE_BYTES) as Address, pointer, bytes.len(), self.handle)?;
            }
            driver.record_event(sent, self.handle)?;
            staging.next = (next + 1) % PIECES;
        }
        Ok(())
    }
}

impl Stream for CudaStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn upload(&self, src: &[u8], dst: &mut Buffer, offset: usize) -> Result<()> {
        dst.check_writable()?;
        let to = self.range("upload", dst, offset, src.len())?;
        self.stage(src, to).map_err(self.failed("upload"))
    }

    fn download(&self, src: &Buffer, offset: usize, dst: &mut [u8]) -> Result<()> {
        let from = self.range("download", src, offset, dst.len())?;
        if !dst.is_empty() {
            // SAFETY: the source was checked, and both are kept until the stream has passed the copy, just below.
            unsafe { self.driver().download(dst.as_mut_ptr(), from, dst.len(), self.handle) }
                .map_err(self.failed("download"))?;
        }
        self.settle("download")
    }

    fn copy(&self, src: &Buffer, src_offset: usize, dst: &mut Buffer, dst_offset: usize, len: usize) -> Result<()> {
        dst.check_writable()?;
        let from = self.range("copy", src, src_offset, len)?;
        let to = self.range("copy", dst, dst_offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: both ranges were checked and recorded as used by this stream.
        unsafe { self.driver().copy(to, from, len, self.handle) }.map_err(self.failed("copy"))
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        let handle = self.cuda.take_event().map_err(self.failed("event"))?;
        let event = CudaEvent { cuda: self.cuda.clone(), handle };
        self.driver().record_event(handle, self.handle).map_err(self.failed("event"))?;
        Ok(Arc::new(event))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let any: &dyn Any = &**event;
        match any.downcast_ref::<CudaEvent>() {
            Some(event) => self.driver().wait_event(self.handle, event.handle).map_err(self.failed("wait")),
            None => event.synchronize(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.settle("synchronisation")
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let driver = &**self.cuda.driver();
        drop(driver.synchronize_stream(self.handle));
        let staging = self.staging.get_mut().unwrap_or_else(|e| e.into_inner());
        let status = self.status.get_mut().unwrap_or_else(|e| e.into_inner());
        for Piece { pointer, sent } in staging.pieces.drain(..) {
            self.cuda.keep_event(sent);
            // SAFETY: it is this driver's, and the stream was waited for.
            drop(unsafe { driver.free_host(pointer) });
        }
        // SAFETY: as above; what was never made is not freed.
        unsafe {
            if !status.read.is_null() {
                drop(driver.free_host(status.read.cast()));
            }
            if status.reports != 0 {
                drop(driver.free(status.reports));
            }
        }
        drop(driver.destroy_stream(self.handle));
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({}, {:#x})", self.cuda.id(), self.handle)
    }
}

/// A place in a stream.
struct CudaEvent {
    cuda: Arc<CudaDevice>,
    handle: Handle,
}

impl Event for CudaEvent {
    fn is_complete(&self) -> bool {
        // An event that cannot be asked belongs to a device that has failed: whoever waits for it is told there.
        self.cuda.driver().query_event(self.handle).unwrap_or(false)
    }
    fn synchronize(&self) -> Result<()> {
        self.cuda.driver().synchronize_event(self.handle).map_err(|error| self.cuda.failed("event", &error))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.cuda.keep_event(self.handle);
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaEvent({}, {:#x})", self.cuda.id(), self.handle)
    }
}
