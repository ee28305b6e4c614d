//! Ctrl-C.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when Ctrl-C was pressed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a process that SIGINT ended.
pub const INTERRUPTED_CODE: u8 = 130;

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on Ctrl-C asks the running answer to end; pressed again it ends the process.
pub fn catch_interrupts() {
    // Without a handler Ctrl-C ends the process at once, which leaves nothing broken either.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED_CODE.into());
        }
    });
}

/// [`catch_interrupts`] for a program that answers many times: while an answer runs Ctrl-C ends it, and otherwise the
/// process.
pub fn await_interrupts(answering: bool) {
    static CAUGHT: Once = Once::new();
    CAUGHT.call_once(catch_interrupts);
    INTERRUPTED.store(!answering, Ordering::Relaxed);
}
