//! An arena: one span of memory for the activations of a step, handed out from the bottom up.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Buffer, Bytes, Device, Error, Event, Home, Husk, Reclaim, Result, Span};

/// What an [`Arena`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes in all.
    pub capacity: usize,
    /// Bytes below the top: those of buffers, of gaps between them, and what ended scopes have not got back yet.
    pub used: usize,
    /// The most that `used` has been.
    pub high_water: usize,
    /// Buffers alive, or still used by a stream.
    pub live_buffers: usize,
    /// Bytes of those.
    pub live_bytes: usize,
}

/// One span of a device's memory for activations, handed out from the bottom up and taken back by scopes.
///
/// Inside a scope nothing is reused, so the offsets follow from the sizes alone and a plan can predict them
/// ([`ArenaPlan`]). When the scope ends, its bytes are free again, except that a buffer that is still alive (or that a
/// stream still uses) keeps its bytes, and the top of the arena stays above it until it is gone. Bytes of a live buffer
/// are never handed out twice, in whatever order buffers and scopes end. A buffer made outside every scope is taken
/// back when it and everything above it is gone.
///
/// ```
/// use sinew_memory::{Arena, Cpu};
///
/// let arena = Arena::planned(&Cpu::get(), 4096)?;
/// let kept = arena.scope(|arena| {
///     let _scratch = arena.uninitialised(1000)?;
///     arena.uninitialised(1000)
/// })?;
/// assert_eq!(arena.stats().live_bytes, 1000);
/// drop(kept);
/// assert_eq!(arena.stats().used, 0);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// An arena of `bytes` bytes, allocated on a device: the number that a plan found, see [`ArenaPlan::bytes`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn planned(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        Self::in_buffer(Buffer::uninitialised(device, bytes)?)
    }

    /// An arena in a buffer, for example one from a pool, to which it returns after the arena and its last buffer.
    ///
    /// # Errors
    /// [`Error::Shared`] or [`Error::ReadOnly`] where the buffer is not the caller's alone to write.
    pub fn in_buffer(mut buffer: Buffer) -> Result<Self> {
        buffer.check_writable()?;
        buffer.settle()?;
        let alignment = buffer.device().alignment().max(1).next_power_of_two();
        let state = State { entries: Vec::new(), top: 0, high_water: 0, next_ticket: 0, open_scopes: 0 };
        Ok(Self { shared: Arc::new(Shared { buffer, alignment, state: Mutex::new(state) }) })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.buffer.device()
    }

    /// Alignment of every buffer, relative to the arena's first byte.
    pub fn alignment(&self) -> usize {
        self.shared.alignment
    }

    /// The next `bytes` bytes. Nothing writes them first: they may hold what an earlier buffer held.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where they do not fit below the arena's end.
    pub fn uninitialised(&self, bytes: usize) -> Result<Buffer> {
        let (span, ticket) = self.shared.allocate(bytes)?;
        let home = Home { allocator: self.shared.clone(), ticket };
        // SAFETY: the span lies in the arena's buffer, which is its own. It starts at or above the ends of all entries
        // that are left, and an entry leaves only in `release`, when its buffer is gone and its streams are done.
        Ok(unsafe { Buffer::from_span(self.device(), span, Some(home)) })
    }

    /// Runs `f` in a scope: see [`Arena::enter`].
    pub fn scope<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        let _scope = self.enter();
        f(self)
    }

    /// Opens a scope, which ends when the guard is dropped. What was allocated since is then free, unless it lives.
    ///
    /// Scopes nest. Scopes of several threads may overlap: bytes of live buffers are safe, but offsets then depend on
    /// the order in which threads come.
    pub fn enter(&self) -> ArenaScope<'_> {
        let mut state = self.shared.lock();
        let garbage = state.release();
        state.open_scopes += 1;
        let mark = state.next_ticket;
        drop(state);
        drop(garbage);
        ArenaScope { arena: self, mark }
    }

    /// Sizes now.
    pub fn stats(&self) -> ArenaStats {
        let mut state = self.shared.lock();
        let mut garbage = state.release();
        for entry in &mut state.entries {
            entry.poll(&mut garbage);
        }
        let live = || state.entries.iter().filter(|entry| entry.used != Use::Gone);
        let stats = ArenaStats {
            capacity: self.shared.buffer.len(),
            used: state.top,
            high_water: state.high_water,
            live_buffers: live().count(),
            live_bytes: live().map(|entry| entry.bytes.len()).sum(),
        };
        drop(state);
        drop(garbage);
        stats
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArenaStats { capacity, used, high_water, .. } = self.stats();
        write!(f, "Arena({} of {} used, high water {})", Bytes(used), Bytes(capacity), Bytes(high_water))
    }
}

/// An open scope of an [`Arena`]; it ends when this is dropped.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub struct ArenaScope<'a> {
    arena: &'a Arena,
    /// Tickets from here on belong to the scope.
    mark: u64,
}

impl Drop for ArenaScope<'_> {
    fn drop(&mut self) {
        let mut state = self.arena.shared.lock();
        state.open_scopes -= 1;
        let first = state.entries.partition_point(|entry| entry.ticket < self.mark);
        for entry in &mut state.entries[first..] {
            entry.scope_ended = true;
        }
        let garbage = state.release();
        drop(state);
        drop(garbage);
    }
}

/// The size of an arena, found by going through its allocations without memory.
///
/// Buffers are taken to be gone when their scope ends; one that outlives it needs the bytes above it too.
///
/// ```
/// use sinew_memory::ArenaPlan;
///
/// let mut plan = ArenaPlan::new(64);
/// plan.allocate(100)?;
/// for _layer in 0..32 {
///     plan.scope(|plan| {
///         plan.allocate(1000)?;
///         plan.allocate(1000)
///     })?;
/// }
/// assert_eq!(plan.bytes(), 128 + 1024 + 1000);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ArenaPlan {
    alignment: usize,
    top: usize,
    high_water: usize,
}

impl ArenaPlan {
    /// An empty plan for a device of that alignment.
    pub fn new(alignment: usize) -> Self {
        Self { alignment: alignment.max(1).next_power_of_two(), top: 0, high_water: 0 }
    }

    /// Plans a buffer, and returns the offset that it will have.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the sizes add up to more than can be addressed.
    pub fn allocate(&mut self, bytes: usize) -> Result<usize> {
        let range = next_range(self.top, bytes, self.alignment)
            .ok_or_else(|| Error::Invalid(format!("a plan of {} + {bytes} bytes cannot be addressed", self.top)))?;
        self.top = range.end;
        self.high_water = self.high_water.max(range.end);
        Ok(range.start)
    }

    /// Plans a scope.
    pub fn scope<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mark = self.top;
        let result = f(self);
        self.top = mark;
        result
    }

    /// Bytes that an arena needs for all of it: the high-water mark.
    pub fn bytes(&self) -> usize {
        self.high_water
    }
}

/// The aligned range of `bytes` bytes at or above `top`.
fn next_range(top: usize, bytes: usize, alignment: usize) -> Option<Range<usize>> {
    let start = top.checked_next_multiple_of(alignment)?;
    Some(start..start.checked_add(bytes)?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Live,
    /// The buffer is gone, but streams may still be at work on the bytes.
    Pending,
    Gone,
}

struct Entry {
    ticket: u64,
    bytes: Range<usize>,
    used: Use,
    /// Mark the last uses, while pending.
    events: Events,
    /// The scope it was made in is over, or it was made in none.
    scope_ended: bool,
}

/// Events belong to devices: they are dropped after unlocking, since that may take long or come back to the arena.
type Events = Vec<Arc<dyn Event>>;

impl Entry {
    /// Notes whether streams are done with it, and moves its events out if so.
    fn poll(&mut self, garbage: &mut Events) {
        if self.used == Use::Pending && self.events.iter().all(|event| event.is_complete()) {
            self.used = Use::Gone;
            garbage.append(&mut self.events);
        }
    }
}

struct State {
    /// In the order of tickets, which is the order of offsets too.
    entries: Vec<Entry>,
    /// The end of the last entry.
    top: usize,
    high_water: usize,
    next_ticket: u64,
    open_scopes: usize,
}

impl State {
    /// Lowers the top past entries whose scope ended and that nobody uses. Returns what to drop after unlocking.
    fn release(&mut self) -> Events {
        let mut garbage = Vec::new();
        while let Some(last) = self.entries.last_mut().filter(|last| last.scope_ended) {
            last.poll(&mut garbage);
            if last.used != Use::Gone {
                break;
            }
            self.entries.pop();
        }
        self.top = self.entries.last().map_or(0, |entry| entry.bytes.end);
        garbage
    }
}

struct Shared {
    buffer: Buffer,
    alignment: usize,
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn allocate(&self, bytes: usize) -> Result<(Span, u64)> {
        let mut state = self.lock();
        // Dropped last, when the lock is open again.
        let mut garbage = state.release();
        loop {
            let range = next_range(state.top, bytes, self.alignment).filter(|range| range.end <= self.buffer.len());
            if let Some(range) = range {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.top = range.end;
                state.high_water = state.high_water.max(range.end);
                let scope_ended = state.open_scopes == 0;
                debug_assert!(state.entries.last().is_none_or(|last| last.bytes.end <= range.start));
                let whole = self.buffer.span();
                let span = Span { storage: whole.storage.clone(), offset: whole.offset + range.start, len: bytes };
                state.entries.push(Entry { ticket, bytes: range, used: Use::Live, events: Vec::new(), scope_ended });
                drop(state);
                return Ok((span, ticket));
            }
            // Streams may still be at work on what ended scopes have given back: wait for the last, look again.
            let last = state.entries.last().filter(|entry| entry.scope_ended && entry.used == Use::Pending);
            let Some(events) = last.map(|entry| entry.events.clone()) else {
                let error = self.full(&state, bytes);
                drop(state);
                return Err(error);
            };
            drop(state);
            for event in &events {
                event.synchronize()?;
            }
            let done = events.iter().all(|event| event.is_complete());
            garbage.extend(events);
            state = self.lock();
            if !done {
                let error = self.full(&state, bytes);
                drop(state);
                return Err(error);
            }
            garbage.append(&mut state.release());
        }
    }

    fn full(&self, state: &State, asked: usize) -> Error {
        let capacity = self.buffer.len();
        let live = state.entries.iter().filter(|entry| entry.used != Use::Gone);
        let (count, bytes) = live.fold((0, 0), |(n, sum), entry| (n + 1, sum + entry.bytes.len()));
        let start = state.top.checked_next_multiple_of(self.alignment).unwrap_or(capacity);
        Error::OutOfMemory {
            device: self.buffer.device().id(),
            asked,
            available: capacity - state.top,
            total: capacity,
            holders: Some(format!("an arena with {} in {count} live buffers", Bytes(bytes))),
            fits: capacity.saturating_sub(start),
        }
    }
}

impl Reclaim for Shared {
    fn reclaim(&self, ticket: u64, events: Vec<Arc<dyn Event>>, _husk: Option<Husk>) {
        let mut state = self.lock();
        if let Ok(index) = state.entries.binary_search_by_key(&ticket, |entry| entry.ticket) {
            let entry = &mut state.entries[index];
            debug_assert_eq!(entry.used, Use::Live, "a buffer came back twice");
            entry.used = if events.is_empty() { Use::Gone } else { Use::Pending };
            entry.events = events;
        }
        let garbage = state.release();
        drop(state);
        drop(garbage);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        for event in state.entries.iter().flat_map(|entry| &entry.events) {
            // A failed stream is no longer at work; there is nobody left to tell.
            drop(event.synchronize());
        }
    }
}
