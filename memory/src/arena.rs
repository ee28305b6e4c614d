//! An arena: one span of memory for the activations of a model, cut from the bottom up.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{Buffer, Bytes, Error, Event, Home, Husk, Pool, Reclaim, Result, Span};

/// One span of a device's memory that buffers are cut from, from the bottom up, as large as a plan says
/// ([`ArenaPlan`]): for what is made once and lives as long as a model.
///
/// Bytes are not handed out twice, so that the size follows from those of the buffers alone, and no buffer is rounded up
/// to a size class. All of it goes back when the arena and the last of its buffers are gone.
///
/// ```
/// use sinew_memory::{Arena, ArenaPlan, Cpu, Pool, PoolConfig};
///
/// let pool = Pool::new(Cpu::get(), PoolConfig::default());
/// let mut plan = ArenaPlan::new(pool.device().alignment());
/// let sizes = [1000, 24];
/// sizes.map(|bytes| plan.allocate(bytes));
/// assert_eq!(plan.bytes(), 1024 + 24);
///
/// let mut arena = Arena::new(&pool, plan.bytes(), "activations")?;
/// let buffers = sizes.map(|bytes| arena.allocate(bytes));
/// assert!(buffers.iter().all(Result::is_ok) && arena.allocate(1).is_err());
/// drop((arena, buffers));
/// assert!(pool.report().live.is_empty());
/// # Ok::<(), sinew_memory::Error>(())
/// ```
pub struct Arena {
    whole: Arc<Whole>,
    cut: ArenaPlan,
}

impl Arena {
    /// An arena of `bytes` bytes, which a plan [found](ArenaPlan::bytes), with [memory of its own](Pool::allocate_apart)
    /// that counts under `tag`.
    ///
    /// # Errors
    /// Those of [`Pool::allocate`].
    pub fn new(pool: &Pool, bytes: usize, tag: &str) -> Result<Self> {
        let whole = Arc::new(Whole(pool.allocate_apart(bytes, tag)?));
        Ok(Self { whole, cut: ArenaPlan::new(pool.device().alignment()) })
    }

    /// The next `bytes` bytes, with unspecified but initialised contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where they do not fit below the arena's end.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer> {
        let Whole(whole) = &*self.whole;
        let range = self.cut.next(bytes).filter(|range| range.end <= whole.len()).ok_or_else(|| self.full(bytes))?;
        let span =
            Span { storage: whole.span().storage.clone(), offset: whole.span().offset + range.start, len: bytes };
        let home = Home { allocator: self.whole.clone(), ticket: 0 };
        self.cut.end = range.end;
        // SAFETY: the span lies in `whole`, through which nobody reads or writes, and begins where all before it end.
        Ok(unsafe { Buffer::from_span(whole.device(), span, Some(home)) })
    }

    fn full(&self, asked: usize) -> Error {
        let Whole(whole) = &*self.whole;
        let total = whole.len();
        Error::OutOfMemory {
            device: whole.device().id(),
            asked,
            available: total - self.cut.end,
            total,
            holders: Some(format!("an arena of which {} are cut", Bytes(self.cut.end))),
            fits: self.cut.next(0).map_or(0, |next| total.saturating_sub(next.start)),
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} cut)", Bytes(self.cut.end), Bytes(self.whole.0.len()))
    }
}

/// What an arena is cut from, which its buffers hold.
struct Whole(Buffer);

impl Reclaim for Whole {
    fn reclaim(&self, _: u64, _: Vec<Arc<dyn Event>>, husk: Option<Husk>) {
        // Bytes are not handed out again, and work that is still queued holds the storage itself.
        drop(husk);
    }
}

/// The size of an arena, found by going through its allocations without memory.
#[derive(Clone, Debug)]
pub struct ArenaPlan {
    alignment: usize,
    end: usize,
}

impl ArenaPlan {
    /// An empty plan for a device of that [alignment](crate::Device::alignment).
    pub fn new(alignment: usize) -> Self {
        Self { alignment: alignment.max(1).next_power_of_two(), end: 0 }
    }

    /// Plans a buffer.
    pub fn allocate(&mut self, bytes: usize) {
        self.end = self.next(bytes).map_or(usize::MAX, |range| range.end);
    }

    /// Bytes that an arena needs for all of them; the largest number where they are more.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Where the next `bytes` bytes are; nowhere where they end beyond what can be counted.
    fn next(&self, bytes: usize) -> Option<Range<usize>> {
        let start = self.end.checked_next_multiple_of(self.alignment)?;
        Some(start..start.checked_add(bytes)?)
    }
}
