//! The stream: a queue, and a thread that works it off late.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use sinew_kernels::{Error as KernelError, Launch};
use sinew_memory::{Buffer, Device, DeviceId, Error, Event, Result, Span, Storage, Stream};

use crate::KIND;
use crate::device::LaggingStorage;

/// A piece of work, and the operator or call that it belongs to.
struct Job {
    operation: &'static str,
    work: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Jobs ever enqueued, and how many of them are done.
    submitted: u64,
    completed: u64,
    /// Holds that keep the worker from starting the next job.
    held: usize,
    /// The first error since the last synchronisation; jobs behind it are skipped.
    error: Option<Error>,
    closing: bool,
}

/// What stream, worker and events share.
struct Queue {
    device: DeviceId,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until so many jobs are done.
    fn reach(&self, ticket: u64) {
        let mut state = self.lock();
        while state.completed < ticket {
            state = self.wait(state);
        }
    }

    fn work_off(&self, lag: Duration) {
        loop {
            let mut state = self.lock();
            while state.held > 0 || state.jobs.is_empty() {
                if state.closing && state.jobs.is_empty() {
                    return;
                }
                state = self.wait(state);
            }
            let job = state.jobs.pop_front();
            let skip = state.error.is_some();
            drop(state);
            std::thread::sleep(lag);
            let mut failure = None;
            if let Some(Job { operation, work }) = job {
                // What the job holds is let go before it counts as done.
                match if skip { Ok(()) } else { work() } {
                    Ok(()) => {}
                    Err(reason) => {
                        let operation = operation.to_owned();
                        failure = Some(Error::Device { device: self.device, operation, reason });
                    }
                }
            }
            let mut state = self.lock();
            state.error = state.error.take().or(failure);
            state.completed += 1;
            self.changed.notify_all();
        }
    }
}

/// A stream of a [`crate::Lagging`] device.
pub struct LaggingStream {
    device: Arc<dyn Device>,
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
    me: Weak<Self>,
}

impl LaggingStream {
    pub(crate) fn start(device: Arc<dyn Device>, lag: Duration) -> Result<Arc<Self>> {
        let queue = Arc::new(Queue { device: device.id(), state: Mutex::default(), changed: Condvar::new() });
        let works = queue.clone();
        let spawned = std::thread::Builder::new().name("lagging".into()).spawn(move || works.work_off(lag));
        let worker = spawned.map_err(|e| Error::Device {
            device: device.id(),
            operation: "stream".into(),
            reason: format!("cannot start a thread: {e}"),
        })?;
        Ok(Arc::new_cyclic(|me| Self { device, queue, worker: Some(worker), me: me.clone() }))
    }

    /// The stream that a kernel was launched on.
    ///
    /// # Errors
    /// [`KernelError::WrongDevice`] for any other kind.
    pub(crate) fn of<'a>(launch: &Launch<'a>, kernel: &'static str) -> Result<&'a Self, KernelError> {
        let stream: &dyn Any = &**launch.stream();
        stream.downcast_ref().ok_or_else(|| KernelError::WrongDevice {
            kernel,
            expected: KIND.0,
            found: launch.stream().device().id().to_string(),
        })
    }

    /// Enqueues work of an operator and returns at once. `work` holds what it needs: storage, not buffers.
    pub(crate) fn enqueue(
        &self,
        operation: &'static str,
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> u64 {
        let mut state = self.queue.lock();
        state.jobs.push_back(Job { operation, work: Box::new(work) });
        state.submitted += 1;
        self.queue.changed.notify_all();
        state.submitted
    }

    /// Notes that work on this stream uses a buffer.
    pub(crate) fn uses(&self, buffer: &Buffer) {
        if let Some(me) = self.me.upgrade() {
            let me: Arc<dyn Stream> = me;
            buffer.record_use(&me);
        }
    }

    /// Keeps the worker from starting another job as long as the guard lives.
    pub fn hold(stream: &Arc<dyn Stream>) -> Option<Hold> {
        let stream: &dyn Any = &**stream;
        let queue = stream.downcast_ref::<Self>()?.queue.clone();
        queue.lock().held += 1;
        Some(Hold(queue))
    }
}

/// A range of a buffer, kept alive by the work that uses it.
fn range(buffer: &Buffer, offset: usize, len: usize) -> Result<Span> {
    let out_of_range = || Error::OutOfRange { start: offset, end: offset.saturating_add(len), len: buffer.len() };
    offset.checked_add(len).filter(|&end| end <= buffer.len()).ok_or_else(out_of_range)?;
    let span = buffer.span();
    Ok(Span { storage: span.storage.clone(), offset: span.offset + offset, len })
}

fn storage(storage: &Arc<dyn Storage>) -> Result<&LaggingStorage, String> {
    LaggingStorage::of(storage).ok_or_else(|| format!("{storage:?} is another device's"))
}

fn read(span: &Span) -> Result<Vec<u8>, String> {
    Ok(storage(&span.storage)?.lock()[span.offset..span.offset + span.len].to_vec())
}

fn write(span: &Span, bytes: &[u8]) -> Result<(), String> {
    storage(&span.storage)?.lock()[span.offset..span.offset + span.len].copy_from_slice(bytes);
    Ok(())
}

impl Stream for LaggingStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn upload(&self, src: &[u8], dst: &mut Buffer, offset: usize) -> Result<()> {
        dst.check_writable()?;
        let (to, bytes) = (range(dst, offset, src.len())?, src.to_vec());
        self.uses(dst);
        self.enqueue("upload", move || write(&to, &bytes));
        Ok(())
    }

    fn download(&self, src: &Buffer, offset: usize, dst: &mut [u8]) -> Result<()> {
        let from = range(src, offset, dst.len())?;
        let (send, receive) = mpsc::channel();
        self.uses(src);
        self.enqueue("download", move || {
            // The receiver is gone only if the caller is.
            let _ = send.send(read(&from)?);
            Ok(())
        });
        self.synchronize()?;
        let device = self.device.id();
        let bytes = receive.recv().map_err(|e| Error::Device {
            device,
            operation: "download".into(),
            reason: e.to_string(),
        })?;
        dst.copy_from_slice(&bytes);
        Ok(())
    }

    fn copy(&self, src: &Buffer, src_offset: usize, dst: &mut Buffer, dst_offset: usize, len: usize) -> Result<()> {
        dst.check_writable()?;
        let (from, to) = (range(src, src_offset, len)?, range(dst, dst_offset, len)?);
        self.uses(src);
        self.uses(dst);
        self.enqueue("copy", move || write(&to, &read(&from)?));
        Ok(())
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(LaggingEvent { queue: self.queue.clone(), ticket: self.queue.lock().submitted }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let event = event.clone();
        self.enqueue("wait", move || event.synchronize().map_err(|e| e.to_string()));
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        let ticket = self.queue.lock().submitted;
        self.queue.reach(ticket);
        match self.queue.lock().error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for LaggingStream {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // What is queued is worked off. A job that holds the last handle of another stream must not join itself.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

impl fmt::Debug for LaggingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.lock();
        write!(f, "LaggingStream({}, {} of {} done)", self.device.id(), state.completed, state.submitted)
    }
}

/// Keeps a stream from working; see [`LaggingStream::hold`].
pub struct Hold(Arc<Queue>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// A place in a queue.
struct LaggingEvent {
    queue: Arc<Queue>,
    ticket: u64,
}

impl Event for LaggingEvent {
    fn is_complete(&self) -> bool {
        self.queue.lock().completed >= self.ticket
    }
    fn synchronize(&self) -> Result<()> {
        self.queue.reach(self.ticket);
        Ok(())
    }
}

impl fmt::Debug for LaggingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaggingEvent({} on {})", self.ticket, self.queue.device)
    }
}
