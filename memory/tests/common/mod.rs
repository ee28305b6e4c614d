//! What the tests share: random numbers, patterns, and a device whose streams lag until they are told to go on.

#![allow(dead_code, reason = "every test binary uses a part")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sinew_memory::{
    Buffer, Cpu, Device, DeviceId, DeviceKind, Error, Event, Hardware, Location, MemoryInfo, Result, Storage, Stream,
};

/// Random operations of a test: `SINEW_OPERATIONS`, or as many as it takes by default.
pub fn operations(default: usize) -> usize {
    std::env::var("SINEW_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// SplitMix64 (Steele et al., 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// A size whose magnitude is uniform: as many below 1 KiB as between 1 KiB and 1 MiB, and so on.
    pub fn size(&mut self, max_power: usize) -> usize {
        let power = self.below(max_power + 1);
        self.below(1 << power) + self.below(2)
    }
}

/// The places of a buffer that carry its pattern: all of a small one, and every 1021st byte and the end of a large one.
fn places(len: usize) -> impl Iterator<Item = usize> {
    let step = if len <= 2048 { 1 } else { 1021 };
    (0..len).step_by(step).chain(len.checked_sub(1))
}

fn byte(seed: u64, place: usize) -> u8 {
    (seed.wrapping_add(place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn fill(buffer: &mut Buffer, seed: u64) {
    let bytes = buffer.as_mut_slice::<u8>().expect("a host buffer with one handle");
    for place in places(bytes.len()) {
        bytes[place] = byte(seed, place);
    }
}

pub fn assert_filled(buffer: &Buffer, seed: u64) {
    let bytes = buffer.as_slice::<u8>().expect("a host buffer");
    for place in places(bytes.len()) {
        assert_eq!(bytes[place], byte(seed, place), "byte {place} of {buffer:?} was overwritten");
    }
}

/// A device over host memory that has a size, counts what is taken from it, and whose streams lag: their work is done
/// when the test says so, or when somebody waits for it.
#[derive(Debug)]
pub struct Lagging {
    cpu: Arc<dyn Device>,
    memory: usize,
    alignment: usize,
    pub taken: Arc<AtomicUsize>,
    pub broken: AtomicBool,
}

impl Lagging {
    pub fn new(memory: usize) -> Arc<Self> {
        Self::aligned(memory, 64)
    }
    pub fn aligned(memory: usize, alignment: usize) -> Arc<Self> {
        Arc::new(Self { cpu: Cpu::get(), memory, alignment, taken: Arc::default(), broken: AtomicBool::new(false) })
    }
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Storage>,
    taken: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.inner.len(), Ordering::SeqCst);
    }
}

// SAFETY: the storage inside keeps the contract.
unsafe impl Storage for Counted {
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn location(&self) -> Location {
        self.inner.location()
    }
    fn host_ptr(&self) -> Option<std::ptr::NonNull<u8>> {
        self.inner.host_ptr()
    }
}

impl Device for Lagging {
    fn id(&self) -> DeviceId {
        DeviceId { kind: DeviceKind("lagging"), index: 0 }
    }
    fn hardware(&self) -> &Hardware {
        self.cpu.hardware()
    }
    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.memory, available: self.memory - self.taken() })
    }
    fn alignment(&self) -> usize {
        self.alignment
    }
    fn location(&self) -> Location {
        Location::Host
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        if self.broken.load(Ordering::SeqCst) {
            let reason = "it fell off the bus".to_owned();
            return Err(Error::Device { device: self.id(), operation: "allocation".into(), reason });
        }
        let before = self.taken.fetch_add(bytes, Ordering::SeqCst);
        if before.checked_add(bytes).is_none_or(|sum| sum > self.memory) {
            self.taken.fetch_sub(bytes, Ordering::SeqCst);
            let available = self.memory - before.min(self.memory);
            let (asked, total) = (bytes, self.memory);
            return Err(Error::OutOfMemory {
                device: self.id(),
                asked,
                available,
                total,
                holders: None,
                fits: available,
            });
        }
        let inner = self.cpu.allocate(bytes).inspect_err(|_| {
            self.taken.fetch_sub(bytes, Ordering::SeqCst);
        })?;
        Ok(Arc::new(Counted { inner, taken: self.taken.clone() }))
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        Ok(LaggingStream::new(self))
    }
}

#[derive(Debug)]
pub struct LaggingStream {
    device: Arc<dyn Device>,
    events: Mutex<Vec<Arc<LaggingEvent>>>,
    /// How often somebody waited for the stream or an event of it.
    pub waits: Arc<AtomicUsize>,
}

impl LaggingStream {
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, events: Mutex::default(), waits: Arc::default() })
    }
    /// All work so far is done.
    pub fn finish(&self) {
        for event in self.events.lock().expect("not poisoned").drain(..) {
            event.done.store(true, Ordering::SeqCst);
        }
    }
}

impl Stream for LaggingStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    fn upload(&self, _src: &[u8], _dst: &mut Buffer, _offset: usize) -> Result<()> {
        unimplemented!("not needed")
    }
    fn download(&self, _src: &Buffer, _offset: usize, _dst: &mut [u8]) -> Result<()> {
        unimplemented!("not needed")
    }
    fn copy(&self, _src: &Buffer, _from: usize, _dst: &mut Buffer, _to: usize, _len: usize) -> Result<()> {
        unimplemented!("not needed")
    }
    fn record(&self) -> Result<Arc<dyn Event>> {
        let event = Arc::new(LaggingEvent { done: AtomicBool::new(false), waits: self.waits.clone() });
        self.events.lock().expect("not poisoned").push(event.clone());
        Ok(event)
    }
    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        event.synchronize()
    }
    fn synchronize(&self) -> Result<()> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        self.finish();
        Ok(())
    }
}

#[derive(Debug)]
pub struct LaggingEvent {
    done: AtomicBool,
    waits: Arc<AtomicUsize>,
}

impl Event for LaggingEvent {
    fn is_complete(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
    fn synchronize(&self) -> Result<()> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        self.done.store(true, Ordering::SeqCst);
        Ok(())
    }
}
