//! A driver whose device is the host's processor.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;

use sinew_memory::cuda::{Address, CallError, Driver, DriverCall, Handle, Properties};

use crate::compiler;

/// Bytes that the device has.
const CAPACITY: usize = 2 << 30;
/// As the real driver aligns.
const ALIGNMENT: usize = 256;
/// Bytes before and behind each allocation that nothing may write.
const GUARD: usize = 1024;
/// What they hold: NaN in each float format, so that reading them shows too.
const GUARDED: u8 = 0xff;
/// What fresh memory holds, so that a missing upload shows.
const GARBAGE: u8 = 0xcd;
/// Shared memory of a block on GPUs of compute capability 8.0.
const SHARED_BYTES: usize = 163 << 10;
/// Without asking.
const SHARED_DEFAULT: u32 = 48 << 10;
/// Threads of the system that the blocks of a grid are spread over; `FEW_BLOCKS` of `shim.h` is as many.
const WORKERS: u64 = 2;

/// The host's processor as a GPU, of compute capability 8.0 unless another is asked for.
pub struct HostDriver {
    compute_capability: (u32, u32),
    memory: Arc<Memory>,
    streams: Mutex<HashMap<Handle, HostStream>>,
    events: Mutex<HashMap<Handle, Option<Mark>>>,
    modules: Mutex<HashMap<Handle, Library>>,
    functions: Mutex<HashMap<Handle, Function>>,
    /// Launches so far: each takes another of the orders that CUDA leaves open.
    launches: AtomicU32,
    downloaded: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn failed(call: &'static str, reason: impl Into<String>) -> CallError {
    CallError { call, reason: reason.into(), out_of_memory: false }
}

fn invalid(call: &'static str) -> impl FnOnce() -> CallError {
    move || failed(call, "invalid argument")
}

/// Device memory by address: what each allocation holds, without its guards.
#[derive(Default)]
struct Memory {
    spans: Mutex<BTreeMap<Address, usize>>,
}

fn guarded(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(2 * GUARD)?, ALIGNMENT).ok()
}

impl Memory {
    fn allocate(&self, bytes: usize) -> Option<Address> {
        let mut spans = lock(&self.spans);
        let used: usize = spans.values().sum();
        let layout = guarded(bytes).filter(|_| used.checked_add(bytes).is_some_and(|total| total <= CAPACITY))?;
        // SAFETY: the layout holds two guards at least.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: all of the allocation just made.
        unsafe {
            start.write_bytes(GUARDED, layout.size());
            start.add(GUARD).write_bytes(GARBAGE, bytes);
        }
        let address = start as Address + GUARD as Address;
        spans.insert(address, bytes);
        Some(address)
    }

    fn free(&self, address: Address) -> Option<()> {
        let bytes = lock(&self.spans).remove(&address)?;
        // SAFETY: it was allocated with this layout, and was taken off the list just now.
        unsafe { dealloc((address - GUARD as Address) as *mut u8, guarded(bytes)?) };
        Some(())
    }

    /// What was written where nothing may be.
    fn check_guards(&self) -> Result<(), String> {
        for (&address, &bytes) in &*lock(&self.spans) {
            for (place, start) in [("before", address - GUARD as Address), ("behind", address + bytes as Address)] {
                // SAFETY: the guard is part of the allocation, which the lock keeps alive.
                let guard = unsafe { std::slice::from_raw_parts(start as *const u8, GUARD) };
                if let Some(at) = guard.iter().position(|&byte| byte != GUARDED) {
                    let distance = if place == "before" { GUARD - at } else { at };
                    return Err(format!("wrote {distance} bytes {place} an allocation of {bytes} bytes"));
                }
            }
        }
        Ok(())
    }
}

type Work = Box<dyn FnOnce() -> DriverCall<()> + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    /// The first error since the last synchronisation; work behind it is skipped.
    error: Option<CallError>,
    closing: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn push(&self, work: impl FnOnce() -> DriverCall<()> + Send + 'static) {
        let mut state = lock(&self.state);
        state.jobs.push_back(Box::new(work));
        state.submitted += 1;
        self.changed.notify_all();
    }

    fn reach(&self, ticket: u64) {
        let mut state = lock(&self.state);
        while state.completed < ticket {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn work_off(&self) {
        loop {
            let mut state = lock(&self.state);
            let work = loop {
                match state.jobs.pop_front() {
                    Some(work) => break work,
                    None if state.closing => return,
                    None => state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                }
            };
            let skip = state.error.is_some();
            drop(state);
            let outcome = if skip { Ok(()) } else { work() };
            let mut state = lock(&self.state);
            state.error = state.error.take().or(outcome.err());
            state.completed += 1;
            self.changed.notify_all();
        }
    }
}

struct HostStream {
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

impl Drop for HostStream {
    fn drop(&mut self) {
        lock(&self.queue.state).closing = true;
        self.queue.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// A place in a queue.
#[derive(Clone)]
struct Mark {
    queue: Arc<Queue>,
    ticket: u64,
}

/// A library that is loaded.
struct Library(*mut c_void);

// SAFETY: the loader's handles are good on every thread.
unsafe impl Send for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: it was opened once; the driver's contract says that none of its functions is used any more.
        unsafe { libc::dlclose(self.0) };
    }
}

pub fn loader_error() -> String {
    // SAFETY: the loader's message is a string until its next call on this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "unknown error".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// A stream's queue, and its device's memory.
type Behind = (Weak<Queue>, Weak<Memory>);

/// What is behind the streams of all drivers, for libraries that know a stream by its handle alone.
static STREAMS: Mutex<BTreeMap<Handle, Behind>> = Mutex::new(BTreeMap::new());
/// Handles are told apart across drivers.
static HANDLES: AtomicU64 = AtomicU64::new(1);

/// Enqueues what another library computes.
pub fn enqueue(call: &'static str, stream: Handle, work: impl FnOnce() + Send + 'static) -> DriverCall<()> {
    let found = lock(&STREAMS).get(&stream).and_then(|(queue, memory)| Some((queue.upgrade()?, memory.upgrade()?)));
    let (queue, memory) = found.ok_or_else(invalid(call))?;
    queue.push(move || {
        work();
        memory.check_guards().map_err(|reason| failed(call, reason))
    });
    Ok(())
}

/// What a kernel is called with: `host::Launch` of `shim.h`.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: u32,
    shared_bytes: u32,
    parameter_bytes: u32,
    first: u64,
    step: u64,
    order: u32,
    message_bytes: u32,
    parameters: *const c_void,
    message: *mut c_char,
}

#[derive(Clone)]
struct Function {
    entry: unsafe extern "C" fn(*mut Launch),
    name: String,
    shared_allowed: u32,
}

/// A span of memory that a job on another thread reaches.
struct Reached<T>(T);

// SAFETY: the driver's contract: the span is kept, and nothing else touches it, until the stream has passed the job.
unsafe impl<T> Send for Reached<T> {}

impl<T> Reached<T> {
    /// Taken as a whole, so that a closure captures the whole.
    fn get(self) -> T {
        self.0
    }
}

impl HostDriver {
    /// A device with nothing on it.
    pub fn new() -> Arc<Self> {
        Self::with_compute_capability((8, 0))
    }

    /// One that says it is another GPU, and runs kernels all the same.
    pub fn with_compute_capability(compute_capability: (u32, u32)) -> Arc<Self> {
        Arc::new(Self {
            compute_capability,
            memory: Arc::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            launches: AtomicU32::new(0),
            downloaded: AtomicUsize::new(0),
        })
    }

    /// Bytes that were brought to the host so far.
    pub fn downloaded_bytes(&self) -> usize {
        self.downloaded.load(Ordering::Relaxed)
    }

    fn queue(&self, call: &'static str, stream: Handle) -> DriverCall<Arc<Queue>> {
        lock(&self.streams).get(&stream).map(|stream| stream.queue.clone()).ok_or_else(invalid(call))
    }

    fn mark(&self, call: &'static str, event: Handle) -> DriverCall<Option<Mark>> {
        lock(&self.events).get(&event).cloned().ok_or_else(invalid(call))
    }

    fn enqueue_copy(
        &self,
        call: &'static str,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
        on: Handle,
    ) -> DriverCall<()> {
        let span = Reached((to, from));
        self.queue(call, on)?.push(move || {
            let (to, from) = span.get();
            // SAFETY: the driver's contract.
            unsafe { std::ptr::copy(from, to, bytes) };
            Ok(())
        });
        Ok(())
    }
}

// SAFETY: allocations are the system's own, so they do not overlap; a queue has one worker, which takes jobs in order.
unsafe impl Driver for HostDriver {
    fn properties(&self) -> DriverCall<Properties> {
        Ok(Properties {
            ordinal: 0,
            name: "CUDA on the host".into(),
            compute_capability: self.compute_capability,
            multiprocessors: 2,
            clock_khz: 1_000_000,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            l2_bytes: 1 << 20,
            shared_bytes: SHARED_BYTES,
        })
    }

    fn enter(&self) -> DriverCall<()> {
        Ok(())
    }

    fn memory(&self) -> DriverCall<(usize, usize)> {
        Ok((CAPACITY - lock(&self.memory.spans).values().sum::<usize>(), CAPACITY))
    }

    fn allocate(&self, bytes: usize) -> DriverCall<Address> {
        self.memory.allocate(bytes).ok_or_else(|| CallError {
            call: "cuMemAlloc",
            reason: "out of memory".into(),
            out_of_memory: true,
        })
    }

    unsafe fn free(&self, address: Address) -> DriverCall<()> {
        self.memory.free(address).ok_or_else(invalid("cuMemFree"))
    }

    fn allocate_host(&self, bytes: usize) -> DriverCall<*mut u8> {
        // Guarded like the device's: kernels reach it too.
        Ok(self.allocate(bytes)? as *mut u8)
    }

    unsafe fn free_host(&self, pointer: *mut u8) -> DriverCall<()> {
        self.memory.free(pointer as Address).ok_or_else(invalid("cuMemFreeHost"))
    }

    fn create_stream(&self) -> DriverCall<Handle> {
        let queue = Arc::<Queue>::default();
        let works = queue.clone();
        let worker = std::thread::Builder::new().name("cuda-on-host".into()).spawn(move || works.work_off());
        let worker = Some(worker.map_err(|error| failed("cuStreamCreate", error.to_string()))?);
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
        lock(&STREAMS).insert(handle, (Arc::downgrade(&queue), Arc::downgrade(&self.memory)));
        lock(&self.streams).insert(handle, HostStream { queue, worker });
        Ok(handle)
    }

    fn destroy_stream(&self, stream: Handle) -> DriverCall<()> {
        lock(&STREAMS).remove(&stream);
        let stream = lock(&self.streams).remove(&stream);
        stream.map(drop).ok_or_else(invalid("cuStreamDestroy"))
    }

    fn synchronize_stream(&self, stream: Handle) -> DriverCall<()> {
        let queue = self.queue("cuStreamSynchronize", stream)?;
        let ticket = lock(&queue.state).submitted;
        queue.reach(ticket);
        let error = lock(&queue.state).error.take();
        error.map_or(Ok(()), Err)
    }

    fn synchronize(&self) -> DriverCall<()> {
        let queues: Vec<_> = lock(&self.streams).values().map(|stream| stream.queue.clone()).collect();
        for queue in queues {
            let ticket = lock(&queue.state).submitted;
            queue.reach(ticket);
        }
        Ok(())
    }

    fn create_event(&self) -> DriverCall<Handle> {
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
        lock(&self.events).insert(handle, None);
        Ok(handle)
    }

    fn destroy_event(&self, event: Handle) -> DriverCall<()> {
        lock(&self.events).remove(&event).map(drop).ok_or_else(invalid("cuEventDestroy"))
    }

    fn record_event(&self, event: Handle, stream: Handle) -> DriverCall<()> {
        let queue = self.queue("cuEventRecord", stream)?;
        let ticket = lock(&queue.state).submitted;
        *lock(&self.events).get_mut(&event).ok_or_else(invalid("cuEventRecord"))? = Some(Mark { queue, ticket });
        Ok(())
    }

    fn query_event(&self, event: Handle) -> DriverCall<bool> {
        let mark = self.mark("cuEventQuery", event)?;
        Ok(mark.is_none_or(|mark| lock(&mark.queue.state).completed >= mark.ticket))
    }

    fn synchronize_event(&self, event: Handle) -> DriverCall<()> {
        if let Some(mark) = self.mark("cuEventSynchronize", event)? {
            mark.queue.reach(mark.ticket);
        }
        Ok(())
    }

    fn wait_event(&self, stream: Handle, event: Handle) -> DriverCall<()> {
        let mark = self.mark("cuStreamWaitEvent", event)?;
        self.queue("cuStreamWaitEvent", stream)?.push(move || {
            if let Some(mark) = mark {
                mark.queue.reach(mark.ticket);
            }
            Ok(())
        });
        Ok(())
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize, stream: Handle) -> DriverCall<()> {
        self.enqueue_copy("cuMemcpyHtoDAsync", to as *mut u8, from, bytes, stream)
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize, stream: Handle) -> DriverCall<()> {
        self.downloaded.fetch_add(bytes, Ordering::Relaxed);
        self.enqueue_copy("cuMemcpyDtoHAsync", to, from as *const u8, bytes, stream)
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize, stream: Handle) -> DriverCall<()> {
        self.enqueue_copy("cuMemcpyAsync", to as *mut u8, from as *const u8, bytes, stream)
    }

    unsafe fn clear(&self, to: Address, bytes: usize, stream: Handle) -> DriverCall<()> {
        self.queue("cuMemsetD8Async", stream)?.push(move || {
            // SAFETY: the driver's contract.
            unsafe { (to as *mut u8).write_bytes(0, bytes) };
            Ok(())
        });
        Ok(())
    }

    fn load_module(&self, image: &[u8]) -> DriverCall<Handle> {
        let call = "cuModuleLoadData";
        let mut file = tempfile::NamedTempFile::new().map_err(|error| failed(call, error.to_string()))?;
        // As the real driver compiles PTX, this one compiles what begins as PTX of ours does: with a comment.
        let compiled = match std::str::from_utf8(image) {
            Ok(text) if text.starts_with("//") => {
                compiler::build("ptx", text).map_err(|error| failed(call, error.to_string()))?
            }
            _ => image.to_vec(),
        };
        file.write_all(&compiled).map_err(|error| failed(call, error.to_string()))?;
        let path = CString::new(file.path().as_os_str().as_bytes()).map_err(|error| failed(call, error.to_string()))?;
        // SAFETY: the image is one that `Gxx` made; it runs nothing when it is loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(failed(call, loader_error()));
        }
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
        lock(&self.modules).insert(handle, Library(library));
        Ok(handle)
    }

    unsafe fn unload_module(&self, module: Handle) -> DriverCall<()> {
        lock(&self.modules).remove(&module).map(drop).ok_or_else(invalid("cuModuleUnload"))
    }

    fn function(&self, module: Handle, name: &str) -> DriverCall<Handle> {
        let call = "cuModuleGetFunction";
        let symbol = CString::new(name).map_err(|error| failed(call, error.to_string()))?;
        let modules = lock(&self.modules);
        let library = modules.get(&module).ok_or_else(invalid(call))?;
        // SAFETY: the library is open.
        let entry = unsafe { libc::dlsym(library.0, symbol.as_ptr()) };
        if entry.is_null() {
            return Err(failed(call, loader_error()));
        }
        // SAFETY: what `SINEW_KERNEL` exports under the kernel's name has this type.
        let entry = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Launch)>(entry) };
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
        let function = Function { entry, name: name.to_owned(), shared_allowed: SHARED_DEFAULT };
        lock(&self.functions).insert(handle, function);
        Ok(handle)
    }

    fn allow_shared(&self, function: Handle, bytes: u32) -> DriverCall<()> {
        let call = "cuFuncSetAttribute";
        let mut functions = lock(&self.functions);
        let function = functions.get_mut(&function).ok_or_else(invalid(call))?;
        if bytes as usize > SHARED_BYTES {
            return Err(invalid(call)());
        }
        function.shared_allowed = bytes;
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: Handle,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: &[u8],
    ) -> DriverCall<()> {
        let call = "cuLaunchKernel";
        let function = lock(&self.functions).get(&function).cloned().ok_or_else(invalid(call))?;
        let [x, y, z] = grid;
        let in_bounds = x > 0 && x <= i32::MAX as u32 && (1..=65_535).contains(&y) && (1..=65_535).contains(&z);
        if !in_bounds || !(1..=1024).contains(&block) || shared_bytes > function.shared_allowed {
            let what = format!("{grid:?} blocks of {block} threads with {shared_bytes} bytes of shared memory");
            return Err(failed(call, format!("{}: invalid argument: {what}", function.name)));
        }
        // Words, so that the kernel's struct is aligned.
        let mut words = vec![0u64; parameters.len().div_ceil(size_of::<u64>())];
        // SAFETY: there is room for as many bytes.
        unsafe { words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(parameters.as_ptr(), parameters.len()) };
        let (parameter_bytes, memory) = (parameters.len() as u32, self.memory.clone());
        let order = self.launches.fetch_add(1, Ordering::Relaxed);
        self.queue(call, stream)?.push(move || {
            let total = u64::from(x) * u64::from(y) * u64::from(z);
            let blocks = |first: u64, step: u64| {
                let mut message = [0u8; 512];
                let mut launch = Launch {
                    grid,
                    block,
                    shared_bytes,
                    parameter_bytes,
                    first,
                    step,
                    order,
                    message_bytes: message.len() as u32,
                    parameters: words.as_ptr().cast(),
                    message: message.as_mut_ptr().cast(),
                };
                // SAFETY: the driver's contract for what the kernel reaches; the struct is the shim's.
                unsafe { (function.entry)(&mut launch) };
                let text: Vec<u8> = message.into_iter().take_while(|&byte| byte != 0).collect();
                if text.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&text).into_owned()) }
            };
            let workers = WORKERS.min(total);
            let outcome = std::thread::scope(|scope| {
                let others: Vec<_> = (1..workers).map(|first| scope.spawn(move || blocks(first, workers))).collect();
                let own = blocks(0, workers);
                let died = |_| Err("a thread died".to_owned());
                others.into_iter().fold(own, |so_far, other| so_far.and(other.join().unwrap_or_else(died)))
            });
            let outcome = outcome.and_then(|()| memory.check_guards());
            outcome.map_err(|reason| failed(call, format!("{}: {reason}", function.name)))
        });
        Ok(())
    }
}

impl fmt::Debug for HostDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostDriver({} streams, {} modules)", lock(&self.streams).len(), lock(&self.modules).len())
    }
}
