//! Limits on what one rendering may use: steps, time, memory and text.
//!
//! Templates come with a checkpoint, so they may be hostile. Everything that makes a value charges its size here
//! before it makes it, and everything that works charges its steps.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::error::{Result, fail};

/// Maximum number of steps of one rendering. Long conversations take some ten thousand.
const MAX_STEPS: u64 = 5_000_000;
/// Maximum time of one rendering, for steps that are slower than usual.
const MAX_TIME: Duration = Duration::from_secs(5);
/// How many steps pass between two looks at the clock.
const STEPS_PER_LOOK: u64 = 1024;
/// Maximum bytes of one text. A context of a million tokens has about as many.
pub(super) const MAX_TEXT: usize = 4 << 20;
/// Maximum bytes of all values made in one rendering.
const MAX_MADE: usize = 64 << 20;
/// Maximum bytes of all text written in one rendering, to the result or to a block that captures it.
const MAX_WRITTEN: usize = 16 << 20;
/// Bytes that count as one step when a text is read.
const BYTES_PER_STEP: usize = 256;
/// Bytes charged for a value beside its text, and for each item of a list.
const VALUE_BYTES: usize = 32;
/// Bytes charged for each entry of a dict: key, value, and a place in the index.
const ENTRY_BYTES: usize = 128;
/// Maximum nesting of statements, expressions and calls while a template runs; each takes a piece of the stack.
const MAX_DEPTH: usize = 400;

/// The use of one rendering so far.
pub(super) struct Budget {
    steps: Cell<u64>,
    next_look: Cell<u64>,
    made: Cell<usize>,
    written: Cell<usize>,
    depth: Cell<usize>,
    end: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            steps: Cell::new(0),
            next_look: Cell::new(STEPS_PER_LOOK),
            made: Cell::new(0),
            written: Cell::new(0),
            depth: Cell::new(0),
            end: Instant::now() + MAX_TIME,
        }
    }

    /// Counts `count` steps, and looks at the clock now and then.
    pub(super) fn steps(&self, count: usize) -> Result<()> {
        let steps = self.steps.get().saturating_add(count as u64);
        self.steps.set(steps);
        if steps > MAX_STEPS {
            fail!("the template takes more than {MAX_STEPS} steps");
        }
        if steps >= self.next_look.get() {
            self.next_look.set(steps + STEPS_PER_LOOK);
            if Instant::now() > self.end {
                fail!("the template takes longer than {} s", MAX_TIME.as_secs());
            }
        }
        Ok(())
    }

    /// Counts the steps of reading a text of so many bytes.
    pub(super) fn reading(&self, bytes: usize) -> Result<()> {
        self.steps(1 + bytes / BYTES_PER_STEP)
    }

    /// Charges a text of so many bytes.
    pub(super) fn text(&self, bytes: usize) -> Result<()> {
        check_text(bytes)?;
        self.reading(bytes)?;
        self.made(VALUE_BYTES.saturating_add(bytes))
    }

    /// Charges places for so many values.
    pub(super) fn items(&self, count: usize) -> Result<()> {
        self.made(VALUE_BYTES.saturating_mul(count))
    }

    /// Charges so many entries of a dict, scope or namespace.
    pub(super) fn entries(&self, count: usize) -> Result<()> {
        self.made(ENTRY_BYTES.saturating_mul(count))
    }

    fn made(&self, bytes: usize) -> Result<()> {
        let made = self.made.get().saturating_add(bytes);
        self.made.set(made);
        if made > MAX_MADE {
            fail!("the template makes values of more than {} MiB", MAX_MADE >> 20);
        }
        Ok(())
    }

    /// Counts text that goes to the result or to a block that captures it.
    pub(super) fn written(&self, bytes: usize) -> Result<()> {
        let written = self.written.get().saturating_add(bytes);
        self.written.set(written);
        if written > MAX_WRITTEN {
            fail!("the template writes more than {} MiB of text", MAX_WRITTEN >> 20);
        }
        Ok(())
    }

    /// Runs `inner` one level deeper.
    pub(super) fn deeper<T>(&self, inner: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.depth.get() >= MAX_DEPTH {
            fail!("the template's recursion is deeper than {MAX_DEPTH} levels");
        }
        self.depth.set(self.depth.get() + 1);
        let result = inner();
        self.depth.set(self.depth.get() - 1);
        result
    }
}

/// Refuses a text of more bytes than one may have.
pub(super) fn check_text(bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT {
        fail!("a text of {bytes} bytes is more than the {MAX_TEXT} that a template may make");
    }
    Ok(())
}
